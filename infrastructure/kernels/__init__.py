"""What the kernels have in common: which calls wait for a person, what a tool is told, and what a run hands back."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from ...domain.axes import Axes, Scope, as_stated, require_stated
from ...domain.commands import DEFAULT_WINDOW, Dispatch, LapseAnswer, PauseCommand, PauseReceipt, Routing
from ...domain.errors import InteractionConfigurationError
from ...domain.interactions import APPROVAL
from ...domain.turn import CheckpointReference, Turn


@dataclass(frozen=True, slots=True)
class Gate:
    """How a tool's calls wait for a person.

    An approval asks about the call. Every other interaction takes the call's arguments as its request: the model
    writes the question.

    Attributes:
        interaction: The registered interaction's name.
        closes_in: Whole seconds from the stop until it may not be answered any more.
        on_lapse: The answer that stands when nobody gave one.
        routing: Whom it is for.
    """

    interaction: str = APPROVAL
    closes_in: int = DEFAULT_WINDOW
    on_lapse: LapseAnswer | None = None
    routing: Routing = field(default_factory=Routing)

    def request(self, tool: str, arguments: Any) -> Any:
        """Tell what is asked about a call."""
        return {"tool": tool, "arguments": arguments} if self.interaction == APPROVAL else arguments

    def command(
        self, request: Any, *, turn: Turn | CheckpointReference, axes: Axes, supersedes: UUID | None = None
    ) -> PauseCommand:
        """Make the command that pauses one call."""
        return PauseCommand(
            self.interaction,
            request,
            turn,
            axes,
            closes_in=self.closes_in,
            on_lapse=self.on_lapse,
            routing=self.routing,
            supersedes=supersedes,
        )


@dataclass(frozen=True, slots=True)
class SideEffect:
    """What a tool keys the side effect of a call by that a person let through.

    Attributes:
        idempotency_key: The pause's own, the same in every recovery.
        fence: The claim's; a higher one ends a lower one.
    """

    idempotency_key: str = field(repr=False)
    fence: int


def side_effects(dispatch: Sequence[Dispatch], fence: int) -> dict[str, SideEffect]:
    """Tell, by call id, what the tools of these calls are told."""
    return {call.interrupt_id: SideEffect(call.idempotency_key, fence) for call in dispatch}


def stated(scope: Scope, session_id: str, run_id: str) -> Axes:
    """State a run's axes, all but the call that it may stop at: before a model is called, or a tool runs.

    Raises:
        InteractionConfigurationError: one is not stated, and is named.
    """
    axes = as_stated(scope, session_id, run_id, None)
    require_stated(axes, frozenset({"call"}))
    return axes


def require_tools(dispatch: Sequence[Dispatch], tools: Collection[str]) -> None:
    """Check that the calls that a person let through can run here: told to the model as unknown, they would be lost.

    Raises:
        InteractionConfigurationError: there is no tool of that name; the turn stays owed.
    """
    for call in dispatch:
        if call.tool not in tools:
            raise InteractionConfigurationError(
                f"a person let call {call.interrupt_id!r} of {call.tool!r} through, and there is no such tool here; "
                "recover the turn where there is one, or fold a result in by `turn.with_results`"
            )


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended, and the last item of its streams.

    Attributes:
        messages: The whole conversation, in the kernel's own terms.
        paused: Receipts of the calls it stopped at; empty where it came to its end.
        asked: What was asked with each receipt, in the same order; its `axes` are stated again when redeeming.
        state: The framework's own state, where it has one.
    """

    messages: Sequence[Any] = field(repr=False)
    paused: tuple[PauseReceipt, ...] = ()
    asked: tuple[PauseCommand, ...] = ()
    state: Mapping[str, Any] = field(default_factory=dict, repr=False)
