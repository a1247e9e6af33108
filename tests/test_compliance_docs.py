"""The page for auditors: every command on it runs, in its order, and shows what the page says it shows."""

import asyncio
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pauseledger import Actor, LedgerSettings, ResponseInvalid, open_ledger
from pauseledger.infrastructure import verify
from pauseledger.infrastructure.cli import run
from pauseledger.infrastructure.stories import ANSWER, SCOPE, WRONG_ANSWER, asked

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "compliance.md").read_text("utf-8")


@pytest.fixture
def pause(tmp_path, monkeypatch):
    """A question that maria answered wrongly, and then rightly."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("PAUSELEDGER_STORE", url)
    monkeypatch.setenv("PAUSELEDGER_KEYS_DIR", str(tmp_path / "keys"))
    monkeypatch.chdir(tmp_path)
    rules = re.search(r"`rules.json` holds `(.*?)`", PAGE)[1]
    (tmp_path / "rules.json").write_text(rules)

    async def story():
        async with open_ledger(url, LedgerSettings(keys_directory=tmp_path / "keys")) as ledger:
            question = await asked(ledger)
            with pytest.raises(ResponseInvalid):
                await question.redeem(WRONG_ANSWER, answered_by=Actor("maria"))
            await question.redeem(ANSWER, answered_by=Actor("maria"))
            return question

    return asyncio.run(story())


def test_every_command_on_the_page_runs(pause, tmp_path, capsys):
    names = {"PAUSE": str(pause.pause_id), "SESSION": pause.axes.session_id, "HERE": str(tmp_path)}
    shown = {}
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    assert len(commands) > 20
    assert SCOPE.tenant_id == "acme"
    for command in commands:
        said = re.sub("|".join(names), lambda found: names[found[0]], command)
        assert run(shlex.split(said)[1:]) == 0, (command, capsys.readouterr())
        shown[command] = " ".join(capsys.readouterr().out.split())
    assert '"maria" (claimed) answered' in shown["pauseledger show PAUSE"]
    assert "two-people" in shown["pauseledger policies"]
    assert "response_invalid" in shown["pauseledger refusals --tenant acme"]
    assert "floor 184 days" in shown["pauseledger hold list --tenant acme --operator olga"]
    assert shown["pauseledger show PAUSE --content"].count("erased") >= 2
    key = shown["pauseledger keys log"]
    for bundle in ("records", "signed"):
        assert verify.verify(tmp_path / bundle, key, (tmp_path / "outside" / "head.txt").read_text())[0] == []
        facts = (tmp_path / bundle / "facts.jsonl").read_text().splitlines()
        assert any("Whose name?" in json.loads(fact)["sentence"] for fact in facts)
    report = (tmp_path / "signed" / "report-001.pdf").read_bytes()
    assert b"MEANING    answer: answered" in report
    # What somebody was shown is a fact of its own.
    assert b"OF         what was asked, digest" in report


def test_what_the_page_links_to_is_there():
    for target in re.findall(r"\]\(([^)]+)\)", PAGE):
        path, _, heading = target.partition("#")
        assert not path or (ROOT / "docs" / path).exists(), target
        headings = [re.sub(r"[^a-z0-9 -]", "", line.lower()).strip().replace(" ", "-") for line in PAGE.splitlines()]
        assert not heading or heading in headings, target


def test_an_auditor_with_a_bundle_alone_verifies_it_and_finds_what_was_shown(pause, tmp_path, capsys):
    page = tmp_path / "page-as-shown.html"
    page.write_bytes(b"<p>Ship it?</p>")
    commands = [
        ["present", str(pause.pause_id), "--operator", "olga", "--to", "maria", "--rendering", str(page)],
        ["export", "--tenant", "acme", "--content", "--seal", "--no-report", "--out", str(tmp_path / "evidence")],
        ["keys", "log"],
    ]
    assert [run(command) for command in commands] == [0, 0, 0]
    (tmp_path / "public-key.txt").write_text(capsys.readouterr().out.splitlines()[-1])
    shell = re.search(r"```sh\n(.*?)```", PAGE, re.DOTALL)[1].replace("python3", shlex.quote(sys.executable))
    done = subprocess.run(
        ["bash", "-ec", shell], cwd=tmp_path / "evidence", check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ok  verified ")
    assert 'person ""maria"" (claimed) was shown the question by person ""olga""' in done.stdout
    digest = done.stdout.splitlines()[-1].split()[0]
    facts = map(json.loads, (tmp_path / "evidence" / "facts.jsonl").read_text().splitlines())
    [shown] = [fact for fact in facts if fact["topic"].startswith("pause.presented")]
    assert digest in [one["text"] for one in shown["contents"]]
