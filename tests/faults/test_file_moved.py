"""A SQLite file that goes away under an open ledger: nobody is told that something is stored where nobody finds it."""

import os
import shutil
from uuid import uuid4

import pytest
from pauseledger.domain.errors import StoreUnavailable
from pauseledger.infrastructure.sqlite import SQLiteRecorder
from pauseledger.infrastructure.stories import Stage, asked
from pauseledger.infrastructure.testing import row
from pauseledger.infrastructure.views_sqlite import ViewsFile


@pytest.fixture
def path(tmp_path):
    return tmp_path / "ledger.db"


@pytest.fixture
def recorder(path):
    recorder = SQLiteRecorder(path)
    recorder.insert_events([row(uuid4(), 1)])
    yield recorder
    recorder.close()


def removed(path):
    path.unlink()


def renamed(path):
    path.rename(path.with_name("elsewhere.db"))


def replaced(path):
    shutil.copy(path, path.with_name("copy.db"))
    os.replace(path.with_name("copy.db"), path)


@pytest.mark.parametrize("happens", [removed, renamed, replaced])
def test_nothing_is_taken_and_nothing_is_read(recorder, path, happens):
    happens(path)
    there = path.exists()
    for call in (
        lambda: recorder.insert_events([row(uuid4(), 1)]),
        lambda: recorder.load([uuid4()]),
        lambda: recorder.renew(uuid4(), 1, 60),
        recorder.identity,
        recorder.max_notification_id,
    ):
        with pytest.raises(StoreUnavailable, match="moved, removed or replaced") as gone:
            call()
        assert gone.value.outcome == "not_started"
    # Nobody makes a second, empty ledger in its place either.
    assert path.exists() is there


def test_it_goes_on_once_the_file_is_back(recorder, path):
    aside = path.with_name("aside.db")
    path.rename(aside)
    with pytest.raises(StoreUnavailable):
        recorder.insert_events([row(uuid4(), 1)])
    aside.rename(path)
    recorder.insert_events([row(uuid4(), 1)])
    assert len(list(recorder.walk())) == 2


def test_a_file_that_goes_away_in_the_midst_of_a_write_takes_nothing(recorder, path):
    aside = path.with_name("aside.db")
    with pytest.raises(StoreUnavailable), recorder.writing() as connection:
        connection.execute("UPDATE ledger SET epoch = 7")
        path.rename(aside)
    aside.rename(path)
    with recorder.reading() as connection:
        assert connection.execute("SELECT epoch FROM ledger WHERE epoch = 7").fetchall() == []


def test_views_in_a_file_of_their_own_say_so_as_well(path):
    file = ViewsFile(path)
    with file.writing() as connection:
        connection.execute("CREATE TABLE seen (one INTEGER)")
    path.unlink()
    with pytest.raises(StoreUnavailable, match="moved, removed or replaced"), file.reading():
        pass
    file.close()


async def test_a_host_is_told(path, tmp_path):
    async with Stage(f"sqlite:///{path}", tmp_path / "keys").ledger() as ledger:
        question = await asked(ledger)
        aside = path.with_name("aside.db")
        path.rename(aside)
        with pytest.raises(StoreUnavailable) as gone:
            await question.redeem()
        assert gone.value.outcome == "not_started"
        aside.rename(path)
        assert (await question.redeem()).fence == 1
