"""The stamp: what every fact of one attempt has in common, and where it goes in its stream."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from .facts import Fact
from .pause import Pause

F = TypeVar("F", bound=Fact)


@dataclass(frozen=True, slots=True)
class Stamp:
    """One attempt: its id, its moment by the store's clock, and who writes.

    Attributes:
        now: The store's time (UTC).
        attempt: Drawn once per attempt, so that a won append is recognised though its acknowledgement was lost.
        writer: Product and version.
        holder: The tag of this process, for claims.
    """

    ledger: UUID
    now: datetime
    attempt: UUID
    writer: str
    holder: str

    def write(self, after: Pause, kind: type[F], **fields: Any) -> F:
        """Write the next fact of a pause's stream. Time never goes back within it."""
        return kind(
            originator_id=after.id,
            originator_version=after.version + 1,
            predecessor=after.head,
            ledger=self.ledger,
            pause=after.id,
            scope=after.paused.scope,
            at=max(self.now, after.at),
            attempt=self.attempt,
            writer=self.writer,
            **fields,
        )
