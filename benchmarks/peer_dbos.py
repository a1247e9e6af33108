"""DBOS: a workflow that keeps the turn as its input and waits for a message; to redeem is to send it one.

There is no token; the workflow's id stands for it. The one who redeems waits for the workflow's result, which is the
messages, on the handle of this process: DBOS asks the database only once a second for a workflow of another.
"""

import asyncio
import logging
import uuid

import workload as w
from dbos import DBOS, SetWorkflowID


@DBOS.workflow()
async def turn(messages, request):
    """Wait for an answer to the request, and go on."""
    answer = await DBOS.recv_async("answer", timeout_seconds=w.HOUR)
    return {"messages": messages, "asked": request["title"], "answer": w.Answer.model_validate(answer).model_dump()}


class DbosPg(w.Peer):
    name = "dbos_pg"

    async def setup(self):
        logging.disable(logging.WARNING)
        url = self.where.replace("postgresql://", "postgresql+psycopg://")
        DBOS(
            config={
                "name": "bench",
                "system_database_url": url,
                "sys_db_pool_size": max(8, self.conc),
                "max_executor_threads": max(8, 2 * self.conc),
                "log_level": "ERROR",
            }
        )
        await asyncio.to_thread(DBOS.launch)

    async def close(self):
        """End with the process: what waits would be waited for."""

    async def pause(self, number):
        messages, request = w.turn(number)
        with SetWorkflowID(uuid.uuid4().hex):
            return await DBOS.start_workflow_async(turn, messages, request)

    async def redeem(self, handle):
        await DBOS.send_async(handle.get_workflow_id(), w.ANSWER, "answer")
        return (await handle.get_result())["messages"]

    async def race(self, handle, racers):
        async def one(number):
            mine = w.ANSWER | {"note": f"racer {number}"}
            await DBOS.send_async(handle.get_workflow_id(), mine, "answer")
            return "won" if (await handle.get_result())["answer"] == mine else "given another's answer"

        return await asyncio.gather(*[one(number) for number in range(racers)])
