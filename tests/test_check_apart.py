"""The views of a large ledger are compared by another process: its faults, its errors and its end come through."""

import asyncio
import json
import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest
from pauseledger import LedgerSettings, LedgerTooNew, StoreUnavailable
from pauseledger.infrastructure.check_apart import Opening, _waiting, comparing
from pauseledger.infrastructure.checking import check_ledger
from pauseledger.infrastructure.stories import Stage, asked
from pauseledger.infrastructure.wiring import open_recorder


@pytest.fixture
def stage(tmp_path):
    made = Stage(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "keys")

    async def lead():
        async with made.ledger() as ledger:
            await asked(ledger)
            await ledger.views.catch_up()

    asyncio.run(lead())
    return made


@pytest.fixture(params=["fork", "spawn"])
def way(request, monkeypatch):
    monkeypatch.setattr("pauseledger.infrastructure.check_apart._way", lambda: request.param)


@pytest.mark.usefixtures("way")
def test_what_another_process_finds_is_what_is_found_here(stage, monkeypatch):
    with closing(sqlite3.connect(stage.url[10:])) as connection, connection:
        connection.execute("UPDATE view_history_facts_4b SET version = 7")
    opening = Opening.of(stage.url, LedgerSettings())
    with closing(open_recorder(stage.url, LedgerSettings())) as recorder:
        here = check_ledger(recorder, opening)
        monkeypatch.setattr("pauseledger.infrastructure.checking.WORTH", 0)
        assert check_ledger(recorder, opening) == here
    assert [fault.view for fault in here.faults] == ["history"]


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_a_process_of_one_thread_is_forked_once_its_pool_is_at_rest(store, request, tmp_path):
    """What waits in a pool could hold a lock at that moment; a process of several threads is started anew."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}" if store == "sqlite" else request.getfixturevalue("pg_dsn")
    script = (
        "import sys, threading; from pauseledger import LedgerSettings\n"
        "from pauseledger.infrastructure import check_apart, checking\n"
        "from pauseledger.infrastructure.wiring import open_recorder\n"
        "checking.WORTH, ways = 0, []\n"
        "way = check_apart._way\n"
        "check_apart._way = lambda: ways.append(way()) or ways[-1]\n"
        "if __name__ == '__main__':\n"
        "    recorder = open_recorder(sys.argv[1], LedgerSettings())\n"
        "    recorder.migrate()\n"
        "    opening = check_apart.Opening.of(sys.argv[1], LedgerSettings())\n"
        "    assert checking.check_ledger(recorder, opening).found == 0\n"
        "    threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "    assert checking.check_ledger(recorder, opening).found == 0\n"
        "    print(*ways)\n"
    )
    path = tmp_path / "script.py"
    path.write_text(script)
    said = subprocess.run([sys.executable, str(path), url], capture_output=True, text=True, check=False)
    assert (said.stdout.split(), said.stderr) == (["fork" if sys.platform == "linux" else "spawn", "spawn"], "")


@pytest.mark.usefixtures("way")
def test_an_error_and_an_end_come_through(stage, tmp_path):
    nowhere = Opening.of("sqlite:////dev/null/ledger.db", LedgerSettings())
    with comparing(nowhere) as faults, pytest.raises(StoreUnavailable, match="ledger.db cannot be made"):
        list(faults)
    with comparing(Opening.of(stage.url, LedgerSettings())) as faults:
        [child] = multiprocessing.active_children()
        os.kill(child.pid, signal.SIGKILL)
        with pytest.raises(StoreUnavailable, match="was ended"):
            list(faults)
    assert multiprocessing.active_children() == []


def test_an_error_is_of_the_same_kind_as_there(stage):
    with closing(sqlite3.connect(stage.url[10:])) as connection, connection:
        connection.execute("UPDATE ledger SET schema_revision = 99")
    with comparing(Opening.of(stage.url, LedgerSettings())) as faults, pytest.raises(LedgerTooNew, match="schema@99"):
        list(faults)


def test_what_telling_how_far_it_is_raises_is_not_taken_for_its_end(monkeypatch):
    monkeypatch.setattr("pauseledger.infrastructure.check_apart._TELL", 0)

    def broken(*_):
        raise BrokenPipeError

    told, _telling = multiprocessing.Pipe(duplex=False)
    with pytest.raises(BrokenPipeError):
        list(_waiting(told, (0, 0), broken))


def test_one_that_ends_in_the_middle_of_a_word_is_told():
    told, telling = multiprocessing.Pipe(duplex=False)
    os.write(telling.fileno(), (1000).to_bytes(4, "big") + b"half")
    telling.close()
    with pytest.raises(StoreUnavailable, match="was ended"):
        list(_waiting(told, (0, 0), None))


def test_an_interrupt_ends_both_processes(stage):
    script = (
        "import sys; from pauseledger.infrastructure import checking, check_apart, cli\n"
        "checking.WORTH = 0\n"
        "def never(*_):\n"
        "    import multiprocessing, time\n"
        "    for child in multiprocessing.active_children():\n"
        "        print(child.pid, flush=True)\n"
        "    time.sleep(60); yield\n"
        "if __name__ == '__main__':\n"
        # A shell begins what runs in its background with this signal ignored.
        "    import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "    check_apart._waiting = never\n"
        # Of so small a ledger the other process would be done before it is looked for.
        "    check_apart._way, check_apart.views_faults = lambda: 'fork', never\n"
        "    cli.main(['check', '--json', '--store', sys.argv[1], '--keys-dir', sys.argv[2]])\n"
    )
    path = stage.keys.parent / "script.py"
    path.write_text(script)
    running = subprocess.Popen(
        [sys.executable, str(path), stage.url, str(stage.keys)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    child = int(running.stdout.readline())
    running.send_signal(signal.SIGINT)
    said, complained = running.communicate(timeout=20)
    assert (running.returncode, json.loads(said)["outcome"], complained) == (130, "interrupted", b"")
    deadline = time.monotonic() + 5
    while is_there(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_there(child)


def is_there(process):
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
