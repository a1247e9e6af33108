"""What the domain needs from outside, in the domain's words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, TypeVar
from uuid import UUID

from .content import ContentKind
from .envelope import Opened, Terms
from .errors import LedgerCorrupt
from .facts import Fact, Refused
from .round import Round
from .turn import CheckpointReference

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Found:
    """What one read of a pause found.

    Attributes:
        round: The pause's whole round; None where the pause is not in this store.
        epoch: The ledger's epoch.
        altered: By stream, the versions whose rows are not what was written.
        readable: The pauses whose turn was read back since; many attempts may be judged by one read.
    """

    round: Round | None
    epoch: int
    altered: Mapping[UUID, tuple[int, ...]]
    readable: set[UUID] = field(default_factory=set, repr=False, compare=False)

    def require_whole(self, *, beside: UUID | None = None) -> None:
        """Build nothing on rows that are not what was written; `beside` is a stream that is judged elsewhere.

        Raises:
            LedgerCorrupt: one of them is not, and where.
        """
        for stream, versions in self.altered.items():
            if versions and stream != beside:
                raise LedgerCorrupt(stream, versions[0], "the row is not what was written")


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a refusal stream.

    Attributes:
        written: Tells whether an axis was refused in this hour already, as `(axis, hour)`; filled past the bound only.
    """

    version: int
    head: bytes | None
    at: datetime | None
    written: frozenset[tuple[str, datetime]] = frozenset()


@dataclass(frozen=True, slots=True)
class Minted:
    """A token, the key that sealed it (8 hex) and a digest of its text."""

    token: str = field(repr=False)
    kid: str
    text_digest: bytes


class Pauses(Protocol):
    """The ledger of pauses. Any method may raise StoreUnavailable, LedgerCorrupt or LedgerTooNew."""

    def now(self) -> datetime:
        """Tell the store's time (UTC), without asking it."""
        ...

    def epoch(self) -> int:
        """Tell the ledger's epoch as the last read found it."""
        ...

    async def find(self, pause_id: UUID) -> Found:
        """Bring a pause and its round back from their streams."""
        ...

    async def story(self, streams: Sequence[UUID]) -> tuple[Fact, ...]:
        """Read whole streams as facts, in the order given and by version; their chains are proved."""
        ...

    async def append(self, facts: Sequence[Fact]) -> tuple[Fact, ...]:
        """Append facts, of any number of streams, all or none; they come back with their row digest and position.

        Raises:
            VersionConflict: somebody else appended to one of the streams first.
        """
        ...

    async def refuse(self, stream: UUID, write: Callable[[Tail], Refused | None], *, of: UUID | None) -> bool:
        """Append to a refusal stream, judging again by its tail until it fits; False where `write` gives None.

        `of` is the pause, whose keys seal who was refused; None where it is not in this store.
        """
        ...

    async def renew(self, lead: UUID, fence: int, seconds: int) -> bool:
        """Renew a claim's lease; False where a newer claim has one."""
        ...


class Vault(Protocol):
    """The data keys of pauses."""

    async def standing(self, pauses: Sequence[UUID], kind: ContentKind) -> Mapping[UUID, bool]:
        """Tell of each pause that has keys whether this one still stands."""
        ...

    async def require_eraser(self, kind: ContentKind) -> None:
        """Make sure, before anything is written of it, that such keys may be destroyed here.

        Raises:
            InteractionConfigurationError: they may not.
        """
        ...

    async def destroy(self, pauses: Sequence[UUID], kind: ContentKind) -> None:
        """Destroy one key of each of these pauses for good; those that are destroyed stay so."""
        ...

    async def scrub(self) -> bool:
        """Overwrite what destroyed keys left in the store's own files; False where it could not be done."""
        ...


class Seal(Protocol):
    """Tokens: sealed here, and opened here."""

    def minting_kid(self) -> str:
        """Name the key that seals now (8 hex)."""
        ...

    def mint(self, terms: Terms) -> Minted:
        """Seal terms into a token."""
        ...

    def open(self, text: str) -> Opened | None:
        """Open a token; None where it is not one of ours.

        Raises:
            TokenForged: it has our prefix, and does not open.
        """
        ...


class Checkpoints(Protocol):
    """Where a host keeps its turns."""

    async def read(self, reference: CheckpointReference) -> bytes | None:
        """Read the recorded checkpoint, never the thread's head, as the turn's JSON; None where it is gone."""
        ...


class Journal(Protocol):
    """The log: one line a decision, with ids, words and tags alone."""

    def note(self, decision: str, *, axes: Callable[[], Mapping[str, str | None]] | None = None, **fields: Any) -> None:
        """Write one line; `axes` gives the tags of the axes stated, where anybody listens."""
        ...


class OffLoop(Protocol):
    """Runs what blocks or takes long beside the event loop."""

    async def __call__(self, function: Callable[..., T], *args: Any) -> T:
        """Run it, and wait for its result."""
        ...
