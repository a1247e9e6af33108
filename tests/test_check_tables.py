"""Check names what is wrong with the tables themselves: some that are gone, settings that are none, rules taken away."""

import json
import sqlite3
from contextlib import closing

import psycopg
import pytest
from pauseledger.infrastructure.cli import main
from pauseledger.infrastructure.keys import KeyFile
from pauseledger.infrastructure.store import TABLES
from pauseledger.infrastructure.stories import Stage, asked


@pytest.fixture(params=["sqlite", "postgresql"])
async def stage(request, tmp_path):
    sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'ledger.db'}" if sqlite else request.getfixturevalue("pg_dsn")
    KeyFile(tmp_path / "keys").create()
    made = Stage(url, tmp_path / "keys")
    async with made.ledger() as ledger:
        await asked(ledger)
    return made


def change(stage, *statements):
    """Do what the database's owner can do."""
    if stage.url.startswith("sqlite"):
        with closing(sqlite3.connect(stage.url[10:])) as connection, connection:
            connection.execute("PRAGMA ignore_check_constraints = ON")
            for statement in statements:
                connection.execute(statement)
        return
    with psycopg.connect(stage.url, autocommit=True, options="-c search_path=pauseledger") as connection:
        for statement in statements:
            connection.execute(statement)


def checked(stage, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["check", "--no-views", "--json", "--store", stage.url, "--keys-dir", str(stage.keys)])
    said = json.loads(capsys.readouterr().out)
    return ended.value.code, [fault["says"] for fault in said.get("faults", ())] or said


@pytest.mark.parametrize("table", [name for name in TABLES if name != "stored_events"])
def test_a_table_that_is_gone_is_a_named_fault(stage, capsys, table):
    change(stage, f"DROP TABLE {table}" + ("" if stage.url.startswith("sqlite") else " CASCADE"))
    code, says = checked(stage, capsys)
    assert (code, says) == (5, [f"table {table} is gone; nothing else was checked"])


def test_a_rule_that_was_taken_away_is_a_fault_and_the_rows_are_proved_without_it(stage, capsys):
    assert checked(stage, capsys)[0] == 0
    on = "" if stage.url.startswith("sqlite") else " ON sealing"
    change(stage, f"DROP TRIGGER sealing_forward{on}")
    code, says = checked(stage, capsys)
    assert code == 5
    assert len(says) == 1
    assert "a rule that guards the ledger's tables is broken: trigger sealing_forward" in says[0]


def test_a_rule_that_no_longer_does_anything_is_a_fault(stage, capsys):
    """One that bears the name, and lets everything through."""
    if stage.url.startswith("sqlite"):
        does = "CREATE TRIGGER stored_events_no_update BEFORE UPDATE ON stored_events BEGIN SELECT 1; END"
        change(stage, "DROP TRIGGER stored_events_no_update", does)
        changed = "trigger stored_events_no_update"
    else:
        head = "CREATE OR REPLACE FUNCTION append_only() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER"
        change(stage, f"{head} SET search_path = pg_catalog, pg_temp AS 'BEGIN RETURN NULL; END'")
        changed = "function append_only"
    code, says = checked(stage, capsys)
    assert (code, len(says)) == (5, 1)
    assert f"{changed} does not do what it did" in says[0]


@pytest.mark.parametrize("stage", ["postgresql"], indirect=True)
def test_each_key_and_condition_that_was_taken_away_is_a_fault(stage, capsys):
    statement = (
        "SELECT relname, conname, contype::text FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid"
        " WHERE relnamespace = 'pauseledger'::regnamespace AND contype IN ('p', 'u', 'c')"
    )
    constraints = stage.sql(statement)
    assert {table for table, *_ in constraints} == set(TABLES)
    assert checked(stage, capsys)[0] == 0
    # With the key of streams away, no ledger is opened at all.
    held = [(table, name) for table, name, _ in constraints if name != "stored_events_stream"]
    change(stage, *(f"ALTER TABLE {table} DROP CONSTRAINT {name}" for table, name in held))
    change(stage, "ALTER TABLE stored_events ALTER topic DROP NOT NULL")
    code, says = checked(stage, capsys)
    assert code == 5
    gone = {tuple(one.partition("broken: ")[2].partition(" (")[0].split(" on ")[::-1]) for one in says}
    assert gone == {*held, ("stored_events", "topic")}


@pytest.mark.parametrize("stage", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    "how",
    ["CHECK (originator_version >= -9)", "CHECK (originator_version >= 0) NOT VALID", "CHECK (true)"],
)
def test_a_condition_of_the_same_name_that_holds_less_is_a_fault(stage, capsys, how):
    rule = "stored_events_originator_version_check"
    change(
        stage,
        f"ALTER TABLE stored_events DROP CONSTRAINT {rule}",
        f"ALTER TABLE stored_events ADD CONSTRAINT {rule} {how}",
    )
    code, says = checked(stage, capsys)
    assert (code, len(says)) == (5, 1)
    assert f"{rule} on stored_events (CHECK ((originator_version >= 0))) is not there as it was made" in says[0]


