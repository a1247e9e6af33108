"""How fast views are rebuilt and asked, and how far a follower is behind: a table for each store.

    python benchmarks/projections.py            # small: 100,000 facts, 20,000 open pauses
    python benchmarks/projections.py --full     # 1,000,000 facts, 100,000 open pauses

A pause's life is five facts (paused, refused, answered, consumed, continued), its rows in the ledger's own format with
whole chains; a thousand lives go on at once, so that few begin and end within one batch. Each view is rebuilt by
itself, and then all five in one pass. Beside each rebuild stands a bare write of the very rows it left:
COPY into a table with no index (PostgreSQL), executemany (SQLite). CPU is this process's own, without the database
server's. Figures are of this machine at this moment: the load average says who else was at work.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import psycopg
from eventsourcing.persistence import StoredEvent
from pauseledger.domain.axes import Scope
from pauseledger.domain.content import Content
from pauseledger.domain.facts import (
    Answered,
    AxesRecord,
    Claim,
    Consumed,
    Continued,
    Refused,
    RoundCall,
    RoundRecord,
    RoutingRecord,
    rfc3339,
)
from pauseledger.infrastructure import views_postgres, views_sqlite
from pauseledger.infrastructure.mapper import FRONT, MAGIC, NO_PREDECESSOR, FactMapper
from pauseledger.infrastructure.postgres import PostgresRecorder
from pauseledger.infrastructure.stories import Stage, a_paused
from pauseledger.infrastructure.testing import TemporaryPostgres
from pauseledger.projections.rows import Query

LIFE = 5
TENANTS = 10
IN_FLIGHT = 1000
BATCH = 10_000
#: When each step of a life happens, in seconds from its begin.
STEPS = (0, 5, 9, 9, 12)
#: How often each question is asked, or for how many milliseconds where it is slow.
PAGES, PATIENCE = 60, 3000
_WAY = re.compile(
    r"(?i)(?:USING (?:COVERING )?INDEX|Scan (?:Backward )?using|Index Scan on) (\w+)|(SCAN \w+|Seq Scan on \w+)"
)
_MARK, _BEGIN = UUID(int=0xFEED), datetime(2026, 1, 1, tzinfo=UTC)


class Template:
    """One life, encoded once; each further one is its bytes with other ids, times and names, digested anew."""

    def __init__(self, ledger: UUID) -> None:
        self._mapper = FactMapper(ledger)
        rest = {
            "pause": _MARK, "scope": Scope(tenant_id="tenant-@"), "ledger": ledger, "attempt": uuid4(),
            "writer": "bench/1", "originator_id": _MARK, "predecessor": None,
        }  # fmt: skip
        answer = Content.of(b'{"answers":[]}')
        life = [
            a_paused(
                **rest | {"predecessor": NO_PREDECESSOR},
                at=_BEGIN, opens_at=_BEGIN, closes_at=datetime(2040, 1, 1, tzinfo=UTC),
                session_id="session-#", run_id="run-#",
                round=RoundRecord(id=_MARK, lead=_MARK, calls=(RoundCall(call_id="call_1", pause=_MARK),)),
                routing=RoutingRecord(queue="q", assignees=("f" * 16,)),
            ),
            Refused(**rest, originator_version=2, at=_BEGIN, step=2, axis="run", reason="run_mismatch", seen_version=1,
                    presented=AxesRecord()),
            Answered(**rest, originator_version=3, at=_BEGIN, number=1, origin="person", response=answer,
                     decision="answer", shown="0" * 64),
            Consumed(**rest, originator_version=4, at=_BEGIN, lead=_MARK, origin="redeem",
                     claim=Claim(fence=1, holder="0" * 16, lease_seconds=60), response_digest=answer.digest),
            Continued(**rest, originator_version=5, at=_BEGIN, fence=1, late=False, end="finished"),
        ]  # fmt: skip
        cut = re.compile(f"{_MARK}|{re.escape(rfc3339(_BEGIN))}|2040-01-01T00:00:00.000000Z|-@|-#|{'f' * 16}")
        self._rows = []
        for row, _ in self._mapper.encode(life):
            end = FRONT + int.from_bytes(row.state[FRONT - 4 : FRONT], "big")
            header, segments = row.state[FRONT:end].decode(), []
            for stored in re.findall(r'"stored":([0-9]+)', header):
                segments.append(row.state[end : end + int(stored)])
                end += int(stored)
            self._rows.append((row.topic, cut.sub(self._blank, header), segments))

    @staticmethod
    def _blank(found: re.Match[str]) -> str:
        names = {str(_MARK): "pause", rfc3339(_BEGIN): "at", "-@": "tenant", "-#": "run", "f" * 16: "person"}
        return f"%({names.get(found[0], 'closes')})s"

    def row(self, number: int, pause: UUID, step: int, before: bytes) -> tuple[StoredEvent, bytes]:
        """Make the row of one step of a life, and its digest."""
        topic, header, segments = self._rows[step]
        begins = _BEGIN + timedelta(seconds=number)
        raw = (header % {
            "pause": pause,
            "at": rfc3339(begins + timedelta(seconds=STEPS[step])),
            "closes": rfc3339(begins.replace(year=2040)),
            "tenant": f"-{number % TENANTS}",
            "run": f"-{number}",
            "person": f"{number % 50:016x}",
        }).encode()  # fmt: skip
        digest = self._mapper._digest(pause, step + 1, topic, before, raw, *segments)
        return StoredEvent(
            pause, step + 1, topic, b"".join((MAGIC, digest, len(raw).to_bytes(4, "big"), raw, *segments))
        ), digest

    def lives(self, numbers: range, steps: int = LIFE) -> Iterator[StoredEvent]:
        """Make the rows of lives, a thousand of which go on at once."""
        for first in range(numbers.start, numbers.stop, IN_FLIGHT):
            heads = {(number, uuid4()): NO_PREDECESSOR for number in range(first, min(first + IN_FLIGHT, numbers.stop))}
            for step in range(steps):
                for (number, pause), before in heads.items():
                    made, heads[number, pause] = self.row(number, pause, step, before)
                    yield made


def batched(rows: Iterator, size: int) -> Iterator[list]:
    while batch := list(itertools.islice(rows, size)):
        yield batch


def fill(recorder, rows: Iterator[StoredEvent]) -> None:
    """Put rows into the log, past the recorder."""
    for batch in batched(rows, BATCH):
        if hasattr(recorder, "lent"):
            copying = "COPY pauseledger.stored_events (originator_id, originator_version, topic, state) FROM STDIN"
            with recorder.lent() as connection, connection.cursor() as cursor, cursor.copy(copying) as copy:
                for row in batch:
                    copy.write_row((row.originator_id, row.originator_version, row.topic, row.state))
        else:
            with recorder.writing() as connection:
                connection.executemany(
                    "INSERT INTO stored_events (originator_id, originator_version, topic, state) VALUES (?, ?, ?, ?)",
                    [(row.originator_id.hex, row.originator_version, row.topic, row.state) for row in batch],
                )


class Watch:
    """Wall-clock and this process's CPU, in seconds."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        begun = time.perf_counter(), time.process_time()
        yield
        self.wall += time.perf_counter() - begun[0]
        self.cpu += time.process_time() - begun[1]


