"""The hostile administrator: whoever owns the database, with every trigger off, against a head kept outside.

Sampled by a seed in CI. `PAUSELEDGER_HOSTILE=all` tries every column of every row of every table of a ledger of 300
pauses, and every other attack, on SQLite and on PostgreSQL; the views' tables are those of test_check_views.py.
"""

import asyncio
import hashlib
import json
import logging
import os
import random
import re
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from uuid import UUID, uuid4

import pauseledger as pl
import psycopg
import pytest
from pauseledger.infrastructure.check import Check
from pauseledger.infrastructure.check_tree import Kept
from pauseledger.infrastructure.check_vault import VaultCheck
from pauseledger.infrastructure.keys import KeyFile
from pauseledger.infrastructure.log_key import log_signer
from pauseledger.infrastructure.merkle import Edge, leaf_hash
from pauseledger.infrastructure.notes import Checkpoint, Signer
from pauseledger.infrastructure.postgres import PostgresRecorder
from pauseledger.infrastructure.sealed import sealed_rows
from pauseledger.infrastructure.sqlite import SQLiteRecorder
from pauseledger.infrastructure.store import TABLES
from pauseledger.infrastructure.stories import ANSWER, OTHER_ANSWER, asked_round, axes, round_of

log = logging.getLogger("hostile")
ALL = os.environ.get("PAUSELEDGER_HOSTILE") == "all"
SEED = int(os.environ.get("PAUSELEDGER_HOSTILE_SEED", "11"))
PAUSES = 300 if ALL else 60
#: Columns that nothing digests; docs/evidence.md lists them.
NOT_PROVED = {
    ("ledger", "one"), ("ledger", "epoch"), ("ledger", "created_at"),
    ("lease", "pause"), ("lease", "fence"), ("lease", "until"),
    ("tree_heads", "made_at"),
    ("vault", "made_at"), ("vault", "content_destroyed_at"), ("vault", "person_destroyed_at"),
}  # fmt: skip
#: No version but this one reads tables of another revision.
TOLD_BY_AN_ERROR = {("ledger", "schema_revision")}

everywhere = pytest.mark.parametrize("whole", ["sqlite", "postgresql"], indirect=True)
#: On PostgreSQL too, where there is time.
on_both = pytest.mark.parametrize(
    "whole",
    ["sqlite", pytest.param("postgresql", marks=pytest.mark.skipif(not ALL, reason="PAUSELEDGER_HOSTILE=all"))],
    indirect=True,
)


async def lead(url, folder, *, pauses=PAUSES):
    """A ledger of so many pauses of two tenants: rounds of one to three, answered, refused, consumed, open, erased."""
    chance, made, heads = random.Random(SEED), 0, []
    KeyFile(folder / "keys").create()
    async with pl.open_ledger(url, pl.LedgerSettings(keys_directory=folder / "keys")) as ledger:
        notary = ledger.notary(make_key=True)
        while made < pauses:
            calls = [f"c{at}" for at in range(min(chance.choice([1, 1, 2, 3]), pauses - made))]
            held = await asked_round(ledger, *round_of(*calls, idempotency_key=str(made)))
            for one in held[: chance.choice([0, len(held), len(held), 1])]:
                if chance.random() < 0.3:
                    with pytest.raises(pl.Refusal):
                        await ledger.redeem(one.receipt.token, ANSWER, axes=axes("c0", session_id="another"))
                try:
                    await one.redeem(chance.choice([ANSWER, OTHER_ANSWER]))
                except pl.RoundOpen:
                    continue
            made += len(calls)
            if len(heads) < made * 4 // pauses:
                if len(heads) == 1:
                    await ledger.operator(pl.Actor("olga")).erase(
                        held[0].receipt.pause_id, "content", "gdpr-17", scrub=False
                    )
                heads.append(notary.seal().head)
        ledger_id = ledger.recorder.identity().ledger_id
        return heads, log_signer(ledger_id, folder / "keys")


