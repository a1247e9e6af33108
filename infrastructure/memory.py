"""The ledger in this process's memory: for tests and trials, gone with the process."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from secrets import randbelow, token_bytes
from typing import Any
from uuid import UUID, uuid4

from eventsourcing.persistence import IntegrityError, Notification, StoredEvent
from eventsourcing.popo import POPOApplicationRecorder

from .store import (
    EPOCHS,
    SCHEMA_REVISION,
    SETTLED,
    Front,
    KeyKind,
    Lease,
    LedgerIdentity,
    LedgerRecorder,
    Snapshot,
    StreamConflict,
    VaultRow,
    named,
    wrapper_of,
)


class MemoryRecorder(LedgerRecorder, POPOApplicationRecorder):
    """Rows in a list. Its time is the host's clock."""

    def __init__(self) -> None:
        super().__init__()
        self._identity = LedgerIdentity(uuid4(), token_bytes(32), randbelow(EPOCHS), SCHEMA_REVISION)
        self._leases: dict[UUID, Lease] = {}
        self._vault: dict[UUID, VaultRow] = {}

    def append(self, rows: Sequence[StoredEvent], keys: Sequence[VaultRow] = ()) -> Sequence[int]:
        """Write sorted rows, all or none."""
        with self._database_lock:
            if any(row.pause in self._vault for row in keys):
                raise StreamConflict(f"its pause has keys: {named(rows)}")
            positions = self._insert_events(rows) or ()
            self._vault |= {row.pause: row for row in keys}
        self._notify_listeners()
        return positions

    def _assert_uniqueness(self, stored_events: Sequence[StoredEvent], **_: Any) -> None:
        added: set[tuple[str, int]] = set()
        for row in stored_events:
            # As the library's own index spells them.
            stream, version = str(row.originator_id), row.originator_version
            there = self._stored_events_index.get(stream, {})
            if version in there or (stream, version) in added:
                raise StreamConflict(f"stored already: {named([row])}")
            follows = version - 1 in there or (stream, version - 1) in added
            starts = version == 1 or (version == 0 and 1 not in there)
            if not follows and not starts:
                raise IntegrityError(f"does not follow in its stream: {named([row])}")
            added.add((stream, version))

    def _notify_listeners(self) -> None:
        # A copy: a subscription that comes or goes meanwhile would make a finished append raise.
        for listener in tuple(self._listeners):
            listener.set()

    def load(self, streams: Sequence[UUID]) -> Snapshot:
        """Read whole streams and what goes with them, under the one lock there is."""
        with self._database_lock:
            return Snapshot(
                rows=[row for stream in sorted(set(streams)) for row in self._stream(stream)],
                leases={pause: self._leases[pause] for pause in set(streams) & self._leases.keys()},
                epoch=self._identity.epoch,
                now=datetime.now(UTC),
                keys=self.vault(streams),
            )

    def _stream(self, stream: UUID) -> list[Notification]:
        index = self._stored_events_index.get(str(stream), {})
        return [
            Notification(stream, version, self._stored_events[at].topic, self._stored_events[at].state, id=at + 1)
            for version, at in index.items()
        ]

    def headers(self, gt: int, limit: int) -> Sequence[Front]:
        """Read the log; nothing is saved by leaving a part out here."""
        return [
            (str(row.originator_id), row.originator_version, row.topic, row.state, row.id)
            for row in self.select_notifications(gt, limit, inclusive_of_start=False)
        ]

    def leases(self, pauses: Sequence[UUID]) -> dict[UUID, Lease]:
        """Read the leases of these pauses."""
        with self._database_lock:
            return {pause: self._leases[pause] for pause in set(pauses) & self._leases.keys()}

    def renew(self, pause: UUID, fence: int, seconds: float) -> bool:
        """Move a lease's end, unless a higher fence holds it."""
        with self._database_lock:
            if self._settled(pause) or (pause in self._leases and self._leases[pause].fence > fence):
                return False
            self._leases[pause] = Lease(fence, datetime.now(UTC) + timedelta(seconds=seconds))
            return True

    def forget_leases(self) -> int:
        """Remove ended leases of settled turns."""
        with self._database_lock:
            now = datetime.now(UTC)
            over = [pause for pause, lease in self._leases.items() if lease.until < now and self._settled(pause)]
            for pause in over:
                del self._leases[pause]
            return len(over)

    def _settled(self, pause: UUID) -> bool:
        return any(row.topic.partition("@")[0] in SETTLED for row in self._stream(pause))

    def identity(self) -> LedgerIdentity:
        """Read who this ledger is: another one in every process and every instance."""
        wrapped = (wrapper_of(row.content or row.person) for row in self._vault.values())
        return replace(self._identity, vault_kid=next(filter(None, wrapped), None))

    def vault(self, pauses: Sequence[UUID]) -> Sequence[VaultRow]:
        """Read the data keys of these pauses."""
        with self._database_lock:
            return [self._vault[pause] for pause in sorted(set(pauses)) if pause in self._vault]

    def vault_after(self, pause: UUID | None, limit: int) -> Sequence[VaultRow]:
        """Go through the vault by pause."""
        with self._database_lock:
            return [self._vault[one] for one in sorted(self._vault) if pause is None or one > pause][:limit]

    def destroy(self, pauses: Sequence[UUID], kind: KeyKind) -> int:
        """Forget one data key of each of these pauses."""
        with self._database_lock:
            held = [row for row in self.vault(pauses) if getattr(row, kind) is not None]
            for row in held:
                self._vault[row.pause] = row._replace(content=None) if kind == "content" else row._replace(person=None)
            return len(held)

    def rewrap(self, was: VaultRow, now: VaultRow) -> bool:
        """Replace wrapped keys."""
        with self._database_lock:
            same = self._vault.get(was.pause) == was
            if same:
                self._vault[was.pause] = now
            return same

    def scrub(self) -> bool:
        """Do nothing: what was forgotten is gone."""
        return True

    def draw_epoch(self) -> int:
        """Replace the epoch by another random one."""
        with self._database_lock:
            was = self._identity
            epoch = (was.epoch + 1 + randbelow(EPOCHS - 1)) % EPOCHS
            self._identity = LedgerIdentity(was.ledger_id, was.identity_key, epoch, was.schema_revision)
            return epoch

    def migrate(self) -> list[str]:
        """Do nothing: there are no tables."""
        return []

    def close(self) -> None:
        """Do nothing: the rows live as long as the recorder."""
