"""The command line's evidence: seal, head, prove, check."""

import asyncio
import contextlib
import dataclasses
import functools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ParamSpec, Self, TypeVar
from uuid import UUID

import typer

from ..domain.commands import Actor
from ..domain.errors import InteractionConfigurationError, RequestMissing, StoreUnavailable
from ..domain.facts import rfc3339
from ..domain.ids import Identity
from ..domain.readings import Reads
from .anchors import anchor_of
from .check import Checked
from .check_apart import Opening
from .check_tables import unreadable
from .check_tree import Kept
from .checking import check_ledger
from .cli_inputs import Where, grouped, in_ledger
from .cli_shapes import Outcome
from .cli_views import bar
from .keys import KEY_FILE, VAULT_ENVIRONMENT, KeyFile, KeyRing
from .log_key import log_signer
from .merkle import Unproved
from .notary import AnchorsSilent, Notary
from .notes import Checkpoint, Verifier, hashes_as_text
from .patient import read_patiently
from .readings import record_reading
from .sealed import NO_HEAD, SealedRows, SignedHead, sealed_rows
from .sealer import Sealing, prove_consistency
from .sealer import prove as prove_leaf
from .settings import KEYS_VARIABLE, keys_directory, store_url
from .version import __version__
from .wiring import Ledger, embedded

P = ParamSpec("P")
T = TypeVar("T")

evidence = typer.Typer()

Auditor = Annotated[
    str | None, typer.Option(metavar="NAME", help="Who reads: written down first, as a fact in a stream of its own.")
]


def proving(work: Callable[P, Outcome]) -> Callable[P, Outcome]:
    """Tell what does not hold together as faults found, exit code 5."""

    @functools.wraps(work)
    def tried(*args: P.args, **kwargs: P.kwargs) -> Outcome:
        try:
            return work(*args, **kwargs)
        except Unproved as broken:
            return Outcome({"outcome": "faults", "says": str(broken)}, [f"fault   {broken}"])

    return tried


@evidence.command()
@grouped
@proving
def seal(
    where: Where,
    *,
    anchor: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Keep the head outside: file:///path, git:///repository, https://..., or "
            "tsa+https://...?into=DIR&roots=PEM. May be repeated.",
        ),
    ] = None,
    every: Annotated[
        float | None, typer.Option(metavar="SECONDS", min=0.1, help="Seal again so often, until SIGINT or SIGTERM.")
    ] = None,
) -> Outcome:
    """Put what the log holds into the tree, sign its head, and keep it outside. Any number may seal; one does."""
    settings = dataclasses.replace(where.settings(), anchors=[anchor_of(one) for one in anchor or ()], anchor_seconds=0)

    async def work(ledger: Ledger) -> Sealing:
        notary = ledger.notary(make_key=embedded(store_url(where.store)))
        return await (asyncio.to_thread(notary.seal) if every is None else _again_and_again(notary, every))

    done = in_ledger(where, work, settings)
    shape = {"outcome": "faults" if done.late else "sealed", **dataclasses.asdict(done), "late": list(done.late)}
    late = [f"fault   a row turned up late, at position {at}; it is leaf {done.size} or below" for at in done.late]
    none = "there is no log key; `pauseledger keys log` makes one" if done.size else "the ledger has no rows yet"
    head = done.head or f"no head was signed: {none}"
    return Outcome(shape, [f"sealed  {done.sealed} more, {done.size} in all", *late, *head.splitlines()])


async def _again_and_again(notary: Notary, every: float) -> Sealing:
    told, loop = asyncio.Event(), asyncio.get_running_loop()
    for word in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(word, told.set)
    typer.echo(f"seal    again every {every:g} s, until SIGINT (ctrl-C) or SIGTERM", err=True)
    done = Sealing(0, 0)
    try:
        while not told.is_set():
            done = await asyncio.to_thread(_once_more, notary, done)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(told.wait(), every)
    finally:
        for word in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(word)
    return done


def _once_more(notary: Notary, done: Sealing) -> Sealing:
    """Seal again; a store or an anchor that cannot speak is told on stderr, and tried the next time."""
    try:
        more = notary.seal()
    except AnchorsSilent as silent:
        typer.echo(f"waits   {silent}", err=True)
        more = silent.done
    except StoreUnavailable as gone:
        typer.echo(f"waits   {gone}", err=True)
        return done
    return Sealing(done.sealed + more.sealed, more.size, [*done.late, *more.late], more.head)


