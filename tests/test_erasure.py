"""Erasure on every store: what was said or who said it is gone, and rows, chain, views and refusals stand."""

import asyncio
import json
import os
import sqlite3
from pathlib import Path

import psycopg
import pytest
from pauseledger import (
    Actor,
    InteractionConfigurationError,
    PresentCommand,
    RecoverCommand,
    RequestMissing,
    Routing,
    Scope,
    StoreUnavailable,
    TurnAbandoned,
)
from pauseledger.domain.erasing import Erasing
from pauseledger.domain.errors import ErasureHeld, NotErasable, RequestErased
from pauseledger.domain.sentences import tell_all
from pauseledger.infrastructure import raw_check
from pauseledger.infrastructure.check_vault import vault_faults
from pauseledger.infrastructure.cli import main
from pauseledger.infrastructure.keys import KeyFile
from pauseledger.infrastructure.postgres import PostgresRecorder
from pauseledger.infrastructure.raw_check import RawLedger, RawRow
from pauseledger.infrastructure.sqlite import SQLiteRecorder
from pauseledger.infrastructure.stories import ANSWER, SCOPE, Stage, asked, asked_round, refusal, round_of, topics

OLGA = Actor("olga", assurance="authenticated")
TENANT = Scope(tenant_id=SCOPE.tenant_id)


@pytest.fixture
def stage(store_url, tmp_path):
    return Stage(store_url, tmp_path / "keys")


@pytest.fixture
async def ledger(stage):
    async with stage.ledger() as opened:
        yield opened


@pytest.fixture
async def question(ledger):
    return await asked(ledger, asked_by=Actor("planner"), routing=Routing(assignees=["maria"]))


def faults(stage):
    """Hold the raw rows against the format."""
    rows = [RawRow(*row) for row in stage.rows()]
    return raw_check.faults(RawLedger(stage.ledger_id, tuple(rows)))


async def told(ledger, pause):
    return " ".join(tell_all(await ledger.story(pause), content=True))


async def test_an_open_pause_is_taken_back_and_erased(stage, ledger, question):
    done = await ledger.operator(OLGA).erase(question.pause_id, "content", "gdpr-17")
    assert (done.pauses, done.existing) == ((question.pause_id,), False)
    assert sorted(topics(stage.rows())) == sorted(["paused", "withdrawn", "erasure.ordered", "erasure.ended"])
    said = await told(ledger, question.pause_id)
    assert "request: erased" in said
    assert 'person "olga" (authenticated) ordered that what was said be erased ("gdpr-17")' in said
    assert '"planner"' in said, "who asked is another key's"
    assert faults(stage) == []
    refused = await refusal(stage, question.redeem(), RequestErased)
    assert (refused.reason, refused.rule, refused.step, refused.recorded) == ("request_missing", "erased", 3, True)
    assert (await ledger.operator(OLGA).erase(question.pause_id, "content", "gdpr-17")).existing
    assert stage.count("erasure.ordered@1") == stage.count("erasure.ended@1") == 1


async def test_views_stand_and_are_rebuilt(ledger, question):
    await question.answer(answered_by=Actor("maria"))
    await ledger.operator(OLGA).erase(question.pause_id, "content", "gdpr-17")
    await ledger.operator(OLGA).erase(question.pause_id, "person", "gdpr-17")
    for _ in range(2):
        assert await ledger.views.catch_up()
        history = await ledger.views.history.of_pause(SCOPE, question.pause_id)
        sentences = await ledger.views.sentences(history, content=True)
        assert any("request: erased" in sentence for sentence in sentences)
        assert not any("maria" in sentence for sentence in sentences)
        assert (await ledger.views.open_pauses.most_urgent(SCOPE)).rows == ()
        assert [lag.set_aside for lag in await ledger.views.lag()] == [0] * len(await ledger.views.lag())
        for view in ledger.views.runner.views:
            await ledger.views.rebuild(view)


async def test_an_owed_turn_is_given_up(stage, ledger, question):
    await question.redeem(answered_by=Actor("maria"))
    await ledger.operator(OLGA).erase(question.pause_id, "content", "gdpr-17")
    with pytest.raises(TurnAbandoned, match="erased"):
        await ledger.capability.recover(RecoverCommand(question.pause_id, axes=question.axes))
    assert (await refusal(stage, question.redeem(), RequestErased)).rule == "erased"


