"""What the double-answer table plays on: a tool that leaves traces, and one process for whatever anybody does."""

import asyncio
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol, TypeVar
from uuid import UUID

from ..domain.axes import Axes, Scope
from ..domain.commands import RecoverCommand
from ..domain.errors import LeaseHeld
from ..domain.interactions import Interaction
from ..domain.kernel_resume import ResumedTurn, resume_run
from .kernels import Ended
from .keys import KeyFile
from .settings import LedgerSettings
from .wiring import Ledger, open_ledger

#: Seconds the tool takes, as a call to a payment provider may: two answers at once are judged within it.
TAKES = 0.5
#: Seconds a process has for what it does; one that hangs is ended.
PATIENCE = 60
#: Seconds a claim holds: as little as a ledger takes, for nobody wants to wait.
LEASE = 1
APPROVE = "approve"
INVALID = "aprove"
TOOL = "refund"
TENANT = Scope(tenant_id="acme")

#: Forked from one that has loaded the frameworks, which takes longer than what is played.
_PROCESSES = multiprocessing.get_context("forkserver")

#: What a person's surface holds of one open call.
Ticket = dict[str, Any]
#: What came of something: `ended` and `tickets`, or `error` and `says`, or `killed`.
Told = dict[str, Any]
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class World:
    """A folder that every process shares, and what the model of each session asks for.

    Attributes:
        folder: Where traces, states and the ledger are.
        plans: By session: the orders to refund, one collection a message.
        takes: Seconds the tool takes.
    """

    folder: Path
    plans: Mapping[str, Sequence[Sequence[str]]]
    takes: float = TAKES

    def wanted(self, session: str, called: Collection[str]) -> Sequence[str]:
        """List the orders that the model asks to refund next, by the calls it made; none when it is done."""
        left = (orders for orders in self.plans[session] if call_id(orders[0]) not in called)
        return next(left, ())

    def refund(self, order: str) -> str:
        """Refund an order: the side effect that is counted. Where a kill is due, the process ends just before it."""
        if self._deadly.exists():
            time.sleep(self.takes)
            os.kill(os.getpid(), signal.SIGKILL)
        with self._traces.open("a") as traces:
            traces.write(f"{order}\n")
        time.sleep(self.takes)
        return f"refunded {order}"

    def refunds(self) -> Counter[str]:
        """Count how often each order was refunded."""
        return Counter(self._traces.read_text().split() if self._traces.exists() else ())

    def killing(self, due: bool) -> None:
        """Say whether the tool's next run is killed."""
        if due:
            self._deadly.touch()
        else:
            self._deadly.unlink()

    @property
    def _traces(self) -> Path:
        return self.folder / "refunds"

    @property
    def _deadly(self) -> Path:
        return self.folder / "deadly"


def call_id(order: str) -> str:
    """Name the call that refunds an order. Ids of calls are unique, as providers make them."""
    return f"call_{order}"


def waiting(found: Sequence[Found]) -> Found:
    """Give the one call that was found to wait for an answer.

    Raises:
        LookupError: there is none.
    """
    if not found:
        raise LookupError("no such call waits for an answer")
    return found[0]


class Host(Protocol):
    """A program over a framework; each of its methods is called in a process of its own."""

    async def ask(self, session: str) -> Told:
        """Start the session's run, up to its stop."""

    async def answer(self, ticket: Ticket, decision: str) -> Told:
        """Give the answer to a call, and go on."""

    async def recover(self, ticket: Ticket) -> Told:
        """Go on with a run that broke off, without asking anybody again."""


class Way(Protocol):
    """How a framework is used."""

    @property
    def word(self) -> str:
        """How an answer with the ledger names its decision."""

    @property
    def interactions(self) -> Sequence[Interaction]:
        """What the ledger has to know beside its own interactions."""

    @property
    def cannot(self) -> Mapping[str, str]:
        """By scenario: why the bare framework cannot express it."""

    def bare(self, world: World) -> Host:
        """Make the program as the framework's documentation has it."""

    def kernel(self, world: World, session: str, capability: Any) -> AbstractAsyncContextManager[Any]:
        """Open the kernel over the same agent."""


