"""Real processes answer one pause at once under a quorum: one consumption, and no answer that was acknowledged is lost."""

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

PEOPLE, QUORUM, PAUSES = 6, 3, 3
POLICY = {"task": "govern", "interaction": "ask_user", "name": "three", "quorum": QUORUM, "kinds": ["person"]}


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    return request.getfixturevalue("pg_dsn")


@contextmanager
def people(url, folder):
    """Processes under a policy that all of them put in force at once; the raw rows are proved afterwards."""
    with crew.Crew(url, folder) as made:
        workers = made.workers(PEOPLE)
        said = crew.race(workers, [POLICY] * PEOPLE)
        assert sorted(one["existing"] for one in said) == [False] + [True] * (PEOPLE - 1)
        yield workers
    raw = raw_check.read(url)
    assert len(raw.of("policy.changed")) == 1
    assert raw_check.faults(raw) == []


def votes_of(raw, pause):
    """Hold what the raw rows of one pause say against each other; give its answers by the attempt that gave them."""
    answered, consumed = raw.of("pause.answered", UUID(pause)), raw.of("pause.consumed", UUID(pause))
    headers = [row.header for row in answered]
    assert len({header["by"]["tag"] for header in headers}) == len(headers), "each counts once"
    [end] = consumed
    made = [row for row in answered if row.version in end.header["answers"]]
    assert sorted(row.header["number"] for row in made) == list(range(1, QUORUM + 1))
    assert all(row.version < end.version for row in answered), "nothing is answered after the end"
    return {header["attempt"] for header in headers}


@pytest.mark.parametrize("labels", [("Anne",), ("Anne", "Bob")], ids=["of one mind", "of two minds"])
def test_of_many_who_redeem_at_once_one_continues_and_every_answer_kept_is_there(url, tmp_path, labels):
    with people(url, tmp_path) as workers:
        paused = [workers[0].ask(task="pause", run=f"run {number}") for number in range(PAUSES)]
        told = []
        for number, one in enumerate(paused):
            task = {"task": "redeem", "token": one["tokens"][0], "run": f"run {number}"}
            answers = [scene.answer(labels[at % len(labels)]) for at in range(PEOPLE)]
            told.append(crew.race(workers, [task | {"response": answer} for answer in answers]))
    raw = raw_check.read(url)
    for one, said in zip(paused, told, strict=True):
        [pause] = one["pauses"]
        winners = [each for each in said if each.get("won")]
        open_ = [each for each in said if each.get("error") == "QuorumOpen"]
        assert len(winners) == 1
        assert {each["error"] for each in said if not each.get("won")} <= {
            "QuorumOpen",
            "AlreadyConsumed",
            "AlreadyAnswered",
            "RoundOpen",
        }
        kept = votes_of(raw, pause)
        assert len(kept) >= max(QUORUM, len(open_) + 1), "an answer that was kept is there"
        assert all(1 <= each["missing"] < QUORUM for each in open_)


def test_of_many_who_answer_at_once_enough_make_the_answer_and_the_rest_change_nothing(url, tmp_path):
    with people(url, tmp_path) as workers:
        paused = [workers[0].ask(task="pause", run=f"run {number}") for number in range(PAUSES)]
        for number, one in enumerate(paused):
            task = {"task": "answer", "token": one["tokens"][0], "run": f"run {number}"}
            said = crew.race(workers, [task] * PEOPLE)
            assert [each["state"] for each in said].count("open") <= QUORUM - 1
            assert {each["state"] for each in said} <= {"open", "answered"}
            recover = {"task": "recover", "pause": one["pauses"][0], "run": f"run {number}"}
            ends = crew.race(workers[:2], [recover] * 2)
            assert [bool(each.get("won")) for each in ends].count(True) == 1
    raw = raw_check.read(url)
    for one in paused:
        assert len(votes_of(raw, one["pauses"][0])) == QUORUM