def bare(rows) -> Watch:
    """Write the live rows of a view once more and nothing else, in batches as large."""
    watch = Watch()
    for table in rows._projection.tables:
        name, columns = rows._name(table, rows.place().build), len(table.columns)
        (_bare_postgres if hasattr(rows, "_schema") else _bare_sqlite)(rows, name, columns, watch)
    return watch


def _bare_postgres(rows, name: str, _columns: int, watch: Watch) -> None:
    with rows._database.lent() as connection, rows._database.lent() as reading:
        connection.execute(rows._compose(f"CREATE TABLE {{schema}}.bare (LIKE {name})"))
        with reading.transaction(), reading.cursor("held") as held:
            held.execute(rows._compose(f"SELECT * FROM {name}"))
            while batch := held.fetchmany(BATCH):
                copying = rows._compose("COPY {schema}.bare FROM STDIN")
                with watch.running(), connection.cursor() as cursor, cursor.copy(copying) as copy:
                    for row in batch:
                        copy.write_row(row)
        connection.execute(rows._compose("DROP TABLE {schema}.bare"))


def _bare_sqlite(rows, name: str, columns: int, watch: Watch) -> None:
    with rows._file.writing() as connection:
        connection.execute(f"CREATE TABLE bare AS SELECT * FROM {name} LIMIT 0")
    with rows._file.reading() as reading:
        held = reading.execute(f"SELECT * FROM {name}")
        while batch := held.fetchmany(BATCH):
            with watch.running(), rows._file.writing() as connection:
                connection.executemany(f"INSERT INTO bare VALUES ({', '.join('?' * columns)})", batch)
    with rows._file.writing() as connection:
        connection.execute("DROP TABLE bare")