def way(module: str, name: str) -> Way:
    """Load how a framework is used.

    Raises:
        ImportError: the framework is not installed.
    """
    found: Way = import_module(f"{__package__}.double_answer_{module}").WAYS[name]
    return found


def preload(modules: Collection[str]) -> None:
    """Let processes be forked from one that has loaded these; to be said before the first of them."""
    _PROCESSES.set_forkserver_preload([f"{__package__}.double_answer_{module}" for module in modules])


@dataclass(frozen=True, slots=True)
class OnLedger:
    """The same agent, run by its kernel and continued by what the ledger hands out."""

    way: Way
    world: World

    async def ask(self, session: str) -> Told:
        """Run up to the stop; the kernel pauses it."""
        async with self._ledger() as ledger, self.way.kernel(self.world, session, ledger.capability) as kernel:
            return _told(await kernel.run("Refund.", run_id=f"run-{session}", session_id=session))

    async def answer(self, ticket: Ticket, decision: str) -> Told:
        """Redeem the token and go on."""
        async with self._ledger() as ledger:
            turn = await ledger.redeem(ticket["token"], {self.way.word: decision}, axes=_axes(ticket))
            return await self._went_on(ledger, ticket, turn)

    async def recover(self, ticket: Ticket) -> Told:
        """Take up the turn that is owed, once the dead process's lease has ended."""
        async with self._ledger() as ledger:
            while True:
                try:
                    turn = await ledger.capability.recover(RecoverCommand(UUID(ticket["pause"]), axes=_axes(ticket)))
                except LeaseHeld:
                    await asyncio.sleep(0.1)
                else:
                    return await self._went_on(ledger, ticket, turn)

    async def _went_on(self, ledger: Ledger, ticket: Ticket, turn: ResumedTurn) -> Told:
        async with self.way.kernel(self.world, ticket["session"], ledger.capability) as kernel:
            return _told(await resume_run(kernel, turn))

    def _ledger(self) -> Ledger:
        keys = self.world.folder / "keys"
        settings = LedgerSettings(keys_directory=keys, lease=LEASE, interactions=list(self.way.interactions))
        return open_ledger(f"sqlite:///{self.world.folder / 'ledger.db'}", settings)


def _told(ended: Ended) -> Told:
    tickets = [
        {
            "session": asked.axes.session_id,
            "call": asked.axes.call_id,
            "token": receipt.token,
            "pause": str(receipt.pause_id),
        }
        for receipt, asked in zip(ended.paused, ended.asked, strict=True)
    ]
    return {"ended": not tickets, "tickets": tickets}


def _axes(ticket: Ticket) -> Axes:
    session = ticket["session"]
    return Axes(scope=TENANT, session_id=session, run_id=f"run-{session}", call_id=ticket["call"])


