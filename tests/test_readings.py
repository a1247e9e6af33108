"""An auditor's role reads everything, writes nothing, and what it reads is a fact."""

import asyncio
import dataclasses
import json
import sqlite3
from contextlib import closing
from datetime import timedelta
from uuid import UUID

import pauseledger as pl
import psycopg
import pytest
from pauseledger.domain.commands import Actor
from pauseledger.domain.ids import Identity
from pauseledger.domain.readings import AuditRead, reading_stream
from pauseledger.infrastructure.check import Check
from pauseledger.infrastructure.cli import run
from pauseledger.infrastructure.keys import KeyFile
from pauseledger.infrastructure.memory import MemoryRecorder
from pauseledger.infrastructure.postgres import PostgresRecorder
from pauseledger.infrastructure.readings import record_reading
from pauseledger.infrastructure.sealed import sealed_rows
from pauseledger.infrastructure.settings import LedgerSettings
from pauseledger.infrastructure.stories import ANSWER, asked
from pauseledger.infrastructure.wiring import open_recorder

READER = Actor("ada", kind="person", assurance="authenticated")


async def test_each_reading_is_a_fact_in_one_chained_stream(store_url):
    with closing(open_recorder(store_url, LedgerSettings())) as recorder:
        recorder.identity()
        about = UUID(int=7)
        first = record_reading(recorder, READER, "check", writer="x/1")
        second = record_reading(recorder, READER, "prove", writer="x/1", about=about)
        stream = reading_stream(recorder.identity().ledger_id)
        rows = recorder.load([stream]).rows
        assert [(row.topic, row.originator_version) for row in rows] == [("audit.read@1", 1), ("audit.read@1", 2)]
        assert (stream.version, second.up_to, second.about, first.by.tag) == (8, rows[0].id, about, second.by.tag)
    if store_url.startswith("sqlite"):
        async with pl.open_ledger(store_url) as ledger:
            facts = await ledger.pauses.story([stream])
            assert [(fact.reads, fact.by.who.clear()) for fact in facts] == [("check", b"ada"), ("prove", b"ada")]
            assert all(isinstance(fact, AuditRead) for fact in facts)


def test_no_reading_is_before_the_one_before_it_though_the_clock_was_put_back(store_url, monkeypatch):
    with closing(open_recorder(store_url, LedgerSettings())) as recorder:
        first = record_reading(recorder, READER, "check", writer="x/1")
        load = recorder.load
        monkeypatch.setattr(
            recorder, "load", lambda streams: dataclasses.replace(load(streams), now=first.at - timedelta(hours=1))
        )
        assert record_reading(recorder, READER, "head", writer="x/1").at == first.at
        monkeypatch.undo()
        assert [fault.says for fault in Check(recorder, sealed_rows(recorder), []).run().faults] == []


def test_an_altered_reading_keeps_no_auditor_from_reading(tmp_path):
    with closing(open_recorder(f"sqlite:///{tmp_path / 'ledger.db'}", LedgerSettings())) as recorder:
        record_reading(recorder, READER, "check", writer="x/1")
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as owner, owner:
            owner.execute("DROP TRIGGER stored_events_no_update")
            owner.execute("UPDATE stored_events SET state = ?", (b"PLF1" + bytes(60),))
        assert record_reading(recorder, READER, "check", writer="x/1").originator_version == 2
        assert Check(recorder, sealed_rows(recorder), []).run().found


def test_who_reads_is_recorded_as_everybody_is():
    recorder = MemoryRecorder()
    reader = dataclasses.replace(READER, on_behalf_of="the firm")
    held = recorder.identity()
    tag = Identity(held.ledger_id, held.identity_key).tag("actor", "the firm")
    assert record_reading(recorder, reader, "check", writer="x/1").by.on_behalf_of == tag


