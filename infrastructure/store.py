"""What a store must be: eventsourcing's application recorder, and a little more."""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any, ClassVar, Literal, NamedTuple, Never, get_args
from uuid import UUID

from eventsourcing.persistence import (
    ApplicationRecorder,
    InfrastructureFactory,
    IntegrityError,
    Notification,
    StoredEvent,
    TrackingRecorder,
)

from ..domain.errors import InteractionConfigurationError, LedgerTooNew, StoreUnavailable
from ..domain.facts import Abandoned, Continued

#: How much of a row's state a follower reads at first: all of the header, but for the rarest.
HEADER_BYTES = 4096

#: A row as followers read it: its stream (a UUID's text, with hyphens or without), version and topic, the front of its
#: state, and its position. Bare tuples as the drivers make them: a million objects would cost more than their folding.
Front = tuple[str, int, str, bytes, int]

#: The revision of the tables this version makes and understands. 2 changed those on PostgreSQL alone; 3 added the
#: sealed log, 4 the vault.
SCHEMA_REVISION = 4

#: The tables of a ledger, beside those of its views.
TABLES = ("stored_events", "ledger", "lease", "sealed", "sealed_tiles", "tree_heads", "sealing", "vault")

#: Given for what is no stream's id.
NO_STREAM = UUID(int=0)

#: The length of a ledger's identity key.
IDENTITY_KEY_BYTES = 32

#: How many different epochs there are (16 bits).
EPOCHS = 1 << 16


#: The facts after which nobody holds a turn any more, by their stored names.
SETTLED = (Continued.NAME, Abandoned.NAME)


class RightMissing(InteractionConfigurationError):
    """The database role may not do this; the message names the roles that may."""


class StreamConflict(IntegrityError):
    """The stream's own key (originator_id, originator_version) is taken. No other constraint comes as this."""


@dataclass(frozen=True)
class LedgerIdentity:
    """What was drawn once when the ledger was made. The key never leaves the store and this process.

    Attributes:
        vault_kid: A key outside the store by which one of the vault's data keys is wrapped; None where there is none.
    """

    ledger_id: UUID
    identity_key: bytes
    epoch: int
    schema_revision: int
    vault_kid: str | None = None

    def __repr__(self) -> str:
        return f"LedgerIdentity({self.ledger_id}, epoch={self.epoch}, schema_revision={self.schema_revision})"


@dataclass(frozen=True)
class Lease:
    """How long a claim's worker has said it will go on (UTC, the store's clock)."""

    fence: int
    until: datetime


#: The two data keys of a pause: what was said, and who said it.
KeyKind = Literal["content", "person"]
KEY_KINDS: tuple[KeyKind, ...] = get_args(KeyKind)
#: A wrapped data key begins with the id of the key that wrapped it (bytes).
WRAPPER_BYTES = 4


class VaultRow(NamedTuple):
    """The two data keys of a pause as the vault holds them; a destroyed one is None.

    Attributes:
        content_key, person_key: Their ids, as segments name them.
    """

    pause: UUID
    content_key: UUID
    person_key: UUID
    content: bytes | None
    person: bytes | None

    def __repr__(self) -> str:
        return f"VaultRow({self.pause}, content_key={self.content_key}, person_key={self.person_key})"


def wrapper_of(wrapped: bytes | None) -> str | None:
    """Name the key that wrapped a data key (8 hex)."""
    return None if wrapped is None else bytes(wrapped[:WRAPPER_BYTES]).hex()


@dataclass(frozen=True)
class Snapshot:
    """What one read found: the rows of all streams asked for, by stream and version, and what goes with them."""

    rows: Sequence[Notification]
    leases: dict[UUID, Lease]
    epoch: int
    now: datetime
    keys: Sequence[VaultRow] = field(default_factory=list)

    def of(self, streams: Sequence[UUID]) -> "Snapshot":
        """Give what was found of some of the streams."""
        return Snapshot(
            rows=[row for stream in dict.fromkeys(streams) for row in self._by_stream.get(stream, ())],
            leases={pause: self.leases[pause] for pause in streams if pause in self.leases},
            epoch=self.epoch,
            now=self.now,
            keys=[self._by_pause[pause] for pause in dict.fromkeys(streams) if pause in self._by_pause],
        )

    @cached_property
    def _by_stream(self) -> dict[UUID | str, list[Notification]]:
        found: dict[UUID | str, list[Notification]] = {}
        for row in self.rows:
            found.setdefault(row.originator_id, []).append(row)
        return found

    @cached_property
    def _by_pause(self) -> dict[UUID, VaultRow]:
        return {row.pause: row for row in self.keys}