async def rebuilds(ledger, facts: int) -> None:
    """Rebuild each view and then all at once, each beside a bare write of the same rows."""
    runner = ledger.views.runner
    print(f"  {'rebuild':24}{'facts/s':>10}{'CPU us/fact':>13}{'seconds':>10}{'bare write s':>14}{'ratio':>8}")
    for names in (*((name,) for name in runner.views), runner.views):
        watch = Watch()
        with watch.running():
            await ledger.views.rebuild(*names)
        alone = sum(bare(runner._followers[name].rows).wall for name in names)
        said = names[0] if len(names) == 1 else "all five in one pass"
        ratio = f"{watch.wall / alone:7.1f}x" if alone else ""
        cpu = watch.cpu / facts * 1e6
        print(f"  {said:24}{facts / watch.wall:10,.0f}{cpu:13.1f}{watch.wall:10.1f}{alone:14.2f}{ratio:>8}", flush=True)


class Noted:
    """The questions that reached a view's rows."""

    def __init__(self, rows) -> None:
        self._rows = rows
        self.statements: list[tuple[str, list]] = []

    def __getattr__(self, name):
        return getattr(self._rows, name)

    def select(self, query: Query):
        self._note([query])
        return self._rows.select(query)

    def select_both(self, one: Query, other: Query):
        self._note([one, other])
        return self._rows.select_both(one, other)

    def tally(self, table, columns, where=()):
        build = self._rows.place().build
        self.statements.append(_sql(self._rows).tally(table, columns, where, self._rows._name(table, build)))
        return self._rows.tally(table, columns, where)

    def _note(self, queries: list[Query]) -> None:
        build = self._rows.place().build
        if hasattr(self._rows, "_selection"):
            self.statements.append(self._rows._selection(queries, build))
        else:
            self.statements += [_sql(self._rows).select(one, self._rows._name(one.table, build)) for one in queries]

    def plans(self) -> Iterator[list[str]]:
        """Let the store explain each, with what it took where it tells that."""
        for statement, values in self.statements:
            if hasattr(self._rows, "_schema"):
                with self._rows._database.lent() as connection:
                    said = self._rows._say(connection, f"EXPLAIN (ANALYZE, COSTS OFF) {statement}", values)
                    yield [line for (line,) in said]
            else:
                with self._rows._reading() as connection:
                    yield [row[-1] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]


def _sql(rows):
    return (views_postgres if hasattr(rows, "_schema") else views_sqlite)._SQL


async def noted(view, ask_) -> Noted:
    """Ask once, and note what reached the rows."""
    asking, rows = view._ask, view._ask._rows
    asking._rows = found = Noted(rows)
    try:
        await ask_()
    finally:
        asking._rows = rows
    return found


async def questions(ledger) -> None:
    """Ask every view its questions again and again, and say which indexes each goes by."""
    views, scope, watch = ledger.views, Scope(tenant_id="tenant-1"), datetime(2026, 1, 1, tzinfo=UTC)
    inbox, history, refusals = views.open_pauses, views.history, views.refusals
    times, stranded = views.response_times, views.stranded
    [first, *_] = (await inbox.newest(scope)).rows
    page = (await inbox.newest(scope)).next
    asked = [
        (inbox, "newest", lambda: inbox.newest(scope)),
        (inbox, "newest, next page", lambda: inbox.newest(scope, page=page)),
        (inbox, "most urgent", lambda: inbox.most_urgent(scope)),
        (inbox, "newest, all tenants", inbox.newest_of_all_tenants),
        (inbox, "most urgent, all tenants", inbox.most_urgent_of_all_tenants),
        (inbox, "count", lambda: inbox.count(scope)),
        (history, "of a pause", lambda: history.of_pause(scope, first.pause)),
        (history, "of a run", lambda: history.of_run(scope, first.run_id)),
        (history, "of a pause, operator", lambda: history.of_pause_of_all_tenants(first.pause)),
        (refusals, "counts by hour", lambda: refusals.counts(scope, by="hour", since=watch)),
        (refusals, "last attempts", lambda: refusals.last_attempts(scope, first.pause)),
        (refusals, "last of all tenants", refusals.last_attempts_of_all_tenants),
        (refusals, "insistent", lambda: refusals.insistent(scope)),
        (times, "report", lambda: times.report(scope, assignee="ann")),
        (times, "rubber stamps", lambda: times.rubber_stamps(scope, 3)),
        (stranded, "stranded", lambda: stranded.stranded(scope)),
        (stranded, "stranded, all tenants", stranded.stranded_of_all_tenants),
        (stranded, "unreadable", lambda: stranded.unreadable(scope)),
    ]
    print(f"  {'question':40}{'p50 ms':>9}{'p99 ms':>9}   goes by")
    for view, says, ask_ in asked:
        took = []
        for _ in range(PAGES):
            begun = time.perf_counter()
            await ask_()
            took.append((time.perf_counter() - begun) * 1000)
            if sum(took) > PATIENCE:
                break
        found = await noted(view, ask_)
        p99 = statistics.quantiles(took, n=100)[-1] if len(took) > 1 else took[0]
        ways = sorted({"".join(way) for plan in found.plans() for line in plan for way in _WAY.findall(line)})
        name = f"{view.projection.name}: {says}"
        print(f"  {name:40}{statistics.median(took):9.2f}{p99:9.2f}   {', '.join(ways)}", flush=True)
    for says, ask_ in (("newest", lambda: inbox.newest(scope)), ("most urgent", lambda: inbox.most_urgent(scope))):
        print(f"  the plan of the inbox's first page, {says}:")
        for plan in (await noted(inbox, ask_)).plans():
            print("\n".join(f"      {line}" for line in plan))


