"""How fast views are built and asked: rebuilds, the inbox's first page with its plan, and the lag of a follower.

    python benchmarks/projections.py --facts 1000000 --open 100000

Facts are made in lives of five (paused, answered, consumed, continued, and a refusal), as rows of the ledger's own
format, and put into the log past the recorder. Every figure is of this machine at this moment; a rebuild is also
told as a multiple of a bare COPY (PostgreSQL) or executemany (SQLite) of the very rows it left, into a table
without an index.
"""

import argparse
import asyncio
import contextlib
import json
import os
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
    Claim,
    Consumed,
    Continued,
    Presented,
    Refused,
    RoundCall,
    RoundRecord,
    RoutingRecord,
)
from pauseledger.infrastructure import views_postgres, views_sqlite
from pauseledger.infrastructure.mapper import NO_PREDECESSOR, FactMapper
from pauseledger.infrastructure.postgres import PostgresRecorder
from pauseledger.infrastructure.stories import Stage, a_paused
from pauseledger.infrastructure.testing import TemporaryPostgres
from pauseledger.projections.rows import Query

LIFE = 5
TENANTS = 10
BATCH = 5000


def lives(ledger: UUID, facts: int, still_open: int) -> Iterator[list[StoredEvent]]:
    """Make rows: whole lives first, then pauses that stay open. One life is encoded, and its ids are replaced."""
    mapper = FactMapper(ledger)
    for number in range(facts // LIFE + still_open):
        pause, begins = uuid4(), datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number)
        rest = {
            "pause": pause, "scope": Scope(tenant_id=f"tenant-{number % TENANTS}"), "ledger": ledger,
            "attempt": uuid4(), "writer": "bench/1", "originator_id": pause, "predecessor": None,
        }  # fmt: skip
        paused = a_paused(
            **rest | {"predecessor": NO_PREDECESSOR},
            at=begins, opens_at=begins, closes_at=datetime(2040, 1, 1, tzinfo=UTC) + timedelta(seconds=number),
            session_id=f"session-{number // 10}", run_id=f"run-{number}",
            round=RoundRecord(id=pause, lead=pause, calls=(RoundCall(call_id="call_1", pause=pause),)),
            routing=RoutingRecord(queue="q", assignees=(f"{number % 50:016x}",)),
        )  # fmt: skip
        if number >= facts // LIFE:
            yield [row for row, _ in mapper.encode([paused])]
            continue
        answer = Content.of(b'{"answers":[]}')
        told = [
            paused,
            Refused(**rest, originator_version=2, at=begins + timedelta(seconds=5), step=2, axis="run",
                    reason="run_mismatch", seen_version=1, presented=Presented()),
            Answered(**rest, originator_version=3, at=begins + timedelta(seconds=9), number=1, origin="person",
                     response=answer, decision="answer", shown="0" * 64),
            Consumed(**rest, originator_version=4, at=begins + timedelta(seconds=9), lead=pause, origin="redeem",
                     claim=Claim(fence=1, holder="0" * 16, lease_seconds=60), response_digest=answer.digest),
            Continued(**rest, originator_version=5, at=begins + timedelta(seconds=12), fence=1, late=False,
                      end="finished"),
        ]  # fmt: skip
        yield [row for row, _ in mapper.encode(told)]


def fill(stage: Stage, recorder, rows: Iterator[list[StoredEvent]]) -> None:
    """Put rows into the log, past the recorder."""
    waiting: list[StoredEvent] = []

    def flush() -> None:
        if stage.url.startswith("sqlite"):
            with recorder.writing() as connection:
                connection.executemany(
                    "INSERT INTO stored_events (originator_id, originator_version, topic, state) VALUES (?, ?, ?, ?)",
                    [(row.originator_id.hex, row.originator_version, row.topic, row.state) for row in waiting],
                )
        else:
            copying = "COPY pauseledger.stored_events (originator_id, originator_version, topic, state) FROM STDIN"
            with recorder.lent() as connection, connection.cursor() as cursor, cursor.copy(copying) as copy:
                for row in waiting:
                    copy.write_row((row.originator_id, row.originator_version, row.topic, row.state))
        waiting.clear()

    for life in rows:
        waiting += life
        if len(waiting) >= BATCH:
            flush()
    flush()


def bare(follower) -> float:
    """Write the rows of a view once more and nothing else, in batches as large, and tell the seconds."""
    rows, view = follower.rows, follower.projection
    tables = {table: rows.select(Query(table)) for table in view.tables}
    count = sum(map(len, tables.values()))
    if not count:
        return 0.0
    begun = time.perf_counter()
    if hasattr(rows, "_file"):
        with rows._file.writing() as connection:
            for table, held in tables.items():
                marks = ", ".join("?" for _ in table.columns)
                connection.execute(f"CREATE TEMP TABLE bare ({', '.join(table.columns)})")
                values = [[json.dumps(v) if isinstance(v, list | dict) else v for v in one.values()] for one in held]
                connection.executemany(f"INSERT INTO bare VALUES ({marks})", values)
                connection.execute("DROP TABLE bare")
    else:
        with rows._database.lent() as connection:
            for table, held in tables.items():
                name = rows._name(table, rows.place().build)
                connection.execute(rows._compose(f"CREATE TABLE {{schema}}.bare (LIKE {name})"))
                with connection.cursor() as cursor, cursor.copy(rows._compose("COPY {schema}.bare FROM STDIN")) as copy:
                    for one in held:
                        copy.write_row([json.dumps(v) if isinstance(v, list | dict) else v for v in one.values()])
                connection.execute(rows._compose("DROP TABLE {schema}.bare"))
    return time.perf_counter() - begun


