"""Turns that stay in LangGraph's savers: the recorded checkpoint is read, and nothing in it is ever run."""

import contextlib
import pickle
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

pytest.importorskip("langchain", reason="the langchain extra is not installed")
pytest.importorskip("langgraph.checkpoint.sqlite", reason="LangGraph's SQLite saver is not installed")
pytest.importorskip("langgraph.checkpoint.postgres", reason="LangGraph's PostgreSQL saver is not installed")

import ormsgpack
from langchain.agents import AgentState, create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage, messages_to_dict
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.serde.jsonplus import EXT_CONSTRUCTOR_SINGLE_ARG, EXT_PYDANTIC_V2, JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from pauseledger import (
    ASK_USER,
    Axes,
    CheckpointReference,
    InteractionConfigurationError,
    LedgerSettings,
    PauseCommand,
    PauseRejected,
    Scope,
    TurnMismatch,
    TurnMissing,
    open_ledger,
    resume_run,
)
from pauseledger.infrastructure.kernels import Gate
from pauseledger.infrastructure.kernels.langchain import LangChainKernel
from pauseledger.infrastructure.kernels.langchain_middleware import PauseMiddleware, ask_user_tool
from pauseledger.infrastructure.kernels.langgraph_checkpoints import LangGraphCheckpoints, strict_serializer

ACME = Scope(tenant_id="acme")
GATES = {"ask_user": Gate(ASK_USER)}
QUESTION = {"questions": [{"question": "Where to?", "options": [{"label": "Staging"}, {"label": "Production"}]}]}
ANSWER = {"answers": [{"question_id": "q1", "selections": ["Staging"]}]}
THREAD = {"configurable": {"thread_id": "chat-7"}}


class Model(BaseChatModel):
    replies: list[Any]
    seen: list[Any] = []

    @property
    def _llm_type(self):
        return "scripted"

    def bind_tools(self, tools, **given):
        return self

    def _generate(self, messages, stop=None, run_manager=None, **given):
        self.seen.append(list(messages))
        return ChatResult(generations=[ChatGeneration(message=self.replies.pop(0))])


class SQLite:
    def __init__(self, path):
        self.path = path

    def saver(self):
        return AsyncSqliteSaver.from_conn_string(str(self.path))

    def write(self, statement, *values):
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            changed = connection.execute(statement, values).rowcount
            connection.commit()
        assert changed

    def replace_turn(self, kind, stored):
        self.write("UPDATE checkpoints SET type = ?, checkpoint = ?", kind, stored)

    def stored(self, messages):
        """Give what a checkpoint of these messages is stored as."""
        return JsonPlusSerializer().dumps_typed({"id": "x", "channel_values": {"messages": messages}})[1]


class Postgres(SQLite):
    def __init__(self, dsn):
        self.dsn = dsn

    def saver(self):
        return AsyncPostgresSaver.from_conn_string(self.dsn)

    def write(self, statement, *values):
        with psycopg.connect(self.dsn) as connection:
            assert connection.execute(statement, values).rowcount

    def replace_turn(self, kind, stored):
        self.write("UPDATE checkpoint_blobs SET type = %s, blob = %s WHERE channel = 'messages'", kind, stored)

    def stored(self, messages):
        return JsonPlusSerializer().dumps_typed(messages)[1]


@pytest.fixture(params=["sqlite", "postgresql"])
def threads(request, tmp_path):
    if request.param == "sqlite":
        return SQLite(tmp_path / "threads.db")
    return Postgres(request.getfixturevalue("pg_dsn"))


class Host:
    """An agent whose turns stay in its own saver."""

    def __init__(self, saver, ledger, *replies):
        saver.serde = strict_serializer()
        self.model = Model(replies=list(replies), seen=[])
        self.agent = create_agent(
            self.model, [ask_user_tool()], middleware=[PauseMiddleware(GATES)], checkpointer=saver
        )
        self.ledger = ledger
        self.kernel = LangChainKernel(self.agent, ledger.capability, scope=ACME, gates=GATES, checkpoints="threads")

    async def ask(self):
        return await self.kernel.run("Deploy.", run_id="run-1", session_id="chat-7")

    async def redeem(self, ended):
        return await self.ledger.redeem(ended.paused[0].token, ANSWER, axes=ended.asked[0].axes)


def asking(call_id="c1"):
    return AIMessage("", tool_calls=[{"name": "ask_user", "args": QUESTION, "id": call_id, "type": "tool_call"}])


@contextlib.asynccontextmanager
async def hosting(threads, *replies):
    async with threads.saver() as saver:
        await saver.setup()
        settings = LedgerSettings(checkpoints={"threads": LangGraphCheckpoints(saver)})
        async with open_ledger("memory:", settings) as ledger:
            yield Host(saver, ledger, *replies)


