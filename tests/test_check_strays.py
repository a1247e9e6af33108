"""Check names what stands outside of the sealed tree, and rows that no rule of the tables would let in."""

import asyncio
import json
import shutil
import sqlite3
from contextlib import closing
from uuid import UUID, uuid4

import psycopg
import pytest
from pauseledger.infrastructure.cli import main
from pauseledger.infrastructure.stories import ANSWER, Stage, asked

#: More than a tile has.
PAUSES = 90


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def stage(request, tmp_path_factory):
    """A ledger with a tile that is full, sealed, its head signed."""
    folder = tmp_path_factory.mktemp("made")
    url = f"sqlite:///{folder / 'ledger.db'}"
    if request.param == "postgresql":
        pg = request.getfixturevalue("pg")
        url = pg.dsn(pg.fresh_database(request.getfixturevalue("pg_template")))
    made = Stage(url, folder / "keys")
    asyncio.run(lead(made))
    assert made.count() > 256
    return made


@pytest.fixture
def mine(stage, request, tmp_path):
    """Copy it, for what cannot be put back."""
    if stage.url.startswith("sqlite"):
        shutil.copy(stage.url[10:], tmp_path / "ledger.db")
        return Stage(f"sqlite:///{tmp_path / 'ledger.db'}", stage.keys)
    pg = request.getfixturevalue("pg")
    return Stage(pg.dsn(pg.fresh_database(psycopg.conninfo.conninfo_to_dict(stage.url)["dbname"])), stage.keys)


async def lead(stage):
    async with stage.ledger() as ledger:
        for turn in range(PAUSES):
            await (await asked(ledger, idempotency_key=str(turn))).redeem(ANSWER)
            if turn == PAUSES // 2:
                leave_a_position_out(stage)
        ledger.notary(make_key=True).seal()


def leave_a_position_out(stage):
    """Draw one for nothing, as a writer does that rolls back."""
    if stage.url.startswith("sqlite"):
        stage.sql("UPDATE sqlite_sequence SET seq = seq + 1")
    else:
        stage.sql("SELECT nextval('pauseledger.stored_events_notification_id_seq')")


async def pause_once_more(stage, key):
    async with stage.ledger() as ledger:
        await asked(ledger, idempotency_key=key)


def change(stage, *statements):
    """Do what the database's owner can do, by every rule of the tables or none."""
    if stage.url.startswith("sqlite"):
        with closing(sqlite3.connect(stage.url[10:])) as connection, connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            for statement, *values in statements:
                connection.execute(statement, values)
        return
    with psycopg.connect(stage.url, autocommit=True, options="-c search_path=pauseledger") as connection:
        for statement, *values in statements:
            connection.execute(statement.replace("?", "%s"), values)


def told(stage, capsys, *command):
    with pytest.raises(SystemExit) as ended:
        main([*command, "--json", "--store", stage.url, "--keys-dir", str(stage.keys)])
    said = capsys.readouterr()
    return ended.value.code, json.loads(said.out or said.err)


def faults(stage, capsys):
    code, said = told(stage, capsys, "check", "--no-views")
    found = [(fault["part"], fault["says"]) for fault in said["faults"]]
    assert code == (5 if found else 0)
    return found