async def rebuilds(ledger, facts: int) -> None:
    """Rebuild each view, and tell its rate and its share of a bare write."""
    for name in ledger.views.runner.views:
        begun = time.perf_counter()
        await ledger.views.rebuild(name)
        took = time.perf_counter() - begun
        alone = bare(ledger.views.runner._followers[name])
        ratio = f"{took / alone:5.1f} x a bare write of its rows" if alone > 0.001 else ""
        print(f"  rebuild {name:15} {facts / took:9,.0f} facts/s   {ratio}")


async def first_page(ledger, stage: Stage) -> None:
    """Ask for the inbox's first page, again and again, and show how the store finds it."""
    view, scope = ledger.views.open_pauses, Scope(tenant_id="tenant-1")
    for says, ask_ in (
        ("most urgent", lambda: view.most_urgent(scope)),
        ("newest", lambda: view.newest(scope)),
        ("most urgent, all tenants", view.most_urgent_of_all_tenants),
    ):
        times = []
        for _ in range(60):
            begun = time.perf_counter()
            found = await ask_()
            times.append((time.perf_counter() - begun) * 1000)
        p99 = statistics.quantiles(times, n=100)[-1]
        print(f"  inbox, {says:25} p50 {statistics.median(times):6.2f} ms   p99 {p99:6.2f} ms   {len(found.rows)} rows")
    rows = ledger.views.runner._followers["open_pauses"].rows
    query = Query(
        ledger.views.open_pauses.projection.own_tables[0],
        (("scope", "=", scope), ("unreadable", "=", 0), ("closes_at", ">", datetime.now(UTC))),
        ("closes_at", "pause"),
        limit=51,
    )
    print("  the plan of its main question:")
    for line in plan(stage, rows, query):
        print("     ", line)


def plan(stage: Stage, rows, query: Query) -> list[str]:
    if stage.url.startswith("sqlite"):
        with rows._reading() as connection:
            statement, values = views_sqlite._SQL.select(query, rows._live_name(connection, query.table))
            return [str(row[-1]) for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
    with rows._database.lent() as connection:
        statement, values = views_postgres._SQL.select(query, rows._name(query.table, rows.place().build))
        return [row[0][:110] for row in rows._say(connection, f"EXPLAIN (ANALYZE, COSTS OFF) {statement}", values)]


async def lag(ledger, seconds: float, rate: int) -> None:
    """Write facts at a rate, and tell how long each batch took to stand in the slowest view."""
    recorder, identity = ledger.recorder, ledger.recorder.identity()
    written: list[tuple[int, float]] = []
    stop, lags = asyncio.Event(), []

    def write(rows: list[StoredEvent]) -> None:
        position = recorder.insert_events(rows)[-1]
        written.append((position, time.perf_counter()))

    async def writer() -> None:
        made, begun, sent = lives(identity.ledger_id, rate * LIFE * int(seconds + 2), 0), time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            await asyncio.to_thread(write, next(made))
            sent += LIFE
            await asyncio.sleep(max(0.0, begun + sent / rate - time.perf_counter()))
        print(f"  wrote {sent / (time.perf_counter() - begun):,.0f} facts/s of the {rate} asked for")
        stop.set()

    async def watcher() -> None:
        while not (stop.is_set() and not written):
            at = await asyncio.to_thread(lambda: min(map(ledger.views.runner.position, ledger.views.runner.views)))
            now = time.perf_counter()
            while written and written[0][0] <= at:
                lags.append((now - written.pop(0)[1]) * 1000)
            await asyncio.sleep(0.01)

    async with ledger.follow():
        await asyncio.gather(writer(), watcher())
    cuts = statistics.quantiles(lags, n=100)
    print(f"  lag of the slowest of five views: p50 {cuts[49]:.0f} ms   p99 {cuts[98]:.0f} ms   ({len(lags)} appends)")


async def measure(url: str, folder: Path, given: argparse.Namespace) -> None:
    """Measure one store."""
    stage = Stage(url, folder / "keys")
    async with stage.ledger() as ledger:
        print(f"\n{url.partition(':')[0]}: {given.facts:,} facts, and {given.open:,} pauses that stay open")
        begun = time.perf_counter()
        fill(stage, ledger.recorder, lives(ledger.recorder.identity().ledger_id, given.facts, given.open))
        print(f"  (made and filled in within {time.perf_counter() - begun:.1f} s)")
        await rebuilds(ledger, given.facts + given.open)
        await ledger.views.catch_up(600)
        await first_page(ledger, stage)
        await lag(ledger, given.seconds, given.rate)


def main() -> None:
    """Measure the stores asked for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--facts", type=int, default=1_000_000)
    parser.add_argument("--open", type=int, default=100_000, help="pauses that stay open")
    parser.add_argument("--rate", type=int, default=500, help="facts a second, for the lag")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long the lag is measured")
    parser.add_argument("--store", choices=["sqlite", "postgresql", "both"], default="both")
    given = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
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
