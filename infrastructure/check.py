"""Re-reads a whole ledger and proves it: rows, streams, rounds, tree, heads, views. Writes nothing."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from uuid import UUID

from eventsourcing.persistence import Notification

from ..domain.ids import Identity
from .check_streams import (
    NOT_SO,
    Fault,
    Stream,
    id_of,
    judge,
    judge_alone,
    judge_round,
    members,
    read_row,
    whole_streams,
)
from .check_tree import Kept, TreeCheck
from .check_vault import VaultCheck
from .merkle import Unproved
from .notes import Checkpoint, Verifier
from .sealed import SealedRows
from .sealer import origin_of
from .store import NO_STREAM, LedgerRecorder

_BATCH = 2000
#: So many rounds are judged at once, each out of streams loaded at one moment.
_ROUNDS = 100
#: Faults listed at most; what follows is counted.
LISTED = 1000

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check came to.

    Attributes:
        faults: What does not hold, `LISTED` at most.
        found: How many faults there are.
        rows: How many rows were read.
        leaves: How many of them are sealed.
        unsealed: How many stand behind the last leaf.
        proved: How many leaves are those of a head that was kept; what stands behind them is as good as the database.
        signed: Whether heads were held against a public key.
    """

    faults: Sequence[Fault]
    found: int
    rows: int = 0
    leaves: int = 0
    unsealed: int = 0
    proved: int = 0
    signed: bool = False


class Check:
    """One check of one ledger. Holds a batch of rows, and no more, whatever the ledger's size. Blocks.

    Args:
        keys: The public keys that heads are to be signed with; without one, nobody's signature is asked for.
        heads: Heads that were kept outside.
        vault: What holds the vault against the rows; None leaves it out.

    Raises (every method):
        StoreUnavailable: the store could not speak.
    """

    def __init__(
        self,
        recorder: LedgerRecorder,
        rows: SealedRows,
        keys: Sequence[Verifier] = (),
        heads: Sequence[Kept] = (),
        vault: VaultCheck | None = None,
    ) -> None:
        self._recorder = recorder
        self._rows = rows
        held = recorder.settings()
        self._ledger = held.ledger_id
        self._identity = Identity(held.ledger_id, held.identity_key)
        self._keys = keys
        self._heads = heads
        self._vault = vault

    def run(self, progress: Progress | None = None, more: Iterable[Fault] = ()) -> Checked:
        """Check everything; `more` are faults that somebody else finds, such as those of the views."""
        origin = origin_of(self._ledger)
        tree = TreeCheck(self._rows, origin, self._keys)
        faults: list[Fault] = []
        found = 0
        for fault in self._all(tree, progress, more):
            found += 1
            if len(faults) < LISTED:
                faults.append(fault)
        signed = any(key.name == origin for key in self._keys)
        return Checked(faults, found, tree.rows, tree.size, tree.unsealed, tree.proved, signed)

    def _all(self, tree: TreeCheck, progress: Progress | None, more: Iterable[Fault]) -> Iterator[Fault]:
        kept = list(self._kept())
        yield from tree.faults([*kept, *self._heads])
        here = {Checkpoint.of(one.note).size for one in kept if _is_head(one.note)}
        for one in self._heads:
            if _is_head(one.note) and Checkpoint.of(one.note).size not in here:
                yield Fault("head", f"a head that was signed ({one.by}) is not among those kept in the ledger")
        yield from self._of_streams(tree.rows, progress)
        yield from more

    def _kept(self) -> Iterator[Kept]:
        # Below every number, as some may stand where none was signed.
        after = -(1 << 63)
        while heads := self._rows.heads(after, _BATCH):
            for head in heads:
                yield Kept(head.checkpoint, "kept in the ledger", head.size)
            after = heads[-1].size

    def _of_streams(self, total: int, progress: Progress | None) -> Iterator[Fault]:
        rounds: list[tuple[UUID, list[UUID]]] = []
        done, stream = 0, Stream(NO_STREAM)
        for rows in self._rows.streams(_BATCH):
            for row in rows:
                # Numbers, as ids are slow to compare, and each row's is.
                if id_of(row).int != stream.id.int or not stream.id.int:
                    yield from self._ended(stream, rounds)
                    stream = Stream(id_of(row))
                if found := self._of_row(row, stream):
                    yield from found
            if self._vault is not None:
                yield from self._vault.read(rows)
            done += len(rows)
            if progress is not None:
                progress(min(done, total), total)
            if len(rounds) >= _ROUNDS:
                yield from self._of_rounds(rounds)
                rounds.clear()
        yield from self._ended(stream, rounds)
        yield from self._of_rounds(rounds)
        if self._vault is not None:
            yield from self._vault.ended()

    def _of_row(self, row: Notification, stream: Stream) -> Sequence[Fault]:
        if not stream.id.int:
            return [Fault("row", "its stream's id is none", row.id, version=row.originator_version)]
        return read_row(self._ledger, row, stream)

    def _ended(self, stream: Stream, rounds: list[tuple[UUID, list[UUID]]]) -> Iterator[Fault]:
        if not stream.sound or not stream.version:
            # What its headers say of others is worth nothing where a row is not what was written.
            return
        yield from judge(stream)
        yield from self._of_identity(stream)
        alone = judge_alone(stream)
        if alone is not None:
            yield from alone
            return
        told = members(stream)
        if told is None:
            if stream.first == "pause.paused":
                says = "its round is none, or does not name it"
                yield Fault("round", says, stream.position, stream.id, stream.version)
            return
        lead, others = told
        if lead != stream.id:
            rounds.append((lead, [stream.id]))
        else:
            rounds.append((lead, others))

    def _of_identity(self, stream: Stream) -> Iterator[Fault]:
        """Refusals and siblings stand where the identity key puts them, which nothing else here would miss."""
        derived = stream.id
        try:
            if stream.names.keys() == {"pause.refused"}:
                derived = self._identity.refusals(UUID(str(next(iter(stream.pauses)))))
            elif stream.round and stream.round["lead"] != stream.name:
                address = next(call["call_id"] for call in stream.round["calls"] if call["pause"] == stream.name)
                derived = self._identity.sibling(UUID(stream.round["lead"]), address)
        except (*NOT_SO, StopIteration):
            derived = NO_STREAM
        if derived != stream.id:
            says = "its id is not what the ledger's identity key makes of its pause"
            yield Fault("stream", says, stream.position, stream.id, stream.version)

    def _of_rounds(self, rounds: Sequence[tuple[UUID, list[UUID]]]) -> Iterator[Fault]:
        """Judge rounds by their leads, out of streams loaded at one moment: a round may be consumed while we read."""
        left = iter(rounds)
        while some := list(islice(left, _ROUNDS)):
            asked = {name for lead, others in some for name in (lead, *others)}
            loaded = self._recorder.load(sorted(asked)).rows
            there = {UUID(str(row.originator_id)) for row in loaded}
            held = whole_streams(self._ledger, loaded)
            for lead, others in some:
                if lead not in there:
                    yield Fault("round", "its lead is not there", stream=others[0])
                elif lead in others and lead in held and all(one in held or one not in there for one in others):
                    yield from judge_round(lead, held)
                elif lead in held and others[0] in held and held[others[0]].round != held[lead].round:
                    yield Fault("round", "its lead is of another round", stream=others[0])


def _is_head(note: str) -> bool:
    try:
        Checkpoint.of(note)
    except Unproved:
        return False
    return True