@pytest.fixture
def auditor(pg, pg_dsn):
    with psycopg.connect(pg_dsn, autocommit=True) as owner:
        owner.execute("DO $$ BEGIN CREATE ROLE auditor LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    done = PostgresRecorder(pg_dsn).migrate(auditor_role="auditor")
    assert done == ["granted auditor to read, and to record what it reads"]
    return pg.dsn(psycopg.conninfo.conninfo_to_dict(pg_dsn)["dbname"], "auditor")


async def test_the_auditors_role_checks_and_proves_and_each_reading_is_on_record(
    pg_dsn, auditor, tmp_path, monkeypatch
):
    KeyFile(tmp_path / "keys").create()
    async with pl.open_ledger(pg_dsn, pl.LedgerSettings(keys_directory=tmp_path / "keys")) as ledger:
        one = await asked(ledger)
        await one.redeem(ANSWER)
        await ledger.views.catch_up()
        ledger.notary(make_key=True).seal()
    monkeypatch.setenv("PAUSELEDGER_STORE", auditor)
    monkeypatch.setenv("PAUSELEDGER_KEYS_DIR", str(tmp_path / "keys"))
    export = ("export", "--pause", str(one.receipt.pause_id), "--out", str(tmp_path / "bundle"))
    for command in (("check",), ("head",), ("prove", str(one.receipt.pause_id)), export):
        assert await asyncio.to_thread(run, [*command, "--auditor", "ada", "--json"]) == 0
    with psycopg.connect(pg_dsn) as owner:
        topics = owner.execute("SELECT topic FROM pauseledger.stored_events ORDER BY notification_id").fetchall()
    assert [topic for (topic,) in topics][-4:] == ["audit.read@1"] * 4


def test_what_the_auditors_role_may_not_do_names_the_role_that_may(pg_dsn, auditor, tmp_path, monkeypatch, capsys):
    KeyFile(tmp_path / "keys").create()

    async def story():
        async with pl.open_ledger(pg_dsn, pl.LedgerSettings(keys_directory=tmp_path / "keys")) as ledger:
            one = await asked(ledger)
            await ledger.views.catch_up()
            await one.redeem(ANSWER)
            return one

    one = asyncio.run(story())
    monkeypatch.setenv("PAUSELEDGER_STORE", auditor)
    monkeypatch.setenv("PAUSELEDGER_KEYS_DIR", str(tmp_path / "keys"))
    for question in (("open",), ("times",), ("refusals",), ("stranded",), ("history", "--pause", str(one.pause_id))):
        assert run([*question, "--all-tenants", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["behind"] is True
    bundle = ("export", "--all-tenants", "--no-report", "--out", str(tmp_path / "bundle"), "--seal")
    for command in (("seal",), bundle, ("restored",), ("follow",), ("rebuild", "all")):
        assert run(command) == 2
        said = capsys.readouterr().err
        assert "the database role auditor lacks the right to do this" in said
        assert "--runtime-role" in said


async def test_the_auditors_role_finds_what_is_wrong_with_keys_it_cannot_read(pg_dsn, auditor, tmp_path, capsys):
    KeyFile(tmp_path / "keys").create()
    async with pl.open_ledger(pg_dsn, pl.LedgerSettings(keys_directory=tmp_path / "keys")) as ledger:
        pauses = [(await asked(ledger, occurrence=at)).pause_id for at in range(4)]
    command = ["check", "--no-views", "--json", "--store", auditor, "--keys-dir", str(tmp_path / "keys")]
    assert await asyncio.to_thread(run, command) == 0
    with psycopg.connect(auditor) as session:
        told = session.execute("SELECT content, person FROM pauseledger.vault_told").fetchall()
    assert {len(key) for row in told for key in row} == {52}
    assert {bytes(key[4:]) for row in told for key in row} == {bytes(48)}
    with psycopg.connect(pg_dsn, autocommit=True) as owner:
        owner.execute("ALTER TABLE pauseledger.vault DISABLE TRIGGER vault_guard")
        for change, pause in zip(
            ("content = NULL, content_destroyed_at = now()", "person = 'short'", "content_key = pause"),
            pauses,
            strict=False,
        ):
            owner.execute(f"UPDATE pauseledger.vault SET {change} WHERE pause = %s", (pause,))
        owner.execute("ALTER TABLE pauseledger.vault ENABLE ALWAYS TRIGGER vault_guard")
    capsys.readouterr()
    assert await asyncio.to_thread(run, command) == 5
    assert sorted(fault["says"] for fault in json.loads(capsys.readouterr().out)["faults"]) == [
        "the content key was destroyed, and nobody ordered it",
        "the person key is no wrapped key",
        "the row names a key that is not in the vault",
    ]


def test_the_auditors_role_writes_nothing_else(pg_dsn, auditor):
    forbidden = [
        "SELECT content FROM pauseledger.vault",
        "SELECT FROM pauseledger.vault",
        "INSERT INTO pauseledger.stored_events (topic) VALUES ('audit.read@1')",
        "UPDATE pauseledger.stored_events SET topic = ''",
        "DELETE FROM pauseledger.sealed",
        "INSERT INTO pauseledger.tree_heads (size, checkpoint) VALUES (1, '')",
        "UPDATE pauseledger.sealing SET size = 9",
        "UPDATE pauseledger.ledger SET epoch = 1",
        "INSERT INTO pauseledger.lease VALUES (gen_random_uuid(), 1, now())",
        "DELETE FROM pauseledger_views.live",
        "TRUNCATE pauseledger.stored_events",
        "CREATE TABLE pauseledger.mine (x int)",
    ]
    with psycopg.connect(auditor, autocommit=True) as session:
        for statement in forbidden:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                session.execute(statement)
        with pytest.raises(psycopg.Error) as caught:
            session.execute("SELECT pauseledger.record_reading(2, 'x')")
        assert caught.value.sqlstate == "PLG01"
        session.execute("SELECT pauseledger.record_reading(1, 'x')")
        stream, topic = session.execute("SELECT originator_id, topic FROM pauseledger.stored_events").fetchone()
        (ledger_id,) = session.execute("SELECT ledger_id FROM pauseledger.ledger").fetchone()
    assert (stream, topic) == (reading_stream(ledger_id), "audit.read@1")
