"""What every codec does alike: hear of a broken turn, and let results through for open calls alone."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from ...domain.errors import InteractionConfigurationError, PauseRejected
from ...domain.turn import Entry, ReservedCall, Result

#: A call, and what is said on it.
Answer = tuple[ReservedCall, Result]


class Codec(ABC):
    """A `Transcript` whose format says two things: which calls its last message holds, and how results are spelled.

    The last assistant message and what follows it are judged; what came before is the host's.
    """

    format: str

    def reserved(self, entries: Sequence[Entry]) -> tuple[ReservedCall, ...]:
        """List the calls of the last assistant message, in its order.

        Raises:
            PauseRejected: `turn_broken` where the turn has not the format's shape, or leaves no call open.
        """
        calls = self._round(entries)
        if all(call.done for call in calls):
            raise broken("every call of the last assistant message has its result already")
        return calls

    def fold(self, entries: Sequence[Entry], results: Mapping[int, Result]) -> tuple[Entry, ...]:
        """Spell results, by call index, in the order of the calls.

        Raises:
            PauseRejected: `turn_broken` where the turn has not the format's shape.
            InteractionConfigurationError: a result is not what the format can carry, or its call is not open.
        """
        waiting = [call for call in self._round(entries) if not call.done]
        if not results.keys() <= {call.index for call in waiting}:
            raise InteractionConfigurationError("a result was given for a call that is not open in this turn")
        return self._folded(tuple(entries), self._due(waiting, results))

    @abstractmethod
    def _round(self, entries: Sequence[Entry]) -> tuple[ReservedCall, ...]:
        """Find the calls of the last assistant message, and which of them have their result."""

    def _due(self, waiting: Sequence[ReservedCall], results: Mapping[int, Result]) -> list[Answer]:
        """List what can be said now, in the order of the calls."""
        return [(call, results[call.index]) for call in waiting if call.index in results]

    @abstractmethod
    def _folded(self, entries: tuple[Entry, ...], said: Sequence[Answer]) -> tuple[Entry, ...]:
        """Put what is said, which may be nothing, where the provider wants it."""


def extended(entry: dict[str, Any], key: str, more: Sequence[Any]) -> dict[str, Any]:
    """Copy an entry whose list under `key` goes on with more; everything else in it stays what it is."""
    return {**entry, key: [*entry[key], *more]}


def broken(says: str) -> PauseRejected:
    """Say what is wrong with a turn, without quoting it."""
    return PauseRejected("turn_broken", says)


def named(value: Any) -> bool:
    """Tell whether a value is a name or an id: text, and some."""
    return isinstance(value, str) and value != ""


def objects(value: Any) -> bool:
    """Tell whether a value is a list of objects and nothing else."""
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)
