"""Which rows belong into a bundle: headers are walked once, and what is picked is kept on disk, not in memory."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from ..domain.axes import Scope
from ..domain.facts import rfc3339
from ..projections.rows import spelled
from ..projections.seen import Seen
from .headers import Log
from .mapper import stored_digest
from .merkle import Unproved
from .sealed import SealedRows

Progress = Callable[[int, int], None]

#: Rows looked at, at a time.
_BATCH = 1000
#: Of these each row gets a proof of its own, to be handed on alone.
DECISIONS = ("pause.answered", "pause.consumed", "pause.refused")
_OF_A_PAUSE = "pause."
_POLICY = "policy.changed"

_TABLES = """
CREATE TABLE rows (position INTEGER PRIMARY KEY, leaf INTEGER, stream BLOB, version INTEGER, pause BLOB, at TEXT,
    name TEXT, digest BLOB, beside TEXT);
CREATE TABLE chosen (pause BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE governed (interaction TEXT, pause BLOB, PRIMARY KEY (interaction, pause)) WITHOUT ROWID;
CREATE TABLE picked (leaf INTEGER PRIMARY KEY, position INTEGER, stream BLOB, version INTEGER, name TEXT, digest BLOB,
    beside INTEGER);
"""


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a bundle is about; everything that is given has to hold.

    Attributes:
        scope: One scope, exactly; None for those of all tenants.
        begins, ends: Pauses in which something happened from `begins` on and before `ends`; each is told from its
            beginning up to `ends`.
    """

    scope: Scope | None
    pause: UUID | None = None
    session_id: str | None = None
    run_id: str | None = None
    begins: datetime | None = None
    ends: datetime | None = None

    @property
    def narrow(self) -> bool:
        """Whether single pauses are chosen, and not all of a scope."""
        return self.pause is not None or self.session_id is not None


@dataclass(frozen=True, slots=True)
class Pick:
    """A row that belongs into the bundle.

    Attributes:
        before: The digest in the row before it in its stream; None where that row is not known here.
        proof: Whether it is proved by itself.
        beside: Whether it is of a stream that belongs to the whole ledger, or a whole tenant.
    """

    leaf: int
    position: int
    stream: UUID
    version: int
    proof: bool
    beside: bool
    before: bytes | None = field(repr=False)


class Picked:
    """Picks the rows of a bundle under a head of `size` leaves. Blocks; holds a batch of rows, whatever their number.

    Raises (every method):
        StoreUnavailable: the store could not speak.
        Unproved: rows that were sealed are gone, or cannot be told from others any more.
    """

    def __init__(self, chosen: Chosen, size: int) -> None:
        self._chosen = chosen
        self._size = size
        self._whose = None if chosen.scope is None else spelled(chosen.scope)
        # A name of nothing: SQLite keeps it in a file of its own as soon as it is large, and removes that.
        self._kept = sqlite3.connect("", check_same_thread=False)
        self._kept.executescript(_TABLES)
        self._sealed = 0
        self._unread: list[tuple[UUID, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kept.close()

    def walk(self, rows: SealedRows, log: Log, progress: Progress | None) -> None:
        """Go through the log's headers, up to where it ends now, and pick."""
        at, newest = 0, log.newest()
        while at < newest and (found := log.fronts(at, _BATCH)):
            leaves = rows.indexes([position for *_, position in found])
            for (_, _, _, state, position), seen in zip(found, log.seen(found), strict=True):
                leaf = leaves.get(position)
                self._sealed += leaf is not None and leaf < self._size
                self._look(seen, leaf, state)
            at = found[-1][-1]
            if progress is not None:
                progress(min(at, newest), newest)
        if self._sealed != self._size:
            raise Unproved(
                f"{self._size} rows were sealed, and {self._sealed} of them are here; `pauseledger check` says which"
            )
        self._pick()

    def _look(self, seen: Seen, leaf: int | None, state: bytes) -> None:
        if seen.unreadable == "corrupt":
            self._unread.append((UUID(seen.stream), seen.position))
            return
        whole_scope = self._whose is None or seen.scope == self._whose
        of_a_pause = seen.pause != seen.stream or seen.name.startswith(_OF_A_PAUSE)
        if of_a_pause and whole_scope:
            self._choose(seen)
            self._keep(seen, leaf, state, None)
        elif not of_a_pause and seen.name == _POLICY and seen.readable():
            self._keep(seen, leaf, state, f"i:{seen.fields['interaction']}")
        elif not of_a_pause and (self._covers(seen) or (self._whose is None and not self._chosen.narrow)):
            self._keep(seen, leaf, state, "")

    def _covers(self, seen: Seen) -> bool:
        """Whether a fact of a tenant, such as a legal hold, holds for the scope chosen."""
        scope = self._chosen.scope
        if scope is None or not seen.scope or not seen.readable():
            return False
        stated: dict[str, Any] = {name: part for name, part in seen.fields["scope"].items() if part is not None}
        return stated.items() <= scope.model_dump().items()

    def _choose(self, seen: Seen) -> None:
        chosen, pause = self._chosen, UUID(seen.pause)
        paused = seen.name == "pause.paused" and seen.readable()
        if paused and seen.fields["policy"] is not None:
            self._kept.execute(
                "INSERT OR IGNORE INTO governed VALUES (?, ?)", (seen.fields["interaction"]["name"], pause.bytes)
            )
        if chosen.pause is not None:
            fits = pause == chosen.pause
        elif chosen.session_id is not None:
            fits = (
                paused
                and seen.fields["session_id"] == chosen.session_id
                and chosen.run_id in (None, seen.fields["run_id"])
            )
        else:
            fits = True
        if fits:
            self._kept.execute("INSERT OR IGNORE INTO chosen VALUES (?)", (pause.bytes,))

    def _keep(self, seen: Seen, leaf: int | None, state: bytes, beside: str | None) -> None:
        values = (
            seen.position,
            leaf,
            UUID(seen.stream).bytes,
            seen.version,
            UUID(seen.pause).bytes,
            seen.at,
            seen.name,
            stored_digest(bytes(state)),
            beside,
        )
        self._kept.execute("INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)

    def _pick(self) -> None:
        begins, ends = (None if one is None else rfc3339(one) for one in (self._chosen.begins, self._chosen.ends))
        told = {"begins": begins or "", "ends": ends or "~", "size": self._size}
        self._kept.execute(
            "DELETE FROM chosen WHERE pause NOT IN (SELECT pause FROM rows"
            " WHERE beside IS NULL AND at >= :begins AND at < :ends)",
            told,
        )
        self._kept.execute(
            "CREATE TABLE wanted AS SELECT * FROM rows WHERE at < :ends AND ("
            " beside IS NULL AND pause IN (SELECT pause FROM chosen) OR beside = ''"
            " OR beside IN (SELECT 'i:' || interaction FROM governed WHERE pause IN (SELECT pause FROM chosen)))",
            told,
        )
        self._kept.execute(
            "INSERT INTO picked SELECT leaf, position, stream, version, name, digest, beside IS NOT NULL FROM wanted"
            " WHERE leaf < :size",
            told,
        )
        self._kept.execute("CREATE INDEX picked_by_stream ON picked (stream, version, digest)")
        self._require_whole()

    def _require_whole(self) -> None:
        gap = self._kept.execute(
            "SELECT stream FROM picked WHERE NOT beside GROUP BY stream HAVING count(*) <> max(version) LIMIT 1"
        ).fetchone()
        if gap:
            raise Unproved(f"stream {UUID(bytes=gap[0])} has a gap, or was sealed late; run `pauseledger check`")
        for stream, position in self._unread:
            if self._count("SELECT count(*) FROM picked WHERE stream = ?", stream.bytes):
                raise Unproved(f"the row at position {position} cannot be read any more; run `pauseledger check`")

    @property
    def pauses(self) -> int:
        """How many pauses the bundle is about."""
        return self._count("SELECT count(DISTINCT pause) FROM wanted WHERE beside IS NULL AND leaf < ?", self._size)

    @property
    def rows(self) -> int:
        """How many rows are in it."""
        return self._count("SELECT count(*) FROM picked")

    @property
    def of_pauses(self) -> int:
        """How many of them are of the pauses themselves."""
        return self._count("SELECT count(*) FROM picked WHERE NOT beside")

    @property
    def unsealed(self) -> int:
        """How many rows belong into it that are not under the head yet."""
        return self._count("SELECT count(*) FROM wanted WHERE leaf IS NULL OR leaf >= ?", self._size)

    def _count(self, statement: str, *values: object) -> int:
        return int(self._kept.execute(statement, values).fetchone()[0])

    def __iter__(self) -> Iterator[Pick]:
        """Go through the rows by leaf: those of pauses first, then those beside them."""
        statement = (
            "SELECT p.leaf, p.position, p.stream, p.version, p.beside OR p.name IN (?, ?, ?) OR NOT EXISTS ("
            " SELECT 1 FROM picked n WHERE n.stream = p.stream AND n.version = p.version + 1), p.beside,"
            " (SELECT b.digest FROM picked b WHERE b.stream = p.stream AND b.version = p.version - 1)"
            " FROM picked p WHERE p.beside = ? ORDER BY p.leaf"
        )
        for beside in (0, 1):
            with closing(self._kept.execute(statement, (*DECISIONS, beside))) as found:
                for leaf, position, stream, version, proof, apart, before in found:
                    yield Pick(leaf, position, UUID(bytes=stream), version, bool(proof), bool(apart), before)
