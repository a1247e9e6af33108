"""The plain loop: what its chat function sees, how often its tools ran, and the page that explains it."""

import ast
import asyncio
import contextlib
import io
import json
import re
from pathlib import Path

import pytest
from pauseledger import (
    ASK_USER,
    NOT_DISPATCHED,
    Actor,
    AskUserAnsweredEvent,
    LapseAnswer,
    LedgerSettings,
    PauseWithdrawn,
    RecoverCommand,
    ResumedTurn,
    RoundOpen,
    Scope,
    TokenExpired,
    open_ledger,
    resume_run,
    resume_stream,
    resume_stream_typed,
)
from pauseledger.infrastructure.kernels import Ended, Gate
from pauseledger.infrastructure.kernels.plain import PlainKernel
from pauseledger.infrastructure.keys import KeyFile

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kernels" / "plain.md"
ACME = Scope(tenant_id="acme")
QUESTION = {"questions": [{"question": "Where to?", "options": [{"label": "Staging"}, {"label": "Production"}]}]}
ANSWER = {"answers": [{"question_id": "q1", "selections": ["Staging"]}]}


def calling(*calls):
    listed = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": args}}
        for call_id, name, args in ((i, n, a if isinstance(a, str) else json.dumps(a)) for i, n, a in calls)
    ]
    return {"role": "assistant", "content": None, "tool_calls": listed}


def saying(text):
    return {"role": "assistant", "content": text}


class Host:
    """One process's loop: a chat function that plays replies, and tools that leave traces."""

    def __init__(self, ledger, *replies, gates=None, runs=None):
        self.ledger, self.replies, self.seen = ledger, list(replies), []
        self.runs = [] if runs is None else runs
        gates = gates or {"deploy": Gate(), "ask_user": Gate(ASK_USER)}
        tools = {"deploy": self.deploy, "look": self.look}
        self.kernel = PlainKernel(ledger.capability, self.chat, scope=ACME, tools=tools, gates=gates)

    async def chat(self, messages):
        self.seen.append(messages)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def deploy(self, arguments, key):
        self.runs.append(("deploy", arguments["to"], key))
        return f"deployed to {arguments['to']}"

    async def look(self, arguments, key):
        self.runs.append(("look", None, key))
        return "all quiet"

    async def ask(self, prompt="Deploy.", run_id="run-1", **given):
        return await self.kernel.run(prompt, run_id=run_id, session_id="chat-7", **given)

    async def redeem(self, ended, answer, at=0):
        return await self.ledger.redeem(ended.paused[at].token, answer, axes=ended.asked[at].axes, by=Actor("maria"))