async def test_erasing_who_leaves_the_question_to_be_answered(stage, ledger, question):
    await ledger.operator(OLGA).erase(question.pause_id, "person", "gdpr-17")
    turn = await question.redeem(answered_by=Actor("maria"))
    assert turn.fence == 1
    story = await ledger.story(question.pause_id)
    assert [fact.by.who for fact in story if fact.topic() == "pause.answered@1"] == [None], "it could never be erased"
    assert "tagged" in await told(ledger, question.pause_id)
    assert not any(b"maria" in row.state for row in stage.rows())
    assert faults(stage) == []


async def test_a_round_is_erased_as_a_whole(stage, ledger):
    one, two = await asked_round(ledger, *round_of("call_1", "call_2"))
    done = await ledger.operator(OLGA).erase(two.pause_id, "content", "gdpr-17")
    assert set(done.pauses) == {one.pause_id, two.pause_id}
    assert [(await refusal(stage, each.redeem(), RequestErased)).rule for each in (one, two)] == ["erased", "erased"]


async def test_holds_and_floors_keep_what_they_cover(ledger, question):
    operator = ledger.operator(OLGA)
    for scope, pause in ((TENANT, None), (SCOPE, None), (SCOPE, question.pause_id)):
        number = await operator.place_hold(scope, "case-118", pause)
        with pytest.raises(ErasureHeld, match="case-118"):
            await operator.erase(question.pause_id, "content", "gdpr-17")
        await operator.lift_hold(scope, number, "case-118")
    await operator.place_hold(SCOPE, "case-119", (await asked(ledger, occurrence=1)).pause_id)
    await operator.place_hold(Scope(tenant_id="another"), "case-120")
    await operator.keep(TENANT, 180, "ai-act-26")
    with pytest.raises(ErasureHeld, match="kept until"):
        await operator.erase(question.pause_id, "person", "gdpr-17")
    with pytest.raises(InteractionConfigurationError, match="no hold"):
        await operator.lift_hold(SCOPE, 99, "case-118")
    ledger.wait(days=181)
    assert not (await operator.erase(question.pause_id, "person", "gdpr-17")).existing
    assert [hold.reason for hold in (await operator.custody(SCOPE)).holds] == ["case-119"]


async def test_a_hold_that_comes_before_the_keys_are_destroyed_is_found(ledger, question, monkeypatch):
    operator, ordered = ledger.operator(OLGA), Erasing._order

    async def held_meanwhile(self, *given):
        await operator.place_hold(SCOPE, "case-1")
        await ordered(self, *given)

    monkeypatch.setattr(Erasing, "_order", held_meanwhile)
    with pytest.raises(ErasureHeld):
        await operator.erase(question.pause_id, "person", "gdpr-17")
    assert "was not erased: a hold stands" in await told(ledger, question.pause_id)
    assert '"planner"' in await told(ledger, question.pause_id)


@pytest.mark.parametrize("cut", ["destroy", "_end"])
async def test_cut_off_in_between_it_goes_on(stage, ledger, question, monkeypatch, cut):
    with monkeypatch.context() as patch:

        async def gone(*_):
            raise StoreUnavailable("gone")

        patch.setattr(
            *(
                ("pauseledger.infrastructure.pauses.EventSourcedPauses.destroy", gone)
                if cut == "destroy"
                else (Erasing, cut, gone)
            )
        )
        with pytest.raises(StoreUnavailable):
            await ledger.operator(OLGA).erase(question.pause_id, "content", "gdpr-17")
    assert sorted(topics(stage.rows())) == sorted(["paused", "withdrawn", "erasure.ordered"])
    assert not (await ledger.operator(OLGA).erase(question.pause_id, "content", "gdpr-17")).existing
    assert sorted(topics(stage.rows())) == sorted(["paused", "withdrawn", "erasure.ordered", "erasure.ended"])


async def test_of_an_erasure_and_a_redemption_at_once_one_comes_first(stage, ledger, question):
    ends = await asyncio.gather(
        question.redeem(answered_by=Actor("maria")),
        ledger.operator(OLGA).erase(question.pause_id, "content", "gdpr-17"),
        ledger.operator(OLGA).erase(question.pause_id, "content", "gdpr-17"),
        return_exceptions=True,
    )
    assert sum(isinstance(end, Exception) for end in ends) <= 1
    assert stage.count("erasure.ordered@1") == stage.count("erasure.ended@1") == 1
    assert "request: erased" in await told(ledger, question.pause_id)
    assert faults(stage) == []