class Stage:
    """Plays what people and processes do, with one framework, bare or with the ledger."""

    def __init__(self, module: str, name: str, world: World, *, on_ledger: bool) -> None:
        self.world = world
        self._who = (module, name, on_ledger)
        self._told: list[Told] = []
        self.ran_unapproved = False
        if on_ledger:
            KeyFile(world.folder / "keys").create()

    @property
    def ended(self) -> bool:
        """Whether a run came to its end."""
        return any(told.get("ended") for told in self._told)

    @property
    def errors(self) -> list[str]:
        """What was raised, in order."""
        return [f"{told['error']}: {told['says']}" for told in self._told if "error" in told]

    def asked_again(self, ticket: Ticket) -> Ticket:
        """Give the newest ticket of this ticket's call: a run that stops again at it asks again."""
        seen = [one for told in self._told for one in told.get("tickets", ()) if one["call"] == ticket["call"]]
        newest: Ticket = seen[-1]
        return newest

    def ask(self, session: str) -> list[Ticket]:
        """Start a run; give the tickets of the calls it stopped at."""
        return _tickets(self._one("ask", session))

    def stopped_again(self, ticket: Ticket) -> list[Ticket]:
        """Approve a call; give the tickets of the next stop."""
        return _tickets(self.answer(ticket))

    def answer(self, ticket: Ticket, decision: str = APPROVE) -> Told:
        """Answer a call."""
        return self._one("answer", ticket, decision)

    def answer_at_once(self, tickets: Sequence[Ticket]) -> None:
        """Approve by as many people as there are tickets, at the same moment."""
        actors = [self._actor("answer", ticket, APPROVE) for ticket in tickets]
        for actor in actors:
            actor.ready()
        for actor in actors:
            actor.go()
        self._told += [actor.told() for actor in actors]

    def answer_and_kill(self, ticket: Ticket) -> None:
        """Approve, and kill the process before the tool had its effect."""
        self.world.killing(due=True)
        told = self.answer(ticket)
        self.world.killing(due=False)
        if told != {"killed": True}:
            raise RuntimeError(f"the process was to be killed: {told}")

    def answer_invalidly(self, ticket: Ticket) -> None:
        """Give what is no decision, and see whether the tool ran on it."""
        self.answer(ticket, INVALID)
        self.ran_unapproved = bool(self.world.refunds())

    def recover(self, ticket: Ticket) -> Told:
        """Go on with a run that broke off."""
        return self._one("recover", ticket)

    def _one(self, do: str, *given: Any) -> Told:
        actor = self._actor(do, *given)
        actor.ready()
        actor.go()
        self._told.append(actor.told())
        return self._told[-1]

    def _actor(self, do: str, *given: Any) -> "Actor":
        return Actor((*self._who, self.world, do, given))


def _tickets(told: Told) -> list[Ticket]:
    tickets: list[Ticket] = told.get("tickets", [])
    if not tickets:
        raise RuntimeError(f"the run did not stop for a person: {told}")
    return tickets


class Actor:
    """A process that is ready, does one thing when told to, and tells what came of it."""

    def __init__(self, job: tuple[Any, ...]) -> None:
        self._ours, theirs = _PROCESSES.Pipe()
        # A daemon, so that it does not outlive us.
        self._process = _PROCESSES.Process(target=act, args=(job, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def ready(self) -> None:
        """Wait until it is."""
        self._heard()

    def go(self) -> None:
        """Let it begin."""
        self._ours.send(None)

    def told(self) -> Told:
        """Wait for what came of it."""
        told = self._heard()
        self._process.join(PATIENCE)
        return told

    def _heard(self) -> Told:
        if not self._ours.poll(PATIENCE):
            self._process.kill()
            return {"error": "TimeoutError", "says": f"nothing came of it within {PATIENCE} s"}
        try:
            told: Told = self._ours.recv()
        except EOFError:
            return {"killed": True}
        return told


def act(job: tuple[Any, ...], line: Connection) -> None:
    """Do one thing, in this process."""
    module, name, on_ledger, world, do, given = job
    # What frameworks say of it on their own is not the table.
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, sys.stdout.fileno())
    os.dup2(silence, sys.stderr.fileno())
    # Nothing leaves the machine, whatever the environment asks for.
    os.environ["LANGSMITH_TRACING"] = "false"
    used = way(module, name)
    host: Host = OnLedger(used, world) if on_ledger else used.bare(world)
    line.send({})
    line.recv()
    try:
        told = asyncio.run(getattr(host, do)(*given))
    except Exception as raised:  # noqa: BLE001 - whatever a framework raises is what came of it
        told = {"error": type(raised).__name__, "says": str(raised).partition("\n")[0]}
    line.send(told)
