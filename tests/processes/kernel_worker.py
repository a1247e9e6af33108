"""Workers that pause and go on with a framework's agent, run by its kernel.

Run as `python kernel_worker.py <fd> <module>`, as `worker.py` is; who asks names the kernel and the folder. The agents and their scripted models are
those of the double-answer table; what their tool and their models did stands in files of the folder, and what the
framework itself keeps in a folder within it, of all workers or of each.
"""

import asyncio
import os
import sys
import time
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from uuid import UUID

import pauseledger as pl
from pauseledger.infrastructure.double_answer_stage import TENANT, World, call_id, way
from worker import Worker, main, told


class Orders(dict):
    """The plan of a session, by its name: `3:x` asks to refund three orders, all in its first message."""

    def __missing__(self, session):
        return [orders_of(session)]


def orders_of(session):
    return [f"{session}.{number}" for number in range(int(session.partition(":")[0]))]


class Watched(World):
    """Notes each call of a model as well, and lets one that goes on be held up for as long as a file is there."""

    def wanted(self, session, called):
        if called:
            with (self.folder.parent / "went_on").open("a") as notes:
                notes.write(f"{session}\n")
            self._held(f"{session} {os.getpid()}")
        return super().wanted(session, called)

    @property
    def _traces(self):
        return self.folder.parent / "refunds"

    def _held(self, who):
        hold, held, fail = (self.folder.parent / f"{word} {who}" for word in ("hold", "held", "fail"))
        if hold.exists():
            held.touch()
            while hold.exists():
                time.sleep(0.005)
            if fail.exists():
                raise ConnectionError("hung up")


def way_of(kernel):
    return import_module("langchain_gates").Gated() if kernel == "langchain-gates" else way(MODULE, kernel)


class KernelWorker(Worker):
    """Asks and goes on with the kernel that it was started with."""

    @classmethod
    def settings(cls, config):
        folder = Path(config["folder"]) / (str(os.getpid()) if config["apart"] else "together")
        folder.mkdir(exist_ok=True)
        cls.world = Watched(folder, Orders(), takes=0.0)
        cls.way = way_of(config["kernel"])
        return replace(super().settings(config), interactions=list(cls.way.interactions))

    async def ask(self, session):
        """Run up to the stop."""
        async with self._kernel(session) as kernel:
            ended = await kernel.run("Refund.", run_id=f"run {session}", session_id=session)
        return {
            "tokens": [receipt.token for receipt in ended.paused],
            "pauses": [str(receipt.pause_id) for receipt in ended.paused],
        }

    async def decide(self, session, token, decision, number=0):
        """Redeem one call's token and go on."""
        turn = await self.ledger.redeem(token, self._said(decision), axes=self._axes(session, number), by=self.by)
        return await self._went_on(session, turn)

    async def decide_many(self, session, token, decisions):
        """Do it several times at once."""

        async def one(decision):
            try:
                return await self.decide(session, token, decision)
            except pl.LedgerError as error:
                return told(error)

        return {"each": await asyncio.gather(*map(one, decisions))}

    async def take_up(self, session, pause):
        """Recover a turn that is owed, and go on."""
        command = pl.RecoverCommand(UUID(pause), axes=self._axes(session, 0))
        return await self._went_on(session, await self.ledger.capability.recover(command))

    async def keep(self, session, tokens):
        """Answer every call of a round, consume nothing, and die."""
        for number, token in enumerate(tokens):
            axes = dict(self._axes(session, number))
            await self.ledger.capability.answer(pl.AnswerCommand(self.envelope(token), self._said("approve"), **axes))
        os._exit(9)

    async def _went_on(self, session, turn):
        said = {"won": True, "fence": turn.fence, "dispatched": sorted(call.interrupt_id for call in turn.dispatch)}
        try:
            async with self._kernel(session) as kernel:
                ended = await pl.resume_run(kernel, turn)
        except ConnectionError as broke:
            return {**said, "broke": str(broke)}
        return {**said, "paused": len(ended.paused)}

    def _said(self, decision):
        reason = {"decision": "reason", "type": "message"}[self.way.word]
        return {self.way.word: decision, **({reason: "too dear"} if decision == "reject" else {})}

    def _axes(self, session, number):
        call = call_id(orders_of(session)[number])
        return pl.Axes(scope=TENANT, session_id=session, run_id=f"run {session}", call_id=call)

    def _kernel(self, session):
        return self.way.kernel(self.world, session, self.ledger.capability)


if __name__ == "__main__":
    # Nothing leaves the machine, whatever the environment asks for.
    os.environ["LANGSMITH_TRACING"] = "false"
    _, _, MODULE = sys.argv
    import_module(f"pauseledger.infrastructure.double_answer_{MODULE}")
    main(KernelWorker)
