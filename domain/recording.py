"""Refused attempts on record: in the pause's own stream while that harms nobody, else in its refusal stream."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from .axes import Axes
from .commands import Actor
from .envelope import Opened
from .errors import AlreadyConsumed, LedgerError, Refusal, VersionConflict
from .facts import AxesRecord, Refused, TokenRecord
from .pause import Pause
from .ports import Found, Tail
from .services import Services
from .stamp import Stamp

#: A pause's own stream takes this many refusals, and only while it is open.
OWN_STREAM = 16
#: A refusal stream takes this many; past it, the first of an axis and hour alone.
REFUSAL_STREAM = 256


def token_record(services: Services, opened: Opened | None) -> TokenRecord | None:
    """Say which token was presented, without its text."""
    if opened is None:
        return None
    tag = services.identity.tag("token", opened.text_digest)
    return TokenRecord(kid=opened.kid, generation=opened.terms.generation, tag=tag)


@dataclass(frozen=True, slots=True)
class Refusing:
    """Writes down what one attempt was refused for, before the refusal is raised."""

    services: Services
    stamp: Stamp
    axes: Axes
    opened: Opened | None = None
    by: Actor | None = None

    async def record(self, refusal: Refusal, found: Found | None) -> Refusal:
        """Write the refusal down, and say in it whether that worked. A store that fails never hides the refusal."""
        own = isinstance(refusal, AlreadyConsumed) and refusal.own
        if refusal.pause_id is not None and not own:
            try:
                refusal.recorded = await self._write(refusal, found)
            except LedgerError as failed:
                self.services.journal.note("refusal_unrecorded", pause=refusal.pause_id, error=type(failed).__name__)
        self.services.refused(
            refusal, attempt=self.stamp.attempt, axes=lambda: self.services.identity.presented(self.axes)
        )
        return refusal

    async def _write(self, refusal: Refusal, found: Found | None) -> bool:
        assert refusal.pause_id is not None  # noqa: S101 - the caller asked
        if found is None:
            found = await self.services.pauses.find(refusal.pause_id)
        pause = found.round.of(refusal.pause_id) if found.round else None
        if pause is not None and pause.is_open and pause.refusals < OWN_STREAM:
            try:
                await self.services.pauses.append([self._fact(refusal, pause, _end_of(pause), pause.id)])
            except VersionConflict:
                pass
            else:
                return True
        stream = self.services.identity.refusals(refusal.pause_id)
        return await self.services.pauses.refuse(
            stream, lambda tail: self._at(refusal, pause, tail, stream), of=None if pause is None else pause.id
        )

    def _at(self, refusal: Refusal, pause: Pause | None, tail: Tail, stream: UUID) -> Refused | None:
        hour = _hour(self.stamp.now)
        if tail.version >= REFUSAL_STREAM and (refusal.axis, hour) in tail.written:
            return None
        return self._fact(refusal, pause, tail, stream)

    def _fact(self, refusal: Refusal, pause: Pause | None, after: Tail, stream: UUID) -> Refused:
        assert refusal.pause_id is not None  # noqa: S101 - `record` asked
        at = self.stamp.now if after.at is None else max(self.stamp.now, after.at)
        return Refused(
            originator_id=stream,
            originator_version=after.version + 1,
            predecessor=after.head,
            ledger=self.stamp.ledger,
            pause=refusal.pause_id,
            scope=pause.paused.scope if pause else None,
            at=at,
            attempt=self.stamp.attempt,
            writer=self.stamp.writer,
            step=refusal.step,
            axis=refusal.axis,
            reason=refusal.reason,
            rule=refusal.rule,
            seen_version=pause.version if pause else 0,
            by=self.services.record_of(self.by),
            token=token_record(self.services, self.opened),
            presented=AxesRecord(**self.services.identity.presented(self.axes)),
            at_pointer=refusal.at_pointer,
        )


def _end_of(pause: Pause) -> Tail:
    return Tail(version=pause.version, head=pause.head, at=pause.at)


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)
