"""The benchmark's one command runs everywhere the tests do, and its peers do the job it measures."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).resolve().parent.parent / "benchmarks" / "run.py"


def run(*arguments, env=None):
    return subprocess.run([sys.executable, str(RUN), *arguments], capture_output=True, text=True, check=False, env=env)


@pytest.mark.skipif(sys.platform != "linux", reason="it reads processor time and the disk from /proc")
def test_a_quick_run_prints_the_readmes_tables(tmp_path):
    done = run("--quick", "--json", str(tmp_path / "figures.json"))
    assert done.returncode == 0, done.stderr
    assert "left out" not in done.stderr
    for row in ("by hand, PostgreSQL", "**pauseledger, PostgreSQL**", "by hand, SQLite", "**pauseledger, SQLite**"):
        assert done.stdout.count(f"| {row} |") >= 4, done.stdout

    found = json.loads((tmp_path / "figures.json").read_text())
    # Of ten: now and then a pool asks a connection whether it lives.
    said = {(one["peer"], one["op"]): round(one["statements"]) for one in found["figures"] if "statements" in one}
    assert said == {
        ("hand_pg", "pause"): 1,
        ("hand_pg", "redeem"): 2,
        ("pauseledger_pg", "pause"): 1,
        ("pauseledger_pg", "redeem"): 2,
        ("pauseledger_pg", "refuse"): 2,
    }
    assert {one["ends"]["won"] for one in found["raced"]} == {1}
    assert {sum(one["ends"].values()) for one in found["raced"]} == {32}
    assert {one["ends"].get("consumed") for one in found["raced"] if "pauseledger" in one["peer"]} == {31}


def test_a_name_that_nobody_has_is_told_with_those_there_are():
    done = run("--only", "nobody")
    assert done.returncode == 1
    assert "nobody is called nobody" in done.stderr
    assert "pauseledger_pg" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="it reads processor time and the disk from /proc")
def test_without_a_compiler_the_slow_disk_is_left_out_and_said_to_be(tmp_path):
    done = run("--disks", "slow", "--only", "hand_sqlite", env={**os.environ, "PATH": str(tmp_path)})
    assert done.returncode == 1
    assert "it needs a C compiler, and there is no `cc`" in done.stderr
    assert "nothing could be measured" in done.stderr


@pytest.mark.parametrize("name", ["projections", "proof", "storm", "vault", "where_the_time_goes"])
def test_the_others_still_know_what_they_measure(name):
    done = subprocess.run(
        [sys.executable, str(RUN.with_name(f"{name}.py")), "--help"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "usage:" in done.stdout) == (0, True), done.stderr
