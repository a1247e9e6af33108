"""By hand: two tables and the SQL that does just the job, with none of what makes a ledger.

A pause is one INSERT, a redeem a SELECT and an INSERT that only the first one wins; with a token, JSON both ways and
pydantic. There is no history, no record of the refused, no proof and no recovery: it is the line to measure by.
"""

import asyncio
import json
import sqlite3
import threading
import uuid

import psycopg
import workload as w
import zstandard

PAUSES = "INSERT INTO pause (id, tenant, body, request) VALUES (%s, %s, %s, %s)"
READS = "SELECT body, request FROM pause WHERE id = %s"
CONSUMES = "INSERT INTO consumed (id, answer) VALUES (%s, %s) ON CONFLICT DO NOTHING"
TABLES = """
CREATE TABLE pause (id uuid PRIMARY KEY, tenant text NOT NULL, body bytea NOT NULL, request bytea NOT NULL,
                    created timestamptz NOT NULL DEFAULT now());
CREATE TABLE consumed (id uuid PRIMARY KEY, answer bytea NOT NULL, at timestamptz NOT NULL DEFAULT now());
"""


class HandPg(w.Peer):
    """On PostgreSQL, asynchronously, with prepared statements and a connection for each that works at once."""

    name = "hand_pg"
    ops = ("pause", "redeem", "refuse")
    more = ""

    async def setup(self):
        self.free = asyncio.LifoQueue()
        async with await psycopg.AsyncConnection.connect(self.where, autocommit=True) as connection:
            await connection.execute(TABLES + self.more)
        for _ in range(self.conc):
            connection = await psycopg.AsyncConnection.connect(self.where, autocommit=True, prepare_threshold=0)
            self.free.put_nowait(connection)

    async def close(self):
        while not self.free.empty():
            await self.free.get_nowait().close()

    def pack(self, clear):
        return clear

    def unpack(self, stored):
        return stored

    async def say(self, statement, values):
        connection = await self.free.get()
        try:
            return await connection.cursor(binary=True).execute(statement, values, prepare=True)
        finally:
            self.free.put_nowait(connection)

    async def pause(self, number):
        messages, request = w.turn(number)
        pause, asked = uuid.uuid4(), w.packed(request)
        await self.say(PAUSES, (pause, w.TENANT, self.pack(w.packed(messages)), self.pack(asked)))
        return w.mint(pause, asked)

    async def redeem(self, token):
        pause, digest = w.opened(token)
        found = await (await self.say(READS, (pause,))).fetchone()
        answer = w.judged(self.unpack(found[1]), digest)
        if (await self.say(CONSUMES, (pause, answer))).rowcount != 1:
            raise w.ConsumedError
        return json.loads(self.unpack(found[0]))

    async def refuse(self, token):
        refuse(token)

    async def race(self, token, racers):
        async def one():
            try:
                await self.redeem(token)
            except w.ConsumedError:
                return "turned away"
            return "won"

        return await asyncio.gather(*[one() for _ in range(racers)])

    async def prefill(self, number):
        await asyncio.to_thread(self.copy, number)

    def copy(self, number):
        rows = [tuple(self.pack(w.packed(part)) for part in turn) for turn in w.POOL]
        with psycopg.connect(self.where, autocommit=True) as connection, connection.cursor() as cursor:
            with cursor.copy("COPY pause (id, tenant, body, request) FROM STDIN (FORMAT BINARY)") as copy:
                copy.set_types(["uuid", "text", "bytea", "bytea"])
                for each in range(number):
                    copy.write_row((uuid.uuid4(), w.TENANT, *rows[each % len(rows)]))
            answer = w.packed(w.ANSWER)
            cursor.execute(
                "INSERT INTO consumed (id, answer) SELECT id, %s FROM pause ON CONFLICT DO NOTHING", (answer,)
            )
            # Or the server's own would run meanwhile.
            cursor.execute("VACUUM (FREEZE, ANALYZE) pause, consumed")
            cursor.execute("CHECKPOINT")


class HandPackedPg(HandPg):
    """The same, stored as the ledger stores: packed by the client, and left alone by the server."""

    name = "hand_packed_pg"
    more = "ALTER TABLE pause ALTER body SET STORAGE EXTERNAL, ALTER request SET STORAGE EXTERNAL"

    def pack(self, clear):
        return zstandard.ZstdCompressor(3).compress(clear)

    def unpack(self, stored):
        return zstandard.ZstdDecompressor().decompress(stored)


class HandSqlite(w.Peer):
    """On SQLite: threads with a connection each, WAL, a flush for each commit, and a lock of the process for writers.

    Without the lock, SQLite's own way to wait for a writer is to sleep, and most of the time goes by in that.
    """

    name = "hand_sqlite"
    store = "sqlite"
    is_async = False
    ops = ("pause", "redeem", "refuse")

    def setup(self):
        self.lock, self.own = threading.Lock(), threading.local()
        self.connection().executescript(
            "CREATE TABLE pause (id BLOB PRIMARY KEY, tenant TEXT, body BLOB, request BLOB) WITHOUT ROWID;"
            "CREATE TABLE consumed (id BLOB PRIMARY KEY, answer BLOB) WITHOUT ROWID;"
        )

    def close(self):
        """Leave the connections to their threads, which end with the process."""

    def connection(self):
        if not hasattr(self.own, "connection"):
            self.own.connection = sqlite3.connect(self.where, isolation_level=None, timeout=30)
            self.own.connection.execute("PRAGMA journal_mode = WAL")
            self.own.connection.execute("PRAGMA synchronous = FULL")
        return self.own.connection

    def write(self, statement, values):
        with self.lock:
            return self.connection().execute(statement, values).rowcount

    def pause(self, number):
        messages, request = w.turn(number)
        pause, asked = uuid.uuid4(), w.packed(request)
        self.write("INSERT INTO pause VALUES (?, ?, ?, ?)", (pause.bytes, w.TENANT, w.packed(messages), asked))
        return w.mint(pause, asked)

    def redeem(self, token):
        pause, digest = w.opened(token)
        reads = "SELECT body, request FROM pause WHERE id = ?"
        body, request = self.connection().execute(reads, (pause.bytes,)).fetchone()
        answer = w.judged(request, digest)
        if self.write("INSERT INTO consumed VALUES (?, ?) ON CONFLICT DO NOTHING", (pause.bytes, answer)) != 1:
            raise w.ConsumedError
        return json.loads(body)

    def refuse(self, token):
        refuse(token)

    def race_one(self, token):
        try:
            self.redeem(token)
        except w.ConsumedError:
            return "turned away"
        return "won"

    def prefill(self, number):
        rows = [(w.packed(messages), w.packed(request)) for messages, request in w.POOL]
        connection, answer = self.connection(), w.packed(w.ANSWER)
        connection.execute("BEGIN")
        for each in range(number):
            pause = uuid.uuid4().bytes
            connection.execute("INSERT INTO pause VALUES (?, ?, ?, ?)", (pause, w.TENANT, *rows[each % len(rows)]))
            connection.execute("INSERT INTO consumed VALUES (?, ?)", (pause, answer))
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def refuse(token):
    """Turn the wrong tenant away: the token alone tells."""
    try:
        w.opened(token, "evil")
    except w.RefusedError:
        return
    raise AssertionError("the wrong tenant was let in")