async def test_what_was_loaded_before_is_read_and_what_is_loaded_after_is_not(stage, ledger, question):
    [held] = await ledger.pauses.story([question.pause_id])
    async with stage.ledger() as other:
        assert (await other.story(question.pause_id))[0].request.intact
        await ledger.operator(OLGA).erase(question.pause_id, "content", "gdpr-17")
        assert held.request.intact
        assert (await other.story(question.pause_id))[0].request.erased
        row = next(iter(other.recorder.walk()))
        assert other.pauses.mapper.to_domain_event(row).request.erased, "one row alone asks the vault as well"


async def test_no_stream_is_opened_by_a_key_that_another_process_destroyed(ledger, question):
    command = PresentCommand(question.pause_id, axes=question.axes, to=Actor("maria"), rendering="page")
    stream = [(await ledger.capability.presented(command)).id]
    [presented] = await ledger.pauses.story(stream)
    assert presented.to.who.clear() == b"maria"
    await ledger.pauses.find(question.pause_id)
    ledger.recorder.destroy([question.pause_id], "person")
    [presented] = await ledger.pauses.story(stream)
    assert presented.to.who.erased, "its pause was not read, and its key had been met before"


async def test_a_story_reads_the_keys_of_what_was_shown_beside_the_loop(ledger, question, monkeypatch):
    shown = PresentCommand(question.pause_id, axes=question.axes, to=Actor("maria"), rendering="page")
    receipt = await ledger.capability.presented(shown)
    await question.answer(answered_by=Actor("maria"), cites=[receipt.id])
    ledger.pauses.vault.forget([question.pause_id])

    def blocking(_):
        raise AssertionError

    monkeypatch.setattr(ledger.pauses.vault, "_fetch", blocking)
    assert '"maria"' in await told(ledger, question.pause_id)
    [presented] = [one for one in await ledger.story(question.pause_id) if one.topic() == "pause.presented@1"]
    assert presented.to.who.clear() == b"maria"


async def test_a_ledger_of_before_goes_on_and_what_is_in_clear_is_not_said_to_be_erased(stage, question, ledger):
    keys = stage.keys / "keys.json"
    both = keys.read_text()
    ring = json.loads(both)
    keys.write_text(json.dumps({**ring, "keys": [key for key in ring["keys"] if key["use"] == "tokens"]}))
    if stage.memory is None:
        with pytest.raises(InteractionConfigurationError, match="vault key"):
            async with stage.ledger():
                pass
    before = Stage("memory:", stage.keys)
    keys.write_text(json.dumps({**ring, "keys": [key for key in ring["keys"] if key["use"] == "tokens"]}))
    async with before.ledger() as clear:
        asked_before = await asked(clear)
        assert b"ask" in before.rows()[0].state
    keys.write_text(both)
    async with before.ledger() as sealing:
        with pytest.raises(NotErasable):
            await sealing.operator(OLGA).erase(asked_before.pause_id, "content", "gdpr-17")
        await asked_before.at(sealing).redeem(answered_by=Actor("maria"))
        assert not any(b"maria" in row.state for row in before.rows()), "rows of both kinds in one stream"
        assert [fact.by.who.clear() for fact in (await sealing.story(asked_before.pause_id))[1:]] == [b"maria"] * 2


async def test_a_refused_attempt_on_an_absent_pause_keeps_the_tag_alone(stage, ledger, question):
    stage.forget()
    await refusal(stage, question.redeem(answered_by=Actor("maria")), RequestMissing)
    [row] = stage.rows()
    assert row.header["by"]["who"] is None
    assert await asked(ledger), "no key was made in its place"


async def test_a_restored_backup_brings_the_key_back_until_the_outer_key_is_gone(stage, ledger, question):
    backup = list(ledger.recorder.vault([question.pause_id]))
    await ledger.operator(OLGA).erase(question.pause_id, "content", "gdpr-17")
    vault = ledger.pauses.vault
    assert vault.opening(backup)[backup[0].content_key.int].aead() is not None, (
        "whoever holds the backup and the outer key reads on"
    )
    file = KeyFile(stage.keys)
    former = file.load_vault().minting.kid
    file.promote(file.new("vault").kid)
    entries = json.loads((stage.keys / "keys.json").read_text())
    kept = [key for key in entries["keys"] if key["kid"] != former]
    (stage.keys / "keys.json").write_text(json.dumps({**entries, "keys": kept}))
    async with Stage("memory:", stage.keys).ledger() as rotated:
        with pytest.raises(InteractionConfigurationError, match=former):
            rotated.pauses.vault.opening(backup)[backup[0].content_key.int].aead()


