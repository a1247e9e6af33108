"""Workers: real processes, each with a ledger of its own, forked out of one that has imported everything already.

Run as `python worker.py <fd>`: over that socket come requests for workers, each with a socket of its own, over which
tasks and results go as lines of JSON.
"""

import asyncio
import json
import os
import random
import signal
import socket
import sys
import time
from pathlib import Path
from uuid import UUID

import pauseledger as pl
from pauseledger.domain.facts import Answered, Consumed
from play import Player
from scene import CALLS, LABELS, answer, axes_of, pause_commands

#: So many players take steps in one process at once: more than statements are under way, so that some go together.
HANDS = 6


def told(error):
    """Say what a caller can see of an error."""
    names = ("reason", "recorded", "own", "state", "by", "outcome", "open", "continued_by_other", "pause_id", "missing")
    seen = {name: getattr(error, name) for name in names if hasattr(error, name)}
    at = getattr(error, "at", None)
    return {"error": type(error).__name__, "says": str(error), "at": at and at.isoformat(), **seen}


def results_of(turn):
    """Say which text stands on which call of a turn's history."""
    return {entry["tool_call_id"]: entry["content"] for entry in turn.history if entry["role"] == "tool"}


def won(turn):
    return {
        "won": True,
        "fence": turn.fence,
        "results": results_of(turn),
        "lead": turn.idempotency_key,
        "pause": str(turn.outcome.pause_id),
    }