@pytest.mark.parametrize("stage", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("table", "held"), [("sealed", "CHECK (leaf_index >= 0)"), ("stored_events", "state BLOB NOT NULL")]
)
def test_a_condition_that_was_taken_out_of_a_file_is_a_fault(stage, capsys, table, held):
    less = held.replace("NOT NULL", "") if "NOT NULL" in held else ""
    change(
        stage,
        "PRAGMA writable_schema = ON",
        f"UPDATE sqlite_master SET sql = replace(sql, '{held}', '{less}') WHERE name = '{table}'",
    )
    code, says = checked(stage, capsys)
    assert (code, len(says)) == (5, 1)
    assert f"table {table} is not as it was made" in says[0]


def test_a_trigger_that_somebody_added_is_a_fault(stage, capsys):
    """One that passes for nobody's guard: on a table that has guards of its own, and on one that has none."""
    if stage.url.startswith("sqlite"):
        change(
            stage, *(f"CREATE TRIGGER more_{on} AFTER INSERT ON {on} BEGIN SELECT 1; END" for on in ("Sealed", "lease"))
        )
    else:
        change(
            stage,
            "CREATE FUNCTION more() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
            "CREATE TRIGGER more_sealed BEFORE INSERT ON sealed FOR EACH ROW EXECUTE FUNCTION more()",
            # By a name that is the package's, on another table than there.
            "CREATE TRIGGER sealing_forward BEFORE INSERT ON lease FOR EACH ROW EXECUTE FUNCTION more()",
            "CREATE RULE more_heads AS ON INSERT TO tree_heads DO INSTEAD NOTHING",
        )
    code, says = checked(stage, capsys)
    added = [one.partition("tables: ")[2].partition(" is not of")[0].lower() for one in says]
    wanted = (
        ["trigger 'more_sealed' on sealed", "trigger 'more_lease' on lease"]
        if stage.url.startswith("sqlite")
        else [
            "trigger 'sealing_forward' on lease",
            "trigger 'more_sealed' on sealed",
            "rule 'more_heads' on tree_heads",
        ]
    )
    assert (code, sorted(added)) == (5, sorted(wanted))


@pytest.mark.parametrize("stage", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("function", "how"),
    [
        ("seal_forward()", "SECURITY INVOKER"),
        ("guard_vault()", "SECURITY DEFINER"),
        ("record_reading(bigint, bytea)", "SET search_path = public"),
        ("guard_vault()", "RESET search_path"),
        ("seal_forward()", "SET work_mem = '4MB'"),
    ],
)
def test_a_function_that_runs_by_other_rights_or_names_is_a_fault(stage, capsys, function, how):
    change(stage, f"ALTER FUNCTION {function} {how}")
    code, says = checked(stage, capsys)
    assert (code, len(says)) == (5, 1)
    assert f"function {function.partition('(')[0]} does not run as it did" in says[0]


@pytest.mark.parametrize("stage", ["postgresql"], indirect=True)
def test_a_hosts_own_function_of_the_same_name_is_no_fault_and_hides_none(stage, capsys):
    language = "LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
    change(stage, f"CREATE FUNCTION bound(numeric) RETURNS numeric {language}")
    assert checked(stage, capsys)[0] == 0
    change(stage, f"CREATE OR REPLACE FUNCTION bound() RETURNS bigint {language}")
    code, says = checked(stage, capsys)
    assert code == 5
    assert any("function bound " in one for one in says), says
    change(stage, "DROP FUNCTION record_reading")
    assert any("function record_reading is gone" in one for one in checked(stage, capsys)[1])


@pytest.mark.parametrize("stage", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("setting", "value", "told"),
    [
        ("ledger_id", "'xyz'", "id"),
        ("ledger_id", "CAST(x'ff' AS TEXT)", "id"),
        ("ledger_id", "x'00'", "id"),
        ("identity_key", "'short'", "identity key"),
        ("identity_key", "x'00'", "identity key"),
        ("epoch", "'now'", "epoch"),
        ("epoch", "70000", "epoch"),
        ("schema_revision", "'four'", "row, or its schema's revision,"),
    ],
)
def test_a_setting_that_was_altered_into_none_is_named(stage, capsys, setting, value, told):
    change(stage, f"UPDATE ledger SET {setting} = {value}")
    code, says = checked(stage, capsys)
    assert code == 5
    assert f"the ledger's {told} is not what was written" in str(says)
    with pytest.raises(SystemExit) as ended:
        main(["stats", "--json", "--store", stage.url, "--keys-dir", str(stage.keys)])
    assert ended.value.code in {2, 5}


def test_a_ledger_without_its_row_is_named(stage, capsys):
    change(stage, "DELETE FROM ledger")
    code, says = checked(stage, capsys)
    assert code == 5
    assert "put its row back" in str(says)


@pytest.mark.parametrize("stage", ["sqlite"], indirect=True)
@pytest.mark.parametrize("value", ["'text'", "x'00'", "7", "CAST(x'ff' AS TEXT)"])
def test_a_key_of_the_vault_that_was_altered_into_none_is_named_without_the_vault_key(
    stage, capsys, monkeypatch, value
):
    change(stage, "DROP TRIGGER vault_guard", f"UPDATE vault SET content = {value}")
    monkeypatch.setenv("PAUSELEDGER_KEYS", "none is needed")
    code, says = checked(stage, capsys)
    assert code == 5
    assert "the content key is no wrapped key" in says
