"""The command line as users meet it: an installed command, processes that exit, pipes, and a plain terminal."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

TURN = Path(__file__).parent / "transcripts" / "give" / "openai-chat--deepseek-reasoning-text-and-two.json"
CALLS = json.loads(TURN.read_text())["reserved_call_ids"]
AXES = ["--tenant", "acme", "--session", "s1", "--run", "r1", "--call", CALLS[0]]
REQUEST = {"questions": [{"question": "Which?", "options": [{"label": "Anne"}, {"label": "Bob"}]}]}
ANSWER = {"answers": [{"question_id": "q1", "selections": ["Anne"]}]}


@pytest.fixture
def pauseledger(tmp_path):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PAUSELEDGER_")}
    environment |= {
        "PAUSELEDGER_STORE": f"sqlite:///{tmp_path / 'ledger.db'}",
        "PAUSELEDGER_KEYS_DIR": str(tmp_path / "keys"),
        "LC_ALL": "C",
    }
    (tmp_path / "request.json").write_text(json.dumps(REQUEST))
    (tmp_path / "answer.json").write_text(json.dumps(ANSWER))

    def command(*arguments, stdin="", **more):
        return subprocess.run(
            [Path(sys.executable).with_name("pauseledger"), *map(str, arguments)],
            input=stdin,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment | more,
            timeout=60,
            check=False,
        )

    return command


def test_the_main_job_over_processes(pauseledger):
    asked = ["--interaction", "ask_user", "--request", "request.json", "--turn", TURN]
    paused = pauseledger("pause", *AXES, *asked, "--json")
    assert (paused.returncode, paused.stderr) == (0, "")
    told = json.loads(paused.stdout)
    token, pause = told["token"], told["pause_id"]

    refused = pauseledger("redeem", "-", *AXES, "--tenant", "evil", "--response", "answer.json", "--json", stdin=token)
    assert (refused.returncode, refused.stderr) == (3, "")
    assert json.loads(refused.stdout)["reason"] == "scope_mismatch"

    redeeming = ["redeem", *AXES, "--response", "-", "--by", "maria", "--json"]
    with ThreadPoolExecutor(4) as race:
        runs = [
            race.submit(pauseledger, *redeeming, stdin=json.dumps(ANSWER), PAUSELEDGER_TOKEN=token) for _ in range(4)
        ]
        ended = [run.result() for run in runs]
    assert sorted(run.returncode for run in ended) == [0, 3, 3, 3]
    won = json.loads(next(run.stdout for run in ended if run.returncode == 0))
    assert won["history"][-2]["content"] == "q1: Anne"

    forced = pauseledger("recover", pause, "--operator", "olga", "--force", "--json")
    assert json.loads(forced.stdout)["fence"] == 2
    late = pauseledger("settle", pause, *AXES, "--fence", 1, "--end", "finished")
    assert late.returncode == 0
    assert pauseledger("recover", pause, *AXES).returncode == 3

    story = pauseledger("show", pause)
    assert story.returncode == 0
    assert story.stdout.isascii()
    lines = story.stdout.splitlines()
    assert lines[0] == f"pause {pause} is continued"
    assert len(lines) == 1 + 9
    assert "was refused in step 2 on the axis scope: scope_mismatch." in lines[2]
    assert sum("already_consumed" in line for line in lines) == 3
    assert "told late" in lines[-1]


def test_what_failed_is_one_line_and_no_traceback(pauseledger):
    pauseledger("migrate")
    for arguments, code in ((["show", "x"], 2), (["show", "00000000-0000-8000-8000-000000000000"], 3)):
        ran = pauseledger(*arguments)
        assert (ran.returncode, ran.stdout) == (code, "")
        assert len(ran.stderr.splitlines()) == 1
    ran = pauseledger("keys", "list", PAUSELEDGER_KEYS="not a key")
    assert ran.returncode == 2
    assert "not a key" not in ran.stderr


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_reader_that_walks_away_is_no_fault(pauseledger, tmp_path, more):
    pauseledger("migrate")
    command = [Path(sys.executable).with_name("pauseledger"), "migrate", *more]
    # Buffered as usual: then the pipe breaks on the way out, where nobody could catch it any more.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    process = subprocess.Popen(
        [*command, "--store", f"sqlite:///{tmp_path / 'ledger.db'}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    process.stdout.close()
    complaint = process.stderr.read()
    process.stderr.close()
    assert (process.wait(60), complaint) == (0, b"")


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_an_output_that_takes_nothing_is_told_and_not_traced(tmp_path, more):
    start = [sys.executable, "-c", "from pauseledger.infrastructure.cli import main; main()", "keys"]
    env = {**os.environ, "PAUSELEDGER_KEYS_DIR": str(tmp_path / "keys")}
    subprocess.run([*start, "new"], env=env, check=True, capture_output=True)
    with open("/dev/full", "w") as full:
        run = subprocess.run(
            [*start, "list", *more], env=env, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert run.returncode == 1
    assert "repeat the command" in run.stderr
    assert "Traceback" not in run.stderr
