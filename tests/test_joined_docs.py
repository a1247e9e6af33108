"""The page on joined transactions, as it stands there."""

import re
from pathlib import Path

import psycopg
import pytest
from pauseledger import Actor, AlreadyConsumed, ReissueCommand
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
