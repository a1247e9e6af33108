"""What a store must be: eventsourcing's application recorder, and a little more."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from eventsourcing.persistence import ApplicationRecorder, IntegrityError, Notification, StoredEvent

#: The length of the digest at the front of a stored row, magic word included.
HEAD_BYTES = 36


class StreamConflict(IntegrityError):
    """The stream's own key (originator_id, originator_version) is taken. No other constraint comes as this."""


@dataclass(frozen=True)
class LedgerIdentity:
    """What was drawn once when the ledger was made. The key never leaves the store and this process."""

    ledger_id: UUID
    identity_key: bytes
    epoch: int
    schema_revision: int

    def __repr__(self) -> str:
        return f"LedgerIdentity({self.ledger_id}, epoch={self.epoch}, schema_revision={self.schema_revision})"


@dataclass(frozen=True)
class Lease:
    """How long a claim's worker has said it will go on (UTC, the store's clock)."""

    fence: int
    until: datetime


@dataclass(frozen=True)
class Snapshot:
    """What one read found: the rows of all streams asked for, by stream and version, and what goes with them."""

    rows: Sequence[Notification]
    leases: dict[UUID, Lease]
    epoch: int
    now: datetime


@dataclass(frozen=True)
class Head:
    """The newest row of a stream: its version, and the first `HEAD_BYTES` of its state."""

    version: int
    state: bytes


class LedgerRecorder(ApplicationRecorder):
    """Where rows are kept. Every method blocks, and is safe to call from several threads.

    `insert_events` writes all rows or none and returns their positions in the log, in the order given.

    Raises (every method):
        StoreUnavailable: the database could not speak; `outcome` is `unknown` only where a commit may have happened.
        StreamConflict: `insert_events` only: a row of that stream and version is there.
        IntegrityError: `insert_events` only: any other rule of the table, such as a gap in a stream.
        LedgerTooNew: the tables belong to a newer version of this package.
    """

    @abstractmethod
    def insert_events(self, stored_events: Sequence[StoredEvent], **kwargs: Any) -> Sequence[int]:
        """Append rows, all or none."""

    @abstractmethod
    def load(self, streams: Sequence[UUID]) -> Snapshot:
        """Read whole streams, their leases, the epoch and the store's time, in one statement or one snapshot."""

    @abstractmethod
    def head(self, stream: UUID) -> Head | None:
        """Read the newest row's version and digest; None where the stream does not exist."""

    @abstractmethod
    def renew(self, pause: UUID, fence: int, seconds: float) -> bool:
        """Move a lease's end to now + `seconds`. A lower fence never replaces a higher one: then False."""

    @abstractmethod
    def identity(self) -> LedgerIdentity:
        """Read who this ledger is.

        Raises:
            StoreUnavailable: also where the tables were never made; the message names `pauseledger migrate`.
        """

    @abstractmethod
    def draw_epoch(self) -> int:
        """Replace the epoch (16 bits) by another random one, and return it."""

    @abstractmethod
    def migrate(self) -> list[str]:
        """Create or upgrade the tables; safe to run twice and from several processes. Returns what was done, in words."""

    @abstractmethod
    def walk(self, gt: int = 0, batch: int = 500) -> Iterator[Notification]:
        """Go through the whole log in order, from after position `gt`."""

    @abstractmethod
    def close(self) -> None:
        """Close every connection. Safe to call twice."""
