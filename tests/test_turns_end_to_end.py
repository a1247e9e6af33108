"""Every recorded turn, from its stop to its continuation: paused with the bytes given, redeemed by another process."""

import asyncio
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pauseledger.domain.axes import Axes, Scope
from pauseledger.domain.commands import PauseCommand
from pauseledger.domain.errors import RoundOpen
from pauseledger.domain.interactions import APPROVAL, ASK_USER
from pauseledger.domain.rehydration import NOT_DISPATCHED
from pauseledger.domain.turn import Turn
from pauseledger.infrastructure.settings import LedgerSettings
from pauseledger.infrastructure.stories import Stage
from pauseledger.infrastructure.transcripts import known
from pauseledger.infrastructure.wiring import open_ledger

HERE = Path(__file__).parent / "transcripts"
spec = importlib.util.spec_from_file_location("transcript_rules", HERE / "validate.py")
rules = importlib.util.module_from_spec(spec)
spec.loader.exec_module(rules)

FILES = {path.stem: path.read_text("utf-8") for path in sorted((HERE / "give").glob("*.json"))}
TURNS = {name: json.loads(text) for name, text in FILES.items()}
QUESTION = {"questions": [{"question": "Shall it?", "options": [{"label": "Ja, 🙂"}, {"label": "Nein"}]}]}
ANSWER = {"answers": [{"question_id": "q1", "selections": ["Ja, 🙂"]}]}
ANSWERED = "q1: Ja, 🙂"

every_turn = pytest.mark.parametrize("name", TURNS)


def as_given(name):
    """The conversation as its file spells it, every blank and escape included."""
    text = FILES[name]
    begin = re.search(rf'^ "{rules.KEY[TURNS[name]["format"]]}": ', text, re.MULTILINE).end()
    _, end = json.JSONDecoder().raw_decode(text, begin)
    return text[begin:end].encode()


def entries(name):
    return TURNS[name][rules.KEY[TURNS[name]["format"]]]


def open_calls(name):
    return [call for call in known().of(TURNS[name]["format"]).reserved(entries(name)) if not call.done]


PARALLEL = [name for name in TURNS if len(open_calls(name)) > 1]


def axes(name, call):
    return Axes(scope=Scope(tenant_id="acme"), session_id="session", run_id=name, call_id=call.address)


def ask(name, call, interaction=ASK_USER, request=None):
    turn = Turn(TURNS[name]["format"], as_given(name))
    return PauseCommand(interaction=interaction, request=request or QUESTION, turn=turn, axes=axes(name, call))


def judge(name, history, text, said):
    """Hold a continuation against the strict rules, the bytes that were stored, and what was said on each call."""
    given = as_given(name)
    assert text == given
    assert rules.check(TURNS[name]["format"], history, TURNS[name]) == []
    assert said_in(name, history) == said
    # The recorded address of a call without an id is ours alone.
    assert not re.search(r'"@\d"', json.dumps(history))


def said_in(name, history):
    """The texts that stand in a continuation and did not in the turn, in their order."""
    before = json.dumps(entries(name), ensure_ascii=False)
    found = re.findall(r'"(?:content|output|result)": ("(?:[^"\\]|\\.)*")', json.dumps(history, ensure_ascii=False))
    kept = len(re.findall(r'"(?:content|output|result)": ("(?:[^"\\]|\\.)*")', before))
    return [json.loads(text) for text in found[kept:]]


@pytest.fixture
def memory(tmp_path):
    return Stage("memory:", tmp_path / "keys")


@every_turn
async def test_a_turn_goes_on_in_another_process_with_its_answer_on_its_call(memory, name):
    first, *others = open_calls(name)
    async with memory.ledger() as ledger:
        receipt = await ledger.capability.pause(ask(name, first))
    async with memory.ledger() as ledger:
        turn = await ledger.redeem(receipt.token, ANSWER, axes=axes(name, first))
    assert (turn.outcome.interrupt_id, turn.outcome.tool_call_id) == (first.address, first.id)
    judge(name, list(turn.history), turn.outcome.turn.text, [ANSWERED] + [NOT_DISPATCHED] * len(others))


