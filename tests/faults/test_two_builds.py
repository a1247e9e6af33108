"""Two builds of the product work on one store at once: they share every race, and the older one decides nothing it cannot read."""

import shutil
import sqlite3
from contextlib import closing
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pauseledger
import psycopg
import pytest
from pauseledger.infrastructure import raw_check
from pauseledger.infrastructure.store import SCHEMA_REVISION


def _load(name):
    folder = Path(__file__).parents[1] / "processes"
    spec = spec_from_file_location(f"pauseledger_tests_{name}", folder / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


crew = _load("crew")

#: What the newer build does otherwise: a settlement of another revision, which reads the older one, and a new name.
CHANGES = [
    (
        "domain/facts.py",
        'NAME = "pause.continued"\n',
        'NAME = "pause.continued"\n    REVISION = 2\n    mood: str = "calm"\n',
    ),
    ("domain/facts.py", 'NAME = "pause.recovered"\n', 'NAME = "pause.taken_over"\n'),
    (
        "infrastructure/mapper.py",
        "dict(upcasters or {})",
        '{("pause.continued", 1): lambda header: {**header, "mood": "calm"}}',
    ),
]


@pytest.fixture(scope="module")
def newer(tmp_path_factory):
    """Make a newer build out of a copy of this one; give the folder it is imported from."""
    folder, source = tmp_path_factory.mktemp("newer"), Path(pauseledger.__file__).parent
    beside = shutil.ignore_patterns("tests", "benchmarks", "docs", "build", ".*", "__pycache__")
    shutil.copytree(source, folder / "pauseledger", ignore=beside)
    for name, before, after in CHANGES:
        text = (folder / "pauseledger" / name).read_text()
        assert text.count(before) == 1
        (folder / "pauseledger" / name).write_text(text.replace(before, after))
    return folder


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    return request.getfixturevalue("pg_dsn")


def test_they_share_every_race_and_the_older_decides_nothing_that_it_cannot_read(url, tmp_path, newer):
    nursery = crew.Nursery(PYTHONPATH=str(newer))
    with crew.Crew(url, tmp_path) as ours, crew.Crew(url, tmp_path, nursery) as theirs:
        pair = old, new = ours.worker(), theirs.worker()
        # What both know is one ledger to both: a pause, its token, its one winner.
        for number in range(6):
            run = f"run {number}"
            paused = pair[number % 2].ask(task="pause", run=run)
            said = crew.race(pair, [{"task": "redeem", "token": paused["tokens"][0], "run": run}] * 2)
            assert sorted(one.get("reason", "won") for one in said) == ["already_consumed", "won"]
            winner = pair[0] if said[0].get("won") else pair[1]
            assert winner.ask(task="go_on") == {"settled": True}
            recover = {"task": "recover", "pause": paused["pauses"][0], "run": run}
            redeem = {"task": "redeem", "token": paused["tokens"][0], "run": run}
            assert new.ask(**recover)["error"] == "AlreadyContinued"
            # A fact of a newer revision stops the older build, by name.
            expected = ("LedgerTooNew", "LedgerTooNew") if winner is new else ("AlreadyContinued", "AlreadyConsumed")
            assert (old.ask(**recover)["error"], old.ask(**redeem)["error"]) == expected
        # So does a fact of a name that it never heard of.
        paused = old.ask(task="pause", run="taken over")
        assert old.ask(task="redeem", token=paused["tokens"][0], run="taken over")["won"]
        task = {"task": "recover", "pause": paused["pauses"][0], "run": "taken over", "forced": True}
        assert new.ask(**task)["fence"] == 2
        assert old.ask(**task)["error"] == "LedgerTooNew"
        assert "pause.taken_over@1" in old.ask(**task)["says"]
    nursery.close()
    raw = raw_check.read(url)
    assert len(raw.of("pause.consumed")) == 7
    assert {row.topic for row in raw.of("pause.continued")} <= {"pause.continued@1", "pause.continued@2"}
    # The reader of raw rows knows no claim by that name; all else holds.
    assert raw_check.faults(raw) == []


def test_tables_of_a_newer_make_are_left_alone_by_processes_that_are_open_already(url, tmp_path):
    with crew.Crew(url, tmp_path) as made:
        worker = made.worker()
        paused = worker.ask(task="pause", run="run")
        say(url, "UPDATE ledger SET schema_revision = 99")
        before = len(raw_check.read(url).rows)
        task = {"token": paused["tokens"][0], "run": "run"}
        assert worker.ask(task="redeem", **task)["error"] == "LedgerTooNew"
        assert worker.ask(task="answer", **task)["error"] == "LedgerTooNew"
        assert worker.ask(task="recover", pause=paused["pauses"][0], run="run")["error"] == "LedgerTooNew"
        # Pausing looks at nothing first: the append itself is called off.
        assert worker.ask(task="pause", run="another")["error"] == "LedgerTooNew"
        assert worker.ask(task="pause", run="a round", calls=["call_a", "call_b", "call_c"])["error"] == "LedgerTooNew"
        assert len(raw_check.read(url).rows) == before
        say(url, f"UPDATE ledger SET schema_revision = {SCHEMA_REVISION}")
        assert worker.ask(task="redeem", **task)["won"]


def say(url, statement):
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file, file:
            file.execute(statement)
        return
    with psycopg.connect(url, options="-c search_path=pauseledger") as server:
        server.execute(statement)