@evidence.command()
@grouped
@proving
def head(
    where: Where,
    *,
    since: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Prove as well that the log begins with this older head, kept outside."),
    ] = None,
    auditor: Auditor = None,
) -> Outcome:
    """Print the newest signed head, to be kept where the database's owner cannot change it."""
    with Opened(where) as opened:
        opened.recorded(auditor, "head")
        newest = opened.head()
        found = Checkpoint.of(newest.checkpoint)
        path: list[bytes] | None = None
        if since is not None:
            path = _since(opened.rows, since, found)
    shape = {
        "outcome": "head",
        "origin": found.origin,
        "size": found.size,
        "root": found.root.hex(),
        "made_at": rfc3339(newest.made_at),
        "checkpoint": newest.checkpoint,
    }
    if path is None:
        return Outcome(shape, newest.checkpoint.splitlines())
    lines = hashes_as_text(path).splitlines()
    return Outcome({**shape, "consistency": lines}, [*newest.checkpoint.splitlines(), "", *lines])


def _since(rows: SealedRows, kept: Path, newest: Checkpoint) -> list[bytes]:
    try:
        return prove_consistency(rows, Checkpoint.of(text_in(kept)), newest)
    except Unproved as broken:
        raise Unproved(f"{broken} (kept in {kept})") from None


@evidence.command()
@grouped
@proving
def prove(
    where: Where,
    pause: Annotated[UUID, typer.Argument(metavar="PAUSE", help="The pause's id.")],
    *,
    version: Annotated[int | None, typer.Option(min=1, help="Of this fact alone, by its version.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write each as DIR/LEAF.tlog-proof.")] = None,
    auditor: Auditor = None,
) -> Outcome:
    """Prove each fact of a pause under the newest head: a C2SP tlog-proof each, offline, for whoever has the key."""
    with Opened(where) as opened:
        opened.recorded(auditor, "prove", pause)
        facts = opened.facts(pause, version)
        newest = opened.head().checkpoint
        size = Checkpoint.of(newest).size
        if any(fact["leaf_index"] is None or fact["leaf_index"] >= size for fact in facts):
            raise InteractionConfigurationError(
                "some of it is not under the newest head yet; run `pauseledger seal`, then prove again"
            )
        proofs = {fact["leaf_index"]: prove_leaf(opened.rows, fact["leaf_index"], newest).text() for fact in facts}
    lines = [f"leaf    {one['leaf_index']}  {one['topic']}, version {one['version']}" for one in facts]
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
            for index, text in proofs.items():
                (out / f"{index}.tlog-proof").write_text(text, "utf-8")
        except OSError as failed:
            raise InteractionConfigurationError(f"cannot write into {out}: {failed.strerror}") from None
        return Outcome(
            {"outcome": "proved", "facts": facts, "files": [f"{index}.tlog-proof" for index in proofs]}, lines
        )
    told = [{**fact, "proof": proofs[fact["leaf_index"]]} for fact in facts]
    if len(facts) == 1:
        lines = next(iter(proofs.values())).splitlines()
    return Outcome({"outcome": "proved", "facts": told}, lines)


@evidence.command()
@grouped
def check(
    where: Where,
    *,
    head: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A head kept outside, to hold the ledger against. May be repeated."),
    ] = None,
    public_key: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="The public key that heads are signed with, as `keys log` prints it. May be repeated. Left out, "
            "the key that is here.",
        ),
    ] = None,
    no_views: Annotated[bool, typer.Option("--no-views", help="Leave the views out, which take longest.")] = False,
    auditor: Auditor = None,
) -> Outcome:
    """Re-read everything and prove it: rows, streams, rounds, tree, heads, vault, views. Exit code 5 on any fault."""
    keys = [key_in(one) for one in public_key or ()]
    heads = [Kept(text_in(one), f"kept in {one}") for one in head or ()]
    with Opened(where) as opened, bar("checking") as progress:
        broken = unreadable(opened.recorder)
        if broken:
            return _checked(Checked(broken, len(broken)), "nothing")
        opened.recorded(auditor, "check")
        if not keys:
            signer = log_signer(opened.recorder.settings().ledger_id, keys_directory(where.keys_dir))
            keys += [signer.verifier] if signer else []
        opening = None if no_views else Opening.of(store_url(where.store), where.settings())
        ring = opened.vault_keys()
        done = check_ledger(opened.recorder, opening, keys=keys, heads=heads, ring=ring, progress=progress)
        headless = not heads and opened.rows.newest_head() is None
        return _checked(done, NO_HEAD if headless else _under(done))


