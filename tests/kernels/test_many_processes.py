"""Each kernel under real processes: they race for a token, for a round's last answers, and past an ended lease.

What counts stands in files and in the raw table: every run of the tool, every call of a model that went on.
"""

import os
import signal
import time
from collections import Counter
from contextlib import contextmanager
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from uuid import UUID

import pytest
from pauseledger.infrastructure import raw_check

SPEC = spec_from_file_location("pauseledger_tests_crew", Path(__file__).parents[1] / "processes" / "crew.py")
crew = module_from_spec(SPEC)
SPEC.loader.exec_module(crew)

#: Rounds whose last two answers are given at once. For long: PAUSELEDGER_KERNEL_ROUNDS=200.
ROUNDS = int(os.environ.get("PAUSELEDGER_KERNEL_ROUNDS", "5"))
FRAMEWORKS = {"plain": "json", "langchain": "langgraph", "pydantic_ai": "pydantic_ai", "openai_agents": "agents"}
KERNELS = {
    "plain": "plain",
    "langchain": "langchain",
    "langchain-per-call": "langchain",
    "langchain-gates": "langchain",
    "pydantic-ai": "pydantic_ai",
    "openai-agents": "openai_agents",
}


class Scene:
    """Workers of one kernel on one store, and what they left behind."""

    def __init__(self, made, url, folder):
        self.made, self.url, self.folder = made, url, folder

    def workers(self, count):
        return self.made.workers(count)

    def raw(self):
        return raw_check.read(self.url)

    def ran(self, session):
        """Count the runs of the tool, by order."""
        return Counter(order for order in self._lines("refunds") if order.startswith(f"{session}."))

    def went_on(self, session):
        """Count the calls of models in continuations."""
        return self._lines("went_on").count(session)

    def settled(self, pause):
        """List the settlements of a turn: by which claim, and whether late."""
        rows = self.raw().of("pause.continued", UUID(pause))
        return [(row.header["fence"], row.header["late"]) for row in rows]

    def stalled(self, pause):
        return len(self.raw().of("pause.stalled", UUID(pause)))

    def _lines(self, name):
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture(scope="module")
def nurseries():
    """Load each framework once."""
    made = {}
    yield made
    for nursery in made.values():
        nursery.close()


@pytest.fixture(params=KERNELS)
def kernel(request):
    if find_spec(FRAMEWORKS[KERNELS[request.param]]) is None:
        pytest.skip(f"the extra of {request.param} is not installed")
    return request.param


@pytest.fixture
def stage(kernel, nurseries, tmp_path):
    @contextmanager
    def opened(url, *, apart=False, **settings):
        module = KERNELS[kernel]
        if module not in nurseries:
            nurseries[module] = crew.Nursery("kernel_worker.py", module)
        told = {"kernel": kernel, "folder": str(tmp_path), "apart": apart}
        with crew.Crew(url, tmp_path, nursery=nurseries[module], told=told, **settings) as made:
            yield Scene(made, url, tmp_path)
        assert raw_check.faults(raw_check.read(url)) == []

    return opened


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    return request.getfixturevalue("pg_dsn")


def test_of_50_decisions_at_once_one_goes_on_and_the_tool_runs_at_most_once(stage, url):
    decisions = ["approve", "reject"] * 5
    with stage(url) as scene:
        workers = scene.workers(5)
        asked = workers[0].ask(task="ask", session="1:x")
        task = {"task": "decide_many", "session": "1:x", "token": asked["tokens"][0], "decisions": decisions}
        said = [one for each in crew.race(workers, [task] * 5) for one in each["each"]]
        (winner,) = [one for one in said if one.get("won")]
        losers = [one for one in said if not one.get("won")]
        assert len(losers) == 49
        assert {(one["error"], one["reason"], one["recorded"]) for one in losers} == {
            ("AlreadyConsumed", "already_consumed", True)
        }
        ((by, at),) = {(one["by"], one["at"]) for one in losers}
        assert by.startswith("worker-")
        assert at
        assert scene.ran("1:x") == ({"1:x.0": 1} if winner["dispatched"] else {})
        assert scene.went_on("1:x") == 1
        assert scene.settled(asked["pauses"][0]) == [(1, False)]
        raw = scene.raw()
        assert len(raw.of("pause.consumed")) == len(raw.of("pause.answered")) == 1
        assert raw_check.refusals(raw) == {"already_consumed": 49}