def test_a_destroyed_key_is_nowhere_in_the_file(tmp_path):
    async def story():
        stage = Stage(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "keys")
        async with stage.ledger() as ledger:
            questions = [await asked(ledger, occurrence=at) for at in range(20)]
            [row] = ledger.recorder.vault([questions[7].pause_id])
            await ledger.operator(OLGA).erase(questions[7].pause_id, "content", "gdpr-17")
            assert await ledger.scrub()
            return row

    row = asyncio.run(story())
    files = b"".join((tmp_path / name).read_bytes() for name in os.listdir(tmp_path) if name.startswith("ledger.db"))
    assert row.person in files
    assert row.content not in files


@pytest.mark.parametrize("statement", [
    "DELETE FROM {}vault",
    "UPDATE {}vault SET content = person",
    "UPDATE {}vault SET content_key = person_key",
    "UPDATE {}vault SET content = NULL",
    "UPDATE {}vault SET content_destroyed_at = made_at",
    "UPDATE {}vault SET person = NULL, person_destroyed_at = NULL",
])  # fmt: skip
def test_the_vault_lets_keys_be_destroyed_and_nothing_else(statement, tmp_path):
    stage = Stage(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "keys")

    async def story():
        async with stage.ledger() as ledger:
            await asked(ledger)

    asyncio.run(story())
    with pytest.raises(sqlite3.IntegrityError):
        stage.sql(statement.format(""))
    with pytest.raises(sqlite3.IntegrityError):
        stage.sql("INSERT OR REPLACE INTO vault SELECT * FROM vault")
    assert SQLiteRecorder(tmp_path / "ledger.db").vault_after(None, 9)[0].content is not None