class Ledger:
    """A ledger in the hands of its administrator, who speaks as SQLite does."""

    def __init__(self, recorder, folder, heads, key):
        self.recorder, self.folder, self.heads, self.key = recorder, folder, heads, key
        self.ring = KeyFile(folder / "keys").load_vault()

    def faults(self, *heads):
        kept = [Kept(head, "outside") for head in heads or self.heads[-1:]]
        vault = VaultCheck(self.recorder, self.ring)
        checked = Check(self.recorder, sealed_rows(self.recorder), [self.key.verifier], kept, vault).run()
        return checked.faults

    def rows(self, table, columns="*"):
        return self.do(f"SELECT {columns} FROM {table}")


class SQLiteLedger(Ledger):
    def __init__(self, path, *of):
        super().__init__(SQLiteRecorder(path), *of)
        self.path, self.url = path, f"sqlite:///{path}"

    def do(self, statement, *values):
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            return connection.execute(statement, values).fetchall()

    def copied(self, path):
        shutil.copy(self.path, path / "ledger.db")
        return SQLiteLedger(path / "ledger.db", self.folder, self.heads, self.key)

    def columns(self, table):
        return [column for _, column, *_ in self.do(f"PRAGMA table_info({table})")]

    def number_on(self, position):
        self.do("UPDATE sqlite_sequence SET seq = ?", position)

    def close(self):
        self.recorder.close()


class PostgresLedger(Ledger):
    def __init__(self, server, name, *of):
        self.server, self.name, self.url = server, name, server.dsn(name)
        super().__init__(PostgresRecorder(self.url), *of)
        self.at = psycopg.connect(self.url, autocommit=True, options="-c search_path=pauseledger")

    def do(self, statement, *values):
        done = self.at.execute(re.sub(r"\browid\b", "notification_id", statement).replace("?", "%s"), values)
        return done.fetchall() if done.description else []

    def copied(self, _):
        self.at.close()
        self.recorder.rest()
        name = self.server.fresh_database(self.name)
        self.at = psycopg.connect(self.url, autocommit=True, options="-c search_path=pauseledger")
        return PostgresLedger(self.server, name, self.folder, self.heads, self.key)

    def columns(self, table):
        found = (
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'pauseledger' AND table_name = ?"
        )
        names = [column for (column,) in self.do(found, table)]
        return ["rowid" if (table, name) == ("stored_events", "notification_id") else name for name in names]

    def number_on(self, position):
        self.do("SELECT setval('stored_events_notification_id_seq', ?)", position)

    def close(self):
        self.at.close()
        self.recorder.close()


MADE = {}


