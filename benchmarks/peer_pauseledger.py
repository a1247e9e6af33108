"""The ledger under the shared workload: a pause, a redeem, a refusal and a race, on PostgreSQL and on SQLite.

The runner reads these classes out of the source text, so their attributes are literals. One that is asked for by name
is made with the database or file it may use and the number of operations that will be under way at once.
"""

import asyncio
import json
import os
import sqlite3
import tempfile
from pathlib import Path
from uuid import UUID, uuid4

import pauseledger as pl
import psycopg
import workload as w
from pauseledger.infrastructure.keys import KeyFile
from pauseledger.infrastructure.postgres import PostgresRecorder

#: One call of the workload's turn is the one paused at.
CALL = "call_pause"
SCOPE, INTRUDER = pl.Scope(tenant_id="acme"), pl.Scope(tenant_id="evil")


def openai(message):
    """Spell a message of the workload's house format as OpenAI does: the same job, of the same size."""
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["args"], separators=(",", ":"))},
        }
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message


POOL = [([openai(message) for message in messages], request) for messages, request in w.POOL]

ASKED = pl.Interaction(
    name="bench",
    request_schema={"type": "object"},
    response_schema=w.Answer,
    as_text=lambda answer: f"{answer['decision']} {answer['amount']}: {answer['note']}",
)


class PauseLedgerPg(w.Peer):
    name = "pauseledger_pg"
    store = "pg"
    is_async = True
    ops = ("pause", "redeem", "refuse")

    async def setup(self):
        await asyncio.to_thread(self.make)
        self.folder = tempfile.TemporaryDirectory()
        keys = Path(self.folder.name) / "keys"
        KeyFile(keys).create()
        settings = pl.LedgerSettings(keys_directory=keys, interactions=[ASKED], threads=max(8, self.conc))
        self.ledger = await pl.open_ledger(self.url(), settings).__aenter__()

    def make(self):
        recorder = PostgresRecorder(self.where)
        recorder.migrate()
        recorder.close()

    def url(self):
        return self.where

    async def close(self):
        await self.ledger.__aexit__(None, None, None)
        self.folder.cleanup()

    async def pause(self, number):
        messages, request = POOL[number % len(POOL)]
        axes = pl.Axes(scope=SCOPE, session_id="session", run_id=str(uuid4()), call_id=CALL)
        turn = pl.Turn("openai-chat", messages)
        receipt = await self.ledger.capability.pause(
            pl.PauseCommand(interaction="bench", request=request, turn=turn, axes=axes, closes_in=3600)
        )
        return receipt.token, axes.run_id

    async def redeem(self, handle, scope=SCOPE):
        token, run = handle
        turned = await pl.prepare(
            self.ledger.capability,
            envelope=pl.recognise(self.ledger.capability, token).envelope,
            response=w.ANSWER,
            scope=scope,
            session_id="session",
            run_id=run,
            call_id=CALL,
        )
        return list(turned.history)

    async def refuse(self, handle):
        try:
            await self.redeem(handle, INTRUDER)
        except pl.ScopeMismatch:
            return
        raise AssertionError

    async def race(self, handle, racers):
        async def one():
            try:
                await self.redeem(handle)
            except pl.AlreadyConsumed as lost:
                return "consumed" if lost.recorded else "consumed, unrecorded"
            return "won"

        return await asyncio.gather(*[one() for _ in range(racers)])

    async def prefill(self, number):
        """Copy the rows of a redeemed pause under other ids: of the same size, and never read again."""
        await self.redeem(await self.pause(0))
        await asyncio.to_thread(self.copy, number)

    def copy(self, number):
        with psycopg.connect(self.where, autocommit=True) as connection:
            rows = connection.execute(
                "SELECT originator_version, topic, state, originator_id FROM pauseledger.stored_events"
                " WHERE originator_id = (SELECT originator_id FROM pauseledger.stored_events"
                " WHERE topic LIKE 'pause.consumed@%' ORDER BY notification_id DESC LIMIT 1) ORDER BY 1"
            ).fetchall()
            columns = "originator_id, originator_version, topic, state"
            for start in range(0, number, 10_000):
                with connection.cursor().copy(
                    f"COPY pauseledger.stored_events ({columns}) FROM STDIN (FORMAT BINARY)"
                ) as copy:
                    copy.set_types(["uuid", "int8", "text", "bytea"])
                    for _ in range(start, min(start + 10_000, number)):
                        stream = like(rows[0][3])
                        for version, topic, state, _ in rows:
                            copy.write_row((stream, version, topic, state))
            connection.execute("ANALYZE pauseledger.stored_events")
            connection.execute("CHECKPOINT")


class PauseLedgerSqlite(PauseLedgerPg):
    name = "pauseledger_sqlite"
    store = "sqlite"
    is_async = True

    def make(self):
        """Leave it to the ledger: a file is made on first use."""

    def url(self):
        return f"sqlite:///{self.where}"

    def copy(self, number):
        connection = sqlite3.connect(self.where, isolation_level=None)
        rows = connection.execute(
            "SELECT originator_version, topic, state, originator_id FROM stored_events WHERE originator_id ="
            " (SELECT originator_id FROM stored_events WHERE topic LIKE 'pause.consumed@%' ORDER BY rowid DESC LIMIT 1)"
        ).fetchall()
        connection.execute("BEGIN")
        for _ in range(number):
            stream = like(UUID(rows[0][3])).hex
            connection.executemany(
                "INSERT INTO stored_events (originator_version, topic, state, originator_id) VALUES (?, ?, ?, ?)",
                [(version, topic, state, stream) for version, topic, state, _ in rows],
            )
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()


def like(stream):
    """Make another id of the same month."""
    return UUID(bytes=stream.bytes[:6] + stream.bytes[6:7] + os.urandom(9), version=stream.version)


PEERS = [PauseLedgerPg, PauseLedgerSqlite]
