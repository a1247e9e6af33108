"""What a bundle says of itself: its title, and the README for whoever verifies it."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import UUID

from ..domain.facts import rfc3339
from .export_picked import Chosen, Picked
from .notes import Checkpoint

_TEXT = Path(__file__).with_suffix(".md").read_text("utf-8")
_CONTENT = (
    "What people wrote stands in clear in `sentence` and `contents`, as far as it was not erased and whoever made this "
    "has its keys: SHA-256 over `salt` and the text as UTF-8 is the digest that `fact` names, and `verify.py` holds "
    "each against it."
)
_DIGESTS = (
    "What people wrote is told by its digest alone. It is part of a row as stored, so `state` holds it: encrypted "
    "where `cipher` says so in `fact`, and else merely encoded. Handle the bundle accordingly."
)


def title(ledger: UUID, chosen: Chosen, size: int, picked: Picked) -> list[str]:
    """Tell what a bundle is about, a line each."""
    return [
        f"Evidence out of ledger {ledger}, under a head of {size} leaves.",
        "About " + ", ".join(_about(chosen)) + ".",
        f"{picked.pauses} pauses, {picked.rows} facts.",
        _unsealed(picked.unsealed),
    ]


def _about(chosen: Chosen) -> Iterator[str]:
    scope = chosen.scope
    if scope is None:
        yield "all tenants"
    else:
        yield f"tenant {_quoted(scope.tenant_id)}"
        for what, part in (("sub-tenant", scope.sub_tenant_id), ("namespace", scope.namespace)):
            yield f"no {what}" if part is None else f"{what} {_quoted(part)}"
    if chosen.pause is not None:
        yield f"pause {chosen.pause}"
    for what, named in (("session", chosen.session_id), ("run", chosen.run_id)):
        if named is not None:
            yield f"{what} {_quoted(named)}"
    for what, at in (("from", chosen.begins), ("before", chosen.ends)):
        if at is not None:
            yield f"{what} {rfc3339(at)}"


def _quoted(chosen: str) -> str:
    """Quote what a host chose, so that nothing in it is taken for the page's own words or marks."""
    return "`{}`".format(json.dumps(chosen).replace("`", "\\u0060"))


def _unsealed(count: int) -> str:
    if not count:
        return "No fact of these pauses was waiting to be sealed when this was made."
    facts = "1 fact that belongs here was" if count == 1 else f"{count} facts that belong here were"
    return f"{facts} not under that head yet when this was made, and left out: seal, and export again."


def readme(telling: Sequence[str], picked: Picked, kept: Sequence[str], *, content: bool) -> str:
    """Write the README of a bundle."""
    sizes = [Checkpoint.of(one).size for one in kept]
    return _TEXT.format(
        about="\n".join(telling[:3]),
        head=" --head ../head.txt" if sizes else "",
        kept=f"\n`../head.txt` is the head you kept, of {' or '.join(map(str, sizes))} leaves." if sizes else "",
        unsealed=_unsealed(picked.unsealed),
        content=_CONTENT if content else _DIGESTS,
    )
