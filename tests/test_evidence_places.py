"""Evidence that is read from odd places or written to taken ones: nobody waits for good, and nothing is overwritten."""

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from pauseledger import Actor, InteractionConfigurationError
from pauseledger.infrastructure import export, verify
from pauseledger.infrastructure.anchors import AnchorUnavailable, FileAnchor
from pauseledger.infrastructure.cli import run
from pauseledger.infrastructure.patient import read_patiently
from pauseledger.infrastructure.stories import SCOPE, Stage, asked


@pytest.fixture
async def stage(tmp_path):
    made = Stage(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "keys")
    async with made.ledger() as ledger:
        made.pause = (await asked(ledger)).pause_id
    return made


@pytest.fixture
def operator(stage, capsys):
    def call(*arguments):
        at = ("--json", "--store", stage.url, "--keys-dir", str(stage.keys))
        code = run([*map(str, arguments), *at])
        return code, json.loads(capsys.readouterr().out)

    return call


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_a_pipe_is_read_for_a_while_and_not_for_good(pipe, operator, monkeypatch):
    with pytest.raises(TimeoutError):
        read_patiently(pipe, seconds=0.05)
    writer = threading.Thread(target=pipe.write_text, args=("a head",))
    writer.start()
    assert read_patiently(pipe, seconds=5.0) == b"a head"
    writer.join()
    monkeypatch.setattr("pauseledger.infrastructure.anchors.DEADLINE", 0.05)
    with pytest.raises(AnchorUnavailable):
        FileAnchor(pipe).newest()
    with pytest.raises(OSError, match="more than 5 bytes"):
        read_patiently(Path("/dev/zero"), most=5)
    monkeypatch.setattr(
        "pauseledger.infrastructure.cli_evidence.read_patiently", lambda path: read_patiently(path, seconds=0)
    )
    assert operator("check", "--head", pipe)[0] == 2


def test_a_terminal_is_waited_for_as_a_pipe_is():
    ours, theirs = pty.openpty()
    name = Path(os.ttyname(theirs))
    with pytest.raises(TimeoutError):
        read_patiently(name, seconds=0.05)
    os.write(ours, b"a head\n\x04")
    assert read_patiently(name, seconds=5.0) == b"a head\n"
    os.close(ours)
    os.close(theirs)


def test_a_bundle_that_holds_a_pipe_is_turned_down_unread(operator, tmp_path):
    assert operator("export", "--all-tenants", "--seal", "--no-report", "--out", tmp_path / "bundle")[0] == 0
    key = (tmp_path / "bundle" / "public-key.txt").read_text()
    assert verify.verify(tmp_path / "bundle", key)[0] == []
    (tmp_path / "bundle" / "head.txt").unlink()
    os.mkfifo(tmp_path / "bundle" / "head.txt")
    assert verify.verify(tmp_path / "bundle", key) == (["head.txt: neither a file nor a folder"], "nothing")


def test_of_two_exports_to_one_archive_one_is_told_that_it_is_taken(operator, tmp_path, monkeypatch):
    operator("seal")
    pack = export._pack

    def another_meanwhile(folder, to):
        pack(folder, to)
        (tmp_path / "z.zip").write_text("another one's")

    monkeypatch.setattr(export, "_pack", another_meanwhile)
    code, told = operator("export", "--all-tenants", "--no-report", "--out", tmp_path / "z.zip")
    assert (code, told["outcome"]) == (2, "misconfigured")
    assert (tmp_path / "z.zip").read_text() == "another one's"
    assert not list(tmp_path.glob(".export-*"))


def test_where_media_have_no_second_names_an_archive_is_moved(operator, tmp_path, monkeypatch):
    operator("seal")

    def no_links(*_):
        raise PermissionError

    monkeypatch.setattr(Path, "hardlink_to", no_links)
    assert operator("export", "--all-tenants", "--no-report", "--out", tmp_path / "z.zip")[0] == 0
    assert (tmp_path / "z.zip").stat().st_size > 0


