"""What evidence costs: how fast a log is sealed, how fast it is checked, and what sealing takes from redeeming.

    python benchmarks/proof.py --facts 200000 --rounds 6

Rows are made in lives of three (paused, answered, consumed), in the ledger's own format, and put into the log past the
application. Wall-clock and processor time stand side by side; with other work on the machine the latter says more.
Redeeming is measured on PostgreSQL, with the sealer and without, in turns, in one process, as `Ledger.follow` seals.
"""

import argparse
import asyncio
import contextlib
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

from pauseledger import LedgerSettings, open_ledger
from pauseledger.domain.axes import Scope
from pauseledger.domain.content import Content
from pauseledger.domain.facts import Answered, Claim, Consumed, RoundCall, RoundRecord
from pauseledger.infrastructure.check import Check
from pauseledger.infrastructure.check_apart import Opening
from pauseledger.infrastructure.check_views import views_faults
from pauseledger.infrastructure.checking import check_ledger
from pauseledger.infrastructure.keys import KeyFile
from pauseledger.infrastructure.mapper import NO_PREDECESSOR, FactMapper
from pauseledger.infrastructure.notes import Signer
from pauseledger.infrastructure.postgres import PostgresRecorder
from pauseledger.infrastructure.runner import Log, Runner
from pauseledger.infrastructure.sealed import sealed_rows
from pauseledger.infrastructure.sealer import Sealer, origin_of, prove
from pauseledger.infrastructure.sqlite import SQLiteRecorder
from pauseledger.infrastructure.stories import ANSWER, a_paused, asked
from pauseledger.infrastructure.testing import TemporaryPostgres
from pauseledger.infrastructure.views import rows_of
from pauseledger.projections import PROJECTIONS

LIFE = 3


def life(mapper: FactMapper, number: int) -> list:
    pause, begins = uuid4(), datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=number)
    rest = {
        "pause": pause, "scope": Scope(tenant_id=f"tenant-{number % 10}"), "attempt": uuid4(), "writer": "bench/1",
        "originator_id": pause, "predecessor": None,
    }  # fmt: skip
    ledger = mapper._ledger
    answer = Content.of(b'{"answers":[{"question_id":"q1","selections":["Production"]}]}')
    facts = [
        a_paused(
            **rest | {"predecessor": NO_PREDECESSOR, "ledger": ledger},
            at=begins, opens_at=begins, closes_at=begins + timedelta(days=7),
            request=b'{"question":"Where to?"}' * 8, turn=b'{"role":"user","content":"Deploy the release."}' * 12,
            round=RoundRecord(id=pause, lead=pause, calls=(RoundCall(call_id="call_1", pause=pause),)),
        ),
        Answered(**rest, ledger=ledger, originator_version=2, at=begins, number=1, origin="person", response=answer,
                 decision="answer", shown="0" * 64),
        Consumed(**rest, ledger=ledger, originator_version=3, at=begins, lead=pause, origin="redeem", answers=(2,),
                 claim=Claim(fence=1, holder="0" * 16, lease_seconds=60), response_digest=answer.digest),
    ]  # fmt: skip
    return [row for row, _ in mapper.encode(facts)]


