"""Workers pause, answer, redeem, refuse, recover, settle and are killed, the server too: the tables and the words agree."""

import json
import os
import random
import time
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from pauseledger.domain.ids import Identity
from pauseledger.infrastructure import raw_check
from pauseledger.infrastructure.linearizable import Operation, Table, linearizable
from pauseledger.infrastructure.postgres import PostgresRecorder
from pauseledger.infrastructure.settings import LedgerSettings
from pauseledger.infrastructure.testing import TemporaryPostgres
from pauseledger.infrastructure.wiring import open_recorder


def _load(name):
    folder = Path(__file__).parents[1] / "processes"
    spec = spec_from_file_location(f"pauseledger_tests_{name}", folder / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


crew, play = _load("crew"), _load("play")

#: Rounds of kills on each store: 25 in CI, so that they are over 100 with those of test_kills.py; 2,000 by hand.
ROUNDS = int(os.environ.get("PAUSELEDGER_STORM_ROUNDS", "25"))
#: In so many rounds PostgreSQL itself is killed once.
SERVER_EVERY = 25
WORKERS, RUNS, STEPS = 3, 6, 24

pytestmark = pytest.mark.timeout(240 + 6 * ROUNDS)


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request, tmp_path):
    """Give a store's URL, and its server where it has one."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'ledger.db'}", None
        return
    with TemporaryPostgres(durable=True) as server:
        PostgresRecorder(server.dsn()).migrate()
        yield server.dsn(), server


class Storm:
    """Rounds of a storm on one store."""

    def __init__(self, url, server, made, folder):
        self.url, self.server, self.made, self.folder = url, server, made, folder
        self.workers, self.position, self.seen = [], 0, Counter()
        recorder = open_recorder(url, LedgerSettings())
        identity = recorder.identity()
        recorder.close()
        self.tags = Identity(identity.ledger_id, identity.identity_key)
        # What an answer was is read from the raw table, so it has to stand there in clear.
        file = made.keys / "keys.json"
        ring = json.loads(file.read_text())
        file.write_text(json.dumps({**ring, "keys": [key for key in ring["keys"] if key["use"] == "tokens"]}))

    def round(self, number):
        chance = random.Random(number)
        shot = self.server is not None and number % SERVER_EVERY == SERVER_EVERY // 2
        runs = [f"{number}.{at}" for at in range(RUNS)]
        self.workers += self.made.workers(WORKERS - len(self.workers))
        journals = [self.folder / f"{at}.jsonl" for at in range(WORKERS)]
        for at, (worker, journal) in enumerate(zip(self.workers, journals, strict=True)):
            journal.unlink(missing_ok=True)
            task = {"task": "play", "seed": f"{number}.{at}", "runs": runs, "steps": 4 * STEPS if shot else STEPS}
            worker.tell(**task, journal=str(journal))
        time.sleep(chance.uniform(0, 0.2))
        if shot:
            # The postmaster is shot, or told to stop at once.
            chance.choice([self.server.crash, lambda: self.server.restart("immediate")])()
            self.seen["servers killed"] += 1
        victims = chance.sample(self.workers, chance.randint(1, 2))
        for victim in victims:
            victim.kill()
            victim.leave()
            self.workers.remove(victim)
            self.seen["workers killed"] += 1
            time.sleep(chance.uniform(0, 0.05))
        for worker in self.workers:
            assert worker.result() == {}
        self.judge(runs, [one for journal in journals for one in told_in(journal)])

    def judge(self, runs, told):
        """Hold the words of a round against its rows."""
        raw = raw_check.read(self.url, after=self.position)
        assert raw_check.faults(raw) == []
        streams = {row.header["run_id"]: row.stream for row in raw.of("pause.paused")}
        for run in runs:
            mine = [one for one in told if one["run"] == run]
            history = play.operations(mine)
            seen = self.table(raw, streams[run], [one["key"] for one in mine]) if run in streams else Table()
            last = time.monotonic()
            assert linearizable([*history, Operation("table", last, last, "seen", table=seen)]), (mine, seen)
            self.seen.update(f"{one['name']}: {one.get('said', 'killed')}" for one in mine)
        recorded = Counter(one["said"] for one in told if one.get("recorded"))
        written = raw_check.refusals(raw)
        for said, count in recorded.items():
            assert count <= written["scope_mismatch" if said == "refused" else said]
        self.position = max((row.position for row in raw.rows), default=self.position)
        self.seen["rows"] += len(raw.rows)

    def table(self, raw, stream, keys):
        """Say what the raw table holds of a pause, an attempt by its own key."""
        rows = {row.topic.split("@")[0]: row for row in raw.rows if row.stream == stream}
        consumed, answered = rows.get("pause.consumed"), rows.get("pause.answered")
        by = {self.tags.tag("attempt", key): key for key in keys}
        claims = [row.header["claim"]["fence"] for row in raw.rows if row.stream == stream and row.header.get("claim")]
        answer = json.loads(raw_check.content(answered, "response")) if answered else None
        return Table(
            paused=True,
            answer=answer and answer["answers"][0]["selections"][0],
            withdrawn="pause.withdrawn" in rows,
            consumed_by=consumed and by.get(consumed.header["key"], "recovery"),
            fence=max(claims, default=0),
            continued="pause.continued" in rows,
            abandoned="pause.abandoned" in rows,
        )


def told_in(journal):
    """Read a journal: of each step what was written last; the line a kill cut short was never told."""
    last = {}
    for line in journal.read_text().splitlines() if journal.exists() else ():
        try:
            one = json.loads(line)
        except ValueError:
            break
        last[one["id"]] = one
    return last.values()


def test_nothing_is_lost_doubled_or_half(store, tmp_path):
    url, server = store
    with crew.Crew(url, tmp_path, pool_timeout=30, connect_timeout=2) as made:
        made.worker().leave()
        storm = Storm(url, server, made, tmp_path)
        for number in range(ROUNDS):
            storm.round(number)
    raw = raw_check.read(url)
    assert raw_check.faults(raw) == []
    assert storm.seen["rows"] == len(raw.rows)
    # For whoever runs many rounds by hand: what the storm hit.
    print(f"{ROUNDS} rounds on {url.partition(':')[0]}: {dict(sorted(storm.seen.items()))}")  # noqa: T201 - by `pytest -s`
