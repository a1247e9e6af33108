"""The Pydantic AI kernel: what the model sees first, how often tools had their effect, and the page that explains it."""

import ast
import asyncio
import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pydantic_ai", reason="the pydantic-ai extra is not installed")

import pydantic_ai
from pauseledger import (
    ASK_USER,
    NOT_ANSWERED,
    NOT_DISPATCHED,
    Actor,
    AlreadyConsumed,
    AlreadyContinued,
    AnswerCommand,
    AskUserAnsweredEvent,
    Axes,
    InteractionConfigurationError,
    LapseAnswer,
    LedgerSettings,
    PauseCommand,
    PauseRejected,
    PauseWithdrawn,
    RecoverCommand,
    Refusal,
    ResumedTurn,
    RoundOpen,
    Scope,
    TokenExpired,
    Turn,
    open_ledger,
    resume_run,
    resume_stream,
    resume_stream_typed,
)
from pauseledger.infrastructure.kernels import Ended, Gate
from pauseledger.infrastructure.kernels.pydantic_ai import PydanticAIKernel, ask_user_toolset
from pauseledger.infrastructure.keys import KeyFile
from pydantic_ai import ApprovalRequired, CallDeferred, ModelMessagesTypeAdapter, RunContext
from pydantic_ai.messages import (
    BinaryContent,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.function import DeltaToolCall, FunctionModel
from pydantic_ai.tools import DeferredToolRequests

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kernels" / "pydantic-ai.md"
ACME = Scope(tenant_id="acme")
QUESTION = {"questions": [{"question": "Where to?", "options": [{"label": "Staging"}, {"label": "Production"}]}]}
ANSWER = {"answers": [{"question_id": "q1", "selections": ["Staging"]}]}
APPROVE = {"decision": "approve"}
REJECT = {"decision": "reject", "reason": "not on Friday"}
BY_HAND = {"decision": "respond", "text": "done by hand"}
SURFACES = ["run", "stream", "typed"]


class Script:
    """A model that plays replies, streamed or whole, and keeps what it saw. A list is calls, a text is a text."""

    def __init__(self, *replies):
        self.replies, self.seen = list(replies), []
        self.model = FunctionModel(self.whole, stream_function=self.streamed)

    def next(self, messages):
        self.seen.append(list(messages))
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    def whole(self, messages, info):
        reply = self.next(messages)
        if isinstance(reply, ModelResponse):
            return reply
        if isinstance(reply, str):
            return ModelResponse([TextPart(reply)])
        return ModelResponse([ToolCallPart(name, args, call_id) for call_id, name, args in reply])

    async def streamed(self, messages, info):
        reply = self.next(messages)
        if isinstance(reply, str):
            for word in re.findall(r"\S+\s*", reply):
                yield word
        else:
            for at, (call_id, name, args) in enumerate(reply):
                yield {at: DeltaToolCall(name, json.dumps(args), tool_call_id=call_id)}


class Host:
    """One process: an agent with tools that leave traces, and the kernel over it."""

    def __init__(self, ledger, *replies, gates=None, approvals=None, effects=None):
        self.ledger, self.script = ledger, Script(*replies)
        self.runs, self.effects = [], {} if effects is None else effects
        self.agent = agent = pydantic_ai.Agent(
            self.script.model, output_type=[str, DeferredToolRequests], toolsets=[ask_user_toolset()]
        )

        @agent.tool(requires_approval=True)
        def deploy(ctx: RunContext, to: str) -> str:
            self.runs.append(to)
            self.effects.setdefault(ctx.tool_call_metadata["idempotency_key"], to)
            return f"deployed to {to}"

        @agent.tool_plain
        def look() -> str:
            self.runs.append("look")
            return "all quiet"

        @agent.tool
        def remove(ctx: RunContext, path: str) -> str:
            if path.startswith("/") and not ctx.tool_call_approved:
                raise ApprovalRequired(metadata={"reason": "absolute"})
            self.runs.append(path)
            return f"removed {path}"

        @agent.tool_plain
        def fetch(url: str) -> str:
            raise CallDeferred

        gates = {"ask_user": Gate(ASK_USER)} if gates is None else gates
        self.kernel = PydanticAIKernel(agent, ledger.capability, scope=ACME, gates=gates, approvals=approvals)

    async def ask(self, prompt="Deploy.", run_id="run-1", **given):
        return await self.kernel.run(prompt, run_id=run_id, session_id="chat-7", **given)

    async def redeem(self, ended, answer, at=0):
        return await self.ledger.redeem(ended.paused[at].token, answer, axes=ended.asked[at].axes, by=Actor("maria"))

    async def redeem_all(self, ended, *answers):
        for at, answer in enumerate(answers[:-1]):
            with pytest.raises(RoundOpen):
                await self.redeem(ended, answer, at)
        return await self.redeem(ended, answers[-1], len(answers) - 1)

    async def recover(self, ended):
        return await self.ledger.capability.recover(RecoverCommand(ended.paused[0].pause_id, axes=ended.asked[0].axes))


async def go_on(surface, host, turn, **options):
    if surface == "run":
        return [await resume_run(host.kernel, turn, **options)]
    resume = {"stream": resume_stream, "typed": resume_stream_typed}[surface]
    return [item async for item in resume(host.kernel, turn, **options)]


def results(messages):
    """Results by call, of the whole history; a call with two of them fails here."""
    parts = [part for message in messages for part in message.parts if hasattr(part, "tool_call_id")]
    found = [
        (p.tool_call_id, p.content) for p in parts if isinstance(p, ToolReturnPart) or p.part_kind == "retry-prompt"
    ]
    assert len(dict(found)) == len(found)
    return dict(found)


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


@pytest.fixture
async def brief():
    async with open_ledger("memory:", LedgerSettings(lease=1)) as opened:
        yield opened


@pytest.mark.parametrize("surface", SURFACES)
async def test_the_first_sight_holds_the_answer_on_its_call(memory, surface):
    ended = await Host(memory, [("c1", "ask_user", QUESTION)]).ask()
    going = Host(memory, "Staging it is.")
    items = await go_on(surface, going, await going.redeem(ended, ANSWER))
    (seen,) = going.script.seen
    assert [type(message) for message in seen] == [ModelRequest, ModelResponse, ModelRequest]
    assert [p.content for p in seen[0].parts] == ["Deploy."]
    assert results(seen) == {"c1": "q1: Staging"}
    assert isinstance(items[-1], Ended)
    assert items[-1].messages[-1].parts == [TextPart("Staging it is.")]
    assert (await newest(memory, ended.paused[0])).end == "finished"
    if surface == "stream":
        assert "".join(items[:-1]) == "Staging it is."
        assert len(items) > 2
    if surface == "typed":
        assert isinstance(items[0], AskUserAnsweredEvent)
        assert items[-2].result.output == "Staging it is."


@pytest.mark.parametrize("surface", SURFACES)
@pytest.mark.parametrize(
    ("answer", "ran", "said"),
    [
        (APPROVE, ["prod"], "deployed to prod"),
        ({"decision": "edit", "arguments": {"to": "staging"}}, ["staging"], "deployed to staging"),
        (REJECT, [], "not on Friday"),
        ({"decision": "respond", "text": "I did it myself"}, [], "I did it myself"),
    ],
)
async def test_each_decision_runs_what_it_says(memory, surface, answer, ran, said):
    ended = await Host(memory, [("c1", "deploy", {"to": "prod"})]).ask()
    going = Host(memory, "done")
    await go_on(surface, going, await going.redeem(ended, answer))
    (seen,) = going.script.seen
    assert said in results(seen)["c1"]
    assert going.runs == ran
    assert going.effects == {str(ended.paused[0].pause_id): to for to in ran}
    assert seen[1].parts[0].args_as_dict() == {"to": "prod"}


@pytest.mark.parametrize("surface", SURFACES)
async def test_finished_neighbours_keep_their_results_beside_every_kind_of_answer(memory, surface):
    calls = [
        ("c0", "look", {}),
        ("c1", "deploy", {"to": "x"}),
        ("c2", "ask_user", QUESTION),
        ("c3", "nowhere", {}),
        ("c4", "deploy", {"to": "y"}),
    ]
    host = Host(memory, calls)
    ended = await host.ask()
    assert host.runs == ["look"]
    assert [asked.axes.call_id for asked in ended.asked] == ["c1", "c2", "c4"]
    going = Host(memory, "done")
    await go_on(surface, going, await going.redeem_all(ended, APPROVE, ANSWER, REJECT))
    said = results(going.script.seen[0])
    assert (said["c0"], said["c1"], said["c2"]) == ("all quiet", "deployed to x", "q1: Staging")
    assert "nowhere" in str(said["c3"])
    assert "not on Friday" in said["c4"]
    assert going.runs == ["x"]


async def test_a_call_without_a_result_gets_the_observation_and_never_runs(memory):
    """A host that pauses a turn of its own, in which nothing ran: the neighbours are told so, and stay undone."""
    calls = [ToolCallPart("look", {}, "c0"), ToolCallPart("deploy", {"to": "x"}, "c1")]
    messages = [ModelRequest([UserPromptPart("Deploy.")]), ModelResponse(calls)]
    axes = Axes(scope=ACME, session_id="s", run_id="r", call_id="c1")
    turn = Turn("pydantic-ai", ModelMessagesTypeAdapter.dump_json(messages))
    request = {"tool": "deploy", "arguments": {"to": "x"}}
    receipt = await memory.capability.pause(PauseCommand("approval", request, turn, axes))
    going = Host(memory, "done")
    await resume_run(going.kernel, await memory.redeem(receipt.token, APPROVE, axes=axes))
    assert results(going.script.seen[0]) == {"c0": NOT_DISPATCHED, "c1": "deployed to x"}
    assert going.runs == ["x"]


@pytest.mark.parametrize("surface", SURFACES)
async def test_consumed_and_then_the_model_fails_the_effect_is_one(ledger, surface):
    ended = await Host(ledger, [("c1", "deploy", {"to": "prod"})]).ask()
    failing = Host(ledger, ConnectionError("hung up"))
    with pytest.raises(ConnectionError):
        await go_on(surface, failing, await failing.redeem(ended, APPROVE))
    assert (await newest(ledger, ended.paused[0])).NAME == "pause.stalled"
    again = Host(ledger, "done", effects=failing.effects)
    await go_on(surface, again, await again.recover(ended))
    assert results(again.script.seen[0]) == {"c1": "deployed to prod"}
    assert again.effects == {str(ended.paused[0].pause_id): "prod"}
    assert (await newest(ledger, ended.paused[0])).end == "finished"


async def test_of_many_decisions_at_once_one_goes_on_and_the_tool_runs_once(ledger):
    ended = await Host(ledger, [("c1", "deploy", {"to": "prod"})]).ask()
    host = Host(ledger, "done")
    tried = await asyncio.gather(
        *(host.redeem(ended, (APPROVE, REJECT)[n % 2]) for n in range(20)), return_exceptions=True
    )
    (turn,) = [one for one in tried if isinstance(one, ResumedTurn)]
    assert all(isinstance(one, AlreadyConsumed) for one in tried if one is not turn)
    await resume_run(host.kernel, turn)
    assert host.runs == (["prod"] if turn.outcome.response == APPROVE else [])
    assert len(host.script.seen) == 1


@pytest.mark.parametrize("at_once", [False, True])
async def test_answers_in_any_order_land_on_their_own_calls(ledger, at_once):
    ended = await Host(ledger, [(f"c{n}", "deploy", {"to": f"place {n}"}) for n in (1, 2, 3)]).ask()
    host = Host(ledger, "done")
    answers = {n: {"decision": "edit", "arguments": {"to": f"other {n}"}} for n in (0, 1, 2)}
    if at_once:
        tried = await asyncio.gather(*(host.redeem(ended, answers[n], n) for n in answers), return_exceptions=True)
    else:
        tried = [await asyncio.gather(host.redeem(ended, answers[n], n), return_exceptions=True) for n in (2, 1, 0)]
        tried = [one for (one,) in tried]
    (turn,) = [one for one in tried if isinstance(one, ResumedTurn)]
    assert all(isinstance(one, RoundOpen) for one in tried if one is not turn)
    await resume_run(host.kernel, turn)
    assert results(host.script.seen[0]) == {f"c{n + 1}": f"deployed to other {n}" for n in (0, 1, 2)}
    assert host.effects == {str(ended.paused[n].pause_id): f"other {n}" for n in (0, 1, 2)}


async def test_the_last_two_answers_at_once_from_two_ledgers_make_one_continuation(tmp_path):
    KeyFile(tmp_path / "keys").create()
    url, settings = f"sqlite:///{tmp_path / 'l.db'}", LedgerSettings(keys_directory=tmp_path / "keys")
    async with open_ledger(url, settings) as one, open_ledger(url, settings) as two:
        for n in range(10):
            ended = await Host(one, [(f"c{c}", "deploy", {"to": f"{c}"}) for c in (1, 2, 3)]).ask(run_id=f"run {n}")
            hosts = [Host(one, "done"), Host(two, "done")]
            with pytest.raises(RoundOpen):
                await hosts[0].redeem(ended, APPROVE, 0)
            tried = await asyncio.gather(
                hosts[0].redeem(ended, APPROVE, 1), hosts[1].redeem(ended, APPROVE, 2), return_exceptions=True
            )
            ((host, turn),) = [
                (host, found) for host, found in zip(hosts, tried, strict=True) if isinstance(found, ResumedTurn)
            ]
            await resume_run(host.kernel, turn)
            assert sorted(host.runs) == ["1", "2", "3"]


async def test_gone_right_after_the_last_answer_recover_finds_it(ledger):
    ended = await Host(ledger, [(f"c{n}", "deploy", {"to": f"place {n}"}) for n in (1, 2)]).ask()
    for receipt, asked in zip(ended.paused, ended.asked, strict=True):
        axes = asked.axes.model_dump()
        command = AnswerCommand(ledger.capability.decode_token(receipt.token), APPROVE, **{**axes, "scope": ACME})
        await ledger.capability.answer(command)
    going = Host(ledger, "done")
    await resume_run(going.kernel, await going.recover(ended))
    assert results(going.script.seen[0]) == {"c1": "deployed to place 1", "c2": "deployed to place 2"}


async def test_nobody_answers_and_the_lapse_answer_stands(memory):
    waits = Gate(closes_in=1, on_lapse=LapseAnswer({"decision": "reject", "reason": "nobody was there"}))
    ended = await Host(memory, [("c1", "deploy", {"to": "prod"})], approvals=waits).ask()
    await asyncio.sleep(2.1)
    going = Host(memory, "then not")
    with pytest.raises(TokenExpired):
        await going.redeem(ended, APPROVE)
    await resume_run(going.kernel, await going.recover(ended))
    assert "nobody was there" in results(going.script.seen[0])["c1"]
    assert going.runs == []


async def test_an_answer_in_time_stands_beside_one_that_never_came(memory):
    gates = {"deploy": Gate(closes_in=1), "ask_user": Gate(ASK_USER)}
    ended = await Host(memory, [("c1", "deploy", {"to": "x"}), ("c2", "ask_user", QUESTION)], gates=gates).ask()
    await asyncio.sleep(2.1)
    going = Host(memory, "done")
    await resume_run(going.kernel, await going.redeem(ended, ANSWER, 1))
    assert results(going.script.seen[0]) == {"c1": NOT_ANSWERED, "c2": "q1: Staging"}
    assert going.runs == []


async def test_a_new_message_supersedes_the_old_question(memory):
    first = await Host(memory, [("c1", "deploy", {"to": "prod"})]).ask()
    going = Host(memory, [("c2", "deploy", {"to": "staging"})], "done")
    old = first.paused[0].pause_id
    second = await going.ask("Staging first.", run_id="run-2", history=first.messages, supersedes=old)
    assert results(going.script.seen[0]) == {"c1": NOT_ANSWERED}
    with pytest.raises(PauseWithdrawn) as refused:
        await going.redeem(first, APPROVE)
    assert isinstance(refused.value, Refusal)
    assert (await newest(memory, first.paused[0])).NAME == "pause.refused"
    await resume_run(going.kernel, await going.redeem(second, APPROVE))
    assert going.runs == ["staging"]


@pytest.mark.parametrize("zombie_fails", [True, False])
async def test_a_zombie_changes_nothing_and_there_is_no_third_run(brief, zombie_fails):
    ended = await Host(brief, [("c1", "deploy", {"to": "prod"})]).ask()
    zombie = Host(brief, ConnectionError("hung up") if zombie_fails else "late")
    outlived = await zombie.redeem(ended, APPROVE)
    await asyncio.sleep(1.2)
    rescuer = Host(brief, "done", effects=zombie.effects)
    rescued = await rescuer.recover(ended)
    if zombie_fails:
        with pytest.raises(ConnectionError):
            await resume_run(zombie.kernel, outlived)
        assert (await newest(brief, ended.paused[0])).NAME == "pause.recovered"
    else:
        await resume_run(zombie.kernel, outlived)
        assert (await newest(brief, ended.paused[0])).late
    await resume_run(rescuer.kernel, rescued)
    with pytest.raises(AlreadyContinued):
        await rescuer.recover(ended)
    assert zombie.effects == {str(ended.paused[0].pause_id): "prod"}
    assert [fact.NAME for fact in await brief.story(ended.paused[0].pause_id)].count("pause.continued") == 1


@pytest.mark.parametrize("surface", SURFACES)
async def test_a_second_stop_says_which_pause_is_next(memory, surface):
    first = await Host(memory, [("c1", "ask_user", QUESTION)]).ask()
    going = Host(memory, [("c2", "look", {})], [("c3", "deploy", {"to": "x"})], "done")
    *_, second = await go_on(surface, going, await going.redeem(first, ANSWER))
    fact = await newest(memory, first.paused[0])
    assert (fact.end, fact.next) == ("paused_again", (second.paused[0].pause_id,))
    await go_on(surface, going, await going.redeem(second, APPROVE))
    assert results(going.script.seen[2]) == {"c1": "q1: Staging", "c2": "all quiet", "c3": "deployed to x"}
    assert going.runs == ["look", "x"]


@pytest.mark.parametrize("surface", ["stream", "typed"])
async def test_walking_away_from_a_stream_stalls_the_turn(memory, surface):
    ended = await Host(memory, [("c1", "deploy", {"to": "prod"})]).ask()
    going = Host(memory, "one two three")
    turn = await going.redeem(ended, APPROVE)
    stream = (resume_stream if surface == "stream" else resume_stream_typed)(going.kernel, turn)
    await anext(stream)
    await stream.aclose()
    assert (await newest(memory, ended.paused[0])).NAME == "pause.stalled"


@pytest.mark.parametrize("surface", SURFACES)
async def test_a_cancelled_consumer_takes_the_tool_under_way_along(memory, surface):
    started = asyncio.Event()
    host = Host(memory, [("c1", "deploy", {"to": "prod"})], [("c2", "wait", {})])

    @host.agent.tool_plain
    async def wait() -> str:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            host.runs.append("stopped")
        return "waited"

    ended = await host.ask()
    going = asyncio.create_task(go_on(surface, host, await host.redeem(ended, APPROVE)))
    await started.wait()
    going.cancel()
    with pytest.raises(asyncio.CancelledError):
        await going
    assert host.runs == ["prod", "stopped"]
    fact = await newest(memory, ended.paused[0])
    assert (fact.NAME, fact.cause) == ("pause.stalled", "cancelled")


async def test_a_prompt_comes_after_the_answers(memory):
    ended = await Host(memory, [("c1", "deploy", {"to": "prod"}), ("c2", "ask_user", QUESTION)]).ask()
    going = Host(memory, "done")
    turn = await going.redeem_all(ended, APPROVE, ANSWER)
    await resume_run(going.kernel, turn.with_prompt("Be quick."))
    last = going.script.seen[0][-1].parts
    assert {part.content for part in last[:2]} == {"deployed to prod", "q1: Staging"}
    assert last[2].content == "Be quick."


async def test_a_tool_that_asks_for_some_arguments_alone_says_why(memory):
    host = Host(memory, [("c1", "remove", {"path": "tmp"}), ("c2", "remove", {"path": "/etc"})], "done")
    ended = await host.ask()
    assert [asked.request for asked in ended.asked] == [
        {"tool": "remove", "arguments": {"path": "/etc"}, "reason": "absolute"}
    ]
    await resume_run(host.kernel, await host.redeem(ended, APPROVE))
    assert host.runs == ["tmp", "/etc"]


async def test_a_result_from_outside_is_folded_in(memory):
    gates = {"fetch": Gate(closes_in=60)}
    host = Host(memory, [("c1", "fetch", {"url": "u"}), ("c2", "deploy", {"to": "x"})], "done", gates=gates)
    ended = await host.ask()
    turn = await host.redeem_all(ended, APPROVE, APPROVE)
    await resume_run(host.kernel, turn.with_results({"c1": "200 OK"}))
    assert results(host.script.seen[1]) == {"c1": "200 OK", "c2": "deployed to x"}


async def test_a_call_deferred_for_its_result_needs_a_gate(memory):
    with pytest.raises(InteractionConfigurationError, match="'fetch'"):
        await Host(memory, [("c1", "fetch", {"url": "u"})]).ask()


async def test_a_question_that_does_not_fit_is_no_pause(memory):
    with pytest.raises(PauseRejected):
        await Host(memory, [("c1", "ask_user", {"questions": []})]).ask()


async def test_a_run_without_a_stop_is_no_pause(memory):
    ended = await Host(memory, [("c1", "look", {})], "quiet").ask()
    assert (ended.paused, ended.state["result"].output) == ((), "quiet")


async def test_the_turn_comes_back_as_it_was(memory):
    """Binary prompts, thinking with its signature, provider's details: what the model sees is what the run held."""
    thought = ModelResponse(
        [
            ThinkingPart("hm", id="t", signature="s1g", provider_name="anthropic"),
            ToolCallPart("deploy", {"to": "é"}, "c1"),
        ],
        provider_details={"n": 1.5},
    )
    prompt = ["Deploy this:", BinaryContent(b"\x00\xff" * 9, media_type="image/png")]
    host = Host(memory, thought, "done")
    ended = await host.ask(prompt)
    await resume_run(host.kernel, await host.redeem(ended, BY_HAND))
    seen = host.script.seen[1]
    kept = ModelMessagesTypeAdapter.validate_json(ModelMessagesTypeAdapter.dump_json(ended.messages))
    assert seen[:2] == kept
    assert seen[0].parts[0].content[1].data == b"\x00\xff" * 9
    assert results(seen) == {"c1": "done by hand"}


def test_a_process_that_never_saw_the_turn_goes_on_with_it(tmp_path):
    url = f"sqlite:///{tmp_path / 'l.db'}"
    program = f"""
import asyncio, importlib.util, json
spec = importlib.util.spec_from_file_location("story", {__file__!r})
story = importlib.util.module_from_spec(spec); spec.loader.exec_module(story)
async def main():
    async with story.open_ledger({url!r}) as ledger:
        ended = await story.Host(ledger, [("c1", "deploy", {{"to": "prod"}}), ("c2", "look", {{}})]).ask()
        print(json.dumps([ended.paused[0].token, ended.asked[0].axes.model_dump(mode="json")]))
asyncio.run(main())
"""
    env = {"PAUSELEDGER_KEYS_DIR": str(tmp_path / "keys"), "PATH": "/usr/bin:/bin"}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=env, check=False)
    assert run.returncode == 0, run.stderr
    token, axes = json.loads(run.stdout)

    async def resumed():
        async with open_ledger(url, LedgerSettings(keys_directory=tmp_path / "keys")) as ledger:
            host = Host(ledger, "done")
            await resume_run(host.kernel, await ledger.redeem(token, APPROVE, axes=Axes(**axes)))
            return host

    host = asyncio.run(resumed())
    assert results(host.script.seen[0]) == {"c1": "deployed to prod", "c2": "all quiet"}
    assert host.runs == ["prod"]


async def test_every_snippet_of_the_page_runs_and_prints_what_it_says():
    script = Script(
        [("c1", "deploy", {"to": "production"})], "It is on staging.", [("c2", "ask_user", QUESTION)], "Fine."
    )
    namespace = {"model": script.model}
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(snippets) == 3
    for snippet in snippets:
        printed = io.StringIO()
        code = compile(snippet, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        with contextlib.redirect_stdout(printed):
            running = eval(code, namespace)
            if running is not None:
                await running
        assert printed.getvalue().splitlines() == re.findall(r"print\(.*\)  # (.*)", snippet)
    assert script.replies == []
