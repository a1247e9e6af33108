"""The answer folded into the history: the paused turn's own entries, with an observation on every open call."""

from collections.abc import Mapping
from typing import Any

from .commands import ResumeOutcome
from .errors import InteractionConfigurationError
from .turn import Entry, Result

#: What a call gets that was reserved beside the gated ones and never ran.
NOT_DISPATCHED = (
    "This call was not run: the turn stopped for a person at another call of the same message. "
    "Call it again if it is still needed."
)
#: What a gated call gets that nobody answered.
NOT_ANSWERED = "Nobody answered this call: it was withdrawn, or its time to answer passed."


def rehydrate(outcome: ResumeOutcome) -> tuple[Entry, ...]:
    """Give the paused turn's entries with its observations folded in.

    Everything comes out of `outcome.turn`, which was read from the durable checkpoint; a call left open for a
    dispatch has no result yet.

    Raises:
        InteractionConfigurationError: the outcome holds no turn, for it was redeemed without `require_turn`.
    """
    return fold(outcome, {})


def fold(outcome: ResumeOutcome, results: Mapping[str, Result]) -> tuple[Entry, ...]:
    """Fold the observations, and beside them the results of dispatched calls by call id."""
    turn = outcome.turn
    if turn is None:
        raise InteractionConfigurationError(
            "this outcome holds no turn to rebuild a history from; redeem with require_turn=True, or by prepare"
        )
    said: dict[str, Any] = {seen.interrupt_id: seen.text for seen in outcome.observations if seen.text is not None}
    said.update(results)
    return turn.fold({call.index: said[call.address] for call in turn.calls if call.address in said})