def known(revision: int) -> int:
    """Return the revision of the tables found, if this version understands it.

    Raises:
        LedgerTooNew: it does not.
    """
    if revision > SCHEMA_REVISION:
        raise LedgerTooNew(f"schema@{revision}")
    return revision


def understood(revision: int) -> int:
    """Give back the revision of the tables found, if it is this version's.

    Raises:
        StoreUnavailable: it is an older one.
        LedgerTooNew: it is a newer one.
    """
    if known(revision) < SCHEMA_REVISION:
        raise StoreUnavailable("the ledger's tables are of another make; run `pauseledger migrate`")
    return revision


def named(rows: Sequence[StoredEvent]) -> str:
    """Name rows in an error by their ids alone: what they hold belongs in no message."""
    some = ", ".join(f"{row.originator_id}@{row.originator_version}" for row in rows[:8])
    return some if len(rows) <= 8 else f"{some} and {len(rows) - 8} more"  # noqa: PLR2004 - a line's worth


def place(row: StoredEvent) -> tuple[int, int]:
    """Tell where a row stands: its stream and version. The numbers of UUIDs sort as UUIDs do in every store."""
    stream = row.originator_id
    return (stream if isinstance(stream, UUID) else UUID(stream)).int, row.originator_version


class Ordered:
    """An append as it is written: by stream and version, its keys by pause, whatever the order given.

    Two appends that share streams would else wait for each other for good.
    """

    def __init__(self, rows: Sequence[StoredEvent], keys: Sequence[VaultRow] = ()) -> None:
        self._order = sorted(range(len(rows)), key=lambda at: place(rows[at]))
        self.rows = [rows[at] for at in self._order]
        self.keys = sorted(keys, key=lambda row: row.pause.int)

    def as_given(self, positions: Iterable[int]) -> list[int]:
        """Give the rows' positions, told in the order written, in the order in which the rows were given."""
        given = dict(zip(self._order, positions, strict=True))
        return [given[at] for at in range(len(given))]


