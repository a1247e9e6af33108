"""A type checker in its strict mode lets nobody make a turn by hand, or go on with anything that is none."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """\
import pauseledger as pl
from pauseledger.domain.kernel_resume import ResumedTurn


async def right(ledger: pl.Ledger, kernel: object, token: str, axes: pl.Axes) -> None:
    turn: ResumedTurn = await ledger.redeem(token, pl.STORED, axes=axes)
    await pl.resume_run(kernel, turn.with_prompt("Go on."))


async def wrong(kernel: object, outcome: pl.ResumeOutcome) -> None:
    ResumedTurn()  # wrong: call-arg
    ResumedTurn(outcome=outcome, history=())  # wrong: call-arg
    ResumedTurn(made_by_prepare_or_recover_alone=None)  # wrong: arg-type
    await pl.resume_run(kernel, outcome)  # wrong: arg-type
    pl.resume_stream(kernel, outcome)  # wrong: arg-type
    pl.resume_stream_typed(kernel, outcome)  # wrong: arg-type
"""


def test_nobody_makes_a_turn_by_hand(tmp_path):
    (tmp_path / "pauseledger").symlink_to(ROOT)
    (tmp_path / "host.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-error-summary", "host.py"]
    env = {**os.environ, "MYPYPATH": str(tmp_path), "MYPY_CACHE_DIR": str(tmp_path / "cache")}
    run = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    said = {
        (int(at), code) for at, code in re.findall(r"^host\.py:(\d+): error: .*\[(.*)\]$", run.stdout, re.MULTILINE)
    }
    lines = enumerate(PROGRAM.splitlines(), 1)
    assert said == {(at, line.partition("# wrong: ")[2]) for at, line in lines if "# wrong: " in line}, run.stdout
