"""Where the next fact goes in a stream that is no pause's: behind the last one, chained to it, and never before it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar
from uuid import UUID

from .axes import Scope
from .facts import Fact
from .stamp import Stamp

F = TypeVar("F", bound=Fact)
#: What the first row of a stream is chained to.
NOTHING = bytes(32)


class Last(Protocol):
    """The fact before: its version, its row's digest, and its time (UTC)."""

    @property
    def originator_version(self) -> int: ...  # noqa: D102 - as a fact's
    @property
    def row_digest(self) -> bytes: ...  # noqa: D102 - as a fact's
    @property
    def at(self) -> datetime: ...  # noqa: D102 - as a fact's


@dataclass(frozen=True, slots=True)
class After:
    """Where the next fact of a stream goes; `last` is the one before, `pause` the one that the fact is about."""

    stream: UUID
    pause: UUID
    scope: Scope | None
    last: Last | None

    def write(self, stamp: Stamp, named: type[F], /, **fields: Any) -> F:
        """Write it. Time never goes back within a stream, whatever the store's clock does."""
        last = self.last
        return named(
            originator_id=self.stream,
            originator_version=last.originator_version + 1 if last else 1,
            predecessor=last.row_digest if last else NOTHING,
            ledger=stamp.ledger,
            pause=self.pause,
            scope=self.scope,
            at=max(stamp.now, last.at) if last else stamp.now,
            attempt=stamp.attempt,
            writer=stamp.writer,
            **fields,
        )