async def lag(ledger, template: Template, seconds: float, rate: int) -> None:
    """Write facts at a rate, and tell how long each append took to stand in the slowest view."""
    recorder, runner, lags = ledger.recorder, ledger.views.runner, []
    written: list[tuple[int, float]] = []
    stop = asyncio.Event()

    def write(rows: list[StoredEvent]) -> None:
        position = recorder.insert_events(rows)[-1]
        written.append((position, time.perf_counter()))

    async def writer() -> None:
        begun, sent = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            await asyncio.to_thread(write, list(template.lives(range(sent, sent + 1))))
            sent += LIFE
            await asyncio.sleep(max(0.0, begun + sent / rate - time.perf_counter()))
        print(f"  wrote {sent / (time.perf_counter() - begun):,.0f} facts/s of the {rate} asked for")
        stop.set()

    async def watcher() -> None:
        while not (stop.is_set() and not written):
            at = await asyncio.to_thread(lambda: min(map(runner.position, runner.views)))
            now = time.perf_counter()
            while written and written[0][0] <= at:
                lags.append((now - written.pop(0)[1]) * 1000)
            await asyncio.sleep(0.01)

    async with ledger.follow(seal=False):
        await asyncio.gather(writer(), watcher())
    cuts = statistics.quantiles(lags, n=100)
    print(f"  lag of the slowest of five views: p50 {cuts[49]:.0f} ms   p99 {cuts[98]:.0f} ms   ({len(lags)} appends)")


async def measure(url: str, folder: Path, given: argparse.Namespace) -> None:
    """Measure one store."""
    async with Stage(url, folder / "keys").ledger() as ledger:
        lives = given.facts // LIFE
        print(f"\n{url.partition(':')[0]}: {given.facts:,} facts, and {given.open:,} pauses that stay open; {load()}")
        template, begun = Template(ledger.recorder.identity().ledger_id), time.perf_counter()
        fill(ledger.recorder, template.lives(range(lives)))
        fill(ledger.recorder, template.lives(range(lives, lives + given.open), steps=1))
        # One that is read as any other is, so that what was filled in is what the ledger writes.
        ledger.pauses.mapper.to_domain_event(next(ledger.recorder.walk(gt=given.facts - 1)))
        print(f"  (made and filled in within {time.perf_counter() - begun:.1f} s)")
        if hasattr(ledger.recorder, "lent"):
            with ledger.recorder.lent() as connection:
                connection.execute("VACUUM ANALYZE pauseledger.stored_events")
        await rebuilds(ledger, given.facts + given.open)
        await ledger.views.catch_up(600)
        await questions(ledger)
        await lag(ledger, template, given.seconds, given.rate)


def load() -> str:
    return f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def main() -> None:
    """Measure the stores asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--full", action="store_true", help="1,000,000 facts and 100,000 open pauses")
    parser.add_argument("--facts", type=int)
    parser.add_argument("--open", type=int, help="pauses that stay open")
    parser.add_argument("--rate", type=int, default=500, help="facts a second, for the lag")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long the lag is measured")
    parser.add_argument("--store", choices=["sqlite", "postgresql", "both"], default="both")
    given = parser.parse_args()
    given.facts = given.facts or (1_000_000 if given.full else 100_000)
    given.open = given.open or (100_000 if given.full else 20_000)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        if given.store != "postgresql":
            asyncio.run(measure(f"sqlite:///{folder}/ledger.db", Path(folder), given))
        if given.store != "sqlite":
            server = stack.enter_context(TemporaryPostgres(durable=True))
            dsn = server.dsn(server.fresh_database())
            PostgresRecorder(dsn).migrate()
            with psycopg.connect(dsn) as connection:
                print(connection.execute("SELECT version()").fetchone()[0].partition(",")[0])
            asyncio.run(measure(dsn, Path(folder), given))


if __name__ == "__main__":
    main()