def test_the_last_two_answers_at_once_make_one_continuation_that_carries_three(stage, url):
    with stage(url) as scene:
        pair = scene.workers(2)
        for number in range(ROUNDS):
            session = f"3:{number}"
            asked = pair[0].ask(task="ask", session=session)
            first, *last = [
                {"task": "decide", "session": session, "token": token, "number": at, "decision": "approve"}
                for at, token in enumerate(asked["tokens"])
            ]
            assert pair[0].ask(**first)["error"] == "RoundOpen"
            said = crew.race(pair, last)
            (winner,) = [one for one in said if one.get("won")]
            (loser,) = [one for one in said if not one.get("won")]
            assert (winner["fence"], len(winner["dispatched"]), winner["paused"]) == (1, 3, 0)
            assert loser["error"] == "RoundOpen"
            assert loser["continued_by_other"] or loser["open"]
            assert scene.ran(session) == dict.fromkeys((f"{session}.{at}" for at in range(3)), 1)
            assert scene.went_on(session) == 1
        raw = scene.raw()
        assert len(raw.of("pause.consumed")) == len(raw.of("pause.answered")) == 3 * ROUNDS
        assert len(raw.of("pause.continued")) == ROUNDS
        assert raw_check.refusals(raw) == {}


def test_killed_right_after_the_last_answer_the_turn_is_taken_up_with_all_three(stage, pg_dsn):
    with stage(pg_dsn) as scene:
        worker, heir = scene.workers(2)
        asked = worker.ask(task="ask", session="3:x")
        worker.tell(task="keep", session="3:x", tokens=asked["tokens"])
        assert worker.hear() is None
        assert scene.ran("3:x") == {}
        said = heir.ask(task="take_up", session="3:x", pause=asked["pauses"][0])
        assert (said["fence"], len(said["dispatched"])) == (1, 3)
        assert scene.ran("3:x") == {"3:x.0": 1, "3:x.1": 1, "3:x.2": 1}
        assert scene.settled(asked["pauses"][0]) == [(1, False)]


def test_a_worker_that_outlives_its_lease_settles_late_or_changes_nothing(stage, pg_dsn):
    """Three workers are stopped by the system in their model's call; others take the turns up.

    Whoever is stopped in the midst of writing a SQLite file locks out the rest: so the ledger is PostgreSQL's here, and
    each has the framework's own files for itself.
    """
    sessions = ("1:both finish", "1:it fails late", "1:it finishes first")
    with stage(pg_dsn, lease=1, apart=True) as scene:
        zombies, heirs = scene.workers(3), scene.workers(3)
        asked = {session: heirs[0].ask(task="ask", session=session) for session in sessions}
        for zombie, session in zip(zombies, sessions, strict=True):
            hold(scene, session, zombie)
            zombie.tell(task="decide", session=session, token=asked[session]["tokens"][0], decision="approve")
        for zombie, session in zip(zombies, sessions, strict=True):
            until(scene.folder / f"held {session} {zombie.pid}")
            zombie.send(signal.SIGSTOP)
        time.sleep(1.4)
        hold(scene, sessions[2], heirs[2])
        for heir, session in zip(heirs, sessions, strict=True):
            heir.tell(task="take_up", session=session, pause=asked[session]["pauses"][0])
        assert [heir.result()["fence"] for heir in heirs[:2]] == [2, 2]
        until(scene.folder / f"held {sessions[2]} {heirs[2].pid}")
        (scene.folder / f"fail {sessions[1]} {zombies[1].pid}").touch()
        for zombie, session in zip(zombies, sessions, strict=True):
            zombie.send(signal.SIGCONT)
            (scene.folder / f"hold {session} {zombie.pid}").unlink()
        assert [zombie.result().get("broke") for zombie in zombies] == [None, "hung up", None]
        (scene.folder / f"hold {sessions[2]} {heirs[2].pid}").unlink()
        assert heirs[2].result()["fence"] == 2
        settled = [scene.settled(asked[session]["pauses"][0]) for session in sessions]
        assert settled == [[(2, False)], [(2, False)], [(1, True)]]
        for session in sessions:
            pause = asked[session]["pauses"][0]
            assert heirs[0].ask(task="take_up", session=session, pause=pause)["error"] == "AlreadyContinued"
            assert scene.stalled(pause) == 0
            # Once a claim; there is no third.
            assert scene.ran(session) == {f"{session}.0": 2}
            assert len(scene.raw().of("pause.recovered", UUID(pause))) == 1


def hold(scene, session, worker):
    (scene.folder / f"hold {session} {worker.pid}").touch()


def until(path, patience=30.0):
    """Wait until a file is there."""
    deadline = time.monotonic() + patience
    while not path.exists():
        assert time.monotonic() < deadline, f"{path.name} did not come about"
        time.sleep(0.01)
