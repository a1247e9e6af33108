"""History: one pause, round, run or session told fact by fact, refused attempts included."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from ..domain.axes import Scope
from ..domain.erasing import ErasureEnded, ErasureOrdered
from ..domain.errors import InteractionConfigurationError
from ..domain.facts import FACTS, rfc3339
from ..domain.presenting import Presented
from .projection import PATIENCE, Projection, View, within
from .rows import Condition, Page, Query, Row, Table
from .seen import Seen


@dataclass(frozen=True, slots=True)
class StoredFact:
    """One fact as the view keeps it.

    Attributes:
        header: As it is stored, but for a front that says no more than other columns do, and whose ledger it is: what
            follows that is an object of its own, and begins as `FURTHER` says.
    """

    position: int
    pause: UUID
    stream: UUID
    version: int
    scope: Scope | None
    at: datetime | None
    topic: str
    header: str
    unreadable: bool


@dataclass(frozen=True, slots=True)
class KnownPause:
    """Where a pause belongs."""

    pause: UUID
    scope: Scope | None
    session_id: str
    run_id: str
    call_id: str
    round: UUID


@dataclass(frozen=True, slots=True)
class Told:
    """One fact of a history. Who is told by tags; `pauseledger show` reads names and contents out of the ledger.

    Attributes:
        what: The fact's name, such as `answered`, `refused` or `erasure.ordered`.
        who: Who answered, tried, withdrew, was shown it, ...; or asked.
        decision: What an answer decides: answer, approve, edit, reject or respond.
        axis, reason: What a refusal failed on; `reason` is also why a turn broke off, was given up or taken up again.
        attempt: The same for the facts of one attempt.
        fence: The claim it is about.
        holder: The process that took the claim.
        request_digest, shown_digest, response_digest: Of what was asked, of what was shown, of
            the answer.
        fields: The header whole, as FACTS lists its fields.
        unreadable: It is of a newer version or corrupt; what is None could not be told.
    """

    position: int
    pause: UUID
    stream: UUID
    version: int
    scope: Scope | None
    at: datetime | None
    topic: str
    what: str
    who: str | None
    decision: str | None
    axis: str | None
    reason: str | None
    attempt: str | None
    fence: int | None
    holder: str | None
    request_digest: str | None
    shown_digest: str | None
    response_digest: str | None
    unreadable: bool
    fields: Mapping[str, Any]


#: No header that is kept whole begins so: one that would has a blank before it.
FURTHER = '{"attempt":'

STORED = Table("history_facts", StoredFact, ("position",), (("pause", "position"),))
KNOWN = Table(
    "history_pauses",
    KnownPause,
    ("pause",),
    (("round",), ("scope", "run_id"), ("scope", "session_id")),
)


class History(Projection):
    """Keeps every fact of every pause by its header, and where each pause belongs."""

    name = "history"
    revision = 4
    facts = frozenset(kind.NAME for kind in FACTS) | {Presented.NAME, ErasureOrdered.NAME, ErasureEnded.NAME}
    reads = frozenset({"pause.paused"})
    own_tables = (STORED, KNOWN)

    def fold(self, fact: Seen, page: Page) -> None:
        """Take one fact into the history."""
        if fact.name == "pause.paused":
            said = fact.said
            row = {"pause": fact.pause, "scope": fact.scope, "session_id": said.session_id, "run_id": said.run_id}
            page.put(KNOWN, {**row, "call_id": said.call_id, "round": said.lead})
        page.add(STORED, _kept(fact, _header(fact), 0))

    def flag(self, fact: Seen, page: Page) -> None:
        """Keep it in its place."""
        # What is no text is not kept; the ledger has it.
        header = ""
        with suppress(ValueError):
            header = _header(fact)
        page.add(STORED, _kept(fact, header, 1))


def _header(fact: Seen) -> str:
    text = fact.text
    if fact.front:
        return f"{{{text[1:]}"
    return f" {text}" if text.startswith(FURTHER) else text


def _kept(fact: Seen, header: str, unreadable: int) -> Row:
    return (
        fact.position, fact.pause, fact.stream, fact.version, fact.scope, fact.at, fact.topic, header, unreadable,
    )  # fmt: skip


class HistoryView(View[History]):
    """Questions to the history, each answered in the order of the log; go on `from_position` of the last row.

    What is refused on a pause that is not in this store belongs to no tenant: an operator sees it.
    """

    projection = History

    async def of_pause(
        self,
        scope: Scope,
        pause: UUID,
        *,
        limit: int = 500,
        from_position: int = 0,
        after: int | None = None,
        seconds: float = PATIENCE,
    ) -> list[Told]:
        """Tell of one pause."""
        await self._ask.reach(after, seconds)
        return await self._tell((*within(scope), ("pause", "=", pause)), limit, from_position)

    async def of_round(
        self,
        scope: Scope,
        lead: UUID,
        *,
        limit: int = 500,
        from_position: int = 0,
        after: int | None = None,
        seconds: float = PATIENCE,
    ) -> list[Told]:
        """Tell of all pauses of a round; `lead` is the pause id that its receipts name as `round`."""
        await self._ask.reach(after, seconds)
        return await self._of(within(scope), ("round", "=", lead), limit, from_position)

    async def of_run(
        self,
        scope: Scope,
        run_id: str,
        *,
        limit: int = 500,
        from_position: int = 0,
        after: int | None = None,
        seconds: float = PATIENCE,
    ) -> list[Told]:
        """Tell of all pauses of a run."""
        await self._ask.reach(after, seconds)
        return await self._of(within(scope), ("run_id", "=", run_id), limit, from_position)

    async def of_session(
        self,
        scope: Scope,
        session_id: str,
        *,
        limit: int = 500,
        from_position: int = 0,
        after: int | None = None,
        seconds: float = PATIENCE,
    ) -> list[Told]:
        """Tell of all pauses of a session."""
        await self._ask.reach(after, seconds)
        return await self._of(within(scope), ("session_id", "=", session_id), limit, from_position)

    async def of_pause_of_all_tenants(
        self,
        pause: UUID,
        *,
        limit: int = 500,
        from_position: int = 0,
        after: int | None = None,
        seconds: float = PATIENCE,
    ) -> list[Told]:
        """Tell of one pause, whoever's it is, for an operator."""
        await self._ask.reach(after, seconds)
        return await self._tell((("pause", "=", pause),), limit, from_position)

    async def _of(self, where: Sequence[Condition], chosen: Condition, limit: int, from_position: int) -> list[Told]:
        known = await self._ask.select(Query(KNOWN, (*where, chosen), ("pause",)))
        pauses = [row["pause"] for row in known]
        return await self._tell((*where, ("pause", "in", pauses)), limit, from_position) if pauses else []

    async def _tell(self, where: Sequence[Condition], limit: int, from_position: int) -> list[Told]:
        if limit < 1:
            raise InteractionConfigurationError("a history has at least one row; pass a limit from 1 up")
        # Few of all the facts are of one pause: by their positions they would be searched for among all.
        query = Query(STORED, where, ("+position",), after=(from_position,), limit=limit)
        return [_told(row, _said(row, self._ask.ledger)) for row in await self._rows(query)]