class LedgerRecorder(ApplicationRecorder):
    """Where rows are kept. Every method blocks, and is safe to call from several threads.

    A stream starts at version 0 or 1 and then has no gap; what is stored is never changed or removed.

    Raises (every method):
        StoreUnavailable: the database could not speak; `outcome` is `unknown` only where a commit may have happened.
        LedgerTooNew: the tables belong to a newer version of this package (`load`, `identity` and `migrate` look).
        RightMissing: the database role lacks the right.

    Attributes:
        apart: Whether a server does the work, so that it is worth a thread to let it go on meanwhile.
        told: Whether keys of the vault are told of alone, as this role may not read them; `settings` finds that out.
    """

    apart: ClassVar[bool] = False
    told: bool = False

    def insert_events(
        self, stored_events: Sequence[StoredEvent], *, keys: Sequence[VaultRow] = (), **_: Any
    ) -> Sequence[int]:
        """Append rows, and the data keys of their pauses where these are new, all or none.

        Returns:
            Their positions in the log, in the order given.

        Raises:
            StreamConflict: a row of that stream and version is there, or that pause has keys.
            IntegrityError: any other rule of the table, such as a gap in a stream.
        """
        if not stored_events:
            return []
        ordered = Ordered(stored_events, keys)
        return ordered.as_given(self.append(ordered.rows, ordered.keys))

    @abstractmethod
    def append(self, rows: Sequence[StoredEvent], keys: Sequence[VaultRow] = ()) -> Sequence[int]:
        """Write rows that are sorted by stream and version, at least one, and return their positions in that order.

        `keys`, sorted by pause, are written in the same statement or transaction.
        """

    def record_reading(self, row: StoredEvent) -> None:
        """Append an auditor's reading; where a role may write nothing else, in the way that it may.

        Raises:
            StreamConflict: somebody else's reading has that version.
        """
        self.insert_events([row])

    @abstractmethod
    def load(self, streams: Sequence[UUID]) -> Snapshot:
        """Read whole streams, their leases and keys, the epoch and the time, in one statement or one snapshot."""

    @abstractmethod
    def renew(self, pause: UUID, fence: int, seconds: float) -> bool:
        """Move a lease's end to now + `seconds`. A lower fence never replaces a higher one: then False.

        False as well where the turn is settled: nobody holds it any more, and a late renewal leaves nothing behind.
        """

    @abstractmethod
    def forget_leases(self) -> int:
        """Remove the leases that have ended and whose turns are settled; tell how many. Nothing asks for them."""

    @abstractmethod
    def identity(self) -> LedgerIdentity:
        """Read who this ledger is.

        Raises:
            StoreUnavailable: also where the tables were never made; the message names `pauseledger migrate`.
        """

    def settings(self) -> LedgerIdentity:
        """Read who this ledger is, whatever became of the rules that guard its tables; `broken_rules` tells those.

        Raises:
            SettingsCorrupt: one of its settings is none.
        """
        return self.identity()

    def tables(self) -> set[str]:
        """Name the tables that are there; of `TABLES` none may be missing."""
        return set(TABLES)

    def broken_rules(self) -> Sequence[str]:
        """List what was changed of the tables' own rules since they were made, in words."""
        return []

    def altered_tables(self) -> Sequence[str]:
        """List keys and conditions that the tables were made with and have no more, in words."""
        return []

    def added_rules(self) -> Sequence[str]:
        """List what somebody added to the tables that acts when they are read or written, in words."""
        return []

    def epoch(self) -> int:
        """Read the ledger's epoch alone: after every pause that is made, where its append does not tell."""
        return self.load([]).epoch

    @abstractmethod
    def draw_epoch(self) -> int:
        """Replace the epoch (16 bits) by another random one, and return it."""

    @abstractmethod
    def migrate(self) -> list[str]:
        """Make or upgrade the tables; safe to run twice and from several processes. Returns what was done, in words."""

    def walk(self, gt: int = 0, batch: int = 500) -> Iterator[Notification]:
        """Go through the whole log in order, from after position `gt`, holding `batch` rows and no connection."""
        while rows := self.select_notifications(gt, batch, inclusive_of_start=False):
            yield from rows
            gt = rows[-1].id

    @abstractmethod
    def headers(self, gt: int, limit: int) -> Sequence[Front]:
        """Read the log after position `gt`, of each state `HEADER_BYTES` at most; the rest may be left out."""

    def whole(self, position: int) -> bytes:
        """Read the state of a row whose header did not fit."""
        return self.select_notifications(position, 1, position)[0].state

    @abstractmethod
    def leases(self, pauses: Sequence[UUID]) -> dict[UUID, Lease]:
        """Read the leases of these pauses, as far as any was renewed."""

    @abstractmethod
    def vault(self, pauses: Sequence[UUID]) -> Sequence[VaultRow]:
        """Read the data keys of these pauses, as far as they have any."""

    @abstractmethod
    def vault_after(self, pause: UUID | None, limit: int) -> Sequence[VaultRow]:
        """Go through the vault by pause: at most `limit` rows after that one, or from the first on."""

    def require_eraser(self, kind: KeyKind) -> None:
        """Make sure, before anything is written of it, that this role may destroy such keys.

        Raises:
            InteractionConfigurationError: it may not; the message names the role that may.
        """

    @abstractmethod
    def destroy(self, pauses: Sequence[UUID], kind: KeyKind) -> int:
        """Destroy one data key of each of these pauses for good, and tell of how many it was still there."""

    @abstractmethod
    def rewrap(self, was: VaultRow, now: VaultRow) -> bool:
        """Replace wrapped keys; False where the row is not as it `was`. A destroyed key stays destroyed."""

    @abstractmethod
    def scrub(self) -> bool:
        """Overwrite what destroyed keys left behind, as far as the store can; False where others were in the way."""

    def writers_ended(self) -> None:
        """Wait until every transaction under way now, which may bring keys into the vault, has ended.

        Raises:
            InteractionConfigurationError: one goes on.
        """

    def rest(self) -> None:
        """Give back what is scarce until the next call; none may be under way."""

    @abstractmethod
    def close(self) -> None:
        """Close every connection. Safe to call twice."""


class LedgerFactory(InfrastructureFactory[TrackingRecorder]):
    """Hands one recorder to the library's `Application`; a ledger has no other kind."""

    def __init__(self, recorder: LedgerRecorder) -> None:
        super().__init__(env=None)
        self.recorder = recorder

    def application_recorder(self) -> LedgerRecorder:
        """Return the recorder given."""
        return self.recorder

    def aggregate_recorder(self, purpose: str = "events") -> Never:
        """Refuse: snapshots would be a second truth beside the stream."""
        raise NotImplementedError(f"a ledger keeps no {purpose} apart from its log")

    def tracking_recorder(self, tracking_recorder_class: type[TrackingRecorder] | None = None) -> Never:
        """Refuse: a view brings its own tracking."""
        raise NotImplementedError("a ledger tracks nothing; each view keeps its own position")

    def process_recorder(self) -> Never:
        """Refuse: a ledger follows nobody."""
        raise NotImplementedError("a ledger processes no other application's events")
