"""The page on a loop of one's own: Anthropic's messages, without a kernel of ours."""

import re
from pathlib import Path

import pytest
from pauseledger import Actor, AnswerCommand, recognise
from pauseledger.domain.facts import Continued
from pauseledger.infrastructure.transcripts import known

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "kernels" / "own-loop.md").read_text()


def using(call_id, to):
    return {"type": "tool_use", "id": call_id, "name": "deploy", "input": {"to": to}}


def saying(*blocks):
    return {"content": list(blocks)}


@pytest.fixture
def page():
    """The page's own code, with a model that says what it is told and a tool that leaves traces."""
    names = {"replies": [], "seen": [], "effects": []}

    async def ask_model(messages):
        names["seen"].append(list(messages))
        return names["replies"].pop(0)

    async def deploy(arguments, key):
        names["effects"].append((key, arguments["to"]))
        if names.get("breaks"):
            raise names.pop("breaks")
        return f"deployed to {arguments['to']}"

    names["ask_model"] = ask_model
    for snippet in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(snippet, names)
    names["TOOLS"]["deploy"] = deploy
    return names


async def answer(ledger, page, pause, response):
    token, axes = page["ASKED"][pause]
    envelope = recognise(ledger.capability, token).envelope
    said = {"session_id": axes.session_id, "run_id": axes.run_id, "call_id": axes.call_id}
    command = AnswerCommand(envelope=envelope, response=response, scope=axes.scope, **said, answered_by=Actor("maria"))
    return await ledger.capability.answer(command)


async def test_a_turn_stops_is_answered_and_goes_on_in_a_worker_that_broke_once(memory, page):
    page["replies"] += [saying({"type": "text", "text": "On it."}, using("t1", "prod"), using("t2", "test"))]
    first, second = await page["go_on"](memory, [{"role": "user", "content": "Deploy."}], "chat-7", "run-1")
    await page["work_once"](memory)
    await answer(memory, page, first.pause_id, {"decision": "edit", "arguments": {"to": "staging"}})
    await answer(memory, page, second.pause_id, {"decision": "reject", "reason": "No."})

    page["breaks"] = OSError("gone")
    with pytest.raises(OSError, match="gone"):
        await page["work_once"](memory)
    page["replies"] += [saying(using("t3", "prod"))]
    await page["work_once"](memory)
    key = str(first.pause_id)
    assert page["effects"] == [(key, "staging"), (key, "staging")]
    results = page["seen"][-1][-1]["content"]
    assert [(one["type"], one["tool_use_id"]) for one in results] == [("tool_result", "t1"), ("tool_result", "t2")]
    assert results[0]["content"] == "deployed to staging"

    (third,) = page["ASKED"].keys() - {first.pause_id, second.pause_id}
    [went_on] = [fact for fact in await memory.story(first.pause_id) if isinstance(fact, Continued)]
    assert (went_on.end, went_on.next) == ("paused_again", (third,))
    await answer(memory, page, third, {"decision": "approve"})
    page["replies"] += [saying({"type": "text", "text": "Done."})]
    await page["work_once"](memory)
    assert page["effects"][-1] == (str(third), "prod")
    assert [row async for row in memory.owed(page["ACME"])] == []


def test_the_formats_are_those_there_are():
    told = re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE)
    assert sorted(told) == list(known().names())