def _said(row: StoredFact, ledger: UUID) -> dict[str, Any]:
    """Read a header, its front among it; nothing where it is none."""
    try:
        said: dict[str, Any] = json.loads(row.header)
    except ValueError:
        return {}
    if not row.header.startswith(FURTHER):
        return said
    front = {
        "ledger": str(ledger),
        "pause": str(row.pause),
        "scope": None if row.scope is None else row.scope.model_dump(),
        "at": None if row.at is None else rfc3339(row.at),
    }
    return front | said


def _told(row: StoredFact, said: dict[str, Any]) -> Told:
    unreadable = row.unreadable or not said
    readable = {} if unreadable else said
    claim = readable.get("claim") or {}
    return Told(
        position=row.position,
        pause=row.pause,
        stream=row.stream,
        version=row.version,
        scope=row.scope,
        at=row.at,
        topic=row.topic,
        what=row.topic.partition("@")[0].removeprefix("pause."),
        who=(readable.get("to") or readable.get("by") or readable.get("asked_by") or {}).get("tag"),
        decision=readable.get("decision"),
        axis=readable.get("axis"),
        reason=readable.get("reason") or readable.get("because") or readable.get("cause"),
        attempt=readable.get("attempt"),
        fence=claim.get("fence") or readable.get("fence"),
        holder=claim.get("holder"),
        request_digest=(readable.get("request") or {}).get("digest") or readable.get("request_digest"),
        shown_digest=readable.get("shown"),
        response_digest=(readable.get("response") or {}).get("digest") or readable.get("response_digest"),
        unreadable=unreadable,
        fields=said,
    )