def results(messages):
    return {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"}


async def newest(ledger, receipt):
    return (await ledger.story(receipt.pause_id))[-1]


@pytest.fixture
async def ledger(store_url, tmp_path):
    KeyFile(tmp_path / "keys").create()
    async with open_ledger(store_url, LedgerSettings(keys_directory=tmp_path / "keys")) as opened:
        yield opened


@pytest.fixture
async def memory():
    async with open_ledger("memory:") as opened:
        yield opened


@pytest.mark.parametrize("surface", ["run", "stream", "typed"])
async def test_the_first_sight_holds_the_answer_on_its_call(memory, surface):
    ended = await Host(memory, calling(("c1", "ask_user", QUESTION))).ask()
    going = Host(memory, saying("Staging it is."))
    turn = await going.redeem(ended, ANSWER)
    if surface == "run":
        items = [await resume_run(going.kernel, turn)]
    else:
        items = [i async for i in {"stream": resume_stream, "typed": resume_stream_typed}[surface](going.kernel, turn)]
    (seen,) = going.seen
    assert seen == [*ended.messages, {"role": "tool", "tool_call_id": "c1", "content": "q1: Staging"}]
    assert isinstance(items[-1], Ended)
    assert (await newest(memory, ended.paused[0])).end == "finished"
    if surface == "stream":
        assert items[:-1] == ["Staging it is."]
    if surface == "typed":
        assert isinstance(items[0], AskUserAnsweredEvent)
        assert items[1:-1] == [saying("Staging it is.")]


async def test_a_loop_without_gates_runs_to_its_end(memory):
    host = Host(memory, calling(("c1", "look", {}), ("c2", "nowhere", {}), ("c3", "look", "{")), saying("quiet"))
    ended = await host.ask()
    assert (ended.paused, ended.messages[-1]) == ((), saying("quiet"))
    assert host.runs == [("look", None, "run-1/c1")]
    said = results(host.seen[1])
    assert said["c1"] == "all quiet"
    assert "not run" in said["c2"]
    assert "not run" in said["c3"]


@pytest.mark.parametrize(
    ("answer", "ran", "said"),
    [
        ({"decision": "approve"}, ["prod"], "deployed to prod"),
        ({"decision": "edit", "arguments": {"to": "staging"}}, ["staging"], "deployed to staging"),
        ({"decision": "reject", "reason": "not on Friday"}, [], "not on Friday"),
        ({"decision": "respond", "text": "I did it myself"}, [], "I did it myself"),
    ],
)
async def test_each_decision_runs_what_it_says(memory, answer, ran, said):
    host = Host(memory, calling(("c1", "deploy", {"to": "prod"})), saying("done"))
    ended = await host.ask()
    assert host.runs == []
    await resume_run(host.kernel, await host.redeem(ended, answer))
    assert [(to, key) for _, to, key in host.runs] == [(to, str(ended.paused[0].pause_id)) for to in ran]
    assert said in results(host.seen[1])["c1"]


async def test_neighbours_of_a_gated_call_do_not_run(memory):
    host = Host(
        memory, calling(("c1", "look", {}), ("c2", "deploy", {"to": "prod"}), ("c3", "nowhere", {})), saying("done")
    )
    await resume_run(host.kernel, await host.redeem(await host.ask(), {"decision": "approve"}))
    assert results(host.seen[1]) == {"c1": NOT_DISPATCHED, "c2": "deployed to prod", "c3": NOT_DISPATCHED}
    assert [name for name, *_ in host.runs] == ["deploy"]


async def test_consumed_and_then_the_model_fails_the_effect_has_one_key(ledger):
    host = Host(ledger, calling(("c1", "deploy", {"to": "prod"})), ConnectionError("hung up"))
    ended = await host.ask()
    with pytest.raises(ConnectionError):
        await resume_run(host.kernel, await host.redeem(ended, {"decision": "approve"}))
    again = Host(ledger, saying("done"), runs=host.runs)
    turn = await ledger.capability.recover(RecoverCommand(ended.paused[0].pause_id, axes=ended.asked[0].axes))
    await resume_run(again.kernel, turn)
    assert results(again.seen[0]) == {"c1": "deployed to prod"}
    assert {key for *_, key in host.runs} == {str(ended.paused[0].pause_id)}


async def test_the_last_answers_at_once_make_one_continuation(ledger):
    calls = [(f"c{n}", "deploy", {"to": f"place {n}"}) for n in (1, 2, 3)]
    host = Host(ledger, calling(*calls), saying("done"))
    ended = await host.ask()
    tried = await asyncio.gather(
        *(host.redeem(ended, {"decision": "approve"}, at) for at in (2, 1, 0)), return_exceptions=True
    )
    (turn,) = [one for one in tried if isinstance(one, ResumedTurn)]
    assert all(isinstance(one, RoundOpen) for one in tried if one is not turn)
    await resume_run(host.kernel, turn)
    assert results(host.seen[1]) == {f"c{n}": f"deployed to place {n}" for n in (1, 2, 3)}
    assert {key for *_, key in host.runs} == {str(receipt.pause_id) for receipt in ended.paused}


async def test_a_second_stop_says_which_pause_is_next(memory):
    host = Host(memory, calling(("c1", "ask_user", QUESTION)), calling(("c2", "deploy", {"to": "x"})), saying("done"))
    first = await host.ask()
    second = await resume_run(host.kernel, await host.redeem(first, ANSWER))
    fact = await newest(memory, first.paused[0])
    assert (fact.end, fact.next) == ("paused_again", (second.paused[0].pause_id,))
    await resume_run(host.kernel, await host.redeem(second, {"decision": "approve"}))
    assert results(host.seen[2]) == {"c1": "q1: Staging", "c2": "deployed to x"}


async def test_nobody_answers_and_the_lapse_answer_stands(memory):
    lapse = LapseAnswer({"decision": "reject", "reason": "nobody was there"})
    gates = {"deploy": Gate(closes_in=1, on_lapse=lapse)}
    host = Host(memory, calling(("c1", "deploy", {"to": "prod"})), saying("then not"), gates=gates)
    ended = await host.ask()
    await asyncio.sleep(2.1)
    with pytest.raises(TokenExpired):
        await host.redeem(ended, {"decision": "approve"})
    turn = await memory.capability.recover(RecoverCommand(ended.paused[0].pause_id, axes=ended.asked[0].axes))
    await resume_run(host.kernel, turn)
    assert "nobody was there" in results(host.seen[1])["c1"]
    assert host.runs == []


async def test_a_new_stop_supersedes_the_old_one(memory):
    host = Host(memory, calling(("c1", "deploy", {"to": "prod"})), calling(("c2", "ask_user", QUESTION)))
    first = await host.ask()
    await host.ask("Ask me first.", run_id="run-2", supersedes=first.paused[0].pause_id)
    with pytest.raises(PauseWithdrawn):
        await host.redeem(first, {"decision": "approve"})
    assert host.runs == []


async def test_walking_away_from_a_stream_stalls_the_turn(memory):
    host = Host(memory, calling(("c1", "deploy", {"to": "prod"})), saying("one"), saying("two"))
    ended = await host.ask()
    stream = resume_stream(host.kernel, await host.redeem(ended, {"decision": "approve"}))
    assert await anext(stream) == "one"
    await stream.aclose()
    assert (await newest(memory, ended.paused[0])).NAME == "pause.stalled"


async def test_every_snippet_of_the_page_runs_and_prints_what_it_says():
    replies = [calling(("c1", "deploy", {"to": "production"})), saying("It is on staging.")]

    async def chat(messages):
        return replies.pop(0)

    namespace = {"chat": chat}
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert snippets
    for snippet in snippets:
        printed = io.StringIO()
        code = compile(snippet, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        with contextlib.redirect_stdout(printed):
            running = eval(code, namespace)
            if running is not None:
                await running
        assert printed.getvalue().splitlines() == re.findall(r"print\(.*\)  # (.*)", snippet)
    assert replies == []
    replies += [calling(("c1", "deploy", {"to": "x"})), saying("done")]
    assert await namespace["loop"]("Deploy.") == "done"