def _under(checked: Checked) -> str:
    key = "" if checked.signed else "; nobody's signature was asked for: give --public-key"
    return f"{checked.proved} leaves under the largest head that holds{key}"


def _checked(checked: Checked, proved: str) -> Outcome:
    shape = {
        "outcome": "faults" if checked.found else "checked",
        "found": checked.found,
        "faults": [
            {name: str(value) if isinstance(value, UUID) else value for name, value in dataclasses.asdict(one).items()}
            for one in checked.faults
        ],
        "rows": checked.rows,
        "leaves": checked.leaves,
        "unsealed": checked.unsealed,
        "proved": checked.proved,
        "signed": checked.signed,
    }
    found = [f"faults  {checked.found} in all, the first {len(checked.faults)} shown"]
    lines = [
        *(f"fault   {one}" for one in checked.faults),
        *(found if checked.found else ["whole   no fault was found"]),
        f"rows    {checked.rows}, {checked.leaves} of them sealed, {checked.unsealed} not yet",
        f"proved  {proved}",
    ]
    return Outcome(shape, lines)


class Opened:
    """A ledger's store and its sealed log, without the rest: no token key is used, and nothing is written."""

    def __init__(self, where: Where) -> None:
        self._settings = where.settings()
        where.must_be_there()
        self.recorder = where.recorder()
        self.rows = sealed_rows(self.recorder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.recorder.close()

    def vault_keys(self) -> KeyRing | None:
        """Read the keys that wrap the vault's data keys, where they are at hand: an auditor need not have them."""
        if self.recorder.told:
            return None
        named = os.environ.get(VAULT_ENVIRONMENT)
        if named:
            return KeyRing.from_environment(named, "vault")
        directory = keys_directory(self._settings.keys_directory)
        if os.environ.get(KEYS_VARIABLE) or not os.access(directory / KEY_FILE, os.R_OK):
            return None
        return KeyFile(directory).load_vault()

    def recorded(self, auditor: str | None, reads: Reads, about: UUID | None = None) -> None:
        """Write down who reads, where that is told."""
        if auditor is not None:
            record_reading(self.recorder, Actor(auditor), reads, writer=f"pauseledger/{__version__}", about=about)

    def head(self) -> SignedHead:
        """Read the newest head."""
        newest = self.rows.newest_head()
        if newest is None:
            raise InteractionConfigurationError(NO_HEAD)
        return newest

    def facts(self, pause: UUID, version: int | None) -> list[dict[str, Any]]:
        """List where the facts of a pause, and those of its refusal stream, stand."""
        held = self.recorder.identity()
        refusals = Identity(held.ledger_id, held.identity_key).refusals(pause)
        rows = sorted(self.recorder.load([pause, refusals]).rows, key=lambda row: row.id)
        chosen = [
            row for row in rows if version is None or (row.originator_id == pause and row.originator_version == version)
        ]
        if not chosen:
            raise RequestMissing(pause)
        indexes = self.rows.indexes([row.id for row in chosen])
        return [
            {
                "leaf_index": indexes.get(row.id),
                "position": row.id,
                "stream": str(row.originator_id),
                "version": row.originator_version,
                "topic": row.topic,
            }
            for row in chosen
        ]


def text_in(path: Path) -> str:
    """Read a file of text.

    Raises:
        InteractionConfigurationError: it cannot be read.
    """
    try:
        return read_patiently(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InteractionConfigurationError(f"cannot read {path}: {type(error).__name__}") from None


def key_in(path: Path) -> Verifier:
    """Read a file of a public key.

    Raises:
        InteractionConfigurationError: it cannot be read, or holds none.
    """
    try:
        return Verifier.parse(text_in(path))
    except Unproved as none:
        raise InteractionConfigurationError(f"{path}: {none}") from None