def fill(recorder, facts: int) -> None:
    mapper, rows = FactMapper(recorder.identity().ledger_id), []
    for number in range(facts // LIFE):
        rows += life(mapper, number)
        if len(rows) >= 5000:
            recorder.insert_events(rows)
            rows = []
    if rows:
        recorder.insert_events(rows)


def of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@contextlib.contextmanager
def timed(name: str, count: int, told: dict) -> Iterator[None]:
    wall, spent, others = time.perf_counter(), time.process_time(), of_children()
    yield
    wall = time.perf_counter() - wall
    # Of two processes that go on side by side, the slower one is waited for.
    spent = max(time.process_time() - spent, of_children() - others)
    told[name] = {
        "a_second": round(count / wall),
        "a_processor_second": round(count / spent),
        "seconds": round(wall, 2),
    }
    print(f"{name:28} {count / wall:12,.0f} a second {count / spent:12,.0f} a processor second", flush=True)


def of_store(recorder, url: str, facts: int, name: str, told: dict) -> None:
    fill(recorder, facts)
    ledger_id = recorder.identity().ledger_id
    signer, rows = Signer(origin_of(ledger_id), bytes(32)), sealed_rows(recorder)
    with timed(f"{name} sealed", facts, told):
        done = Sealer(rows, origin_of(ledger_id), signer).seal()
    assert done.size == facts // LIFE * LIFE
    with timed(f"{name} proofs", 500, told):
        for index in range(0, done.size, max(1, done.size // 500)):
            prove(rows, index, done.head)
    with timed(f"{name} checked, no views", facts, told):
        checked = Check(recorder, rows, [signer.verifier]).run()
    assert (checked.found, checked.proved) == (0, done.size), checked.faults[:3]
    views = [(projection, rows_of(projection, recorder)) for projection in (one() for one in PROJECTIONS)]
    log = Log(recorder, FactMapper(ledger_id), ledger_id)
    Runner(log, views).catch_up(3600)
    with timed(f"{name} views alone", facts, told):
        assert list(views_faults(log, views)) == []
    # As `pauseledger check` does it, the views in a process of their own.
    with timed(f"{name} checked with views", facts, told):
        checked = check_ledger(recorder, Opening.of(url, LedgerSettings()), keys=[signer.verifier])
    assert checked.found == 0, checked.faults[:3]


async def redeemed(ledger, seconds: float, workers: int, notary) -> tuple[float, float]:
    """Redeem for a while; tell how many a second, and how much processor time of this process each took.

    With a notary, it ticks as often as a follower's.
    """
    until, count, spent = time.perf_counter() + seconds, 0, time.process_time()

    async def work() -> None:
        nonlocal count
        while time.perf_counter() < until:
            one = await asked(ledger, idempotency_key=str(uuid4()))
            await one.redeem(ANSWER)
            count += 1

    async def seal() -> None:
        while True:
            await asyncio.sleep(1.0)
            while await asyncio.to_thread(notary.tick) >= notary.batch:
                pass

    sealing = asyncio.ensure_future(seal()) if notary is not None else None
    await asyncio.gather(*(work() for _ in range(workers)))
    if sealing is not None:
        sealing.cancel()
    return count / seconds, (time.process_time() - spent) / count


async def redeeming(dsn: str, folder: Path, rounds: int, seconds: float, told: dict) -> None:
    KeyFile(folder / "keys").create()
    async with open_ledger(dsn, LedgerSettings(keys_directory=folder / "keys")) as ledger:
        notary = ledger.notary(make_key=True)
        await redeemed(ledger, 2.0, 8, None)
        with_it, without = [], []
        for _ in range(rounds):
            without.append(await redeemed(ledger, seconds, 8, None))
            with_it.append(await redeemed(ledger, seconds, 8, notary))
    pairs = list(zip(with_it, without, strict=True))
    ratio = statistics.median(one / other for (one, _), (other, _) in pairs)
    spent = statistics.median(one / other for (_, one), (_, other) in pairs)
    told["redeemed"] = {"without": without, "with": with_it, "ratio": ratio, "processor_ratio": spent}
    rates = [statistics.median(rate for rate, _ in some) for some in (without, with_it)]
    print(f"redeemed: {rates[0]:.0f} a second without the sealer, {rates[1]:.0f} with")
    print(f"with the sealer {ratio:.3f} of without, at {spent:.3f} of its processor time (median of {rounds} pairs)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--facts", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--only", choices=("stores", "redeeming"), help="Leave the other half out.")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    told: dict = {}
    with tempfile.TemporaryDirectory() as made, TemporaryPostgres() as server:
        folder = Path(made)
        if given.only != "redeeming":
            with contextlib.closing(SQLiteRecorder(folder / "ledger.db")) as recorder:
                of_store(recorder, f"sqlite:///{folder / 'ledger.db'}", given.facts, "sqlite", told)
            with contextlib.closing(PostgresRecorder(server.dsn(), statement_timeout=60)) as recorder:
                recorder.migrate()
                of_store(recorder, server.dsn(), given.facts, "postgresql", told)
        if given.only != "stores":
            name = server.fresh_database()
            with contextlib.closing(PostgresRecorder(server.dsn(name))) as recorder:
                recorder.migrate()
            asyncio.run(redeeming(server.dsn(name), folder, given.rounds, given.seconds, told))
    if given.json:
        given.json.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