def made(store, request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    if store == "sqlite":
        heads, key = asyncio.run(lead(f"sqlite:///{folder / 'ledger.db'}", folder))
        with closing(sqlite3.connect(folder / "ledger.db")) as connection, connection:
            for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
                connection.execute(f"DROP TRIGGER {name}")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return SQLiteLedger(folder / "ledger.db", folder, heads, key)
    pg = request.getfixturevalue("pg")
    name = pg.fresh_database(request.getfixturevalue("pg_template"))
    heads, key = asyncio.run(lead(pg.dsn(name), folder, pauses=PAUSES if ALL else 20))
    whole = PostgresLedger(pg, name, folder, heads, key)
    whole.do("ALTER TABLE stored_events ALTER rowid SET GENERATED BY DEFAULT")
    for table in TABLES:
        whole.do(f"ALTER TABLE {table} DISABLE TRIGGER ALL")
        checks = "SELECT conname FROM pg_constraint WHERE contype = 'c' AND conrelid = ?::regclass"
        for (name,) in whole.do(checks, table):
            whole.do(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
    return whole


@pytest.fixture
def whole(request, tmp_path_factory):
    """Make each once: nobody changes it, but for copies."""
    store = getattr(request, "param", "sqlite")
    if store not in MADE:
        MADE[store] = made(store, request, tmp_path_factory)
    return MADE[store]


@pytest.fixture
def ledger(whole, tmp_path):
    mine = whole.copied(tmp_path)
    yield mine
    mine.close()


def flipped(raw, chance):
    at = chance.randrange(len(raw))
    return raw[:at] + bytes([raw[at] ^ 1 << chance.randrange(8)]) + raw[at + 1 :]


def updates(ledger, chance):
    """Every column of every row, by what it is changed to and where that has to be found: table, key, column, value."""
    postgres = isinstance(ledger, PostgresLedger)
    for at, stream, version, topic, state in ledger.rows(
        "stored_events", "rowid, originator_id, originator_version, topic, state"
    ):
        here = ("stored_events", "rowid", at)
        yield *here, "rowid", at + 100_000, at
        others = [uuid4()] if postgres else [uuid4().hex, stream.upper(), f"no id {at}"]
        yield *here, "originator_id", chance.choice(others), at
        yield *here, "originator_version", chance.choice([version + 1000, 0, -1]), at
        yield *here, "topic", chance.choice([f"x{topic}", topic + "0", topic.upper()]), at
        yield *here, "state", chance.choice([flipped(state, chance), state[:-1], state + b"\0", b""]), at
    for index, position, whole in ledger.rows("sealed", "leaf_index, notification_id, leaf_hash"):
        here = ("sealed", "leaf_index", index)
        yield *here, "leaf_index", index + 100_000, index
        yield *here, "notification_id", -position, index
        yield *here, "leaf_hash", flipped(whole, chance), index
    for line, place, whole in ledger.rows("sealed_tiles", "line, place, hash"):
        here = ("sealed_tiles", "place", place)
        yield *here, "place", place + 1000, None
        yield *here, "line", line + 5, None
        yield *here, "hash", flipped(whole, chance), None
    for size, note in ledger.rows("tree_heads", "size, checkpoint"):
        here = ("tree_heads", "size", size)
        yield *here, "size", size + 1, None
        spoilt = flipped(note.encode("ascii", "ignore"), chance).decode("latin-1").replace("\0", "x")
        yield *here, "checkpoint", spoilt, None
    for column in ("size", "position"):
        for by in (-1, 1):
            ((was,),) = ledger.rows("sealing", column)
            yield "sealing", "one", 1, column, was + by, None
    yield "sealing", "one", 1, "one", 2, None
    yield "ledger", "one", 1, "ledger_id", uuid4() if postgres else uuid4().hex, None
    yield "ledger", "one", 1, "identity_key", bytes(32), None
    for pause, content, person in ledger.rows("vault", "pause, content, person"):
        here, at, another = ("vault", "pause", pause), UUID(str(pause)), uuid4()
        yield *here, "pause", another if postgres else another.hex, another
        for column in ("content_key", "person_key"):
            # What was destroyed is not unwrapped by its name any more, and rows still name it.
            yield *here, column, uuid4() if postgres else uuid4().hex, at if content else None
        for column, wrapped in (("content", content), ("person", person)):
            others = [None, wrapped[:-1], flipped(wrapped, chance), content or person] if wrapped else [person]
            yield *here, column, chance.choice([one for one in others if one != wrapped]), at


def where(fault):
    return {fault.position, fault.leaf, fault.stream}


@on_both
def test_a_whole_ledger_has_no_faults_under_each_head(whole):
    assert whole.faults() == []
    assert whole.faults(*whole.heads) == []
    assert len(whole.heads) == 4


def batches(ledger, states):
    """Each change alone; of the whole ledger, beside those of other streams, or of leaves that are not next to it."""
    if not ALL:
        columns = {}
        for state in random.Random(SEED).sample(states, len(states)):
            columns.setdefault((state[0], state[3]), []).append(state)
        # Of each column some, and most of those whose rows are most.
        return [[state] for some in columns.values() for state in some[: 2 + len(some) // 100]]
    streams, turns = dict(ledger.rows("stored_events", "rowid, originator_id")), Counter()
    apart, together = [], {}
    for state in states:
        table, _, value, column, *_ = state
        if table == "stored_events":
            turn = turns[column, streams[value]] = turns[column, streams[value]] + 1
            together.setdefault((column, turn), []).append(state)
        elif table == "sealed":
            together.setdefault((column, value % 10), []).append(state)
        elif table == "vault":
            together.setdefault((table, column), []).append(state)
        else:
            apart.append([state])
    # A check lists a thousand faults, and a changed row makes several.
    return [*(some[at : at + 60] for some in together.values() for at in range(0, len(some), 60)), *apart]


@everywhere
def test_every_single_update_of_every_column_is_found_at_its_place(ledger):
    chance = random.Random(SEED)
    tried, found, missed = Counter(), Counter(), []
    for batch in batches(ledger, list(updates(ledger, chance))):
        undo = []
        for table, key, value, column, other, _ in batch:
            ((was,),) = ledger.do(f"SELECT {column} FROM {table} WHERE {key} = ?", value)
            ledger.do(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", other, value)
            undo.append((f"UPDATE {table} SET {column} = ? WHERE {key} = ?", was, other if key == column else value))
        faults = ledger.faults()
        there = {place for fault in faults for place in where(fault)}
        for table, _, value, column, other, at in batch:
            tried[table, column] += 1
            if faults and (at is None or at in there):
                found[table, column] += 1
            else:
                missed.append((table, value, column, other))
        for statement in undo:
            ledger.do(*statement)
    log.warning("%s: tried %d, found %d: %s", type(ledger).__name__, tried.total(), found.total(), dict(tried))
    assert missed == []
    assert ledger.faults() == []
    empty = {"lease"} | ({"sealed_tiles"} if not ledger.rows("sealed_tiles") else set())
    columns = {(table, column) for table in TABLES for column in ledger.columns(table)}
    assert columns - set(tried) - NOT_PROVED - TOLD_BY_AN_ERROR == {
        one for one in columns if one[0] in empty - {"lease"}
    }


@everywhere
def test_every_deleted_row_is_found_at_its_place(ledger):
    chance, missed, tried = random.Random(SEED), [], 0
    for table, key in (("stored_events", "rowid"), ("sealed", "leaf_index")):
        columns = ", ".join([key, *(one for one in ledger.columns(table) if one != key)])
        rows = ledger.rows(table, columns)
        chance.shuffle(rows)
        # Of the whole ledger twenty at once: each is still told at its own place.
        for some in [rows[at : at + 20] for at in range(0, len(rows), 20)] if ALL else [[row] for row in rows[:12]]:
            for row in some:
                ledger.do(f"DELETE FROM {table} WHERE {key} = ?", row[0])
            there = {place for fault in ledger.faults() for place in where(fault)}
            missed += [
                (table, row[0]) for row in some if row[0] not in there and row[0] - 1 not in (r[0] for r in some)
            ]
            tried += len(some)
            for row in some:
                ledger.do(f"INSERT INTO {table} ({columns}) VALUES ({', '.join('?' * len(row))})", *row)
    log.warning("%s: deleted %d, missed %d", type(ledger).__name__, tried, len(missed))
    assert missed == []
    for table, column in (("sealed_tiles", "place"), ("sealing", "one")):
        ledger.do(f"CREATE TABLE kept AS SELECT * FROM {table}")
        ledger.do(f"DELETE FROM {table} WHERE {column} = (SELECT min({column}) FROM {table})")
        # A ledger of less than 256 leaves has no tile that is full.
        assert "tree" in {fault.part for fault in ledger.faults()} or not ledger.rows("kept")
        ledger.do(f"DELETE FROM {table}")
        ledger.do(f"INSERT INTO {table} SELECT * FROM kept")
        ledger.do("DROP TABLE kept")
    assert ledger.faults() == []


@on_both
def test_a_row_inserted_below_what_is_sealed_is_found_and_one_behind_is_told_as_unsealed(ledger):
    stream, columns = uuid4().hex, "(rowid, originator_id, originator_version, topic, state)"
    ledger.do("UPDATE stored_events SET rowid = -5 WHERE rowid = 5")
    ledger.do(f"INSERT INTO stored_events {columns} VALUES (5, ?, 1, 'pause.refused@1', ?)", stream, b"\0")
    assert any(fault.position == 5 for fault in ledger.faults())
    ledger.do("DELETE FROM stored_events WHERE rowid = 5")
    ledger.do("UPDATE stored_events SET rowid = 5 WHERE rowid = -5")
    (state,) = ledger.do("SELECT state FROM stored_events WHERE rowid = 1")[0]
    ledger.do(f"INSERT INTO stored_events {columns} VALUES (100000, ?, 1, 'pause.paused@1', ?)", stream, state)
    faults = ledger.faults()
    assert {fault.position for fault in faults} == {100000}


@pytest.mark.parametrize("columns", [("state",), ("topic", "state"), ("rowid",)])
@on_both
def test_two_rows_that_were_swapped_are_found_both(ledger, columns):
    chance = random.Random(SEED)
    rows = ledger.rows("stored_events", "rowid, topic, state")
    for _ in range(60 if ALL else 5):
        one, other = chance.sample(rows, 2)
        swap(ledger, columns, one, other)
        assert {one[0], other[0]} <= {fault.position for fault in ledger.faults()}
        swap(ledger, columns, one, other, back=True)
    assert ledger.faults() == []


def swap(ledger, columns, one, other, *, back=False):
    if columns == ("rowid",):
        for was, now in ((one[0], -1), (other[0], one[0]), (-1, other[0])):
            ledger.do("UPDATE stored_events SET rowid = ? WHERE rowid = ?", now, was)
        return
    for column in columns:
        at = ("", "topic", "state").index(column)
        for mine, theirs in ((one, other), (other, one)):
            value = mine[at] if back else theirs[at]
            ledger.do(f"UPDATE stored_events SET {column} = ? WHERE rowid = ?", value, mine[0])


@on_both
def test_positions_numbered_anew_are_found_unless_both_tables_tell_the_same_order(ledger):
    ledger.number_on(10_000)
    ledger.do("UPDATE stored_events SET rowid = -rowid")
    ledger.do("UPDATE stored_events SET rowid = 1000 - rowid")
    assert ledger.faults()
    ledger.do("UPDATE sealed SET notification_id = -notification_id")
    ledger.do("UPDATE sealed SET notification_id = 1000 - notification_id")
    ledger.do("UPDATE sealing SET position = position + 1000")
    # The same rows in the same order: a position is where a store keeps a row, and says nothing that is proved.
    assert ledger.faults() == []
    one, two = ledger.do("SELECT notification_id FROM sealed WHERE leaf_index IN (3, 4) ORDER BY 1")
    for table, column in (("stored_events", "rowid"), ("sealed", "notification_id")):
        for was, now in ((one[0], -1), (two[0], one[0]), (-1, two[0])):
            ledger.do(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", now, was)
    assert any("late leaf" in fault.says for fault in ledger.faults())


def truncate(ledger, size):
    """Take the log's end off everywhere, so that what is left holds together."""
    ((position,),) = ledger.do("SELECT max(notification_id) FROM sealed WHERE leaf_index < ?", size)
    ledger.do("DELETE FROM stored_events WHERE rowid > ?", position)
    ledger.do("DELETE FROM sealed WHERE leaf_index >= ?", size)
    ledger.do("DELETE FROM sealed_tiles WHERE (place + 1) * 256 > ?", size)
    ledger.do("DELETE FROM tree_heads WHERE size > ?", size)
    ledger.do("UPDATE sealing SET size = ?, position = ?", size, position)


@on_both
def test_a_truncated_end_is_found_by_the_head_kept_outside_and_by_that_alone(ledger):
    sizes = [Checkpoint.of(head).size for head in ledger.heads]
    for size in range(sizes[-1] - 1, 0, -7) if ALL else (sizes[-1] - 1, sizes[2], sizes[0]):
        truncate(ledger, size)
        says = [fault.says for fault in ledger.faults()]
        assert any("the end is gone" in one for one in says), size
    inside = [fault for fault in ledger.faults() if fault.part == "tree"]
    assert inside == []


def test_a_backup_put_back_and_written_on_is_found(ledger, whole, tmp_path):
    """Rolled back to an earlier head, and then made longer than the head kept outside: a fork."""
    truncate(ledger, Checkpoint.of(ledger.heads[0]).size)
    url = f"sqlite:///{ledger.path}"
    shutil.copytree(whole.folder / "keys", tmp_path / "keys")
    ledger.number_on(ledger.rows("stored_events", "max(rowid)")[0][0])

    async def write_on():
        async with pl.open_ledger(url, pl.LedgerSettings(keys_directory=tmp_path / "keys")) as opened:
            while (opened.recorder.max_notification_id() or 0) < Checkpoint.of(ledger.heads[-1]).size + 5:
                (one,) = await asked_round(opened, *round_of("c0", idempotency_key=str(uuid4())))
                await one.redeem(ANSWER)
            opened.notary().seal()

    asyncio.run(write_on())
    faults = ledger.faults(*ledger.heads)
    # The vault was not rolled back with it: of the key destroyed since, nothing tells any more.
    assert {fault.part for fault in faults} <= {"head", "vault"}
    first = Checkpoint.of(ledger.heads[0]).size
    # Every head kept outside narrows it down: what differs begins behind the newest one that still holds.
    assert first in {fault.leaf for fault in faults}


def reseal(ledger, signer=None):
    """Make tree, tiles and heads anew over whatever the rows are now, as an administrator could."""
    hashes = [leaf_hash(state[4:36]) for (state,) in ledger.do("SELECT state FROM stored_events ORDER BY rowid")]
    edge, index = Edge(), 0
    ledger.do("DELETE FROM sealed_tiles")
    sizes = [size for (size,) in ledger.do("SELECT size FROM tree_heads ORDER BY size")]
    for size in (*sizes, len(hashes)):
        for line, place, whole in edge.add(hashes[index:size]):
            ledger.do("INSERT INTO sealed_tiles VALUES (?, ?, ?)", line, place, whole)
        index = size
        if signer is not None and size in sizes:
            note = signer.sign(Checkpoint(signer.name, size, edge.root()).text())
            ledger.do("UPDATE tree_heads SET checkpoint = ? WHERE size = ?", note, size)
    for at, whole in enumerate(hashes):
        ledger.do("UPDATE sealed SET leaf_hash = ? WHERE leaf_index = ?", whole, at)


def rechained(ledger, stream, change):
    """Write a stream anew from a changed header on, each digest over the one before: no row's own bytes tell."""
    ((ledger_id,),) = ledger.do("SELECT ledger_id FROM ledger")
    before = bytes(32)
    rows = ledger.do(
        "SELECT rowid, originator_version, topic, state FROM stored_events WHERE originator_id = ?"
        " ORDER BY originator_version",
        stream,
    )
    for at, version, topic, state in rows:
        start = 40 + int.from_bytes(state[36:40], "big")
        header, rest = change(state[40:start]), state[start:]
        assert rest == b"" or b'"stored":' in header
        parts = [
            b"plf/1",
            UUID(str(ledger_id)).bytes,
            UUID(str(stream)).bytes,
            version.to_bytes(8, "big"),
            topic.encode(),
        ]
        cut, segments = 0, []
        for stored in lengths(header):
            segments.append(rest[cut : cut + stored])
            cut += stored
        digest = hashlib.sha256()
        for part in (*parts, before, header, *segments):
            digest.update(len(part).to_bytes(4, "big") + part)
        before = digest.digest()
        whole = b"PLF1" + before + len(header).to_bytes(4, "big") + header + rest
        ledger.do("UPDATE stored_events SET state = ? WHERE rowid = ?", whole, at)
    return rows[0][0]


def lengths(header):
    def contents(value):
        if isinstance(value, dict):
            if {"segment", "stored", "digest", "comp"} <= value.keys():
                return [value]
            return [one for part in value.values() for one in contents(part)]
        return [one for part in value for one in contents(part)] if isinstance(value, list) else []

    return [one["stored"] for one in sorted(contents(json.loads(header)), key=lambda one: one["segment"])]


@pytest.mark.parametrize("which", ["first", "last"])
@on_both
def test_another_tenants_name_written_into_a_whole_stream_is_found(ledger, which):
    order = "rowid" if which == "first" else "rowid DESC"
    ((stream,),) = ledger.do(
        f"SELECT originator_id FROM stored_events WHERE topic = 'pause.paused@1' ORDER BY {order} LIMIT 1"
    )
    at = rechained(ledger, stream, lambda header: header.replace(b'"tenant_id":"acme"', b'"tenant_id":"evil"'))
    assert any(at in where(fault) for fault in ledger.faults()), "the leaves are still those that were sealed"
    reseal(ledger)
    faults = ledger.faults()
    assert faults
    assert {fault.part for fault in faults} == {"head"}
    # The heads kept in the ledger were signed as well, and bound the place from both sides.
    leaves = [0, *(Checkpoint.of(head).size for head in ledger.heads)]
    assert min(fault.leaf for fault in faults) == max(size for size in leaves if size < at)


@on_both
def test_rows_of_another_ledger_are_found(ledger, tmp_path):
    heads, _ = asyncio.run(lead(f"sqlite:///{tmp_path / 'other.db'}", tmp_path, pauses=4))
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        theirs = other.execute("SELECT originator_id, topic, state FROM stored_events WHERE rowid = 1").fetchone()
    ledger.do("UPDATE stored_events SET originator_id = ?, topic = ?, state = ? WHERE rowid = 1", *theirs)
    faults = ledger.faults()
    assert any(fault.position == 1 and "another ledger" in fault.says for fault in faults)
    assert any("no trusted key" in fault.says for fault in ledger.faults(heads[-1]))


@on_both
def test_another_identity_key_is_found(ledger):
    ledger.do("UPDATE ledger SET identity_key = ?", bytes(32))
    assert {fault.says for fault in ledger.faults() if fault.part != "vault"} == {
        "its id is not what the ledger's identity key makes of its pause"
    }


@on_both
def test_heads_signed_with_another_key_are_found(ledger):
    thief = Signer(ledger.key.name, bytes(32))
    reseal(ledger, thief)
    faults = ledger.faults()
    assert len([fault for fault in faults if "no trusted key" in fault.says]) == 4
    assert ledger.faults(thief.sign(Checkpoint.of(ledger.heads[-1]).text()))


@on_both
def test_a_forged_head_is_found(ledger):
    size = Checkpoint.of(ledger.heads[-1]).size
    for forged in (
        ledger.heads[-1].replace("\n\N{EM DASH}", "\nx\N{EM DASH}"),
        ledger.heads[-1].replace(f"\n{size}\n", f"\n{size - 1}\n"),
        ledger.key.sign(Checkpoint("pauseledger/another", size, bytes(32)).text()),
        ledger.key.sign(Checkpoint(ledger.key.name, size, bytes(32)).text()),
    ):
        assert {fault.part for fault in ledger.faults(forged)} == {"head"}, forged
        ledger.do("UPDATE tree_heads SET checkpoint = ? WHERE size = ?", forged, size)
        assert "head" in {fault.part for fault in ledger.faults()}
        ledger.do("UPDATE tree_heads SET checkpoint = ? WHERE size = ?", ledger.heads[-1], size)
    ledger.do("DELETE FROM tree_heads WHERE size = ?", size)
    assert any("not among those kept" in fault.says for fault in ledger.faults())


@on_both
def test_what_is_altered_behind_the_last_head_is_not_found_and_is_told_as_unsealed(ledger):
    """The bound that docs/evidence.md states: until the next head goes out, the database's owner can write it anew."""
    truncate(ledger, Checkpoint.of(ledger.heads[2]).size)
    ((position, size),) = ledger.do("SELECT position, size FROM sealing")
    assert ledger.faults(*ledger.heads[:3]) == []
    checked = Check(ledger.recorder, sealed_rows(ledger.recorder), [ledger.key.verifier]).run()
    assert (checked.rows, checked.leaves, checked.unsealed, checked.proved) == (position, size, 0, size)
