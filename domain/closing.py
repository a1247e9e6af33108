"""Closing a pause without an answer, and minting its token again."""

from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from .content import TEXT_TYPE, Content
from .errors import InteractionConfigurationError, PauseClosed, WindowOpen
from .facts import ActorRecord, PauseFact, Reissued, Withdrawn
from .pause import Pause
from .round import Round, lapsed
from .stamp import Stamp

WithdrawReason = Literal["host", "superseded", "moved_on", "stopped"]
ReissueReason = Literal["lost", "rotated", "reminder", "restored"]

#: A token's generation is 16 bits.
LAST_GENERATION = 2**16 - 1


def withdraw(
    pause: Pause,
    stamp: Stamp,
    *,
    reason: WithdrawReason,
    superseded_by: UUID | None = None,
    by: ActorRecord | None = None,
    note: str | None = None,
) -> list[PauseFact]:
    """Decide whether the question can be taken back. Taken back already is no news: an empty list.

    Raises:
        PauseClosed: the pause is over, and how.
    """
    if pause.withdrawn:
        return []
    if pause.consumed or (pause.lapsed and not pause.lapse_answers):
        raise PauseClosed(pause.id, pause.state)
    said = None if note is None else Content.of(note.encode(), TEXT_TYPE)
    return [stamp.write(pause, Withdrawn, reason=reason, superseded_by=superseded_by, by=by, note=said)]


def lapse(round_: Round, pause_id: UUID, stamp: Stamp) -> list[PauseFact]:
    """Decide whether a window has closed without an answer. Lapsed already is no news: an empty list.

    Raises:
        WindowOpen: it may still be answered.
        PauseClosed: it holds its answer, or is over, and how.
    """
    pause = round_.of(pause_id)
    if pause.lapsed and not (pause.withdrawn or pause.consumed):
        return []
    if not pause.is_open:
        raise PauseClosed(pause.id, pause.state)
    if not round_.closed(pause, stamp.now):
        raise WindowOpen(pause.id, pause.paused.closes_at + round_.leeway)
    return [lapsed(round_, pause, stamp)]


def reissue(
    pause: Pause,
    stamp: Stamp,
    *,
    kid: str,
    ends_earlier: bool,
    closes_at: datetime | None,
    reason: ReissueReason,
    by: ActorRecord | None,
) -> list[PauseFact]:
    """Decide whether a token may be minted again; its window never exceeds the pause's.

    Its own earlier success, whose acknowledgement was lost, is no news: an empty list.

    Raises:
        PauseClosed: nothing is left to answer or to redeem.
        InteractionConfigurationError: the token would close before the pause opens.
    """
    if pause.reissued_by == stamp.attempt:
        return []
    if pause.withdrawn or pause.consumed or (pause.lapsed and not pause.lapse_answers):
        raise PauseClosed(pause.id, pause.state)
    if pause.generation >= LAST_GENERATION:
        raise PauseClosed(pause.id, f"{pause.state} and its token was minted too often")
    closes = pause.paused.closes_at if closes_at is None else min(closes_at, pause.paused.closes_at)
    if closes <= pause.paused.opens_at:
        raise InteractionConfigurationError(f"the token would close before pause {pause.id} opens; raise closes_in")
    return [
        stamp.write(
            pause,
            Reissued,
            generation=pause.generation + 1,
            ends_earlier=ends_earlier,
            kid=kid,
            closes_at=closes,
            by=by,
            reason=reason,
        )
    ]


def whole_second(moment: datetime) -> datetime:
    """Cut a moment to its second: windows are whole seconds."""
    return moment - timedelta(microseconds=moment.microsecond)
