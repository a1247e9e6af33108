"""Recording that an auditor reads: first the fact, then what was asked for."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID, uuid4

from eventsourcing.persistence import StoredEvent

from ..domain.after import After, Last
from ..domain.commands import Actor
from ..domain.errors import LedgerCorrupt, LedgerTooNew, StoreUnavailable
from ..domain.ids import Identity
from ..domain.readings import AuditRead, Reads, reading_stream
from ..domain.services import record_of
from ..domain.stamp import Stamp
from .mapper import FactMapper, stored_digest
from .store import LedgerRecorder, StreamConflict

_RELOADS = 20


def record_reading(
    recorder: LedgerRecorder, by: Actor, reads: Reads, *, writer: str, about: UUID | None = None
) -> AuditRead:
    """Write down that somebody reads, and give the fact. Blocks.

    On PostgreSQL the role needs no right to insert: a function of the schema writes this kind of fact, and no other.

    Raises:
        StoreUnavailable: the store could not speak; nothing may be read then.
        InteractionConfigurationError: the role may not record readings (`pauseledger migrate --auditor-role`).
    """
    held = recorder.settings()
    stream, mapper = reading_stream(held.ledger_id), FactMapper(held.ledger_id)
    who = record_of(Identity(held.ledger_id, held.identity_key), by)
    for _ in range(_RELOADS):
        snapshot = recorder.load([stream])
        last = _last(mapper, snapshot.rows[-1], snapshot.now) if snapshot.rows else None
        stamp = Stamp(ledger=held.ledger_id, now=snapshot.now, attempt=uuid4(), writer=writer, holder="")
        up_to = recorder.max_notification_id() or 0
        fact = After(stream, stream, None, last).write(stamp, AuditRead, reads=reads, about=about, up_to=up_to, by=who)
        try:
            recorder.record_reading(mapper.to_stored_event(fact))
        except StreamConflict:
            continue
        return fact
    raise StoreUnavailable(f"too many auditors read at once: {_RELOADS} readings lost their race; try again")


@dataclass(frozen=True, slots=True)
class _Unread:
    """A reading that nobody can read any more."""

    originator_version: int
    row_digest: bytes
    at: datetime


def _last(mapper: FactMapper, row: StoredEvent, now: datetime) -> Last:
    """Read the reading before; an altered one keeps no auditor from the `check` that finds it."""
    try:
        last: AuditRead = mapper.to_domain_event(row)
    except (LedgerCorrupt, LedgerTooNew):
        return _Unread(row.originator_version, stored_digest(row.state), now)
    return last
