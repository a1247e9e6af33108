"""LangGraph with its own savers: a node that interrupts, and `Command(resume=...)` on its thread.

There is no token; the thread's id stands for it. The answer is validated by the node, which runs again from its start.
"""

import asyncio
import sqlite3
import uuid
from typing import Any, TypedDict

import workload as w
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt


class State(TypedDict, total=False):
    messages: list[Any]
    request: dict[str, Any]
    answer: dict[str, Any]


def ask(state):
    """Stop here, and go on with what was answered."""
    return {"answer": w.Answer.model_validate(interrupt(state["request"])).model_dump()}


def thread(name):
    return {"configurable": {"thread_id": name}}


def graph(saver):
    builder = StateGraph(State)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    builder.add_edge("ask", END)
    return builder.compile(checkpointer=saver)


def begun(number):
    messages, request = w.turn(number)
    return {"messages": messages, "request": request}


class LangGraphPg(w.Peer):
    """AsyncPostgresSaver over a pool, as its documentation has it."""

    name = "langgraph_pg"

    async def setup(self):
        # Each saver's packages are imported where it is used: the other may not be installed.
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver  # noqa: PLC0415
        from psycopg.rows import dict_row  # noqa: PLC0415
        from psycopg_pool import AsyncConnectionPool  # noqa: PLC0415

        kwargs = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        self.pool = AsyncConnectionPool(self.where, min_size=self.conc, max_size=self.conc, kwargs=kwargs, open=False)
        await self.pool.open(wait=True)
        saver = AsyncPostgresSaver(self.pool)
        await saver.setup()
        self.graph = graph(saver)

    async def close(self):
        await self.pool.close()

    async def pause(self, number):
        name = uuid.uuid4().hex
        stopped = await self.graph.ainvoke(begun(number), thread(name))
        assert "__interrupt__" in stopped
        return name

    async def redeem(self, name, answer=w.ANSWER):
        state = await self.graph.ainvoke(Command(resume=answer), thread(name))
        assert state["answer"] == answer
        return state["messages"]

    async def race(self, name, racers):
        async def one(number):
            await self.redeem(name, w.ANSWER | {"note": f"racer {number}"})
            return "won"

        return await asyncio.gather(*[one(number) for number in range(racers)])


class LangGraphSqlite(w.Peer):
    """SqliteSaver, in threads that share its connection."""

    name = "langgraph_sqlite"
    store = "sqlite"
    is_async = False

    def setup(self):
        from langgraph.checkpoint.sqlite import SqliteSaver  # noqa: PLC0415 - see above

        self.connection = sqlite3.connect(self.where, check_same_thread=False)
        saver = SqliteSaver(self.connection)
        saver.setup()
        self.graph = graph(saver)

    def close(self):
        self.connection.close()

    def pause(self, number):
        name = uuid.uuid4().hex
        stopped = self.graph.invoke(begun(number), thread(name))
        assert "__interrupt__" in stopped
        return name

    def redeem(self, name):
        state = self.graph.invoke(Command(resume=w.ANSWER), thread(name))
        assert state["answer"] == w.ANSWER
        return state["messages"]

    def race_one(self, name):
        self.redeem(name)
        return "won"
