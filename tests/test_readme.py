"""The README's code, as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def snippet() -> str:
    return re.search(r"```python\n(.*?)```", README, re.DOTALL)[1]


def test_the_code_in_the_readme_runs_on_a_fresh_machine(tmp_path):
    env = {**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}
    env = {name: value for name, value in env.items() if not name.startswith("PAUSELEDGER_")}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-c", snippet()], env=env, cwd=elsewhere, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr
        assert run.stdout.strip() == "{'role': 'tool', 'tool_call_id': 'call_1', 'content': 'q1: Staging'}"


def test_the_code_in_the_readme_has_25_lines():
    lines = [line for line in snippet().splitlines() if line.strip()]
    assert len(lines) <= 25


def test_links_and_files_named_in_the_readme_are_there():
    for name in re.findall(r"\b(?:docs|tests|domain|infrastructure)/(?:[a-z_/-]+\.md)?", README):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"\b[a-z_]+\.py\b", README):
        assert list(ROOT.rglob(name)), name