class Worker:
    """The tasks, by name. `say` sends an interim line; the result of a task is its last one."""

    @classmethod
    def settings(cls, config):
        return pl.LedgerSettings(keys_directory=Path(config["keys"]), **config["settings"])

    def __init__(self, ledger, reader, writer):
        self.ledger, self.reader, self.writer = ledger, reader, writer
        self.by = pl.Actor(f"worker-{os.getpid()}")
        self.turn = None

    async def say(self, **said):
        self.writer.write(json.dumps(said, default=str).encode() + b"\n")
        await self.writer.drain()

    async def hear(self):
        line = await self.reader.readline()
        if not line:
            os._exit(0)
        return json.loads(line)

    async def serve(self):
        while True:
            task = await self.hear()
            await self.until(task.pop("at", None))
            try:
                said = await getattr(self, task.pop("task"))(**task)
            except pl.LedgerError as error:
                said = told(error)
            await self.say(done=True, **said)

    async def until(self, moment):
        """Wait for a moment of the machine's monotonic clock, the last of it without sleeping."""
        if moment is not None:
            await asyncio.sleep(max(0.0, moment - time.monotonic() - 0.02))
            while time.monotonic() < moment:
                pass

    # Tasks

    async def pause(self, run, calls=CALLS[:1], interaction=pl.ASK_USER):
        receipts = await self.ledger.capability.pause_round(pause_commands(run, calls, interaction))
        return {
            "tokens": [receipt.token for receipt in receipts],
            "pauses": [str(receipt.pause_id) for receipt in receipts],
            "existing": receipts[0].existing,
        }

    async def govern(self, interaction, **policy):
        done = await self.ledger.capability.govern(interaction, pl.Policy(**policy), by=self.by)
        return {"existing": done.existing}

    async def where(self, token):
        """Say which pause a token is of."""
        return {"pause": str(self.ledger.capability._services.seal.open(token).terms.pause_id)}

    def envelope(self, token):
        return pl.recognise(self.ledger.capability, token).envelope

    async def redeem(self, token, run, call=CALLS[0], response=None, key=None, tenant="acme"):
        axes = axes_of(run, call, tenant)
        self.turn = await pl.prepare(
            self.ledger.capability,
            envelope=self.envelope(token),
            response=answer("Anne") if response is None else response,
            **dict(axes),
            answered_by=self.by,
            attempt_key=key,
        )
        return won(self.turn)

    async def redeem_many(self, token, run, responses, call=CALLS[0]):
        """Redeem one token several times at once in this process."""

        async def one(response):
            try:
                return await self.redeem(token, run, call, response)
            except pl.LedgerError as error:
                return told(error)

        return {"each": await asyncio.gather(*map(one, responses))}

    async def answer(self, token, run, call=CALLS[0], response=None):
        axes = axes_of(run, call)
        receipt = await self.ledger.capability.answer(
            pl.AnswerCommand(
                envelope=self.envelope(token),
                response=answer("Anne") if response is None else response,
                **dict(axes),
                answered_by=self.by,
            )
        )
        return {"state": receipt.state}

    async def recover(self, pause, run, call=CALLS[0], forced=False):
        by = self.ledger.operator(self.by) if forced else self.ledger.capability
        reason = "forced" if forced else None
        self.turn = await by.recover(pl.RecoverCommand(pause_id=UUID(pause), axes=axes_of(run, call), reason=reason))
        return won(self.turn)

    async def go_on(self, end="finish", hold=False):
        """Go on with the turn won last, its lease renewed meanwhile, until told to come to an end."""
        turn, self.turn = self.turn, None
        try:
            async with pl.continuing(turn):
                if hold:
                    await self.say(entered=True)
                    await self.hear()
                if end == "stall":
                    raise RuntimeError("the kernel broke off")
        except RuntimeError:
            pass
        return {"settled": turn.settled}

    async def hold_the_answer(self, die=False):
        """Wait for a word before and after the append that keeps an answer and consumes nothing; or die after it."""
        pauses = self.ledger.pauses
        append = pauses.append

        async def held(facts):
            kinds = {type(fact) for fact in facts}
            if Answered not in kinds or Consumed in kinds:
                return await append(facts)
            pauses.append = append
            await self.say(holding="before")
            await self.hear()
            stored = await append(facts)
            if die:
                os.kill(os.getpid(), signal.SIGKILL)
            await self.say(holding="after")
            await self.hear()
            return stored

        pauses.append = held
        return {}

    async def storm(self, token, run, call=CALLS[0], tenant="intruder"):
        """Be refused again and again, until the next line comes in; say how often."""
        stop = asyncio.ensure_future(self.hear())
        count = recorded = 0
        errors = {}
        await self.say(entered=True)
        while not stop.done():
            try:
                await self.redeem(token, run, call, tenant=tenant)
            except pl.Refusal as refusal:
                count += 1
                recorded += refusal.recorded
            except pl.LedgerError as error:
                errors[str(error)] = errors.get(str(error), 0) + 1
            await asyncio.sleep(0)
        return {"refused": count, "recorded": recorded, "errors": errors}

    async def live(self, runs, calls=CALLS[:1]):
        """Pause, redeem and go on, run after run, telling each step as soon as it is acknowledged, until killed."""
        for run in runs:
            try:
                receipts = await self.ledger.capability.pause_round(pause_commands(run, calls))
                await self.say(run=run, tokens=[receipt.token for receipt in receipts])
                for call, receipt in zip(calls, receipts, strict=True):
                    await self._live_one(run, call, receipt.token)
            except pl.PauseClosed:
                await self.say(run=run, closed=True)
        return {}

    async def _live_one(self, run, call, token):
        try:
            said = await self.redeem(token, run, call, answer(LABELS[CALLS.index(call)]), key=f"{os.getpid()} {run}")
        except (pl.Refusal, pl.RoundOpen, pl.StoreUnavailable) as error:
            await self.say(run=run, call=call, **told(error))
        else:
            await self.say(run=run, call=call, **said)
            await self.go_on()
            await self.say(run=run, call=call, went_on=True)

    async def live_on(self, runs):
        """Pause, redeem and go on, run after run, and tell each step, whatever becomes of it."""
        for run in runs:
            said = await self._step("pause", run=run)
            await self.say(step="pause", run=run, **said)
            if "tokens" in said:
                token, pause = said["tokens"][0], said["pauses"][0]
                said = await self._step("redeem", token=token, run=run, response=answer("Anne"))
                await self.say(**{"step": "redeem", "run": run, **said, "pause": pause})
                if said.get("won"):
                    await self.go_on()
        return {}

    async def play(self, journal, seed, runs, steps):
        """Take random steps on some runs, several at once, each written down on the disk before and after."""
        chance = random.Random(seed)
        with open(journal, "w", encoding="utf-8") as file:

            def write(told):
                file.write(json.dumps(told) + "\n")
                file.flush()
                os.fsync(file.fileno())

            async def go(player):
                for _ in range(steps // HANDS):
                    await player.step(chance.choice(runs))

            first, *others = [
                Player(self.ledger, f"{os.getpid()}.{seed}.{hand}", chance, write) for hand in range(HANDS)
            ]
            for other in others:
                other.receipts, other.fences = first.receipts, first.fences
            await asyncio.gather(*map(go, (first, *others)))
        return {}

    async def _step(self, name, **task):
        try:
            return await getattr(self, name)(**task)
        except pl.LedgerError as error:
            return told(error)


async def work(connection, config, of_kind):
    # A result may be long, and a line is one result.
    reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 24)
    async with pl.open_ledger(config["url"], of_kind.settings(config)) as ledger:
        worker = of_kind(ledger, reader, writer)
        await worker.say(ready=os.getpid())
        await worker.serve()


def forked(control):
    """Fork a worker for each request, until whoever asks is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, files, _, _ = socket.recv_fds(control, 1 << 16, 1)
        if not request:
            return None
        pid = os.fork()
        if not pid:
            control.close()
            return socket.socket(fileno=files[0]), json.loads(request)
        os.close(files[0])
        control.sendall(f"{pid}\n".encode())


def main(of_kind):
    """Fork workers of a kind; in each of them, do what it is told."""
    mine = forked(socket.socket(fileno=int(sys.argv[1])))
    if mine is not None:
        try:
            asyncio.run(work(*mine, of_kind))
        except (BrokenPipeError, ConnectionResetError):
            # Whoever asked is gone.
            os._exit(1)


if __name__ == "__main__":
    main(Worker)
