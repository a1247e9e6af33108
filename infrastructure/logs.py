"""The log: one structured line a decision, by structlog, into the standard logger `pauseledger`."""

import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

LOGGER = "pauseledger"


class StructuredJournal:
    """Writes decisions as JSON lines at INFO. A host that wants them gives the logger `pauseledger` a handler.

    Ids, words and tags alone: no token, key, request, answer or message text comes this way.
    """

    def __init__(self) -> None:
        self._logger = logging.getLogger(LOGGER)

    @cached_property
    def _log(self) -> Any:
        import structlog  # noqa: PLC0415 - a ledger that nobody listens to need not load it

        return structlog.wrap_logger(
            self._logger,
            wrapper_class=structlog.stdlib.BoundLogger,
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.EventRenamer("decision"),
                structlog.processors.JSONRenderer(default=str),
            ],
        )

    def note(self, decision: str, *, axes: Callable[[], Mapping[str, str | None]] | None = None, **fields: Any) -> None:
        """Write one line; fields that are None are left out."""
        if self._logger.isEnabledFor(logging.INFO):
            if axes is not None:
                fields |= {f"{axis}_tag": tag for axis, tag in axes().items()}
            self._log.info(decision, **{name: value for name, value in fields.items() if value is not None})
