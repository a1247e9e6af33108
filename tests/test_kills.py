"""SIGKILL at random points: no half redemption, no token without its pause, and whoever comes next finishes."""

import os
import random
import time
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from uuid import UUID

import pytest
from pauseledger.infrastructure import raw_check


def _load(name):
    spec = spec_from_file_location(f"pauseledger_tests_{name}", Path(__file__).parent / "processes" / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


crew, scene = _load("crew"), _load("scene")

#: 20 in CI; 200 now and then, by hand.
KILL_ROUNDS = int(os.environ.get("PAUSELEDGER_KILL_ROUNDS", "20"))
CALLS, LABELS = scene.CALLS, scene.LABELS

pytestmark = pytest.mark.timeout(120 + 3 * KILL_ROUNDS)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    return request.getfixturevalue("pg_dsn")


def response_for(call):
    return scene.answer(LABELS[CALLS.index(call)])


def own_answers(calls):
    """Say what stands on each call of a turn whose gated calls are those given."""
    return {call: f"q1: {label}" for call, label in zip(CALLS, LABELS, strict=True) if call in calls}


class Heir:
    """A process that never saw the turns of the dead, and finishes each of them."""

    def __init__(self, worker):
        self._worker = worker
        self.seen = Counter()

    def finish(self, run, calls, tokens, dead):
        """Redeem or recover a run. `dead` is what the killed workers said of it, in all."""
        won = [said for said in dead if said.get("won")]
        assert len(won) <= 1, f"{run} was won twice"
        said = self._redeem(run, calls, tokens)
        if said.get("won"):
            self.seen["redeemed by the next attempt"] += 1
            assert not won, f"{run} was won by a worker, and again"
            assert said["fence"] == 1
        else:
            assert said["error"] == "AlreadyConsumed", said
            said = self._recover(run, calls[0], tokens[0], won, went_on=any(one.get("went_on") for one in dead))
        if said.get("won"):
            assert {call: said["results"][call] for call in calls} == own_answers(calls)
            assert self._worker.ask(task="go_on") == {"settled": True}

    def _redeem(self, run, calls, tokens):
        for call, token in zip(calls, tokens, strict=True):
            task = {"task": "redeem", "token": token, "run": run, "call": call, "response": response_for(call)}
            said = self._worker.ask(**task, key="heir")
            if said.get("error") != "RoundOpen":
                return said
        raise AssertionError(f"{run} stays open: {said}")

    def _recover(self, run, call, token, won, *, went_on):
        pause = self._worker.ask(task="where", token=token)["pause"]
        said = self._worker.ask(task="recover", pause=pause, run=run, call=call, forced=True)
        if said.get("won"):
            self.seen["recovered, its win acknowledged" if won else "recovered, its win not acknowledged"] += 1
            assert not went_on
            assert said["fence"] == 2
        else:
            self.seen["gone on to its end already"] += 1
            assert said["error"] == "AlreadyContinued", said
        return said


def test_nothing_is_lost_and_nothing_is_done_twice_when_processes_are_killed(url, tmp_path):
    with crew.Crew(url, tmp_path) as made:
        heir, pauser = Heir(made.worker()), made.worker()
        finished = 0
        for number in range(KILL_ROUNDS):
            calls = CALLS if number % 2 else CALLS[:1]
            runs = [f"{number}.{at}" for at in range(100)]
            said = killed(made, number, runs, calls)
            for run in touched(runs, said):
                dead = [one for one in said if one.get("run") == run]
                # Every token that reached anybody is good.
                tokens = next((one["tokens"] for one in dead if "tokens" in one), None)
                again = pauser.ask(task="pause", run=run, calls=calls)
                heir.seen["stored, its token never told"] += tokens is None and again.get("existing", True)
                if tokens is None:
                    tokens = again.get("tokens")
                if tokens is None:
                    assert again["error"] == "PauseClosed"
                heir.finish(run, calls, tokens, dead)
                finished += 1
    raw = raw_check.read(url)
    assert raw_check.faults(raw) == []
    assert len(raw.of("pause.continued")) == finished
    assert len(raw.of("pause.consumed")) == len(raw.of("pause.paused"))
    # For whoever runs many rounds by hand: what the kills hit.
    print(f"{KILL_ROUNDS} rounds, {finished} runs, {len(raw.rows)} rows: {dict(heir.seen)}")  # noqa: T201 - shown by `pytest -s`


def killed(made, number, runs, calls):
    """Let two workers fight over the same runs, and kill each at its moment; every fourth at the first token."""
    pair, chance = made.workers(2), random.Random(number)
    moment = time.monotonic() + 0.03
    for worker in pair:
        worker.tell(task="live", at=moment, runs=runs, calls=calls)
    said = []
    if number % 4 == 0:
        said.append(pair[0].hear())
    else:
        time.sleep(max(0.0, moment - time.monotonic()) + chance.uniform(0, 0.15))
    pair[0].kill()
    time.sleep(chance.uniform(0, 0.05))
    pair[1].kill()
    return said + [one for worker in pair for one in worker.rest()]


def touched(runs, said):
    """List the runs that somebody spoke of, and the next one, which may stand unspoken."""
    last = max((runs.index(one["run"]) for one in said), default=-1)
    return runs[: last + 2]


def test_a_worker_killed_right_after_the_last_answer_leaves_a_round_that_recover_continues(url, tmp_path):
    with crew.Crew(url, tmp_path) as made:
        heir = made.worker()
        for number in range(4):
            run, doomed = f"run {number}", made.worker()
            paused = heir.ask(task="pause", run=run, calls=CALLS)
            for call, token in zip(CALLS, paused["tokens"], strict=True):
                task = {"task": "answer", "token": token, "run": run, "call": call, "response": response_for(call)}
                assert doomed.ask(**task) == {"state": "answered"}
            doomed.kill()
            said = heir.ask(task="recover", pause=paused["pauses"][number % 3], run=run, call=CALLS[number % 3])
            assert (said["fence"], said["results"]) == (1, own_answers(CALLS))
    assert raw_check.faults(raw_check.read(url)) == []


@pytest.mark.parametrize("survivors", [0, 1])
def test_workers_killed_between_the_last_answers_and_the_consumption_leave_a_round_that_goes_on(
    url, tmp_path, survivors
):
    """Both saw the other's call open, so each kept its answer and consumed nothing; then they die."""
    with crew.Crew(url, tmp_path) as made:
        heir = made.worker()
        for number in range(4):
            run = f"run {number}"
            paused = heir.ask(task="pause", run=run, calls=CALLS)
            pair, tasks = made.workers(2), tasks_for(paused, run)
            assert heir.ask(**tasks[0])["open"] == ["call_b", "call_c"]
            for at, (worker, task) in enumerate(zip(pair, tasks[1:], strict=True)):
                worker.ask(task="hold_the_answer", die=at >= survivors)
                worker.tell(**task)
            assert [worker.hear() for worker in pair] == [{"holding": "before"}] * 2
            for worker in pair:
                worker.tell(go="on")
            for worker in pair[survivors:]:
                assert worker.hear() is None
            if survivors:
                assert pair[0].hear() == {"holding": "after"}
                pair[0].tell(go="on")
                said = pair[0].result()
            else:
                said = heir.ask(task="recover", pause=paused["pauses"][2], run=run, call=CALLS[2])
            assert (said["fence"], said["results"]) == (1, own_answers(CALLS))
    raw = raw_check.read(url)
    assert raw_check.faults(raw) == []
    assert {row.header["origin"] for row in raw.of("pause.consumed")} == {"redeem" if survivors else "ready"}


def tasks_for(paused, run):
    return [
        {"task": "redeem", "token": token, "run": run, "call": call, "response": response_for(call)}
        for call, token in zip(CALLS, paused["tokens"], strict=True)
    ]


def test_a_turn_that_kills_whoever_takes_it_up_is_given_up(url, tmp_path):
    with crew.Crew(url, tmp_path) as made:
        heir = made.worker()
        paused = heir.ask(task="pause", run="run")
        task = {"task": "recover", "pause": paused["pauses"][0], "run": "run", "forced": True}
        for fence in range(1, 7):
            doomed = made.worker()
            first = {"task": "redeem", "token": paused["tokens"][0], "run": "run"}
            assert doomed.ask(**(task if fence > 1 else first))["fence"] == fence
            doomed.kill()
        assert heir.ask(**task)["error"] == "TurnAbandoned"
        assert heir.ask(**task)["error"] == "TurnAbandoned"
    raw = raw_check.read(url)
    assert raw_check.faults(raw) == []
    assert len(raw.of("pause.abandoned", UUID(paused["pauses"][0]))) == 1


def test_processes_killed_at_their_first_start_leave_a_ledger_that_opens(tmp_path):
    """The file, its tables and the key are made on first use, by whoever comes first."""
    with crew.Crew("memory:", tmp_path) as made:
        for number in range(KILL_ROUNDS):
            folder, chance = tmp_path / str(number), random.Random(number)
            fresh = {"url": f"sqlite:///{folder / 'ledger.db'}", "keys": str(folder / "keys")}
            doomed = [made.fork(**fresh) for _ in range(3)]
            time.sleep(chance.uniform(0, 0.08))
            for worker in doomed:
                worker.kill()
            heirs = [made.fork(**fresh) for _ in range(2)]
            assert [heir.hear() for heir in heirs] == [{"ready": heir.pid} for heir in heirs]
            paused = heirs[0].ask(task="pause", run="run")
            assert heirs[1].ask(task="redeem", token=paused["tokens"][0], run="run")["won"]
            assert raw_check.faults(raw_check.read(fresh["url"])) == []
            for heir in heirs:
                heir.kill()
