"""The page on joined transactions, as it stands there."""

import re
from pathlib import Path

import psycopg
import pytest
from pauseledger import Actor, AlreadyConsumed, Policy, ReissueCommand
from pauseledger.infrastructure.stories import ANSWER, Stage, ask, axes, topics

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "joined.md").read_text()


@pytest.fixture
def page():
    names = {}
    for snippet in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(snippet, names)
    return names


class Delegate:
    def __init__(self):
        self.runs = 0

    async def run(self, prompt, *, run_id, session_id, history):
        self.runs += 1


class Crowded:
    """A ledger on which somebody else is busy with the pause, the first time it is joined."""

    def __init__(self, ledger, command):
        self.ledger, self.command, self.runs = ledger, command, 0

    def joined(self, connection):
        self.at = self.ledger.joined(connection)
        return self

    async def redeem(self, *given, **named):
        self.runs += 1
        if self.runs == 1:
            await self.ledger.capability.reissue(self.command)
        return await self.at.redeem(*given, **named)


async def test_an_order_is_approved_with_its_answer_or_not_at_all(page, pg_dsn, tmp_path):
    stage, delegate = Stage(pg_dsn, tmp_path / "keys"), Delegate()
    stage.sql("CREATE SCHEMA app")
    stage.sql("CREATE TABLE app.orders (id text PRIMARY KEY, state text, token text)")
    async with stage.ledger() as ledger, await psycopg.AsyncConnection.connect(pg_dsn) as connection:
        receipt = await page["ask_for_approval"](ledger, connection, ask(), "order 1")
        with pytest.raises(psycopg.errors.UniqueViolation):
            await page["ask_for_approval"](ledger, connection, ask(axes=axes(run_id="run-2")), "order 1")
        assert stage.count() == 1
        [(token,)] = stage.sql("SELECT token FROM app.orders")
        approve = (ledger, connection, token, ANSWER, axes(), Actor("maria"), "order 1", delegate)
        # The first run of the transaction is stale: somebody was there after its snapshot.
        await connection.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
        crowded = Crowded(ledger, ReissueCommand(receipt.pause_id, axes=axes()))
        await page["approve"](crowded, *approve[1:])
        assert (delegate.runs, crowded.runs) == (1, 2)
        assert stage.sql("SELECT state FROM app.orders") == [("approved",)]
        stage.sql("UPDATE app.orders SET state = 'shipped'")
        with pytest.raises(AlreadyConsumed):
            await page["approve"](*approve)
        assert stage.sql("SELECT state FROM app.orders") == [("shipped",)]
    assert topics(stage.rows()) == ["paused", "reissued", "answered", "consumed", "continued", "refused"]


async def test_of_three_people_two_approve_and_neither_vote_is_rolled_back(page, pg_dsn, tmp_path):
    stage, delegate = Stage(pg_dsn, tmp_path / "keys"), Delegate()
    stage.sql("CREATE SCHEMA app")
    stage.sql("CREATE TABLE app.orders (id text PRIMARY KEY, state text, token text)")
    async with stage.ledger() as ledger, await psycopg.AsyncConnection.connect(pg_dsn) as connection:
        three = Policy(name="two-of-three", actors=["maria", "tom", "zoe"], quorum=2)
        await ledger.capability.govern("ask_user", three, by=Actor("carla"))
        receipt = await page["ask_for_approval"](ledger, connection, ask(), "order 1")
        for person, runs, waiting in (("maria", 0, 1), ("tom", 1, 0)):
            given = (receipt.token, ANSWER, axes(), Actor(person), "order 1", delegate)
            await page["approve"](ledger, connection, *given)
            story = await ledger.story(receipt.pause_id)
            votes = [fact.by.who.clear() for fact in story if fact.NAME == "pause.answered"]
            assert (delegate.runs, len(votes)) == (runs, 2 - waiting)
            assert votes[-1] == person.encode()
    assert topics(stage.rows(receipt.pause_id)) == ["paused", "answered", "answered", "consumed", "continued"]


class Skewed:
    """A ledger on which another transaction reads what this one writes and writes what it reads, the first time."""

    def __init__(self, ledger, dsn):
        self.ledger, self.dsn, self.runs = ledger, dsn, 0

    def joined(self, connection):
        self.connection, self.at = connection, self.ledger.joined(connection)
        return self

    async def redeem(self, *given, **named):
        self.runs += 1
        turn = await self.at.redeem(*given, **named)
        if self.runs == 1:
            await self.connection.execute("SELECT FROM app.orders")
            async with await psycopg.AsyncConnection.connect(self.dsn) as other:
                await other.set_isolation_level(psycopg.IsolationLevel.SERIALIZABLE)
                await other.execute("SELECT FROM app.orders")
                await other.execute("INSERT INTO app.orders VALUES ('order 2', 'waiting', '')")
        return turn


async def test_where_the_commit_itself_fails_nothing_happened_and_the_transaction_is_run_again(page, pg_dsn, tmp_path):
    stage, delegate = Stage(pg_dsn, tmp_path / "keys"), Delegate()
    stage.sql("CREATE SCHEMA app")
    stage.sql("CREATE TABLE app.orders (id text PRIMARY KEY, state text, token text)")
    async with stage.ledger() as ledger, await psycopg.AsyncConnection.connect(pg_dsn) as connection:
        receipt = await page["ask_for_approval"](ledger, connection, ask(), "order 1")
        await connection.set_isolation_level(psycopg.IsolationLevel.SERIALIZABLE)
        skewed = Skewed(ledger, pg_dsn)
        given = (connection, receipt.token, ANSWER, axes(), Actor("maria"), "order 1", delegate)
        await page["approve"](skewed, *given)
    assert (delegate.runs, skewed.runs) == (1, 2)
    assert topics(stage.rows()) == ["paused", "answered", "consumed", "continued"]
