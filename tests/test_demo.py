"""The demo sees what it claims, and says so only then; it leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pauseledger.infrastructure import cli, demo


def ran(capsys, *arguments):
    capsys.readouterr()
    code = cli.run(["demo", *arguments])
    return code, *capsys.readouterr()


def test_the_demo(tmp_path):
    """As a user runs it: every claim seen, the story told, and nothing left in the temporary directory."""
    environment = {**os.environ, "TMPDIR": str(tmp_path), "HOME": str(tmp_path / "home"), "PAUSELEDGER_STORE": "mysql:"}
    environment["PAUSELEDGER_KEYS"] = "the user's own, which it does not read"
    command = [Path(sys.executable).with_name("pauseledger"), "demo"]
    shown = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert (shown.returncode, shown.stderr) == (0, ""), shown.stdout
    lines = shown.stdout.splitlines()
    assert "NOT SEEN" not in shown.stdout
    assert any(line.endswith("1 won, 7 were told already_consumed") for line in lines)
    assert any(line.endswith("was killed (SIGKILL)") for line in lines)
    assert sum("the table itself holds one pause.consumed@1" in line for line in lines) == 2
    assert sum("already_consumed." in line and line.startswith("   At ") for line in lines) == 7
    assert any("took the turn up again under claim 2" in line for line in lines)
    assert lines[-1].startswith("all 13 claims were seen")
    assert list(tmp_path.iterdir()) == []


class TestWhenItIsNotAsClaimed:
    """Workers that tell lies, or nothing: the demo must not end well."""

    @pytest.fixture
    def told(self, monkeypatch):
        """Stand in for the processes; by job, what each says."""
        said = {
            "pause": {"pause_id": "00000000-0000-8000-8000-000000000007", "token": "t"},
            "redeem": {"refused": "scope_mismatch", "recorded": True},
            "redeem_and_hang": {"fence": 1},
            "recover": {"fence": 2, "held": True, "tail": [], "settled": True, "key": "k"},
        }

        class Liar:
            pid = 1

            def __init__(self, job):
                self.do = job["do"]

            def ready(self):
                pass

            def go(self, **_):
                pass

            def heard(self):
                return said[self.do]

            def kill(self):
                return -signal.SIGKILL

            def end(self):
                return 0

        monkeypatch.setattr(demo, "Worker", Liar)
        return said

    def test_lies_are_found_out(self, capsys, told):
        code, out, _ = ran(capsys, "--json")
        shape = json.loads(out)
        assert (code, shape["outcome"]) == (1, "unproven")
        unseen = {claim["claim"] for claim in shape["claims"] if not claim["seen"]}
        assert "1 won, 7 were told already_consumed" in unseen
        assert "the table itself holds one pause.consumed@1 of this pause" in unseen
        assert "the answer stands on its own call, under fence 2" in unseen

    def test_silence_is_not_success(self, capsys, told):
        for do in told:
            told[do] = {}
        code, out, err = ran(capsys)
        assert code == 1
        assert "NOT SEEN" in out
        assert "not seen:" in err


@pytest.mark.parametrize(("store", "code"), [("memory:", 2), ("mysql://x", 2), ("sqlite:////dev/null/ledger.db", 4)])
def test_a_store_it_cannot_run_on(capsys, store, code):
    assert ran(capsys, "--store", store, "--json")[0] == code


def test_what_is_kept_is_named(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "_race", lambda _: "a")
    monkeypatch.setattr(demo, "_rescue", lambda _: "b")
    monkeypatch.setattr(demo.tempfile, "tempdir", str(tmp_path))
    code, out, _ = ran(capsys, "--keep", "--json")
    kept = Path(json.loads(out)["kept"])
    assert code == 0
    assert (kept / "keys" / "keys.json").exists()
    ran(capsys, "--json")
    assert list(tmp_path.iterdir()) == [kept]
