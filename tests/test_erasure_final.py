"""Erasure to its end: what is said to be gone is gone, no key is lost that is needed, and a check sees what was undone."""

import asyncio
import json
import logging
import sqlite3
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
import pytest
from pauseledger import (
    Actor,
    Axes,
    InteractionConfigurationError,
    PauseCommand,
    PresentCommand,
    ReissueCommand,
    Turn,
)
from pauseledger.domain.errors import NotErasable
from pauseledger.infrastructure.cli import main
from pauseledger.infrastructure.keys import KeyFile
from pauseledger.infrastructure.sqlite import SQLiteRecorder
from pauseledger.infrastructure.stories import SCOPE, Stage, asked, asked_round, round_of
from pauseledger.infrastructure.vault import require_opened

OLGA = Actor("olga", assurance="authenticated")


def question_of(run):
    call = {"id": "call_1", "type": "function", "function": {"name": "pay", "arguments": "{}"}}
    turn = Turn("openai-chat", [{"role": "assistant", "content": None, "tool_calls": [call]}])
    axes = Axes(scope=SCOPE, session_id="session", run_id=run, call_id="call_1")
    return PauseCommand("approval", {"tool": "pay", "arguments": {}}, turn, axes)


def promote_settled(keys):
    """Make another vault key wrap, as if that were long ago; gives the former one's id."""
    file = KeyFile(keys)
    former = file.load_vault().minting.kid
    file.promote(file.new("vault").kid)
    written = json.loads((keys / "keys.json").read_text())
    for key in written["keys"]:
        if key["kid"] == former:
            key["stopped_minting_at"] = (datetime.now(UTC) - timedelta(minutes=1)).isoformat()
    (keys / "keys.json").write_text(json.dumps(written))
    return former


@pytest.fixture
def run(capsys):
    def command(stage, code, *arguments):
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--store", stage.url, "--keys-dir", str(stage.keys), "--json"])
        told = json.loads(capsys.readouterr().out)
        assert ended.value.code == code, told
        return told

    return command


async def test_a_wrapping_key_is_not_lost_to_a_transaction_that_is_still_open(pg_dsn, tmp_path, run):
    stage = Stage(pg_dsn, tmp_path / "keys")
    async with stage.ledger() as ledger, await psycopg.AsyncConnection.connect(pg_dsn) as host, host.transaction():
        held = await ledger.joined(host).pause(question_of("held"))
        former = promote_settled(stage.keys)
        await asyncio.to_thread(run, stage, 0, "keys", "rewrap")
        says = (await asyncio.to_thread(run, stage, 2, "keys", "retire", former))["says"]
        assert "transaction that is still open" in says
    assert "rewrap" in (await asyncio.to_thread(run, stage, 2, "keys", "retire", former))["says"]
    assert (await asyncio.to_thread(run, stage, 0, "keys", "rewrap"))["pauses"] == 1
    await asyncio.to_thread(run, stage, 0, "keys", "retire", former)
    async with stage.ledger() as ledger:
        assert (await ledger.story(held.pause_id))[0].request.intact


async def test_a_wrapping_key_that_was_lost_takes_its_own_pauses_alone(tmp_path, monkeypatch):
    stage = Stage(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "keys")
    async with stage.ledger() as ledger:
        lost = await asked(ledger)
    former = promote_settled(stage.keys)
    async with stage.ledger() as ledger:
        kept = await asked(ledger, occurrence=1)
    KeyFile(stage.keys).retire(former, lambda _: ())
    said = []
    # A command line in the same process may have silenced the log by then.
    monkeypatch.setattr(logging.getLogger("pauseledger.vault"), "error", lambda *told: said.append(told))
    async with stage.ledger() as ledger:
        assert (await ledger.story(kept.pause_id))[0].request.intact
        with pytest.raises(InteractionConfigurationError, match=former):
            (await ledger.story(lost.pause_id))[0].request.clear()
        assert await asked(ledger, occurrence=2)
        # Opening looks at one key, whichever comes first.
        require_opened(ledger.recorder, former, KeyFile(stage.keys).load_vault())
    assert {told[1] for told in said} == {former}


async def test_scrubbed_is_said_where_it_was_done(tmp_path, run, monkeypatch):
    path = tmp_path / "ledger.db"
    stage = Stage(f"sqlite:///{path}", tmp_path / "keys")
    init = SQLiteRecorder.__init__
    impatient = {"busy_timeout": 0.2}
    monkeypatch.setattr(SQLiteRecorder, "__init__", lambda self, at, **more: init(self, at, **{**more, **impatient}))
    async with stage.ledger() as ledger:
        question = await asked(ledger)
        [row] = ledger.recorder.vault([question.pause_id])
        assert await ledger.scrub()
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM vault").fetchall()
        for existing in (False, True):
            done = await ledger.operator(OLGA).erase(question.pause_id, "content", "gdpr-17")
            assert (done.existing, done.scrubbed) == (existing, False)
        erase = ["erase", str(question.pause_id), "--content", "--operator", "olga", "--reason", "gdpr-17"]
        told = await asyncio.to_thread(run, stage, 0, *erase)
        assert (told["erased"][0]["existing"], told["scrubbed"]) == (True, False)
        assert "nothing was scrubbed" in (await asyncio.to_thread(run, stage, 4, "keys", "scrub"))["says"]
        assert row.content in path.read_bytes()
        reader.close()
        assert (await ledger.operator(OLGA).erase(question.pause_id, "content", "gdpr-17")).scrubbed
        assert row.content not in path.read_bytes()


def alter_vault(stage, statement, *values):
    """Change the vault as whoever owns the file and drops its guards."""
    for trigger, _ in stage.sql("SELECT name, 1 FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'vault'"):
        stage.sql(f"DROP TRIGGER {trigger}")
    stage.sql(statement, values)


