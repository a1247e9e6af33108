"""The last look before a tool runs: one that has a gate runs when somebody was asked, and else not at all."""

from collections.abc import Collection
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler

from ...domain.errors import InteractionConfigurationError


class Guard(BaseCallbackHandler):
    """Keeps gated tools from running in a graph that should have ended where the model called one, and did not.

    Args:
        gates: The names of the gated tools.

    Attributes:
        failed: The error that was raised in a tool's place. A `ToolNode` may be told to make every error an answer
            to the model; whoever runs the graph raises this one at its end.
    """

    raise_error = True
    run_inline = True

    def __init__(self, gates: Collection[str]) -> None:
        self._gates = gates
        self.failed: InteractionConfigurationError | None = None

    def on_tool_start(self, serialized: dict[str, Any] | None, input_str: str, **_: Any) -> None:  # noqa: ARG002
        """Look at a tool's name before it runs.

        Raises:
            InteractionConfigurationError: it has a gate.
        """
        name = (serialized or {}).get("name")
        if name in self._gates:
            self.failed = InteractionConfigurationError(
                f"{name!r} has a gate, and the graph was about to run it without waiting at it; list PauseMiddleware "
                "with this gate among the agent's middleware, or end your graph where `gated` finds a call"
            )
            raise self.failed
