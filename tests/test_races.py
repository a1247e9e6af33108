"""Real processes race for one token, for one round and for one claim; the raw tables say who won."""

import os
import signal
import time
from collections import Counter
from contextlib import contextmanager
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

RACERS, TOKENS = 32, 20
ROUNDS = int(os.environ.get("PAUSELEDGER_RACE_ROUNDS", "30"))
CALLS, LABEL = scene.CALLS, scene.LABELS


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    return request.getfixturevalue("pg_dsn")


@contextmanager
def racing(url, folder, **settings):
    """A crew on a store whose raw rows are proved afterwards."""
    with crew.Crew(url, folder, **settings) as made:
        yield made
    assert raw_check.faults(raw_check.read(url)) == []


def ends_of(raw, paused):
    """Count the `Consumed` rows of each stream of a round, in the raw table."""
    return [len(raw.of("pause.consumed", UUID(pause))) for pause in paused["pauses"]]


def test_of_32_processes_racing_for_a_token_one_wins_and_31_are_refused_on_record(url, tmp_path):
    with racing(url, tmp_path) as made:
        racers = made.workers(RACERS)
        asked = [racers[0].ask(task="pause", run=f"run {number}") for number in range(TOKENS)]
        for number, paused in enumerate(asked):
            task = {"task": "redeem", "token": paused["tokens"][0], "run": f"run {number}"}
            said = crew.race(racers, [task | {"response": scene.answer(LABEL[i % 2])} for i in range(RACERS)])
            winners = [one for one in said if one.get("won")]
            losers = [one for one in said if not one.get("won")]
            assert len(winners) == 1
            assert {(one["error"], one["reason"], one["recorded"]) for one in losers} == {
                ("AlreadyConsumed", "already_consumed", True)
            }
            # Each is told who consumed the pause, and when.
            assert {(one["by"], one["at"]) for one in losers} == {(losers[0]["by"], losers[0]["at"])}
            assert losers[0]["by"].startswith("worker-")
            assert losers[0]["at"]
    raw = raw_check.read(url)
    assert len(raw.of("pause.consumed")) == len(raw.of("pause.answered")) == TOKENS
    for paused in asked:
        assert ends_of(raw, paused) == [1]
        assert raw_check.refusals(raw, paused["pauses"]) == {"already_consumed": RACERS - 1}


def test_of_50_decisions_at_once_one_stands_and_49_say_whose_it_was(url, tmp_path):
    decisions = [{"decision": "approve"}, {"decision": "reject", "reason": "too dear"}] * 5
    with racing(url, tmp_path) as made:
        workers = made.workers(5)
        paused = workers[0].ask(task="pause", run="run", interaction="approval")
        task = {"task": "redeem_many", "token": paused["tokens"][0], "run": "run", "responses": decisions}
        said = [one for each in crew.race(workers, [task] * 5) for one in each["each"]]
    losers = [one for one in said if not one.get("won")]
    assert len(losers) == 49
    assert {one["reason"] for one in losers} == {"already_consumed"}
    assert all(one["recorded"] and one["by"] and one["at"] for one in losers)
    raw = raw_check.read(url)
    assert ends_of(raw, paused) == [1]
    assert raw_check.refusals(raw) == {"already_consumed": 49}


def test_the_same_attempt_key_from_two_processes_wins_once_and_the_other_is_told_that_it_is_its_own(url, tmp_path):
    with racing(url, tmp_path) as made:
        pair = made.workers(2)
        for number in range(ROUNDS):
            paused = pair[0].ask(task="pause", run=f"run {number}")
            task = {"task": "redeem", "token": paused["tokens"][0], "run": f"run {number}", "key": f"key {number}"}
            said = crew.race(pair, [task] * 2)
            assert [bool(one.get("won")) for one in said].count(True) == 1
            loser = next(one for one in said if not one.get("won"))
            assert (loser["error"], loser["own"], loser["state"], loser["recorded"]) == (
                "AlreadyConsumed",
                True,
                "owed",
                False,
            )
    assert raw_check.refusals(raw_check.read(url)) == {}


def test_a_pause_from_several_processes_is_one_pause(url, tmp_path):
    with racing(url, tmp_path) as made:
        workers = made.workers(4)
        for number in range(10):
            said = crew.race(workers, [{"task": "pause", "run": f"run {number}", "calls": CALLS}] * 4)
            assert sorted(one["existing"] for one in said) == [False, True, True, True]
            assert len({tuple(one["pauses"]) for one in said}) == 1
            token = said[number % 4]["tokens"][0]
            assert workers[0].ask(task="answer", token=token, run=f"run {number}")["state"] == "answered"
    assert len(raw_check.read(url).of("pause.paused")) == 30