def test_a_check_finds_an_erasure_that_was_undone_and_a_vault_that_was_spoilt(tmp_path, run):
    stage = Stage(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "keys")

    async def story():
        async with stage.ledger() as ledger:
            pauses = [(await asked(ledger, occurrence=at)).pause_id for at in range(3)]
            backup = ledger.recorder.vault(pauses)
            await ledger.operator(OLGA).erase(pauses[0], "content", "gdpr-17")
            return pauses, {row.pause: row for row in backup}

    pauses, backup = asyncio.run(story())
    assert run(stage, 0, "check")["found"] == 0
    one, two, three = (backup[pause] for pause in pauses)
    put = "UPDATE vault SET content = ?, person = ?, content_destroyed_at = NULL WHERE pause = ?"
    alter_vault(stage, put, one.content, one.person, one.pause.hex)
    alter_vault(stage, put, two.person, two.content, two.pause.hex)
    alter_vault(stage, put, one.content, b"\x00\x00\x00\x01" + bytes(48), three.pause.hex)
    faults = vault_faults(run(stage, 5, "check"))
    assert sorted((str(pauses.index(UUID(fault["stream"]))), fault["says"]) for fault in faults) == [
        ("0", "that the content key was destroyed is on record, and it stands; erase it again"),
        ("1", "the content key is not what was written"),
        ("1", "the person key is not what was written"),
        ("2", "the content key is not what was written"),
        ("2", "the person key is wrapped by a vault key that is not in the key ring here"),
    ]
    elsewhere = Stage(stage.url, tmp_path / "other keys")
    assert len(vault_faults(run(elsewhere, 5, "check"))) == 1, "by another ledger's keys nothing can be said of these"
    asyncio.run(erased_again(stage, pauses[0]))
    assert not any("on record" in fault["says"] for fault in run(stage, 5, "check")["faults"])


def vault_faults(checked):
    """Leave aside that the triggers are gone which were in the way."""
    assert "table" in {fault["part"] for fault in checked["faults"]}
    return [fault for fault in checked["faults"] if fault["part"] == "vault"]


async def erased_again(stage, pause):
    async with stage.ledger() as ledger:
        assert not (await ledger.operator(OLGA).erase(pause, "content", "gdpr-17")).existing


def test_what_somebody_only_handled_as_an_operator_is_not_theirs(tmp_path, run):
    stage = Stage(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "keys")

    async def story():
        async with stage.ledger() as ledger:
            theirs, reissued, shown, erased = [await asked(ledger, occurrence=at) for at in range(4)]
            await theirs.answer(answered_by=OLGA)
            await ledger.operator(OLGA).reissue(ReissueCommand(reissued.pause_id, axes=None))
            command = PresentCommand(shown.pause_id, axes=None, to=Actor("maria"), rendering="page")
            await ledger.operator(OLGA).presented(command)
            await ledger.operator(OLGA).erase(erased.pause_id, "person", "gdpr-17")
            return [str(one.pause_id) for one in (theirs, reissued, shown, erased)]

    theirs, reissued, shown, erased = asyncio.run(story())
    erase = ["erase", "--of-person", "olga", "--tenant", SCOPE.tenant_id, "--operator", "root", "--reason", "gdpr-17"]
    told = run(stage, 0, *erase, "--content")
    assert [one["pauses"] for one in told["erased"]] == [[theirs]]
    assert sorted(told["handled"]) == sorted([reissued, shown])
    assert run(stage, 0, "show", reissued)["state"] == "open"
    told = run(stage, 0, *erase, "--person")
    assert sorted(one["pauses"][0] for one in told["erased"]) == sorted([theirs, reissued, shown])
    assert told["handled"] == []
    assert len(run(stage, 0, "subject", "olga", "--tenant", SCOPE.tenant_id)["pauses"]) == 4, "all are told"


def test_of_a_pause_begun_before_the_vault_key_what_is_encrypted_is_erased(tmp_path, run):
    stage = Stage(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "keys")
    path = stage.keys / "keys.json"
    both = path.read_text()
    ring = json.loads(both)
    path.write_text(json.dumps({**ring, "keys": [key for key in ring["keys"] if key["use"] == "tokens"]}))

    async def story():
        async with stage.ledger() as ledger:
            one, two = await asked_round(ledger, *round_of("call_1", "call_2"))
        path.write_text(both)
        async with stage.ledger() as ledger:
            with pytest.raises(NotErasable):
                await ledger.operator(OLGA).erase(one.pause_id, "content", "gdpr-17")
            await one.at(ledger).answer(answered_by=Actor("maria"))
        return str(one.pause_id), str(two.pause_id)

    one, two = asyncio.run(story())
    erase = ["erase", one, "--content", "--person", "--operator", "olga", "--reason", "gdpr-17"]
    told = run(stage, 3, *erase)
    assert told["outcome"] == "not_erasable"
    assert [(done["kind"], done["pauses"][:1], sorted(done["in_clear"])) for done in told["erased"]] == [
        ("content", [one], sorted([one, two])),
        ("person", [one], sorted([one, two])),
    ]

    async def after():
        async with stage.ledger() as ledger:
            [answered] = [fact for fact in await ledger.story(UUID(one)) if fact.topic() == "pause.answered@1"]
            return answered.response.erased, answered.by.who.erased

    assert asyncio.run(after()) == (True, True)
    assert run(stage, 0, "check")["found"] == 0
    run(stage, 3, *erase)  # The order brought keys for the other pause, of which nothing had been encrypted.
    assert all(done["existing"] for done in run(stage, 3, *erase)["erased"])
