"""The command line's evidence: seal, head, prove."""

import asyncio
import dataclasses
import functools
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, ParamSpec, Self, TypeVar
from uuid import UUID

import typer

from ..domain.errors import InteractionConfigurationError, RequestMissing
from ..domain.facts import rfc3339
from ..domain.ids import Identity
from .anchors import anchor_of
from .cli_inputs import Where, grouped
from .cli_shapes import Outcome
from .merkle import Unproved
from .notary import Notary
from .notes import Checkpoint, hashes_as_text
from .sealed import SignedHead, sealed_rows
from .sealer import Sealing, prove_consistency
from .sealer import prove as prove_leaf
from .settings import LedgerSettings, store_url
from .wiring import Ledger, open_ledger, open_recorder

P = ParamSpec("P")
T = TypeVar("T")

evidence = typer.Typer()

_NO_HEAD = "no head was signed yet; run `pauseledger seal`"


def _proving(work: Callable[P, Outcome]) -> Callable[P, Outcome]:
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
@_proving
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
    embedded = not store_url(where.store).startswith("postgres")

    async def work(ledger: Ledger) -> Sealing:
        notary = ledger.notary(make_key=embedded)
        done = await asyncio.to_thread(notary.seal)
        return done if every is None else await _again_and_again(notary, done, every)

    done = _in_ledger(where, settings, work)
    shape = {"outcome": "faults" if done.late else "sealed", **dataclasses.asdict(done), "late": list(done.late)}
    late = [f"fault   a row turned up late, at position {at}; it is leaf {done.size} or below" for at in done.late]
    head = done.head or "no head was signed: there is no log key; `pauseledger keys log` makes one"
    return Outcome(shape, [f"sealed  {done.sealed} more, {done.size} in all", *late, *head.splitlines()])


async def _again_and_again(notary: Notary, done: Sealing, every: float) -> Sealing:
    told, loop = asyncio.Event(), asyncio.get_running_loop()
    for word in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(word, told.set)
    try:
        while not told.is_set():
            try:
                await asyncio.wait_for(told.wait(), every)
            except TimeoutError:
                more = await asyncio.to_thread(notary.seal)
                done = Sealing(done.sealed + more.sealed, more.size, [*done.late, *more.late], more.head)
    finally:
        for word in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(word)
    return done


@evidence.command()
@grouped
@_proving
def head(
    where: Where,
    *,
    since: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Prove as well that the log begins with this older head, kept outside."),
    ] = None,
) -> Outcome:
    """Print the newest signed head, to be kept where the database's owner cannot change it."""
    with _Opened(where) as opened:
        newest = opened.head()
        found = Checkpoint.of(newest.checkpoint)
        path: list[bytes] | None = None
        if since is not None:
            older = Checkpoint.of(_file(since))
            path = prove_consistency(opened.rows, older, found)
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


@evidence.command()
@grouped
@_proving
def prove(
    where: Where,
    pause: Annotated[UUID, typer.Argument(metavar="PAUSE", help="The pause's id.")],
    *,
    version: Annotated[int | None, typer.Option(min=1, help="Of this fact alone, by its version.")] = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write each as DIR/LEAF.tlog-proof.")] = None,
) -> Outcome:
    """Prove each fact of a pause under the newest head: a C2SP tlog-proof each, offline, for whoever has the key."""
    with _Opened(where) as opened:
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
        out.mkdir(parents=True, exist_ok=True)
        for index, text in proofs.items():
            (out / f"{index}.tlog-proof").write_text(text, "utf-8")
        return Outcome(
            {"outcome": "proved", "facts": facts, "files": [f"{index}.tlog-proof" for index in proofs]}, lines
        )
    told = [{**fact, "proof": proofs[fact["leaf_index"]]} for fact in facts]
    if len(facts) == 1:
        lines = next(iter(proofs.values())).splitlines()
    return Outcome({"outcome": "proved", "facts": told}, lines)


class _Opened:
    """A ledger's store and its sealed log, without the rest: no token key is read, and nothing is written."""

    def __init__(self, where: Where) -> None:
        self.recorder = open_recorder(store_url(where.store), where.settings())
        self.rows = sealed_rows(self.recorder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.recorder.close()

    def head(self) -> SignedHead:
        newest = self.rows.newest_head()
        if newest is None:
            raise InteractionConfigurationError(_NO_HEAD)
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


def _file(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InteractionConfigurationError(f"cannot read {path}: {type(error).__name__}") from None


def _in_ledger(where: Where, settings: LedgerSettings, work: Callable[[Ledger], Awaitable[T]]) -> T:
    async def inside() -> T:
        async with open_ledger(where.store, settings) as ledger:
            return await work(ledger)

    return asyncio.run(inside())
