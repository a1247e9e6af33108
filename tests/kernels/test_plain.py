"""The plain loop: what its chat function sees, how often its tools ran, and the page that explains it."""

import json

import pytest
from pauseledger import AskUserAnsweredEvent, resume_run, resume_stream, resume_stream_typed
from pauseledger.infrastructure.kernels import Ended
from pauseledger.infrastructure.kernels.plain import PlainKernel
from pauseledger.infrastructure.testing_kernels import ANSWER, GATES, QUESTION, SCOPE, Agent, KernelConformance


def calling(*calls):
    listed = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": args}}
        for call_id, name, args in ((i, n, a if isinstance(a, str) else json.dumps(a)) for i, n, a in calls)
    ]
    return {"role": "assistant", "content": None, "tool_calls": listed}


def saying(text):
    return {"role": "assistant", "content": text}


class Host(Agent):
    """One process's loop: a chat function that plays replies, and tools that leave traces."""

    def __init__(self, ledger, *replies, gates=GATES, effects=None):
        self.ledger, self.replies, self.shown = ledger, list(replies), []
        self.runs, self.effects, self.keys = [], {} if effects is None else effects, []
        tools = {"deploy": self.deploy, "look": self.look}
        self.kernel = PlainKernel(ledger.capability, self.chat, scope=SCOPE, tools=tools, gates=gates)

    async def chat(self, messages):
        self.shown.append(messages)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return saying(reply) if isinstance(reply, str) else calling(*reply)

    async def deploy(self, arguments, key):
        self.runs.append(arguments["to"])
        self.effects.setdefault(key, arguments["to"])
        return f"deployed to {arguments['to']}"

    async def look(self, arguments, key):
        self.runs.append("look")
        self.keys.append(key)
        return "all quiet"

    @property
    def seen(self):
        return [results(messages) for messages in self.shown]


def results(messages):
    found = [(message["tool_call_id"], message["content"]) for message in messages if message["role"] == "tool"]
    assert len(dict(found)) == len(found)
    return dict(found)


class TestConformance(KernelConformance):
    """What every kernel must do."""

    def agent(self, ledger, *replies, gates=GATES, effects=None):
        return Host(ledger, *replies, gates=gates, effects=effects)


async def newest(ledger, receipt):
    return (await ledger.story(receipt.pause_id))[-1]


@pytest.mark.parametrize("surface", ["run", "stream", "typed"])
async def test_the_first_sight_holds_the_answer_on_its_call(memory, surface):
    ended = await Host(memory, [("c1", "ask_user", QUESTION)]).ask()
    going = Host(memory, "Staging it is.")
    turn = await going.redeem(ended, ANSWER)
    if surface == "run":
        items = [await resume_run(going.kernel, turn)]
    else:
        items = [i async for i in {"stream": resume_stream, "typed": resume_stream_typed}[surface](going.kernel, turn)]
    (seen,) = going.shown
    assert seen == [*ended.messages, {"role": "tool", "tool_call_id": "c1", "content": "q1: Staging"}]
    assert isinstance(items[-1], Ended)
    assert (await newest(memory, ended.paused[0])).end == "finished"
    if surface == "stream":
        assert items[:-1] == ["Staging it is."]
    if surface == "stream_typed":
        assert isinstance(items[0], AskUserAnsweredEvent)
        assert items[1:-1] == [saying("Staging it is.")]


async def test_a_loop_without_gates_runs_to_its_end(memory):
    host = Host(memory, [("c1", "look", {}), ("c2", "nowhere", {}), ("c3", "look", "{")], "quiet")
    ended = await host.ask()
    assert (ended.paused, ended.messages[-1]) == ((), saying("quiet"))
    assert (host.runs, host.keys) == (["look"], ["run-1/c1"])
    said = host.seen[1]
    assert said["c1"] == "all quiet"
    assert "not run" in said["c2"]
    assert "not run" in said["c3"]


async def test_every_snippet_of_the_page_runs_and_prints_what_it_says(play):
    replies = [calling(("c1", "deploy", {"to": "production"})), saying("It is on staging.")]

    async def chat(messages):
        return replies.pop(0)

    namespace = {"chat": chat}
    assert await play("plain.md", namespace) == 2
    assert replies == []
    replies += [calling(("c1", "deploy", {"to": "x"})), saying("done")]
    assert await namespace["loop"]("Deploy.") == "done"
