"""A full disk, a database that serialises or only reads: nothing is half there, and what is unavailable is absent or found by its key."""

import asyncio
import os
import shutil
import subprocess
import tempfile
import traceback
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from pauseledger import AlreadyConsumed, ResumedTurn, StoreUnavailable
from pauseledger.infrastructure import raw_check
from pauseledger.infrastructure.postgres import PostgresRecorder
from pauseledger.infrastructure.stories import Stage, asked, axes, turn
from pauseledger.infrastructure.testing import TemporaryPostgres


@contextmanager
def small_disk(megabytes, owner=None):
    """Mount a small disk; where that is not allowed, skip."""
    folder = Path(tempfile.mkdtemp(prefix="pauseledger-disk-"))
    mount = shutil.which("mount")
    done = mount and subprocess.run(
        [mount, "-t", "tmpfs", "-o", f"size={megabytes}m,mode=755", "none", str(folder)],
        capture_output=True,
        check=False,
    )
    if not done or done.returncode:
        folder.rmdir()
        pytest.skip(
            "a disk cannot be mounted here (run as root); test_stores_sqlite.py and the server's own error stand in"
        )
    try:
        if owner is not None:
            os.chown(folder, owner.pw_uid, owner.pw_gid)
        yield folder
    finally:
        subprocess.run([shutil.which("umount"), "-l", str(folder)], check=True)
        folder.rmdir()


async def fill_up(ledger, most=400):
    """Pause and redeem until the disk is full; say what was acknowledged, and which call failed."""
    told = []
    for number in range(most):
        key = f"question {number}"
        try:
            question = await asked(ledger, idempotency_key=key, turn=turn("call_1", said=os.urandom(20_000).hex()))
            told.append(("paused", key, question))
            await question.redeem(attempt_key=key)
            told.append(("consumed", key, question))
        except StoreUnavailable as full:
            return told, key, full
    return pytest.fail("the disk did not fill up")


async def goes_on(ledger, told, key):
    """Once there is room again the failed call is found by its key, or happens."""
    question = next((one for word, named, one in told if named == key), None)
    if question is None:
        question = await asked(ledger, idempotency_key=key, turn=turn("call_1", said="anything else"))
    try:
        assert (await question.redeem(attempt_key=key)).fence == 1
    except AlreadyConsumed as own:
        assert own.own


def judge(raw, told):
    """Every acknowledged word is in the table, and nothing is half there."""
    assert raw_check.faults(raw) == []
    for word, _, question in told:
        assert len(raw.of(f"pause.{word}", question.pause_id)) == 1


async def test_a_full_disk_under_a_sqlite_file(tmp_path):
    with small_disk(2) as disk:
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(600_000))
        stage = Stage(f"sqlite:///{disk / 'ledger.db'}", tmp_path / "keys")
        async with stage.ledger() as ledger:
            told, key, full = await fill_up(ledger)
            assert "SQLITE_FULL" in "".join(traceback.format_exception(full))
            ballast.unlink()
            await goes_on(ledger, told, key)
        judge(raw_check.read(stage.url), told)


async def test_a_full_disk_under_a_table_space_of_postgresql(tmp_path):
    with TemporaryPostgres() as server, small_disk(16, server._user) as disk:
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            admin.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
            admin.execute("CREATE DATABASE filled TABLESPACE small STRATEGY file_copy")
        PostgresRecorder(server.dsn("filled")).migrate()
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(shutil.disk_usage(disk).free - 1_500_000))
        stage = Stage(server.dsn("filled"), tmp_path / "keys")
        async with stage.ledger() as ledger:
            told, key, full = await fill_up(ledger)
            assert ("disk is full" in str(full), full.outcome) == (True, "not_started")
            ballast.unlink()
            await goes_on(ledger, told, key)
        judge(raw_check.read(stage.url), told)


async def test_a_server_that_says_its_disk_is_full(pg_dsn, tmp_path):
    """The same word from the server, where no disk can be filled."""
    async with Stage(pg_dsn, tmp_path / "keys").ledger() as ledger:
        question = await asked(ledger)
        with psycopg.connect(pg_dsn, autocommit=True) as owner:
            owner.execute(
                "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS"
                " $$BEGIN RAISE EXCEPTION 'no space' USING ERRCODE = '53100'; END$$;"
                "CREATE TRIGGER full_disk BEFORE INSERT ON pauseledger.stored_events EXECUTE FUNCTION full_disk()"
            )
            with pytest.raises(StoreUnavailable, match="disk is full") as full:
                await question.redeem()
            assert full.value.outcome == "not_started"
            owner.execute("DROP TRIGGER full_disk ON pauseledger.stored_events")
        assert (await question.redeem()).fence == 1


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
@pytest.mark.parametrize("pooled", [False, True], ids=["direct", "pooled"])
async def test_a_database_that_serialises_makes_one_winner(pg_dsn, tmp_path, level, pooled):
    """The ledger's own connections set their level; behind a pooler the database's holds, and may turn a racer down."""
    with psycopg.connect(pg_dsn, autocommit=True) as owner:
        name = owner.info.dbname
        owner.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'")
    ends = Counter()
    async with (
        Stage(pg_dsn, tmp_path / "keys").ledger(pooled=pooled) as one,
        Stage(pg_dsn, tmp_path / "keys").ledger(pooled=pooled) as other,
    ):
        for number in range(6):
            question = await asked(one, idempotency_key=f"{number}")
            both = [question.at(ledger).redeem(attempt_key=f"{at}") for at, ledger in enumerate((one, other) * 4)]
            said = await asyncio.gather(*both, return_exceptions=True)
            for each in said:
                assert isinstance(each, (ResumedTurn, AlreadyConsumed, StoreUnavailable)), each
                assert not isinstance(each, StoreUnavailable) or each.outcome == "not_started"
            ends.update(type(each).__name__ for each in said)
        assert ends["ResumedTurn"] == 6
        if pooled:
            # The log is not read at such a level: rows of an earlier moment would be missed.
            with pytest.raises(StoreUnavailable, match="READ COMMITTED"):
                one.recorder.max_notification_id()
        else:
            assert ends["StoreUnavailable"] == 0
            assert one.recorder.max_notification_id() is not None
    raw = raw_check.read(pg_dsn)
    assert raw_check.faults(raw) == []
    assert len(raw.of("pause.consumed")) == 6


async def test_a_database_that_only_reads_says_so_and_is_read(pg_dsn, tmp_path):
    async with Stage(pg_dsn, tmp_path / "keys").ledger() as ledger:
        question = await asked(ledger)
    with psycopg.connect(pg_dsn, autocommit=True) as owner:
        name = owner.info.dbname
        owner.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    async with Stage(pg_dsn, tmp_path / "keys").ledger() as ledger:
        assert len(await ledger.story(question.pause_id)) == 1
        for call in (question.at(ledger).redeem(), question.at(ledger).answer(), asked(ledger, idempotency_key="new")):
            with pytest.raises(StoreUnavailable, match="read-only") as gone:
                await call
            assert gone.value.outcome == "not_started"
        # A refusal stands, though nobody could write it down.
        wrong = axes(scope=question.axes.scope.model_copy(update={"tenant_id": "evil"}))
        with pytest.raises(Exception, match="scope") as refused:
            await question.at(ledger).redeem(axes=wrong)
        assert refused.value.recorded is False
    assert len(raw_check.read(pg_dsn).rows) == 1
