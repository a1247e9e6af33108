"""Whom a ledger names, told as a whole: what is not cited, what is of no tenant, and behind what cannot be read."""

import asyncio
import json
import struct
from uuid import uuid4

import pytest
from pauseledger import Actor, Policy, PresentCommand, StoreUnavailable
from pauseledger.domain.erasing import Erasing
from pauseledger.domain.errors import NotErasable
from pauseledger.infrastructure.cli import main
from pauseledger.infrastructure.pauses import EventSourcedPauses
from pauseledger.infrastructure.stories import SCOPE, Stage, asked
from pauseledger.infrastructure.wiring import Ledger

MARIA = Actor("maria", assurance="authenticated")


@pytest.fixture
def stage(tmp_path):
    return Stage(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "keys")


@pytest.fixture
def run(stage, capsys):
    def command(code, *arguments):
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--store", stage.url, "--keys-dir", str(stage.keys), "--json"])
        told = json.loads(capsys.readouterr().out)
        assert ended.value.code == code, told
        return told

    return command


def subject(run):
    return run(0, "subject", "maria", "--tenant", SCOPE.tenant_id)


ERASE = ("erase", "--content", "--person", "--operator", "olga", "--reason", "gdpr-17")


def story(stage, told):
    async def inside():
        async with stage.ledger() as ledger:
            return await told(ledger)

    return asyncio.run(inside())


async def answered(ledger):
    questions = [await asked(ledger), await asked(ledger, occurrence=1)]
    for question in questions:
        await question.redeem(answered_by=MARIA)
    return [question.pause_id for question in questions]


def test_what_was_shown_is_told_though_nobody_cites_it(stage, run):
    async def shown(ledger):
        question = await asked(ledger)
        command = PresentCommand(question.pause_id, axes=question.axes, to=MARIA, rendering="page")
        await ledger.capability.presented(command)
        await question.answer(answered_by=Actor("bob"))

    story(stage, shown)
    [pause] = subject(run)["pauses"]
    [presented] = [fact for fact in pause["facts"] if fact["topic"] == "pause.presented@1"]
    assert "maria" in json.dumps(presented)


def test_a_policy_is_of_no_tenant_and_told_by_its_position(stage, run):
    async def governed(ledger):
        await ledger.capability.govern("ask_user", Policy(name="transfers", actors=["maria"]), by=Actor("carla"))

    story(stage, governed)
    told = subject(run)
    assert (told["pauses"], told["elsewhere"]) == ([], [{"position": 1, "fact": "policy.changed"}])


def spoil(stage, stream):
    """Add rows that nothing of ours wrote, past every rule of the table; give their positions."""
    triggers = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'stored_events'"
    for (trigger,) in stage.sql(triggers):
        stage.sql(f"DROP TRIGGER {trigger}")
    header = b'{"maria'
    row = b"PLF1" + bytes(32) + struct.pack(">I", len(header)) + header
    spoilt = [("no id", 1, row), (uuid4().hex, 1, "text"), (uuid4().hex, "one", row), (stream.hex, 9, b"PLF1")]
    for one, version, state in spoilt:
        values = (one, version, "pause.paused@1", state)
        stage.sql(
            "INSERT INTO stored_events (originator_id, originator_version, topic, state) VALUES (?,?,?,?)", values
        )
    return [at for (at,) in stage.sql("SELECT rowid FROM stored_events ORDER BY rowid")][-len(spoilt) :]


def test_rows_that_cannot_be_read_are_set_aside_and_told(stage, run):
    spoilt_pause, whole = story(stage, answered)
    positions = spoil(stage, spoilt_pause)
    told = subject(run)
    assert told["unreadable"] == positions
    assert {one["pause_id"]: bool(one["facts"]) for one in told["pauses"]} == {
        str(spoilt_pause): False,
        str(whole): True,
    }
    erased = run(5, *ERASE, "--of-person", "maria", "--tenant", SCOPE.tenant_id)
    assert (erased["outcome"], erased["unreadable"]) == ("corrupt", positions)
    assert [(one["pauses"], one["kind"]) for one in erased["erased"]] == [
        ([str(whole)], "content"),
        ([str(whole)], "person"),
    ]
    assert {one["pause_id"] for one in erased["kept"]} == {str(spoilt_pause)}


@pytest.mark.parametrize("of", ["a pause", "a person"])
@pytest.mark.parametrize("failed", [StoreUnavailable("gone"), NotErasable(uuid4())])
def test_what_was_destroyed_is_told_and_scrubbed_whatever_comes_after_it(stage, run, monkeypatch, of, failed):
    pause, _ = story(stage, answered)
    erase, scrub, scrubbed = Erasing.erase, Ledger.scrub, []

    async def content_alone(self, **how):
        if self.kind == "person":
            raise failed
        return await erase(self, **how)

    async def seen(self):
        scrubbed.append(await scrub(self))
        return scrubbed[-1]

    monkeypatch.setattr(Erasing, "erase", content_alone)
    monkeypatch.setattr(Ledger, "scrub", seen)
    whom = [str(pause)] if of == "a pause" else ["--of-person", "maria", "--tenant", SCOPE.tenant_id]
    told = run(4 if isinstance(failed, StoreUnavailable) else 3, *ERASE, *whom)
    assert {"pauses": [str(pause)], "kind": "content", "existing": False, "in_clear": []} in told["erased"]
    assert str(failed) in [one["says"] for one in told["kept"]]
    assert scrubbed == [True]


def test_a_key_that_was_destroyed_and_not_recorded_is_scrubbed_as_well(stage, run, monkeypatch):
    pause, _ = story(stage, answered)
    destroy, scrub, scrubbed = EventSourcedPauses.destroy, Ledger.scrub, []

    async def gone(self, pauses, kind):
        await destroy(self, pauses, kind)
        if kind == "person":
            raise StoreUnavailable("gone", outcome="unknown")

    async def seen(self):
        scrubbed.append(True)
        return await scrub(self)

    monkeypatch.setattr(EventSourcedPauses, "destroy", gone)
    monkeypatch.setattr(Ledger, "scrub", seen)
    assert run(4, *[one for one in ERASE if one != "--content"], str(pause))["outcome"] == "unavailable"
    assert scrubbed == [True]
