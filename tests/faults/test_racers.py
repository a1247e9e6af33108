"""Thirty-two racers over eight processes for each token: one winner in the raw table, and every loser on record."""

import os
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from pauseledger.infrastructure import raw_check


def _load(name):
    folder = Path(__file__).parents[1] / "processes"
    spec = spec_from_file_location(f"pauseledger_tests_{name}", folder / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


crew = _load("crew")

#: 10 in CI; 1,000 now and then, by hand.
TOKENS = int(os.environ.get("PAUSELEDGER_RACE_TOKENS", "10"))
PROCESSES, EACH = 8, 4
RACERS = PROCESSES * EACH

pytestmark = pytest.mark.timeout(240 + 6 * TOKENS)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    return request.getfixturevalue("pg_dsn")


def test_one_wins_each_token_and_all_others_are_named(url, tmp_path):
    outcomes = Counter()
    with crew.Crew(url, tmp_path, busy_timeout=60, statement_timeout=60, pool_timeout=60) as made:
        workers = made.workers(PROCESSES)
        for number in range(TOKENS):
            paused = workers[number % PROCESSES].ask(task="pause", run=f"run {number}")
            task = {"task": "redeem_many", "token": paused["tokens"][0], "run": f"run {number}"}
            said = crew.race(workers, [task | {"responses": [None] * EACH}] * PROCESSES, lead=0.01)
            each = [one for told in said for one in told["each"]]
            winners = [one for one in each if one.get("won")]
            losers = [one for one in each if not one.get("won")]
            assert (len(winners), len(losers)) == (1, RACERS - 1)
            assert {(one["reason"], one["recorded"]) for one in losers} == {("already_consumed", True)}
            # Each is told who won, and when.
            assert len({(one["by"], one["at"]) for one in losers}) == 1
            outcomes.update(won=1, lost=len(losers))
    raw = raw_check.read(url)
    assert raw_check.faults(raw) == []
    written = Counter(row.stream for row in raw.of("pause.consumed"))
    assert len(raw.of("pause.paused")) == len(written) == outcomes["won"] == TOKENS
    assert set(written.values()) == {1}
    assert (
        raw_check.refusals(raw) == {"already_consumed": outcomes["lost"]} == {"already_consumed": TOKENS * (RACERS - 1)}
    )
    by_pause = Counter(row.header["pause"] for row in raw.of("pause.refused"))
    assert set(by_pause.values()) == {RACERS - 1}
    print(f"{TOKENS} tokens: {dict(outcomes)}, {len(raw.rows)} rows")  # noqa: T201 - shown by `pytest -s`