# Rounds


def redemptions(paused, run, calls=CALLS, task="redeem"):
    """Answer each call with a text of its own."""
    return [
        {
            "task": task,
            "token": paused["tokens"][CALLS.index(call)],
            "run": run,
            "call": call,
            "response": scene.answer(LABEL[CALLS.index(call)]),
        }
        for call in calls
    ]


def own_answers():
    return {call: f"q1: {label}" for call, label in zip(CALLS, LABEL, strict=True)}


def judge_one_continuation(said, losers_are=("RoundOpen",)):
    """One continuation carries every answer on its own call; whoever lost is told that it counted, or what is open."""
    winners = [one for one in said if one.get("won")]
    assert len(winners) == 1, said
    assert winners[0]["results"] == own_answers()
    assert {one["error"] for one in said if not one.get("won")} <= set(losers_are), said
    return [one for one in said if not one.get("won")]


def test_three_answers_in_reverse_order_land_on_their_own_calls(url, tmp_path):
    with racing(url, tmp_path) as made:
        workers = made.workers(3)
        paused = workers[0].ask(task="pause", run="run", calls=CALLS)
        tasks = redemptions(paused, "run")
        assert workers[2].ask(**tasks[2])["open"] == ["call_a", "call_b"]
        assert workers[1].ask(**tasks[1])["open"] == ["call_a"]
        assert workers[0].ask(**tasks[0])["results"] == own_answers()
    raw = raw_check.read(url)
    assert ends_of(raw, paused) == [1, 1, 1]
    assert raw_check.refusals(raw) == {}


def test_three_answers_at_once_make_one_continuation(url, tmp_path):
    seen = Counter()
    with racing(url, tmp_path) as made:
        workers = made.workers(3)
        for number in range(ROUNDS):
            run = f"run {number}"
            paused = workers[0].ask(task="pause", run=run, calls=CALLS)
            losers = judge_one_continuation(crew.race(workers, redemptions(paused, run)))
            assert all(one["continued_by_other"] or one["open"] for one in losers)
            seen.update(one["continued_by_other"] for one in losers)
            assert ends_of(raw_check.read(url), paused) == [1, 1, 1]
    raw = raw_check.read(url)
    assert len(raw.of("pause.answered")) == 3 * ROUNDS
    assert raw_check.refusals(raw) == {}


def test_the_last_two_answers_at_once_make_one_continuation_with_three_answers(url, tmp_path):
    with racing(url, tmp_path) as made:
        pair = made.workers(2)
        for number in range(ROUNDS):
            run = f"run {number}"
            paused = pair[0].ask(task="pause", run=run, calls=CALLS)
            first, *last = redemptions(paused, run)
            assert pair[0].ask(**first)["open"] == ["call_b", "call_c"]
            said = crew.race(pair, last)
            # Whoever came second saw the first one's answer, or both saw the other open: either way one goes on.
            (loser,) = judge_one_continuation(said)
            assert loser["continued_by_other"] or loser["open"]
    raw = raw_check.read(url)
    assert len(raw.of("pause.consumed")) == 3 * ROUNDS
    assert raw_check.refusals(raw) == {}


def test_two_last_answers_that_each_saw_the_other_open_make_one_continuation(url, tmp_path):
    with racing(url, tmp_path) as made:
        pair = made.workers(2)
        for number in range(ROUNDS):
            run = f"run {number}"
            paused = pair[0].ask(task="pause", run=run, calls=CALLS)
            first, *last = redemptions(paused, run)
            pair[0].ask(**first)
            for worker, task in zip(pair, last, strict=True):
                worker.ask(task="hold_the_answer")
                worker.tell(**task)
            for place in ("before", "after"):
                assert [worker.hear() for worker in pair] == [{"holding": place}] * 2
                for worker in pair:
                    worker.tell(go="on")
            (loser,) = judge_one_continuation([worker.result() for worker in pair])
            assert loser["continued_by_other"] is True
    assert raw_check.refusals(raw_check.read(url)) == {}


def test_stored_answers_are_redeemed_once_from_three_processes(url, tmp_path):
    with racing(url, tmp_path) as made:
        workers = made.workers(3)
        for number in range(10):
            run = f"run {number}"
            paused = workers[0].ask(task="pause", run=run, calls=CALLS)
            said = crew.race(workers, redemptions(paused, run, task="answer"))
            assert said == [{"state": "answered"}] * 3
            recovered = crew.race(
                workers,
                [
                    {"task": "recover", "pause": p, "run": run, "call": c}
                    for p, c in zip(paused["pauses"], CALLS, strict=True)
                ],
            )
            losers = judge_one_continuation(recovered, losers_are=["LeaseHeld"])
            assert len(losers) == 2