@every_turn
async def test_an_answer_to_the_last_call_stands_behind_its_neighbours(memory, name):
    *others, last = open_calls(name)
    async with memory.ledger() as ledger:
        receipt = await ledger.capability.pause(ask(name, last))
        turn = await ledger.redeem(receipt.token, ANSWER, axes=axes(name, last))
    judge(name, list(turn.history), turn.outcome.turn.text, [NOT_DISPATCHED] * len(others) + [ANSWERED])


@every_turn
async def test_a_call_that_was_let_through_gets_the_hosts_own_result(memory, name):
    first, *others = open_calls(name)
    request = {"tool": first.tool, "arguments": {}}
    async with memory.ledger() as ledger:
        receipt = await ledger.capability.pause(ask(name, first, APPROVAL, request))
        turn = await ledger.redeem(receipt.token, {"decision": "approve"}, axes=axes(name, first))
    (dispatch,) = turn.dispatch
    assert first.index in {call.index for call in turn.outcome.turn.transcript.reserved(turn.history) if not call.done}
    turn = turn.with_results({dispatch.interrupt_id: "it ran"})
    judge(name, list(turn.history), turn.outcome.turn.text, ["it ran"] + [NOT_DISPATCHED] * len(others))


@pytest.mark.parametrize("name", PARALLEL)
async def test_a_round_carries_every_answer_on_its_own_call(memory, name):
    calls = open_calls(name)
    gated = [ask(name, call, APPROVAL, {"tool": "t", "arguments": {}}) for call in calls]
    async with memory.ledger() as ledger:
        receipts = await ledger.capability.pause_round(gated)
    for place, (call, receipt) in enumerate(reversed(list(zip(calls, receipts, strict=True))), 1):
        said = {"decision": "respond", "text": f"to {call.address}"}
        async with memory.ledger() as ledger:
            if place < len(calls):
                with pytest.raises(RoundOpen):
                    await ledger.redeem(receipt.token, said, axes=axes(name, call))
            else:
                turn = await ledger.redeem(receipt.token, said, axes=axes(name, call))
    assert turn.outcome.turn.text == as_given(name)
    assert rules.check(TURNS[name]["format"], list(turn.history), TURNS[name]) == []
    # Without ids `@n` is a word of the answers here, and of nothing else.
    assert said_in(name, turn.history) == [f"to {call.address}" for call in calls]


# ---------------------------------------------------------------- after a restart


async def paused(url, keys):
    """Pause every turn at its first open call, in one process."""
    tasks = []
    async with open_ledger(url, LedgerSettings(keys_directory=keys)) as ledger:
        for name in TURNS:
            call = open_calls(name)[0]
            receipt = await ledger.capability.pause(ask(name, call))
            tasks.append({"name": name, "call": call.address, "token": receipt.token})
    return tasks


async def redeemed(url, keys, tasks):
    """Redeem them all, in another; told in JSON, as it would go out to a provider."""
    async with open_ledger(url, LedgerSettings(keys_directory=keys)) as ledger:
        for task in tasks:
            where = Axes(scope=Scope(tenant_id="acme"), session_id="session", run_id=task["name"], call_id=task["call"])
            turn = await ledger.redeem(task["token"], ANSWER, axes=where)
            text = turn.outcome.turn.text.decode()
            told = {"name": task["name"], "history": turn.history, "text": text}
            sys.stdout.write(json.dumps(told) + "\n")


@pytest.mark.parametrize("store_url", ["sqlite", "postgresql"], indirect=True)
async def test_every_turn_goes_on_after_the_process_that_paused_it_is_gone(store_url, tmp_path):
    stage = Stage(store_url, tmp_path / "keys")
    tasks = await paused(store_url, stage.keys)
    run = subprocess.run(
        [sys.executable, __file__, store_url, str(stage.keys)],
        input=json.dumps(tasks),
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    told = [json.loads(line) for line in run.stdout.splitlines() if line.startswith('{"name"')]
    assert [one["name"] for one in told] == list(TURNS)
    for one in told:
        said = [ANSWERED] + [NOT_DISPATCHED] * (len(open_calls(one["name"])) - 1)
        judge(one["name"], one["history"], one["text"].encode(), said)


if __name__ == "__main__":
    asyncio.run(redeemed(sys.argv[1], Path(sys.argv[2]), json.load(sys.stdin)))
