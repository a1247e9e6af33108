"""The command line's questions: tables for people, one JSON object for programs, and followers as processes."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import time

import pytest
from pauseledger import Actor, Refusal, Routing
from pauseledger.infrastructure.cli import run
from pauseledger.infrastructure.stories import SCOPE, Stage, ask, asked, axes, turn

TENANT = ["--tenant", SCOPE.tenant_id]
NASTY = "\x1b[31m[bold]red[/bold]\u202e"


@pytest.fixture(params=["sqlite", "postgresql"])
def stage(request, tmp_path):
    sqlite = f"sqlite:///{tmp_path / 'ledger.db'}"
    url = sqlite if request.param == "sqlite" else request.getfixturevalue("pg_dsn")
    return Stage(url, tmp_path / "keys")


@pytest.fixture
def say(stage, capsys):
    def say(*words, code=0):
        ended = run([*words, "--store", stage.url, "--keys-dir", str(stage.keys), "--json"])
        said = capsys.readouterr()
        assert ended == code, said
        return json.loads(said.out)

    return say


@pytest.fixture
def show(stage, capsys):
    def show(*words, code=0):
        ended = run([*words, "--store", stage.url, "--keys-dir", str(stage.keys)])
        said = capsys.readouterr()
        assert ended == code, said
        return said.out + said.err

    return show


def test_a_view_that_has_caught_up_is_not_told_to_be_behind(stage, say):
    asyncio.run(make_pauses(stage))
    for question in ("open", "refusals", "times", "stranded"):
        assert say(question, *TENANT)["behind"] is False, question
    assert say("history", *TENANT, "--session", "session-1")["behind"] is False


async def make_pauses(stage):
    """One open, one answered, one attempt refused, one call with a nasty name."""
    async with stage.ledger() as ledger:
        made = [
            await asked(
                ledger, ask(call, turn=turn(call, said=call), axes=axes(call), routing=Routing(assignees=("ann",)))
            )
            for call in ("c1", "c2", NASTY)
        ]
        await made[1].answer(answered_by=Actor("ann"))
        with pytest.raises(Refusal):
            await made[0].redeem(axes=axes("c1", run_id="else"), answered_by=Actor("mallory"))
        return made


@pytest.fixture
def pauses(stage):
    return asyncio.run(make_pauses(stage))


def commands(said, *words):
    return said(*words, *TENANT), said(*words, "--all-tenants")


def test_the_inbox_has_what_it_takes_to_redeem_and_names_whom_it_is_for_when_asked(pauses, show):
    head, *rows = show("open", "--all-tenants").splitlines()
    assert " ".join(head.split()) == "pause asks tenant session run call for since until round agree"
    [row] = [line for line in rows if line.startswith(str(pauses[0].pause_id))]
    assert row.split()[1:6] == ["ask_user", SCOPE.tenant_id, "session-1", "run-1", "c1"]
    assert " ann " not in row
    [row] = [
        line for line in show("open", *TENANT, "--content").splitlines() if line.startswith(str(pauses[0].pause_id))
    ]
    assert row.split()[6] == "ann"


def test_nothing_is_lost_between_the_ledger_and_json(pauses, say):
    first, second, nasty = pauses
    for told in commands(say, "open", "--content", "--assignee", "ann"):
        assert (told["outcome"], told["open"], told["behind"]) == ("open_pauses", 2, False)
        assert {row["pause"] for row in told["rows"]} == {str(first.pause_id), str(nasty.pause_id)}
        assert told["rows"][0]["request"]["questions"][0]["question"] == "Whose name?"
    page = say("open", *TENANT, "--limit", "1", "--newest")
    rest = say("open", *TENANT, "--limit", "1", "--newest", "--page", page["next"])
    assert {row["call_id"] for row in page["rows"] + rest["rows"]} == {"c1", NASTY}
    assert rest["next"] is None
    history = say("history", *TENANT, "--pause", str(first.pause_id))
    assert [row["what"] for row in history["rows"]] == ["paused", "refused"]
    for chosen in (["--run", "run-1"], ["--session", "session-1"]):
        assert len(say("history", *TENANT, *chosen)["rows"]) == 5
    assert len(say("history", *TENANT, "--round", str(second.pause_id))["rows"]) == 2
    assert len(say("history", "--all-tenants", "--pause", str(second.pause_id))["rows"]) == 2
    for told in commands(say, "refusals", "--by", "hour", "--pause", str(first.pause_id)):
        assert [(one["axis"], one["count"]) for one in told["counts"]] == [("run", 1)]
        assert (len(told["insistent"]), len(told["attempts"])) == (1, 1)
    for told in commands(say, "times", "--threshold", "3600"):
        assert [(row["answered"], row["open"]) for row in told["rows"]] == [(1, 2), (1, 2)]
        assert told["rubber_stamps"]["hasty"] == 1
    for told in commands(say, "stranded"):
        assert [(row["state"], row["pause_id"]) for row in told["rows"]] == [("ready", str(second.pause_id))]
        assert told["rows"][0]["age_seconds"] >= 0
    assert set(say("rebuild", "all")["positions"]) == {
        "open_pauses",
        "history",
        "refusals",
        "response_times",
        "stranded",
    }
    assert {row["behind"] for row in say("lag")["rows"]} == {0}


def test_people_see_tables_and_no_name_moves_their_terminal(pauses, show):
    first = pauses[0]
    shown = show("open", *TENANT)
    assert re.search(rf"{first.pause_id} +ask_user +acme +session-1 +run-1 +c1 ", shown)
    assert "open    2" in shown
    for text in (shown, show("history", *TENANT, "--run", "run-1"), show("open", "--all-tenants", "--newest")):
        assert "\x1b[31m" not in text
        assert "\u202e" not in text
        assert "[bold]red[/bold]" in text
    assert "run_mismatch" in show("refusals", *TENANT)
    assert "everybody" in show("times", *TENANT, "--threshold", "60")
    assert "ready" in show("stranded", *TENANT)
    assert "nothing is stranded" in show("stranded", "--tenant", "another")
    assert "set aside" in show("lag")


def test_what_cannot_be_asked_is_said(say):
    for words in (
        ["open"],
        ["open", "--all-tenants", "--tenant", "acme"],
        ["open", "--namespace", "n"],
        ["open", *TENANT, "--page", "nonsense"],
        ["open", *TENANT, "--closes-before", "tomorrow"],
        ["open", *TENANT, "--closes-before", "2026-11-30T09:00:00"],
        ["history", *TENANT],
        ["history", *TENANT, "--run", "r", "--session", "s"],
        ["history", "--all-tenants", "--run", "r"],
        ["rebuild", "nothing"],
    ):
        assert say(*words, code=2)["outcome"] in {"usage", "misconfigured"}


def test_what_cannot_be_read_is_shown_first(stage, pauses, show, say):
    [row] = stage.rows(pauses[0].pause_id)[:1]
    stage.overwrite(row, b"garbage")
    if stage.url.startswith("postgresql"):
        # Without its guard no ledger opens.
        stage.sql("ALTER TABLE pauseledger.stored_events ENABLE ALWAYS TRIGGER stored_events_append_only")
    shown = show("open", "--all-tenants").splitlines()
    assert shown[0].startswith("unread")
    assert "UNREADABLE" in shown[2]
    assert len(say("open", "--all-tenants")["unreadable"]) == 1
    assert {one["set_aside"] for one in say("lag")["rows"] if one["view"] == "open_pauses"} == {1}


@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
async def test_a_follower_is_a_process_that_ends_when_told(stage, told):
    async with stage.ledger() as ledger:
        command = [sys.executable, "-m", "pauseledger.infrastructure.cli", "follow", "--json"]
        command += ["--store", stage.url, "--keys-dir", str(stage.keys)]
        follower = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert follower.stderr.readline() == "follow  keeps the views, until SIGINT (ctrl-C) or SIGTERM\n"
        pause = await asked(ledger)
        deadline = time.monotonic() + 20
        while min(one.position for one in await ledger.views.lag()) < pause.receipt.position:
            assert time.monotonic() < deadline
        follower.send_signal(told)
        said, _ = follower.communicate(timeout=20)
        assert follower.returncode == 0
        assert set(json.loads(said)["positions"].values()) == {pause.receipt.position}


async def test_views_may_live_in_another_place_than_the_ledger(tmp_path, capsys):
    stage, apart = Stage(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "keys"), tmp_path / "views.db"
    await make_pauses(stage)
    places = ["--store", stage.url, "--keys-dir", str(stage.keys), "--views", f"sqlite:///{apart}"]
    assert await asyncio.to_thread(run, ["rebuild", "all", *places, "--json"]) == 0
    capsys.readouterr()
    assert await asyncio.to_thread(run, ["open", *TENANT, *places, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["open"] == 2
    assert apart.exists()
    assert stage.sql("SELECT name FROM sqlite_master WHERE name LIKE 'view!_%' ESCAPE '!'") == []