async def test_on_postgres_the_eraser_alone_destroys_keys(pg, pg_dsn, tmp_path):
    stage = Stage(pg_dsn, tmp_path / "keys")
    async with stage.ledger() as ledger:
        question = await asked(ledger)
    with psycopg.connect(pg_dsn, autocommit=True) as owner:
        for role in ("app", "pauseledger_eraser"):
            owner.execute(f"DO $$ BEGIN CREATE ROLE {role} LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    PostgresRecorder(pg_dsn).migrate("app", eraser_role="pauseledger_eraser")
    database = psycopg.conninfo.conninfo_to_dict(pg_dsn)["dbname"]
    async with Stage(pg.dsn(database, "app"), stage.keys).ledger() as app:
        before = len(await app.story(question.pause_id))
        for kind in ("content", "person"):
            with pytest.raises(InteractionConfigurationError, match=r"role app may not destroy keys.*--eraser-role"):
                await app.operator(OLGA).erase(question.pause_id, kind, "gdpr-17")
        assert len(await app.story(question.pause_id)) == before
    with psycopg.connect(pg.dsn(database, "pauseledger_eraser"), autocommit=True) as eraser:
        for statement in (
            "UPDATE pauseledger.vault SET content = 'x'",
            "UPDATE pauseledger.vault SET content = NULL",
            "UPDATE pauseledger.vault SET content_key = person_key",
            "DELETE FROM pauseledger.vault",
            "TRUNCATE pauseledger.vault",
            "UPDATE pauseledger.stored_events SET state = state",
        ):
            with pytest.raises(psycopg.Error):
                eraser.execute(statement)
    with psycopg.connect(pg_dsn, autocommit=True) as owner:
        owner.execute("SET session_replication_role = replica")
        for statement in (
            "DELETE FROM pauseledger.vault",
            "TRUNCATE pauseledger.vault",
            "UPDATE pauseledger.vault SET content = person",
        ):
            with pytest.raises(psycopg.Error):
                owner.execute(statement)
    async with Stage(pg.dsn(database, "pauseledger_eraser"), stage.keys).ledger() as acting:
        done = await acting.operator(OLGA).erase(question.pause_id, "person", "gdpr-17")
        assert not done.existing, "what was ordered before goes on"
        assert not await acting.scrub()
    async with stage.ledger() as ledger:
        assert await ledger.scrub()


async def test_a_check_finds_what_was_destroyed_or_lost_in_the_vault(stage, ledger, question):
    other = await asked(ledger, occurrence=1)
    assert list(vault_faults(ledger.recorder)) == []
    await ledger.operator(OLGA).erase(question.pause_id, "content", "gdpr-17")
    assert list(vault_faults(ledger.recorder)) == []
    ledger.recorder.destroy([other.pause_id], "content")
    [unordered] = vault_faults(ledger.recorder)
    assert (unordered.stream, "nobody ordered it" in unordered.says) == (other.pause_id, True)
    assert (await refusal(stage, other.redeem(), RequestErased)).step == 3, "nothing was burned"
    order = Erasing(ledger.capability._services, other.pause_id, "person", "gdpr-17", OLGA)
    await order._order(await order._round(), await order._told([other.pause_id]), [other.pause_id])
    assert [("ordered and has not ended" in fault.says) for fault in vault_faults(ledger.recorder)] == [True, False]
    if stage.memory is not None:
        stage.memory._vault.clear()
        assert sum("not in the vault" in fault.says for fault in vault_faults(ledger.recorder)) == 3


def test_the_page_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PAUSELEDGER_STORE", f"sqlite:///{tmp_path / 'ledger.db'}")
    monkeypatch.setenv("PAUSELEDGER_KEYS_DIR", str(tmp_path / "keys"))

    async def story():
        async with Stage(os.environ["PAUSELEDGER_STORE"], tmp_path / "keys").ledger() as ledger:
            question = await asked(ledger)
            await question.redeem(answered_by=Actor("maria"))
            return str(question.pause_id)

    pause = asyncio.run(story())
    page = (Path(__file__).parents[1] / "docs" / "erasure.md").read_text()
    commands = page.split("```bash\n")[1].split("```")[0].replace("PAUSE", pause).replace("acme", SCOPE.tenant_id)
    for command in commands.splitlines():
        with pytest.raises(SystemExit) as ended:
            main(command.split()[1:])
        assert ended.value.code == 0, command
    assert "erased" in capsys.readouterr().out


def test_the_command_line_erases_holds_and_tells(tmp_path, capsys):
    store = ["--store", f"sqlite:///{tmp_path / 'ledger.db'}", "--keys-dir", str(tmp_path / "keys"), "--json"]
    stage = Stage(store[1], tmp_path / "keys")

    async def story():
        async with stage.ledger() as ledger:
            one, two = await asked(ledger), await asked(ledger, occurrence=1)
            await one.redeem(ANSWER, answered_by=Actor("maria"))
            await two.redeem(ANSWER, answered_by=Actor("bob"))
            return one

    one = asyncio.run(story())

    def run(code, *arguments):
        with pytest.raises(SystemExit) as ended:
            main([*arguments, *store])
        assert ended.value.code == code
        return json.loads(capsys.readouterr().out)

    by = ["--operator", "olga", "--reason", "gdpr-17"]
    [subject] = run(0, "subject", "maria", "--tenant", SCOPE.tenant_id)["pauses"]
    assert subject["pause_id"] == str(one.pause_id)
    assert "maria" in [one["text"] for fact in subject["facts"] for one in fact["contents"]]
    held = run(0, "hold", "place", "--tenant", SCOPE.tenant_id, *by)["hold"]
    every = ["erase", "--of-person", "maria", "--tenant", SCOPE.tenant_id, "--content", "--person", *by]
    assert run(3, *every)["outcome"] == "held"
    assert run(3, "erase", str(one.pause_id), "--person", *by)["outcome"] == "held"
    assert len(run(0, "hold", "list", "--operator", "olga", "--tenant", SCOPE.tenant_id)["holds"]) == 1
    run(0, "hold", "lift", str(held), "--tenant", SCOPE.tenant_id, *by)
    assert run(0, "retention", "0", "--tenant", SCOPE.tenant_id, *by)["days"] == 0
    done = run(0, *every)
    assert [(len(each["pauses"]), each["kind"]) for each in done["erased"]] == [(1, "content"), (1, "person")]
    assert done["scrubbed"]
    [subject] = run(0, "subject", "maria", "--tenant", SCOPE.tenant_id)["pauses"]
    assert not any("maria" in str(fact) for fact in subject["facts"])
    assert run(2, "erase", str(one.pause_id), *by)["outcome"] == "usage"
    former = KeyFile(Path(store[3])).load_vault().minting.kid
    made = run(0, "keys", "new", "--vault")
    assert (made["use"], made["state"]) == ("vault", "opens")
    run(0, "keys", "promote", made["kid"])
    assert "rewrap" in run(2, "keys", "retire", former)["says"]
    assert run(0, "keys", "rewrap")["pauses"] == 1, "of the other one nothing is left to wrap"
    assert run(0, "keys", "rewrap")["pauses"] == 0
    assert run(0, "keys", "scrub")["done"]
