"""The switches of the door: per surface, whether the kernel serves it; every flip is a fact."""

from collections.abc import Iterable
from typing import Literal, Protocol
from uuid import UUID, uuid5

from .errors import InteractionConfigurationError
from .facts import ActorRecord, Fact

Surface = Literal["run", "stream", "stream_typed"]

SURFACES: tuple[Surface, ...] = ("run", "stream", "stream_typed")


class SwitchFlipped(Fact):
    """Somebody handed a surface to the kernel, or rolled it back. No fact of a pause: it stands in its own stream."""

    NAME = "switch.flipped"
    surface: str
    on: bool
    by: ActorRecord


class Switches(Protocol):
    """Who serves a surface. Off, which is rolled back, until somebody flips it."""

    async def is_on(self, surface: Surface) -> bool:
        """Tell whether the kernel serves this surface. Cheap and total: it raises nothing, and hardly waits."""
        ...


class MemorySwitches:
    """Switches of this process alone: for tests, and for a host whose deployment decides.

    Args:
        on: The surfaces that begin switched on; all others begin rolled back.
    """

    def __init__(self, *on: Surface) -> None:
        self._on = dict.fromkeys(SURFACES, False)
        for surface in on:
            self.flip(surface, on=True)

    async def is_on(self, surface: Surface) -> bool:
        """Tell whether the kernel serves this surface."""
        return self._on[surface]

    def flip(self, surface: Surface, *, on: bool) -> None:
        """Switch a surface on, or roll it back.

        Raises:
            InteractionConfigurationError: there is no such surface, or `on` is no bool.
        """
        require_flip(surface, on=on)
        self._on[surface] = on


def require_flip(surface: str, *, on: bool) -> None:
    """Check that a flip says something.

    Raises:
        InteractionConfigurationError: there is no such surface, or `on` is no bool.
    """
    if surface not in SURFACES:
        raise InteractionConfigurationError(f"there is no surface {surface!r}; flip one of {', '.join(SURFACES)}")
    if type(on) is not bool:
        raise InteractionConfigurationError("a switch is flipped to True or False; pass one of these")


def switch_stream(ledger_id: UUID) -> UUID:
    """Derive the id of a ledger's one stream of flips: a version 5 UUID, which no pause has (theirs are version 8)."""
    return uuid5(ledger_id, "switches")


def as_flipped(flips: Iterable[SwitchFlipped]) -> dict[str, bool]:
    """Fold flips, oldest first, into what each surface is now."""
    return {**dict.fromkeys(SURFACES, False), **{flip.surface: flip.on for flip in flips}}
