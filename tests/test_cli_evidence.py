"""The command line's evidence: seal, head, prove, and the log key, as an operator and an auditor use them."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing

import pauseledger as pl
import pytest
from pauseledger.infrastructure.check_views import views_faults
from pauseledger.infrastructure.cli import run
from pauseledger.infrastructure.headers import Log
from pauseledger.infrastructure.log_key import LOG_KEY_VARIABLE
from pauseledger.infrastructure.mapper import FactMapper
from pauseledger.infrastructure.merkle import leaf_hash
from pauseledger.infrastructure.notes import Checkpoint, Proof, Verifier
from pauseledger.infrastructure.raw_check import read
from pauseledger.infrastructure.stories import asked
from pauseledger.infrastructure.views import rows_of
from pauseledger.projections import PROJECTIONS

QUESTION = {"questions": [{"question": "Where to?", "options": [{"label": "Staging"}, {"label": "Production"}]}]}
CALL = {"id": "call_1", "type": "function", "function": {"name": "ask_user", "arguments": "{}"}}
TURN = [{"role": "user", "content": "Deploy."}, {"role": "assistant", "content": None, "tool_calls": [CALL]}]
AXES = ("--tenant", "acme", "--session", "s", "--run", "r")


@pytest.fixture
def operator(tmp_path, monkeypatch, capsys):
    """Run a command, and give its exit code and JSON."""
    monkeypatch.setenv("PAUSELEDGER_STORE", f"sqlite:///{tmp_path / 'ledger.db'}")
    monkeypatch.setenv("PAUSELEDGER_KEYS_DIR", str(tmp_path / "keys"))
    (tmp_path / "question").write_text(json.dumps(QUESTION))
    (tmp_path / "turn").write_text(json.dumps(TURN))

    def call(*arguments, **_):
        code = run([*map(str, arguments), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def pause(operator, tmp_path):
    files = ("--request", tmp_path / "question", "--turn", tmp_path / "turn", "--format", "openai-chat")
    return operator("pause", *AXES, "--interaction", "ask_user", *files)[1]["pause_id"]


def key(operator):
    return Verifier.parse(operator("keys", "log")[1]["public_key"])


def test_a_pause_is_sealed_and_proved_with_the_public_key_alone(operator, pause, tmp_path):
    code, sealed = operator("seal", "--anchor", (tmp_path / "away" / "head.txt").as_uri())
    assert (code, sealed["outcome"], sealed["sealed"], sealed["late"]) == (0, "sealed", 1, [])
    code, head = operator("head")
    assert (code, head["size"], head["checkpoint"]) == (0, 1, (tmp_path / "away" / "head.txt").read_text())
    assert Checkpoint.open(head["checkpoint"], [key(operator)]).root.hex() == head["root"]
    operator("withdraw", pause, "--operator", "maria")
    code, told = operator("prove", pause)
    assert (code, told["outcome"]) == (2, "misconfigured")
    assert "pauseledger seal" in told["says"]
    operator("seal")
    code, told = operator("prove", pause)
    assert [(one["version"], one["topic"]) for one in told["facts"]] == [
        (1, "pause.paused@1"),
        (2, "pause.withdrawn@1"),
    ]
    rows = read(f"sqlite:///{tmp_path / 'ledger.db'}").rows
    for one, row in zip(told["facts"], rows, strict=True):
        assert Proof.parse(one["proof"]).verify(leaf_hash(row.state[4:36]), [key(operator)]).size == 2
    code, told = operator("prove", pause, "--version", 2, "--out", tmp_path / "proofs")
    assert told["files"] == ["1.tlog-proof"]
    assert Proof.parse((tmp_path / "proofs" / "1.tlog-proof").read_text("utf-8")).index == 1


def test_a_newer_head_is_proved_to_begin_with_one_kept_outside(operator, pause, tmp_path):
    operator("seal")
    (tmp_path / "kept").write_text(operator("head")[1]["checkpoint"])
    operator("withdraw", pause, "--operator", "maria")
    operator("seal")
    code, told = operator("head", "--since", tmp_path / "kept")
    assert (code, told["size"], len(told["consistency"])) == (0, 2, 1)
    (tmp_path / "kept").write_text("no head")
    code, told = operator("head", "--since", tmp_path / "kept")
    assert (code, told["outcome"]) == (5, "faults")


def test_a_truncated_log_is_not_signed_over_the_head_kept_outside(operator, pause, tmp_path):
    operator("withdraw", pause, "--operator", "maria")
    anchor = ("--anchor", (tmp_path / "head.txt").as_uri())
    operator("seal", *anchor)
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection, connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("DELETE FROM stored_events WHERE rowid = 2")
        connection.execute("DELETE FROM sealed WHERE leaf_index = 1")
        connection.execute("DELETE FROM tree_heads")
        connection.execute("UPDATE sealing SET size = 1, position = 1")
    code, told = operator("seal", *anchor)
    assert (code, told["outcome"]) == (5, "faults")
    assert "2 leaves were sealed, and 1 are here" in told["says"]


def test_nothing_is_proved_before_a_head_is_signed(operator, pause):
    for command in (("head",), ("prove", pause)):
        code, told = operator(*command)
        assert (code, told["outcome"]) == (2, "misconfigured")
        assert "pauseledger seal" in told["says"]
    operator("seal")
    code, told = operator("prove", "00000000-0000-8000-8000-000000000000")
    assert (code, told["reason"]) == (3, "request_missing")


def test_before_the_first_head_check_and_export_say_how_it_is_made(operator, pause, tmp_path, capsys):
    code, told = operator("export", "--all-tenants", "--out", tmp_path / "bundle")
    assert (code, told["says"]) == (
        2,
        "no head was signed yet; whoever runs the ledger runs `pauseledger keys log` once, then `pauseledger seal`",
    )
    assert run(["check"]) == 0
    said = capsys.readouterr().out
    assert "whole   no fault was found\n" in said
    assert (
        "proved  no head was signed yet; whoever runs the ledger runs `pauseledger keys log` once, then `pauseledger seal`\n"
        in said
    )
    operator("seal")
    assert run(["check"]) == 0
    assert "proved  1 leaves under the largest head that holds\n" in capsys.readouterr().out


def test_the_log_key_is_made_once_kept_to_its_owner_and_never_shown(operator, pause, tmp_path, monkeypatch):
    file = tmp_path / "keys" / "log-key.json"
    first = key(operator)
    assert (first, file.stat().st_mode & 0o777) == (key(operator), 0o600)
    seed = json.loads(file.read_text())["seed"]
    file.chmod(0o644)
    code, told = operator("keys", "log")
    assert (code, told["outcome"]) == (2, "misconfigured")
    assert "chmod 600" in told["says"]
    file.chmod(0o600)
    file.write_text("{}")
    code, told = operator("seal")
    assert code == 2
    assert "damaged" in told["says"]
    monkeypatch.setenv(LOG_KEY_VARIABLE, seed)
    assert key(operator) == first
    monkeypatch.setenv(LOG_KEY_VARIABLE, seed[:-5])
    code, told = operator("keys", "log")
    assert (code, seed[:-5] in json.dumps(told)) == (2, False)


def test_sealing_goes_on_until_it_is_told_to_end(operator, pause, tmp_path):
    command = [sys.executable, "-m", "pauseledger.infrastructure.cli", "seal", "--every", "0.1", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        url = f"sqlite:///{tmp_path / 'ledger.db'}"
        while not head_there(tmp_path):
            assert process.poll() is None
        operator("withdraw", pause, "--operator", "maria")
        while operator("head")[1]["size"] < 2:
            assert process.poll() is None
        process.terminate()
        told = json.loads(process.stdout.read())
    assert (process.returncode, told["sealed"], told["size"], len(read(url).rows)) == (0, 2, 2, 2)


def test_sealing_goes_on_though_an_anchor_or_the_store_cannot_speak(operator, pause, tmp_path):
    away = tmp_path / "away"
    away.write_text("no directory")
    anchor = ("--anchor", (away / "head.txt").as_uri())
    command = [sys.executable, "-m", "pauseledger.infrastructure.cli", "seal", *anchor, "--every", "0.1", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr.readline() == "seal    again every 0.1 s, until SIGINT (ctrl-C) or SIGTERM\n"
        assert "could not speak" in process.stderr.readline()
        with closing(sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)) as connection:
            connection.execute("ALTER TABLE sealing RENAME TO elsewhere")
            while "could not speak" in (line := process.stderr.readline()):
                assert process.poll() is None
            assert line.startswith("waits ")
            connection.execute("ALTER TABLE elsewhere RENAME TO sealing")
        away.unlink()
        while not (away / "head.txt").exists():
            assert process.poll() is None
        process.terminate()
        told = json.loads(process.communicate()[0])
    assert (process.returncode, told["sealed"], told["size"], told["head"]) == (
        0,
        1,
        1,
        (away / "head.txt").read_text(),
    )


def head_there(tmp_path):
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection:
        return connection.execute("SELECT count(*) FROM tree_heads").fetchone() == (1,)


def test_check_tells_of_a_whole_ledger_and_of_each_fault_with_its_position(operator, pause, tmp_path, capsys):
    operator("seal")
    (tmp_path / "head").write_text(operator("head")[1]["checkpoint"])
    (tmp_path / "key").write_text(str(key(operator)))
    given = ("--head", tmp_path / "head", "--public-key", tmp_path / "key")
    code, told = operator("check", *given)
    assert (code, told["outcome"], told["rows"], told["proved"], told["signed"]) == (0, "checked", 1, 1, True)
    operator("open", "--all-tenants")
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection, connection:
        connection.execute("DROP TRIGGER stored_events_no_update")
        connection.execute("UPDATE stored_events SET topic = 'pause.lapsed@1'")
    code, told = operator("check", *given)
    assert (code, told["outcome"]) == (5, "faults")
    assert {"row", "view"} <= {fault["part"] for fault in told["faults"]}
    assert told["faults"][0]["position"] == 1
    assert run(["check", "--no-views", "--head", str(tmp_path / "head")]) == 5
    said = capsys.readouterr().err
    assert said.startswith("fault   position 1, stream")
    code, told = operator("check", "--public-key", tmp_path / "nowhere")
    assert (code, told["outcome"]) == (2, "misconfigured")


@pytest.mark.parametrize("column", ["tool", "closes_at", "session_id", "priority"])
def test_check_finds_a_view_that_was_altered(operator, pause, tmp_path, column):
    operator("open", "--all-tenants")
    assert operator("check")[0] == 0
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection, connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for name in tables:
            columns = [one[1] for one in connection.execute(f"PRAGMA table_info('{name}')")]
            if name.startswith("view_open_pauses") and column in columns:
                connection.execute(f"UPDATE \"{name}\" SET {column} = '7'")
    code, told = operator("check")
    assert code == 5
    assert {(fault["part"], fault["view"]) for fault in told["faults"]} == {("view", "open_pauses")}


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM {} WHERE pause = (SELECT max(pause) FROM {})",
        "UPDATE {} SET run_id = 'another' WHERE pause = (SELECT max(pause) FROM {})",
        (
            "INSERT INTO {} SELECT 'ffffffff-ffff-ffff-ffff-ffffffffffff', scope, session_id, run_id, call_id, round FROM {}"
            " LIMIT 1"
        ),
        "SELECT {0}.pause FROM {0}",
    ],
)
async def test_a_row_of_a_view_that_was_altered_is_found_on_whichever_page_it_stands(tmp_path, monkeypatch, change):
    monkeypatch.setattr("pauseledger.infrastructure.check_views._PAGE", 2)
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    async with pl.open_ledger(url, pl.LedgerSettings(keys_directory=tmp_path / "keys")) as ledger:
        for run_key in range(4):
            await asked(ledger, idempotency_key=str(run_key))
        await ledger.views.catch_up()
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection, connection:
            tables = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'view_history_pauses%'"
            for (name,) in connection.execute(tables).fetchall():
                connection.execute(change.format(name, name))
        ledger_id = ledger.recorder.identity().ledger_id
        views = [(one, rows_of(one, ledger.recorder)) for one in (projection() for projection in PROJECTIONS)]
        faults = list(views_faults(Log(ledger.recorder, FactMapper(ledger_id), ledger_id), views))
    assert [fault.view for fault in faults] == ([] if change.startswith("SELECT") else ["history"])


def tampered(tmp_path, *statements):
    """Change the file as its owner can: without the triggers and the checks."""
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize(
    "statements",
    [
        ["DELETE FROM stored_events WHERE rowid = 2"],
        ["UPDATE stored_events SET rowid = rowid + 1000", "UPDATE sealed SET notification_id = notification_id + 1000"],
    ],
)
def test_check_ends_where_rows_are_gone_up_to_the_place_of_a_view(operator, pause, tmp_path, statements):
    files = ("--request", tmp_path / "question", "--turn", tmp_path / "turn", "--format", "openai-chat")
    again = ("pause", "--tenant", "acme", "--run", "r", "--interaction", "ask_user", *files)
    operator(*again, "--session", "t")
    operator("rebuild", "all")
    operator("seal")
    (tmp_path / "kept").write_text(operator("head")[1]["checkpoint"])
    tampered(tmp_path, *statements)
    operator(*again, "--session", "u")
    command = [
        sys.executable,
        "-m",
        "pauseledger.infrastructure.cli",
        "check",
        "--head",
        str(tmp_path / "kept"),
        "--json",
    ]
    done = subprocess.run(command, check=False, capture_output=True, timeout=60)
    assert done.returncode == 5, done.stderr
    assert json.loads(done.stdout)["faults"]


ALTERED = [
    ("stored_events", "originator_id", "'zz'"),
    ("stored_events", "originator_id", "x'ff'"),
    ("stored_events", "originator_version", "'x'"),
    ("stored_events", "topic", "x'ff'"),
    ("stored_events", "originator_id", "CAST(x'ff' AS TEXT)"),
    ("stored_events", "topic", "CAST(x'ff' AS TEXT)"),
    ("stored_events", "state", "CAST(x'ff41' AS TEXT)"),
    ("tree_heads", "checkpoint", "CAST(x'ff' AS TEXT)"),
    ("stored_events", "state", "x''"),
    ("stored_events", "state", "''"),
    ("stored_events", "state", "'abc'"),
    ("tree_heads", "checkpoint", "x'ff00ff'"),
    ("tree_heads", "made_at", "'abc'"),
    ("tree_heads", "made_at", "9000000000000000000"),
]


@pytest.mark.parametrize(("table", "column", "value"), ALTERED)
def test_a_column_altered_into_another_type_is_a_fault_at_its_place_and_ends_nothing(
    operator, pause, tmp_path, table, column, value
):
    operator("withdraw", pause, "--operator", "maria")
    operator("rebuild", "all")
    operator("seal")
    rows = table == "stored_events"
    tampered(tmp_path, f"UPDATE {table} SET {column} = {value} WHERE {'rowid' if rows else 'size'} = 2")
    code, told = operator("check")
    assert (code, told["outcome"]) == (5, "faults"), told
    assert 2 in {fault["position"] if rows else fault["leaf"] for fault in told["faults"]}
    if rows:
        assert operator("rebuild", "all")[0] == 0
        assert operator("events", "--all-tenants")[0] == 0
        assert operator("export", "--all-tenants", "--no-report", "--out", tmp_path / "bundle")[0] in {0, 5}


NOBODY = "00000000-0000-8000-8000-000000000000"
READING = [
    ("check",), ("head",), ("prove", NOBODY), ("show", NOBODY), ("events", "--all-tenants"), ("open", "--all-tenants"),
    ("history", "--tenant", "acme", "--session", "s"), ("refusals", "--all-tenants"), ("times", "--all-tenants"),
    ("stranded", "--all-tenants"), ("lag",), ("rebuild", "all"), ("policies",), ("switches",),
    ("export", "--all-tenants", "--out", "bundle"), ("hold", "list", "--operator", "maria", "--tenant", "acme"),
    ("subject", "maria", "--tenant", "acme"),
]  # fmt: skip


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_who_only_reads_makes_no_ledger_at_a_mistyped_path(operator, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    code, told = operator(*command, "--store", f"sqlite:///{tmp_path / 'typo' / 'ledger.db'}")
    assert (code, told["outcome"]) == (2, "misconfigured"), told
    assert f"there is no ledger at {tmp_path / 'typo' / 'ledger.db'}" in told["says"]
    assert not (tmp_path / "typo").exists()
    assert not (tmp_path / "keys").exists()


def test_files_that_cannot_be_what_they_are_given_for_are_bad_input(operator, pause, tmp_path):
    operator("seal")
    (tmp_path / "no-folder").write_text("")
    long = tmp_path / ("a" * 300)
    exports = ("export", "--all-tenants", "--no-report", "--out")
    for command, says in (
        (("check", "--public-key", "/dev/null"), "/dev/null: the public key is no Ed25519 key"),
        ((*exports, tmp_path / "bundle", "--public-key", "/dev/null"), "/dev/null: the public key is no Ed25519 key"),
        (("prove", pause, "--out", tmp_path / "no-folder"), f"cannot write into {tmp_path / 'no-folder'}"),
        ((*exports, long), f"cannot write {long}"),
    ):
        code, told = operator(*command)
        assert (code, told["outcome"]) == (2, "misconfigured"), told
        assert says in told["says"]


def test_a_bundle_is_its_owners_alone(operator, pause, tmp_path):
    operator("seal")
    assert operator("export", "--all-tenants", "--no-report", "--out", tmp_path / "bundle")[0] == 0
    found = {path.is_dir(): path.stat().st_mode & 0o777 for path in (tmp_path / "bundle").rglob("*")}
    assert found == {True: 0o700, False: 0o600}
    assert all(path.stat().st_mode & 0o077 == 0 for path in (tmp_path / "bundle").rglob("*"))
