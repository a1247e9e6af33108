"""Recording that an auditor reads: first the fact, then what was asked for."""

from uuid import UUID, uuid4

from ..domain.commands import Actor
from ..domain.content import TEXT_TYPE, Content
from ..domain.errors import StoreUnavailable
from ..domain.facts import ActorRecord
from ..domain.ids import Identity
from ..domain.readings import AuditRead, Reads, reading_stream
from .mapper import NO_PREDECESSOR, FactMapper, stored_digest
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
    held = recorder.identity()
    stream, identity = reading_stream(held.ledger_id), Identity(held.ledger_id, held.identity_key)
    who = ActorRecord(
        tag=identity.tag("actor", by.id),
        kind=by.kind,
        assurance=by.assurance,
        method=by.method,
        authenticated_at=by.authenticated_at,
        who=Content.of(by.id.encode(), TEXT_TYPE),
    )
    for _ in range(_RELOADS):
        snapshot = recorder.load([stream])
        last = snapshot.rows[-1] if snapshot.rows else None
        fact = AuditRead(
            originator_id=stream,
            originator_version=last.originator_version + 1 if last else 1,
            predecessor=stored_digest(last.state) if last else NO_PREDECESSOR,
            ledger=held.ledger_id,
            pause=stream,
            scope=None,
            at=snapshot.now,
            attempt=uuid4(),
            writer=writer,
            reads=reads,
            about=about,
            up_to=recorder.max_notification_id() or 0,
            by=who,
        )
        try:
            recorder.record_reading(FactMapper(held.ledger_id).to_stored_event(fact))
        except StreamConflict:
            continue
        return fact
    raise StoreUnavailable(f"too many auditors read at once: {_RELOADS} readings lost their race; try again")
