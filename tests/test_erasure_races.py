"""Erasure beside others and over time: what happened is what stands on record, and a check sees what was not ordered."""

import json
import struct
from uuid import uuid4

import pytest
from pauseledger import Actor, InteractionConfigurationError, RequestMissing, Routing, Scope, StoreUnavailable
from pauseledger.domain.erasing import Erasing
from pauseledger.domain.errors import ErasureHeld
from pauseledger.infrastructure.check_vault import vault_faults
from pauseledger.infrastructure.cli import main
from pauseledger.infrastructure.pauses import EventSourcedPauses
from pauseledger.infrastructure.stories import SCOPE, Stage, asked

OLGA = Actor("olga", assurance="authenticated")
TENANT = Scope(tenant_id=SCOPE.tenant_id)


@pytest.fixture
def stage(tmp_path):
    return Stage(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "keys")


@pytest.fixture
async def ledger(stage):
    async with stage.ledger() as opened:
        yield opened


@pytest.fixture
async def question(ledger):
    return await asked(ledger, asked_by=Actor("planner"), routing=Routing(assignees=["maria"]))


async def ends(ledger, pause):
    return [fact.outcome for fact in await ledger.story(pause) if fact.topic() == "erasure.ended@1"]


def says(ledger):
    return [fault.says for fault in vault_faults(ledger.recorder)]


@pytest.mark.parametrize("first", ["held", "destroyed"])
async def test_of_two_erasers_and_a_hold_what_happened_is_on_record(ledger, question, monkeypatch, first):
    operator, pause = ledger.operator(OLGA), question.pause_id
    destroy, order = EventSourcedPauses.destroy, Erasing._order

    async def another_meanwhile(self, *given):
        async def held_meanwhile(eraser, *told):
            await operator.place_hold(SCOPE, "case-1")
            await order(eraser, *told)
            if first == "destroyed":
                await destroy(self, *given)

        with monkeypatch.context() as patch:
            patch.setattr(Erasing, "_order", held_meanwhile)
            with pytest.raises(ErasureHeld):
                await operator.erase(pause, "content", "gdpr-17")
        await destroy(self, *given)

    monkeypatch.setattr(EventSourcedPauses, "destroy", another_meanwhile)
    assert not (await operator.erase(pause, "content", "gdpr-17")).existing
    assert await ends(ledger, pause) == (["held", "destroyed"] if first == "held" else ["destroyed"])
    assert says(ledger) == []


async def test_an_end_is_recorded_whatever_was_recorded_meanwhile(ledger, question, monkeypatch):
    operator, told, turns = ledger.operator(OLGA), Erasing._told, []

    async def another_meanwhile(self, pauses):
        found = await told(self, pauses)
        turns.append(found)
        if len(turns) == 2:  # noqa: PLR2004 - the reading that the end is appended behind
            await operator.place_hold(SCOPE, "case-1")
            await self._end(pauses, "held")
        return found

    monkeypatch.setattr(Erasing, "_told", another_meanwhile)
    await operator.erase(question.pause_id, "person", "gdpr-17")
    assert await ends(ledger, question.pause_id) == ["held", "destroyed"]


async def test_an_order_that_ended_at_a_hold_licenses_nothing_later(ledger, question, monkeypatch):
    operator, order = ledger.operator(OLGA), Erasing._order

    async def held_meanwhile(self, *given):
        await operator.place_hold(SCOPE, "case-1")
        await order(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Erasing, "_order", held_meanwhile)
        with pytest.raises(ErasureHeld):
            await operator.erase(question.pause_id, "person", "gdpr-17")
    assert says(ledger) == []
    ledger.recorder.destroy([question.pause_id], "person")
    assert says(ledger) == ["the person key was destroyed, and its order had ended at a hold"]


async def test_once_the_key_is_gone_a_hold_keeps_nobody_from_recording_it(ledger, question, monkeypatch):
    operator = ledger.operator(OLGA)

    async def gone(*_):
        raise StoreUnavailable("gone")

    with monkeypatch.context() as patch:
        patch.setattr(Erasing, "_end", gone)
        with pytest.raises(StoreUnavailable):
            await operator.erase(question.pause_id, "content", "gdpr-17")
    await operator.place_hold(SCOPE, "case-1")
    assert not (await operator.erase(question.pause_id, "content", "gdpr-17")).existing
    assert await ends(ledger, question.pause_id) == ["destroyed"]


async def test_a_floor_does_not_run_from_what_erasing_wrote(ledger, question):
    operator = ledger.operator(OLGA)
    await operator.keep(TENANT, 180, "ai-act-26")
    ledger.wait(days=181)
    await operator.erase(question.pause_id, "content", "gdpr-17")
    assert [fact.topic() for fact in await ledger.pauses.story([question.pause_id])][-1] == "pause.withdrawn@1"
    await operator.erase(question.pause_id, "person", "gdpr-17")