def test_what_a_killed_export_left_is_removed_by_the_next_and_what_is_under_way_is_not(operator, tmp_path):
    operator("seal")
    script = (
        "import sys, time; from pathlib import Path; from pauseledger.infrastructure.export import _placed\n"
        "with _placed(Path(sys.argv[1])) as folder:\n    print(folder.parent, flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "theirs")]
    killed, alive = (subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2))
    left, held = (Path(process.stdout.readline().strip()) for process in (killed, alive))
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    # Somebody else's: of another program, and of another machine on a folder that both see.
    settings, elsewhere = tmp_path / ".export-settings", tmp_path / ".export-elsewhere"
    for folder in (settings, elsewhere):
        folder.mkdir()
        (folder / "precious").write_text("kept")
    (elsewhere / "of-pauseledger").write_text(f"pauseledger export on another-host as {os.getuid()}\n")
    for folder in (left, held, settings, elsewhere):
        os.utime(folder, (time.time() - 3600,) * 2)
    assert operator("export", "--all-tenants", "--no-report", "--out", tmp_path / "mine")[0] == 0
    assert (left.exists(), held.exists()) == (False, True)
    assert [(folder / "precious").read_text() for folder in (settings, elsewhere)] == ["kept", "kept"]
    alive.kill()
    alive.wait()


def test_no_other_log_key_is_made_where_heads_were_signed_by_one_that_is_gone(operator, stage):
    operator("seal")
    first = operator("keys", "log")[1]["public_key"]
    (stage.keys / "log-key.json").rename(stage.keys / "kept")
    for command in (("seal",), ("keys", "log"), ("export", "--all-tenants", "--seal", "--out", stage.keys / "bundle")):
        code, told = operator(*command)
        assert (code, told["outcome"]) == (2, "misconfigured"), told
        assert "put log-key.json back" in told["says"]
        assert not (stage.keys / "log-key.json").exists()
    assert operator("keys", "log", "--another")[1]["public_key"] != first
    shutil.move(stage.keys / "kept", stage.keys / "log-key.json")
    assert operator("keys", "log")[1]["public_key"] == first


def test_a_mistyped_path_of_views_is_told_and_no_file_made(operator, tmp_path):
    views = ("--views", f"sqlite:///{tmp_path / 'typo.db'}")
    for command in (("open", "--all-tenants"), ("check",), ("lag",)):
        code, told = operator(*command, *views)
        assert (code, told["outcome"]) == (2, "misconfigured"), told
        assert f"there are no views at {tmp_path / 'typo.db'}" in told["says"]
        assert not (tmp_path / "typo.db").exists()
    assert operator("rebuild", "all", *views)[0] == 0
    assert operator("open", "--all-tenants", *views)[0] == 0


async def test_an_erasure_is_told_in_the_history_of_its_pause(stage):
    async with stage.ledger() as ledger:
        await ledger.operator(Actor("olga")).erase(stage.pause, "content", "gdpr-17")
        await ledger.views.catch_up()
        told = await ledger.views.history.of_pause(SCOPE, stage.pause)
        says = await ledger.views.sentences(told)
    words = [one.what for one in told]
    assert "ordered that what was said be erased" in says[words.index("erasure.ordered")]
    assert "what was said was erased for good" in says[words.index("erasure.ended")].lower()


def test_an_export_that_finds_its_place_taken_says_so(tmp_path):
    with (
        pytest.raises(InteractionConfigurationError, match="nothing is left"),
        export._placed(tmp_path / "taken") as folder,
    ):
        (folder / "one").write_text("")
        (tmp_path / "taken").mkdir()
        (tmp_path / "taken" / "another").write_text("")
    assert not list(tmp_path.glob(".export-*"))


def test_an_export_that_cannot_mark_its_folder_leaves_none(tmp_path, monkeypatch):
    make = export.tempfile.mkdtemp

    def with_another_in_its_place(**where):
        folder = make(**where)
        (Path(folder) / "of-pauseledger").symlink_to("nowhere")
        return folder

    monkeypatch.setattr(export.tempfile, "mkdtemp", with_another_in_its_place)
    with pytest.raises(InteractionConfigurationError, match="nothing is left"), export._placed(tmp_path / "out"):
        pass
    assert list(tmp_path.iterdir()) == []
