"""The command line's way to evidence bundles."""

import asyncio
import dataclasses
import os
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from .cli_evidence import Auditor, Opened, key_in, proving, text_in
from .cli_inputs import Where, grouped, in_ledger
from .cli_shapes import Outcome
from .cli_views import Reach, bar, moment_of
from .export import Export, ExportCommand, require_key
from .keys import KEY_FILE, VAULT_ENVIRONMENT
from .log_key import log_signer
from .mapper import FactMapper
from .sealer import Sealing
from .settings import keys_directory, store_url
from .vault import Vault
from .wiring import Ledger, embedded, vault_ring

exports = typer.Typer()


@exports.command()
@grouped
@proving
def export(
    where: Where,
    reach: Reach,
    *,
    out: Annotated[Path, typer.Option(metavar="PATH", help="A folder that is not there or empty, or a new .zip file.")],
    pause: Annotated[UUID | None, typer.Option(help="Of this pause alone; then no tenant need be named.")] = None,
    session: Annotated[str | None, typer.Option(help="Of this session alone.")] = None,
    run: Annotated[str | None, typer.Option(help="Of this run of the session alone.")] = None,
    from_: Annotated[
        str | None,
        typer.Option("--from", metavar="TIME", help="RFC 3339: of pauses in which something happened from then on."),
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339: and before then.")] = None,
    content: Annotated[bool, typer.Option("--content", help="Tell what people wrote as well.")] = False,
    no_report: Annotated[bool, typer.Option("--no-report", help="Leave the printable report out.")] = False,
    font: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The report's font (TrueType), for more than Western Europe.")
    ] = None,
    since: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Prove as well that the log begins with this older head. May be repeated."),
    ] = None,
    seal: Annotated[bool, typer.Option("--seal", help="Seal first, so that all there is stands under a head.")] = False,
    public_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The public key of the heads, where the log key is not here.")
    ] = None,
    auditor: Auditor = None,
) -> Outcome:
    """Export evidence that can be verified without us: facts, proofs, head, a table, a report, and how to verify it."""
    scope = None if pause is not None and reach == Reach() else reach.scope
    command = ExportCommand(
        out, pause, session, run, moment_of(from_), moment_of(to), content, not no_report, font,
        [text_in(one) for one in since or ()],
    )  # fmt: skip
    if seal:
        _seal(where)
    with Opened(where) as opened, bar("exporting") as progress:
        opened.recorded(auditor, "export", pause)
        ledger_id = opened.recorder.identity().ledger_id
        signer = log_signer(ledger_id, keys_directory(where.keys_dir))
        given = None if public_key is None else key_in(public_key)
        key = require_key(given or (signer.verifier if signer else None), opened.rows)
        mapper = FactMapper(ledger_id, vault=_vault(where, opened))
        done = Export(opened.recorder, opened.rows, mapper, key, scope=scope, command=command, progress=progress).run()
    shape = {"outcome": "exported", **dataclasses.asdict(done), "out": str(done.out)}
    waiting = [f"waiting {done.unsealed} facts are not under that head yet, and not in it; see --seal"]
    unread = [f"unread  {done.unread} texts are not told: the vault keys are not here, or not this role's to read"]
    return Outcome(shape, [
        f"bundle  {done.out}",
        f"holds   {done.pauses} pauses, {done.rows} facts, {done.proofs} proofs, under a head of {done.size} leaves",
        *(waiting if done.unsealed else []),
        *(unread if done.unread else []),
    ])  # fmt: skip


def _vault(where: Where, opened: Opened) -> Vault | None:
    """Find the keys of what people wrote, where they are here; an auditor may well have none, and reads tags then."""
    held = (keys_directory(where.keys_dir) / KEY_FILE).exists()
    if opened.recorder.told or (not held and not os.environ.get(VAULT_ENVIRONMENT)):
        return None
    ring = vault_ring(store_url(where.store), where.settings())
    return None if ring is None else Vault(opened.recorder.identity().ledger_id, ring, opened.recorder.vault)


def _seal(where: Where) -> None:
    async def work(ledger: Ledger) -> Sealing:
        return await asyncio.to_thread(ledger.notary(make_key=embedded(store_url(where.store))).seal)

    in_ledger(where, work)