# Zombies


@pytest.mark.parametrize("second_ends_first", [False, True])
def test_a_worker_that_outlives_its_lease_corrupts_nothing(url, tmp_path, second_ends_first):
    """The first worker is stopped by the system, not asked to be late; four ways how both then end."""
    ends = [("stall", "finish"), ("finish", "stall"), ("finish", "finish"), ("stall", "stall")]
    with racing(url, tmp_path, lease=1) as made:
        firsts, seconds = made.workers(4), made.workers(4)
        asked = [worker.ask(task="pause", run=str(number)) for number, worker in enumerate(firsts)]
        for number, (worker, paused, (end, _)) in enumerate(zip(firsts, asked, ends, strict=True)):
            assert worker.ask(task="redeem", token=paused["tokens"][0], run=str(number))["fence"] == 1
            worker.tell(task="go_on", end=end, hold=True)
            assert worker.hear() == {"entered": True}
            worker.send(signal.SIGSTOP)
        time.sleep(1.4)
        for number, (worker, paused, (_, end)) in enumerate(zip(seconds, asked, ends, strict=True)):
            recovered = worker.ask(task="recover", pause=paused["pauses"][0], run=str(number))
            assert (recovered["fence"], recovered["lead"]) == (2, paused["pauses"][0])
            worker.tell(task="go_on", end=end, hold=True)
            assert worker.hear() == {"entered": True}
        for worker in firsts:
            worker.send(signal.SIGCONT)
        for group in (seconds, firsts) if second_ends_first else (firsts, seconds):
            for worker in group:
                worker.tell(come="to an end")
                assert worker.result() == {"settled": True}
        third = seconds[0]
        for number, paused in enumerate(asked):
            said = third.ask(task="recover", pause=paused["pauses"][0], run=str(number))
            if "finish" in ends[number]:
                assert said["error"] == "AlreadyContinued"
            else:
                # Nobody finished: the stall of the newest claim counts, and the turn is taken up again.
                assert said["fence"] == 3
    raw = raw_check.read(url)
    for paused, (first, second) in zip(asked, ends, strict=True):
        stream = UUID(paused["pauses"][0])
        finished = [(row.header["fence"], row.header["late"]) for row in raw.of("pause.continued", stream)]
        stalled = [row.header["fence"] for row in raw.of("pause.stalled", stream)]
        expected = {
            ("stall", "finish"): [(2, False)],
            ("finish", "stall"): [(1, True)],
            ("finish", "finish"): [(2, False)] if second_ends_first else [(1, True)],
            ("stall", "stall"): [],
        }
        assert finished == expected[first, second]
        # A zombie's stall is never written; the newest claim's is, unless the turn had gone on by then.
        newest_stalls = second == "stall" and (first == "stall" or second_ends_first)
        assert stalled == ([2] if newest_stalls else [])


def test_of_many_that_recover_a_dead_workers_turn_at_once_one_wins(url, tmp_path):
    with racing(url, tmp_path, lease=1) as made:
        heirs = made.workers(8)
        for number in range(3):
            dead = made.worker()
            paused = dead.ask(task="pause", run=str(number))
            dead.ask(task="redeem", token=paused["tokens"][0], run=str(number))
            dead.kill()
            task = {"task": "recover", "pause": paused["pauses"][0], "run": str(number)}
            assert heirs[0].ask(**task)["error"] == "LeaseHeld"
            time.sleep(1.1)
            said = crew.race(heirs, [task] * 8)
            assert [one.get("fence") for one in said if one.get("won")] == [2]
            assert {one["error"] for one in said if not one.get("won")} == {"LeaseHeld"}


def test_a_storm_of_refusals_lets_a_rightful_redeem_win(url, tmp_path):
    with racing(url, tmp_path) as made:
        rightful, *intruders = made.workers(9)
        for number in range(3):
            run = f"run {number}"
            paused = rightful.ask(task="pause", run=run)
            for worker in intruders:
                worker.tell(task="storm", token=paused["tokens"][0], run=run)
                assert worker.hear() == {"entered": True}
            time.sleep(0.3)
            assert rightful.ask(task="redeem", token=paused["tokens"][0], run=run).get("won")
            for worker in intruders:
                worker.tell(enough=True)
            said = [worker.result() for worker in intruders]
            assert sum(one["refused"] for one in said) > 16
            raw = raw_check.read(url)
            written = raw_check.refusals(raw, paused["pauses"])
            assert written["scope_mismatch"] == sum(one["recorded"] for one in said)
            assert len(raw.of("pause.refused", UUID(paused["pauses"][0]))) <= 16