async def test_the_ledger_holds_a_reference_and_the_turn_goes_on(threads):
    async with hosting(threads, asking(), AIMessage("Staging it is.")) as host:
        ended = await host.ask()
        record = (await host.ledger.story(ended.paused[0].pause_id))[0].turn
        assert record.content is None
        head = (await host.agent.aget_state(THREAD)).config["configurable"]["checkpoint_id"]
        assert (record.checkpoint.store, record.checkpoint.locator, record.checkpoint.version) == (
            "threads",
            "chat-7",
            head,
        )
        turn = await host.redeem(ended)
        assert list(turn.history[:2]) == messages_to_dict(ended.messages)
        assert (await resume_run(host.kernel, turn)).messages[-1].content == "Staging it is."
        assert [message.content for message in host.model.seen[1]][-1] == "q1: Staging"


async def test_the_recorded_checkpoint_is_read_though_the_thread_went_on(threads):
    async with hosting(threads, asking(), AIMessage("It rains."), AIMessage("Staging it is.")) as host:
        ended = await host.ask()
        await host.kernel.run("How is the weather?", run_id="run-2", session_id="chat-7")
        assert len((await host.agent.aget_state(THREAD)).values["messages"]) == 5
        gone_on = await resume_run(host.kernel, await host.redeem(ended))
        first = host.model.seen[2]
        assert [type(message) for message in first] == [HumanMessage, AIMessage, ToolMessage]
        assert first[:2] == list(ended.messages)
        assert first[2].content == "q1: Staging"
        assert [message.content for message in gone_on.messages] == ["Deploy.", "", "q1: Staging", "Staging it is."]


async def test_a_deleted_checkpoint_is_turn_missing_and_the_pause_stands(threads):
    async with hosting(threads, asking()) as host:
        ended = await host.ask()
        await host.agent.checkpointer.adelete_thread("chat-7")
        for _ in range(2):
            with pytest.raises(TurnMissing):
                await host.redeem(ended)
        assert len(host.model.seen) == 1
        story = await host.ledger.story(ended.paused[0].pause_id)
        assert [fact.NAME for fact in story] == ["pause.paused", "pause.refused", "pause.refused"]


async def refused_and_stands(host, ended):
    with pytest.raises(TurnMismatch):
        await host.redeem(ended)
    assert len(host.model.seen) == 1
    story = await host.ledger.story(ended.paused[0].pause_id)
    assert [fact.NAME for fact in story] == ["pause.paused", "pause.refused"]


async def test_altered_arguments_are_turn_mismatch(threads):
    async with hosting(threads, asking()) as host:
        ended = await host.ask()
        human, reply = ended.messages
        altered = reply.model_copy(deep=True)
        altered.tool_calls[0]["args"]["questions"][0]["question"] = "Where from?"
        threads.replace_turn("msgpack", threads.stored([human, altered]))
        await refused_and_stands(host, ended)
        # The same messages stored again are the same turn.
        threads.replace_turn("msgpack", threads.stored([human, reply]))
        assert (await host.redeem(ended)).history


class Payload:
    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return open, (self.trace, "w")


def constructor(module, name, argument):
    return ormsgpack.packb(ormsgpack.Ext(EXT_CONSTRUCTOR_SINGLE_ARG, ormsgpack.packb((module, name, argument))))


def pydantic(module, name, fields):
    return ormsgpack.packb(ormsgpack.Ext(EXT_PYDANTIC_V2, ormsgpack.packb((module, name, fields, "model_validate"))))


ENVELOPE = '{"lc": 2, "type": "constructor", "id": ["os", "mkdir"], "args": ["%s"]}'


@pytest.mark.parametrize("kind", ["pickle", "constructor", "json", "unheard-of", "garbage", "fields missing"])
async def test_a_pickle_or_an_unknown_type_is_refused_and_never_run(threads, kind, tmp_path):
    trace = str(tmp_path / "trace")
    stored = {
        "pickle": ("pickle", pickle.dumps(Payload(trace))),
        "constructor": ("msgpack", constructor("os", "mkdir", trace)),
        "json": ("json", (ENVELOPE % trace).encode()),
        "unheard-of": ("unheard-of", b"x"),
        "garbage": ("msgpack", b"\xc1\xc1"),
        "fields missing": ("msgpack", pydantic("langchain_core.messages.human", "HumanMessage", {})),
    }[kind]
    async with hosting(threads, asking()) as host:
        ended = await host.ask()
        threads.replace_turn(*stored)
        await refused_and_stands(host, ended)
        assert not (tmp_path / "trace").exists()


def test_the_payloads_of_these_tests_would_run_where_they_were_let(tmp_path):
    first, second = tmp_path / "pickle", tmp_path / "constructor"
    pickle.loads(pickle.dumps(Payload(str(first)))).close()
    JsonPlusSerializer(allowed_msgpack_modules=True).loads_typed(("msgpack", constructor("os", "mkdir", str(second))))
    assert first.exists()
    assert second.exists()


