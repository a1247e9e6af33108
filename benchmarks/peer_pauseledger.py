"""The ledger under the shared workload: a pause, a redeem, a refusal and a race, on PostgreSQL and on SQLite.

The runner reads these classes out of the source text, so their attributes are literals. One that is asked for by name
is made with the database or file it may use and the number of operations that will be under way at once.
"""

import asyncio
import json
import os
import sqlite3
import tempfile
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from uuid import UUID, uuid4

import pauseledger as pl
import psycopg
import workload as w
from pauseledger.domain.facts import Consumed, Paused
from pauseledger.infrastructure.keys import KeyFile
from pauseledger.infrastructure.mapper import NO_PREDECESSOR, FactMapper
from pauseledger.infrastructure.postgres import PostgresRecorder

#: One call of the workload's turn is the one paused at.
CALL = "call_pause"
#: So many stories are told again to fill a store, so many rows at a time.
TOLD, BATCH = 16, 20_000
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
        receipt, run = await self.paused(number)
        return receipt.token, run

    async def paused(self, number):
        messages, request = POOL[number % len(POOL)]
        axes = pl.Axes(scope=SCOPE, session_id="session", run_id=str(uuid4()), call_id=CALL)
        turn = pl.Turn("openai-chat", messages)
        # A host knows when its run began. Without that, on a month's first day, the month before is looked up too.
        command = pl.PauseCommand(
            interaction="bench", request=request, turn=turn, axes=axes, closes_in=3600, run_started=datetime.now(UTC)
        )
        return await self.ledger.capability.pause(command), axes.run_id

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
        """Write the facts of a few redeemed pauses again and again under other ids, as the ledger writes its rows."""
        stories = []
        for each in range(min(number, TOLD)):
            receipt, run = await self.paused(each)
            await self.redeem((receipt.token, run))
            stories.append(await self.ledger.pauses.story([receipt.pause_id]))
        mapper = FactMapper(self.ledger.recorder.identity().ledger_id)
        rows = (row for each in range(number - len(stories)) for row, _ in mapper.encode(retold(stories[each % TOLD])))
        await asyncio.to_thread(self.copy, rows)

    def copy(self, rows):
        with psycopg.connect(self.where, autocommit=True) as connection, connection.cursor() as cursor:
            columns = "originator_id, originator_version, topic, state"
            while batch := list(islice(rows, BATCH)):
                with cursor.copy(f"COPY pauseledger.stored_events ({columns}) FROM STDIN (FORMAT BINARY)") as copy:
                    copy.set_types(["uuid", "int8", "text", "bytea"])
                    for row in batch:
                        copy.write_row((row.originator_id, row.originator_version, row.topic, row.state))
            # Or the server's own would run meanwhile.
            cursor.execute("VACUUM (FREEZE, ANALYZE) pauseledger.stored_events")
            cursor.execute("CHECKPOINT")


class PauseLedgerSqlite(PauseLedgerPg):
    name = "pauseledger_sqlite"
    store = "sqlite"
    is_async = True

    def make(self):
        """Leave it to the ledger: a file is made on first use."""

    def url(self):
        return f"sqlite:///{self.where}"

    def copy(self, rows):
        connection = sqlite3.connect(self.where, isolation_level=None)
        connection.execute("BEGIN")
        connection.executemany(
            "INSERT INTO stored_events (originator_id, originator_version, topic, state) VALUES (?, ?, ?, ?)",
            ((row.originator_id.hex, row.originator_version, row.topic, row.state) for row in rows),
        )
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()


def retold(story):
    """Tell a redeemed pause's story as another one's of the same month: its own ids, run and chain."""
    raw = bytearray(story[0].originator_id.bytes[:2] + os.urandom(14))
    raw[6], raw[8] = 0x80 | raw[6] & 0x0F, 0x80 | raw[8] & 0x3F  # version 8 of RFC 9562, and its variant
    new = UUID(bytes=bytes(raw))
    told = []
    for fact in story:
        place = {"originator_id": new, "pause": new, "attempt": uuid4(), "predecessor": None}
        if isinstance(fact, Paused):
            calls = tuple(call.model_copy(update={"pause": new}) for call in fact.round.calls)
            record = fact.round.model_copy(update={"id": new, "lead": new, "calls": calls})
            place |= {"round": record, "run_id": str(uuid4()), "predecessor": NO_PREDECESSOR}
        if isinstance(fact, Consumed):
            place |= {"lead": new}
        told.append(fact.model_copy(update=place))
    return told


PEERS = [PauseLedgerPg, PauseLedgerSqlite]