async def test_a_floor_lets_go_on_what_was_cut_off(ledger, question, monkeypatch):
    operator = ledger.operator(OLGA)
    await operator.keep(TENANT, 180, "ai-act-26")
    ledger.wait(days=181)

    async def gone(*_):
        raise StoreUnavailable("gone")

    with monkeypatch.context() as patch:
        patch.setattr(EventSourcedPauses, "destroy", gone)
        for kind in ("person", "content"):
            with pytest.raises(StoreUnavailable):
                await operator.erase(question.pause_id, kind, "gdpr-17")
    for kind in ("person", "content"):
        assert not (await operator.erase(question.pause_id, kind, "gdpr-17")).existing


async def test_a_floor_runs_from_what_others_wrote_after_an_order(ledger, question):
    operator = ledger.operator(OLGA)
    await operator.erase(question.pause_id, "person", "gdpr-17")
    ledger.wait(days=1)
    await question.answer(answered_by=Actor("maria"))
    await operator.keep(TENANT, 180, "ai-act-26")
    ledger.wait(days=179, hours=12)
    with pytest.raises(ErasureHeld, match="kept until"):
        await operator.erase(question.pause_id, "content", "gdpr-17")
    ledger.wait(days=1)
    await operator.erase(question.pause_id, "content", "gdpr-17")


async def test_a_hold_on_a_pause_is_of_a_scope_that_covers_it(ledger, question):
    operator = ledger.operator(OLGA)
    narrower = SCOPE.model_copy(update={"sub_tenant_id": "elsewhere"})
    for scope in (Scope(tenant_id="another"), narrower):
        with pytest.raises(InteractionConfigurationError, match="not in that scope"):
            await operator.place_hold(scope, "case-1", question.pause_id)
    with pytest.raises(RequestMissing):
        await operator.place_hold(SCOPE, "case-1", uuid4())
    assert (await operator.custody(TENANT)).holds == ()
    for scope in (SCOPE, TENANT):
        number = await operator.place_hold(scope, "case-1", question.pause_id)
        with pytest.raises(ErasureHeld):
            await operator.erase(question.pause_id, "person", "gdpr-17")
        await operator.lift_hold(scope, number, "case-1")


def row_of(header):
    return b"PLF1" + bytes(32) + struct.pack(">I", len(header)) + header


def spoil(stage):
    """Add rows that nothing of ours wrote, past every rule of the tables."""
    for trigger, _ in stage.sql(
        "SELECT name, 1 FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'stored_events'"
    ):
        stage.sql(f"DROP TRIGGER {trigger}")
    spoilt = [
        ("no id at all", 1, "pause.paused@1", row_of(b'{"pause":1}')),
        (uuid4().hex, 1, "erasure.ordered@1", row_of(b"{}")),
        (uuid4().hex, 1, "erasure.ended@1", row_of(b'{"pause":"%b","kind":"both"}' % str(uuid4()).encode())),
        (uuid4().hex, 1, "erasure.ordered@1", row_of(b"[1]")),
        (uuid4().hex, 1, "erasure.ordered@1", row_of(b"{{")),
        (uuid4().hex, 1, "erasure.ordered@1", "no bytes"),
    ]
    for row in spoilt:
        stage.sql("INSERT INTO stored_events (originator_id, originator_version, topic, state) VALUES (?,?,?,?)", row)
    return len(spoilt)


async def test_rows_that_cannot_be_read_end_no_check(stage, ledger, question, capsys):
    await ledger.operator(OLGA).erase(question.pause_id, "person", "gdpr-17")
    ledger.recorder.destroy([question.pause_id], "content")
    spoil(stage)
    found = says(ledger)
    assert found.count("what it says of an erasure cannot be read") == 5  # noqa: PLR2004 - all but the one of no erasure
    assert "the content key was destroyed, and nobody ordered it" in found
    with pytest.raises(SystemExit) as ended:
        main(["check", "--store", stage.url, "--keys-dir", str(stage.keys), "--json"])
    assert ended.value.code == 5  # noqa: PLR2004 - faults were found
    assert json.loads(capsys.readouterr().out)["outcome"] == "faults"


async def test_a_vault_that_cannot_be_read_ends_no_check(stage, ledger, question):
    for trigger, _ in stage.sql("SELECT name, 1 FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'vault'"):
        stage.sql(f"DROP TRIGGER {trigger}")
    stage.sql("UPDATE vault SET content_key = 'no id'")
    assert says(ledger) == ["the row names a key that is not in the vault"]
    stage.sql("UPDATE vault SET pause = 'no id'")
    assert any("holds what is no key" in said for said in says(ledger))


async def test_a_pause_that_is_made_does_not_search_the_vault(ledger, monkeypatch):
    def searched(_):
        raise AssertionError

    monkeypatch.setattr(type(ledger.recorder), "identity", searched)
    assert await asked(ledger)
