"""The plain loop: what its chat function sees, how often its tools ran, and the page that explains it."""

import re
from pathlib import Path

import pytest
from pauseledger import NOT_ANSWERED, AskUserAnsweredEvent, InteractionConfigurationError, Scope, resume_run
from pauseledger.infrastructure.kernels import Ended
from pauseledger.infrastructure.kernels.plain import PlainKernel
from pauseledger.infrastructure.testing_kernels import ANSWER, APPROVE, QUESTION, SCOPE, SURFACES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kernels" / "plain.md"
#: The page's own agent and suite are what is tested here.
SUITE = {"__name__": __name__, "PlainKernel": PlainKernel}
exec(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[-1], SUITE)
Scripted, TestConformance = SUITE["Scripted"], SUITE["TestMyKernel"]


def saying(text):
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize("surface", SURFACES)
async def test_the_first_sight_holds_the_answer_on_its_call(memory, surface):
    ended = await Scripted(memory, [("c1", "ask_user", QUESTION)]).ask()
    going = Scripted(memory, "Staging it is.")
    items = await going.go_on(surface, await going.redeem(ended, ANSWER))
    (seen,) = going.shown
    assert seen == [*ended.messages, {"role": "tool", "tool_call_id": "c1", "content": "q1: Staging"}]
    assert isinstance(items[-1], Ended)
    if surface == "stream":
        assert items[:-1] == ["Staging it is."]
    if surface == "stream_typed":
        assert isinstance(items[0], AskUserAnsweredEvent)
        assert items[1:-1] == [saying("Staging it is.")]


async def test_a_loop_without_gates_runs_to_its_end(memory):
    host = Scripted(memory, [("c1", "look", {}), ("c2", "nowhere", {}), ("c3", "look", [])], "quiet")
    ended = await host.ask()
    assert (ended.paused, ended.messages[-1]) == ((), saying("quiet"))
    said = host.seen[1]
    assert (host.runs, said["c1"]) == (["look"], "all quiet")
    assert "not run" in said["c2"]
    assert "not run" in said["c3"]


async def test_arguments_that_are_no_json_run_nothing(memory):
    host = Scripted(memory, [("c1", "look", {})], "quiet")
    calling = host.calling
    host.calling = lambda calls: broken(calling(calls))
    await host.ask()
    assert host.runs == []
    assert "not run" in host.seen[1]["c1"]


def broken(message):
    message["tool_calls"][0]["function"]["arguments"] = "{"
    return message


async def test_a_call_that_nobody_was_asked_about_is_keyed_by_its_turn_and_itself(memory):
    keys = []

    async def look(arguments, key):
        keys.append(key)
        return "all quiet"

    host = Scripted(memory, [("c1", "look", {})], "quiet")
    host.kernel = PlainKernel(memory.capability, host.chat, scope=SCOPE, tools={"look": look}, gates={})
    await host.ask()
    assert keys == ["run-1/c1"]


async def test_every_snippet_of_the_page_runs_and_prints_what_it_says(play):
    calling = Scripted.calling
    replies = [calling(None, [("c1", "deploy", {"to": "production"})]), saying("It is on staging.")]

    async def chat(messages):
        return replies.pop(0)

    namespace = {"chat": chat, "__name__": "page"}
    assert await play("plain.md", namespace) == 3
    assert replies == []
    replies += [calling(None, [("c1", "deploy", {"to": "x"})]), saying("done")]
    assert await namespace["loop"]("Deploy.") == "done"


async def test_a_turn_of_another_tenant_is_not_gone_on_with(memory):
    """Its next stop would be paused among this kernel's own."""
    ended = await Scripted(memory, [("c1", "deploy", {"to": "prod"})]).ask()
    turn = await memory.redeem(ended.paused[0].token, APPROVE, axes=ended.asked[0].axes)
    other = Scripted(memory, "done")
    other.kernel.scope = Scope(tenant_id="globex")
    with pytest.raises(InteractionConfigurationError, match="another tenant"):
        await resume_run(other.kernel, turn)
    assert other.runs == []


async def test_a_new_message_in_a_history_that_waits_leaves_no_call_without_a_result(memory):
    host = Scripted(memory, [("c1", "deploy", {"to": "prod"}), ("c2", "look", {})], "As you say.", "Still.")
    first = await host.ask()
    second = await host.ask("Never mind.", "run-2", history=first.messages)
    assert [message["role"] for message in host.shown[1]] == ["user", "assistant", "tool", "tool", "user"]
    assert host.seen[1] == {"c1": NOT_ANSWERED, "c2": NOT_ANSWERED}
    await host.ask("Sure?", "run-3", history=second.messages)
    assert host.seen[2] == host.seen[1]


async def test_an_id_that_a_model_gives_anew_is_another_side_effect(memory):
    keys = []

    async def look(arguments, key):
        keys.append(key)
        return "all quiet"

    host = Scripted(
        memory, [("c1", "look", {}), ("c2", "look", {})], [("c1", "look", {})], [("c1", "look", {})], "quiet"
    )
    host.kernel = PlainKernel(memory.capability, host.chat, scope=SCOPE, tools={"look": look}, gates={})
    await host.ask()
    assert keys == ["run-1/c1", "run-1/c2", "run-1/c1/2", "run-1/c1/3"]