def test_the_strict_serialiser_for_the_hosts_saver_runs_none_of_them(tmp_path):
    trace, strict = str(tmp_path / "trace"), strict_serializer()
    message = AIMessage("hello", id="1")
    assert strict.loads_typed(strict.dumps_typed([message])) == [message]
    strict.loads_typed(("msgpack", constructor("os", "mkdir", trace)))
    with pytest.raises(NotImplementedError):
        strict.loads_typed(("pickle", pickle.dumps(Payload(trace))))
    with contextlib.suppress(Exception):
        strict.loads_typed(("json", (ENVELOPE % trace).encode()))
    assert not (tmp_path / "trace").exists()


async def test_a_turn_that_holds_a_type_of_ones_own_is_rejected_when_pausing():
    saver = InMemorySaver()
    async with open_ledger("memory:", LedgerSettings(checkpoints={"threads": LangGraphCheckpoints(saver)})) as ledger:
        host = Host(saver, ledger, asking())
        tainted = HumanMessage("Deploy.", additional_kwargs={"due": datetime(2026, 1, 1, tzinfo=UTC)})
        with pytest.raises(PauseRejected) as rejected:
            await host.kernel.run("", run_id="r", session_id="s", history=messages_to_dict([tainted]))
        assert rejected.value.name == "turn_broken"


class Own(HumanMessage):
    """A message class of the host's."""


async def test_a_message_class_of_ones_own_is_not_on_the_list(threads):
    async with hosting(threads, asking()) as host:
        await host.agent.ainvoke({"messages": [Own("Deploy.")]}, THREAD)
        head = (await host.agent.aget_state(THREAD)).config["configurable"]["checkpoint_id"]
        reference = CheckpointReference("langchain", "threads", "chat-7", head)
        axes = Axes(scope=ACME, session_id="chat-7", run_id="r", call_id="c1")
        with pytest.raises(PauseRejected) as rejected:
            await host.ledger.capability.pause(PauseCommand(ASK_USER, QUESTION, reference, axes))
        assert rejected.value.name == "turn_broken"


@dataclass
class Artifact:
    of: str


async def test_types_in_other_channels_are_nobodys_business():
    saver = InMemorySaver()

    class State(AgentState):
        mine: Any

    async with open_ledger("memory:", LedgerSettings(checkpoints={"threads": LangGraphCheckpoints(saver)})) as ledger:
        model = Model(replies=[asking()], seen=[])
        agent = create_agent(
            model, [ask_user_tool()], middleware=[PauseMiddleware(GATES)], checkpointer=saver, state_schema=State
        )
        kernel = LangChainKernel(agent, ledger.capability, scope=ACME, gates=GATES, checkpoints="threads")
        ended = await kernel.run("Go.", run_id="r", session_id="s", state={"mine": Artifact("the host")})
        turn = await ledger.redeem(ended.paused[0].token, ANSWER, axes=ended.asked[0].axes)
        assert turn.history[-1]["data"]["content"] == "q1: Staging"


async def test_an_unknown_checkpoint_cannot_be_paused(threads):
    async with hosting(threads) as host:
        axes = Axes(scope=ACME, session_id="s", run_id="r", call_id="c1")
        for locator, version in (("chat-7", "1f0c0000-0000-6000-8000-000000000000"), ("chat-8", "1")):
            reference = CheckpointReference("langchain", "threads", locator, version)
            with pytest.raises(PauseRejected) as rejected:
                await host.ledger.capability.pause(PauseCommand(ASK_USER, QUESTION, reference, axes))
            assert rejected.value.name == "turn_missing"


async def test_the_savers_that_block_serve_as_well(threads):
    async with hosting(threads, asking()) as host:
        ended = await host.ask()
        where = (await host.ledger.story(ended.paused[0].pause_id))[0].turn.checkpoint
    reference = CheckpointReference("langchain", "threads", where.locator, where.version)
    blocking = (
        PostgresSaver.from_conn_string(threads.dsn)
        if isinstance(threads, Postgres)
        else SqliteSaver.from_conn_string(str(threads.path))
    )
    async with hosting(threads) as host:
        with blocking as saver:
            read = await LangGraphCheckpoints(saver).read(reference)
        assert read == await LangGraphCheckpoints(host.agent.checkpointer).read(reference)
        assert b'"Deploy."' in read


async def test_references_need_a_checkpointer(threads):
    async with open_ledger("memory:") as ledger:
        agent = create_agent(Model(replies=[]), [])
        with pytest.raises(InteractionConfigurationError, match="checkpointer"):
            LangChainKernel(agent, ledger.capability, scope=ACME, checkpoints="threads")