def taken_out(stage, table, column, value):
    """Remove what was put in, past the guard that keeps it there."""
    if stage.url.startswith("sqlite"):
        ((guard,),) = stage.sql("SELECT sql FROM sqlite_master WHERE name = ?", (f"{table}_no_delete",))
        change(
            stage, (f"DROP TRIGGER {table}_no_delete",), (f"DELETE FROM {table} WHERE {column} = ?", value), (guard,)
        )
    else:
        change(
            stage,
            (f"ALTER TABLE {table} DISABLE TRIGGER {table}_append_only",),
            (f"DELETE FROM {table} WHERE {column} = ?", value),
            (f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {table}_append_only",),
        )


def test_a_leaf_apart_from_the_others_is_named_and_sealing_says_to_look(stage, capsys):
    assert faults(stage, capsys) == []
    # At the position of no row, and at that of the next one.
    for index, ahead in ((50_000, 10**9), (2**40, 1)):
        size, position = stage.count(), stage.rows()[-1].position + ahead
        change(stage, ("INSERT INTO sealed VALUES (?, ?, ?)", index, position, bytes(32)))
        says = f"a leaf stands apart from the {size} that were sealed, and keeps others from it; remove it"
        assert faults(stage, capsys) == [("tree", says)]
        asyncio.run(pause_once_more(stage, f"behind {index}"))
        code, said = told(stage, capsys, "seal")
        assert (code, "check` names them" in str(said)) == (5, True), said
        taken_out(stage, "sealed", "leaf_index", index)
        assert told(stage, capsys, "seal")[0] == 0
    assert faults(stage, capsys) == []


@pytest.mark.parametrize(("line", "place"), [(1, 77), (1, 1), (1, -1), (2, 0), (7, 0), (8, 0), (9, 0), (2**31 - 1, 0)])
def test_a_tile_of_no_leaves_is_named(stage, capsys, line, place):
    change(stage, ("INSERT INTO sealed_tiles VALUES (?, ?, ?)", line, place, bytes(32)))
    says = f"tile {place} of row {line} is of no leaves that were sealed; remove it"
    assert faults(stage, capsys) == [("tree", says)]
    taken_out(stage, "sealed_tiles", "hash", bytes(32))


@pytest.mark.parametrize("size", [0, -5])
def test_a_head_of_no_leaves_is_named(stage, capsys, size):
    change(stage, ("INSERT INTO tree_heads (size, checkpoint, made_at) VALUES (?, 'x', " + made_at(stage) + ")", size))
    assert [part for part, _ in faults(stage, capsys)] == ["head"]
    taken_out(stage, "tree_heads", "size", size)


def made_at(stage):
    return "0" if stage.url.startswith("sqlite") else "now()"


@pytest.mark.parametrize("stage", ["postgresql"], indirect=True)
@pytest.mark.parametrize("column", ["topic", "state"])
def test_a_column_that_was_altered_into_nothing_is_named_and_the_rest_is_read(stage, capsys, column):
    row = stage.rows()[7]
    put = f"UPDATE stored_events SET {column} = ? WHERE notification_id = {row.position}"
    lax = f"ALTER TABLE stored_events ALTER {column} "
    off = "ALTER TABLE stored_events DISABLE TRIGGER stored_events_append_only"
    on = "ALTER TABLE stored_events ENABLE ALWAYS TRIGGER stored_events_append_only"
    change(stage, (off,), (lax + "DROP NOT NULL",), (put, None))
    code, said = told(stage, capsys, "check", "--no-views")
    change(stage, (put, getattr(row, column)), (lax + "SET NOT NULL",), (on,))
    there = [fault["part"] for fault in said["faults"] if fault["position"] == row.position]
    assert (code, "row" in there, "tree" in there) == (5, True, column == "state")
    assert said["rows"] == stage.count()
    assert faults(stage, capsys) == []


@pytest.mark.parametrize("stage", ["sqlite"], indirect=True)
@pytest.mark.parametrize("column", ["size", "position"])
def test_a_tip_that_was_altered_into_no_number_is_named(stage, capsys, column):
    ((guard,),) = stage.sql("SELECT sql FROM sqlite_master WHERE name = 'sealing_forward'")
    ((was,),) = stage.sql(f"SELECT {column} FROM sealing")
    change(stage, ("DROP TRIGGER sealing_forward",), (f"UPDATE sealing SET {column} = 'far'",), (guard,))
    says = [says for part, says in faults(stage, capsys) if part == "tree"]
    assert len(says) == 1
    assert says[0].startswith("sealing stands at leaf 0, position 0; the leaves end at")
    assert told(stage, capsys, "seal")[0] == 5
    change(stage, ("DROP TRIGGER sealing_forward",), (f"UPDATE sealing SET {column} = ?", was), (guard,))


def test_a_row_that_no_rule_lets_in_is_named_below_every_stream(stage, capsys):
    place, none = ("originator_version", UUID(int=0))
    if stage.url.startswith("sqlite"):
        ((guard,),) = stage.sql("SELECT sql FROM sqlite_master WHERE name = 'stored_events_in_turn'")
        columns = "originator_id, originator_version, topic, state"
        insert = f"INSERT INTO stored_events ({columns}) VALUES (?, -5, 'pause.paused@1', ?)"
        change(stage, ("DROP TRIGGER stored_events_in_turn",), (insert, none.hex, b"garbage"), (guard,))
    else:
        rule = "stored_events_originator_version_check"
        change(
            stage,
            (f"ALTER TABLE stored_events DROP CONSTRAINT {rule}",),
            ("ALTER TABLE stored_events DISABLE TRIGGER stored_events_in_turn",),
            ("INSERT INTO stored_events VALUES (?, -5, 'pause.paused@1', ?)", none, b"garbage"),
            ("ALTER TABLE stored_events ENABLE ALWAYS TRIGGER stored_events_in_turn",),
            (f"ALTER TABLE stored_events ADD CONSTRAINT {rule} CHECK (originator_version >= 0) NOT VALID",),
        )
    assert ("row", "its stream's id is none") in faults(stage, capsys)
    taken_out(stage, "stored_events", place, -5)


def test_a_row_that_turned_up_below_what_was_sealed_is_named_and_so_is_its_late_leaf(mine, capsys):
    positions = [row.position for row in mine.rows()]
    gap = min(set(range(1, positions[-1])) - set(positions))
    row = mine.rows()[0]
    columns, place = "originator_id, originator_version, topic, state", "rowid"
    stream, override = uuid4().hex, ""
    if not mine.url.startswith("sqlite"):
        place, override = "notification_id", "OVERRIDING SYSTEM VALUE"
    late = f"INSERT INTO stored_events ({place}, {columns}) {override} VALUES (?, ?, 1, ?, ?)"
    change(mine, (late, gap, stream, row.topic, row.state))
    assert ("tree", "a row turned up below what was sealed, at no leaf") in faults(mine, capsys)
    assert told(mine, capsys, "seal")[1]["late"] == [gap]
    found = faults(mine, capsys)
    assert ("tree", "a late leaf: its row turned up below what was sealed") in found
    assert ("tree", "a row turned up below what was sealed, at no leaf") not in found
