"""The demo: the main job on a recorded turn, in real processes; it ends well only if it saw what it claims.

Run as a module it is one of those processes: a worker that takes one job from standard input (never from its
arguments, which other users can see), says when it is ready, starts when it is told, and prints what came of it.
"""

import asyncio
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import UUID, uuid4

from ..domain.axes import Axes, Scope
from ..domain.commands import Actor, PauseCommand, RecoverCommand
from ..domain.errors import InteractionConfigurationError, LeaseHeld, LedgerError, Refusal
from ..domain.interactions import ASK_USER
from ..domain.kernel_resume import ResumedTurn, continuing
from ..domain.sentences import tell_all
from ..domain.turn import Turn
from .cli_shapes import Outcome, say
from .keys import KeyFile
from .settings import KEYS_VARIABLE, LedgerSettings
from .wiring import Ledger, open_ledger, open_recorder

#: Seconds a worker has; one that hangs is ended, and the demo fails.
PATIENCE = 60
#: Seconds between the signal and the start of a race, so that every racer has heard it.
HEAD_START = 0.1
#: Seconds a claim holds in the demo: as little as a ledger takes, for nobody wants to wait.
LEASE = 1
TENANT = "pauseledger-demo"
RACERS = ("maria", "noor", "li", "tomas", "aiko", "sam", "ines", "kofi")
LABELS = ("Anne", "Boris")
TAIL = 3

Job = dict[str, Any]


# A worker


def work() -> None:
    """Do one job in a process of its own."""
    job: Job = json.loads(sys.stdin.readline())
    asyncio.run(_work(job))


async def _work(job: Job) -> None:
    settings = LedgerSettings(keys_directory=Path(job["keys"]), lease=LEASE)
    async with open_ledger(job["store"], settings) as ledger:
        _tell({"ready": True})
        job.update(json.loads(sys.stdin.readline()))
        time.sleep(max(0.0, job.get("at", 0) - time.time()))  # noqa: ASYNC251 - nothing else runs in this process
        try:
            await JOBS[job["do"]](ledger, job)
        except Refusal as refused:
            _tell({"refused": refused.reason, "recorded": refused.recorded})


async def _pause(ledger: Ledger, job: Job) -> None:
    command = PauseCommand(
        interaction=ASK_USER,
        request={"questions": [{"question": "Who plays?", "options": [{"label": label} for label in LABELS]}]},
        turn=Turn(job["format"], job["messages"]),
        axes=_axes(job),
        closes_in=3600,
    )
    receipt = await ledger.capability.pause(command)
    _tell({"pause_id": str(receipt.pause_id), "token": receipt.token})


async def _redeem(ledger: Ledger, job: Job) -> None:
    await _go_on(await _redeemed(ledger, job))


async def _redeem_and_hang(ledger: Ledger, job: Job) -> None:
    turn = await _redeemed(ledger, job)
    _tell({"fence": turn.fence})
    sys.stdin.read()


async def _redeemed(ledger: Ledger, job: Job) -> ResumedTurn:
    answer = {"answers": [{"question_id": "q1", "selections": [job["label"]]}]}
    return await ledger.redeem(job["token"], answer, axes=_axes(job), by=Actor(job["by"]))


async def _recover(ledger: Ledger, job: Job) -> None:
    command = RecoverCommand(UUID(job["pause_id"]), axes=_axes(job), by=Actor(job["by"]))
    held = False
    while True:
        try:
            turn = await ledger.capability.recover(command)
        except LeaseHeld:
            held = True
            await asyncio.sleep(0.05)
        else:
            return await _go_on(turn, held=held)


async def _go_on(turn: ResumedTurn, **more: Any) -> None:
    """Stand in for a host's own loop: it would hand the history to its model here."""
    async with continuing(turn) as going:
        tail = list(going.history[-TAIL:])
    _tell({"fence": turn.fence, "key": turn.idempotency_key, "settled": turn.settled, "tail": tail, **more})


def _axes(job: Job) -> Axes:
    return Axes(scope=Scope(tenant_id=job["tenant"]), session_id=job["session"], run_id=job["run"], call_id=job["call"])


def _tell(said: dict[str, Any]) -> None:
    print(json.dumps(said), flush=True)  # noqa: T201 - standard output is the way back to the demo


JOBS: dict[str, Callable[[Ledger, Job], Any]] = {
    "pause": _pause,
    "redeem": _redeem,
    "redeem_and_hang": _redeem_and_hang,
    "recover": _recover,
}


# The demo itself


class Worker:
    """A process with one job."""

    def __init__(self, job: Job) -> None:
        self._process = subprocess.Popen(  # noqa: S603 - this very module, by this very interpreter
            [sys.executable, "-P", "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.pid = self._process.pid
        self._watch = threading.Timer(PATIENCE, self._process.kill)
        self._watch.daemon = True
        self._watch.start()
        self._send(job)

    def ready(self) -> None:
        """Wait until it has opened the ledger."""
        self._hear()

    def go(self, **more: Any) -> None:
        """Let it start."""
        self._send(more)

    def heard(self) -> dict[str, Any]:
        """Wait for what it came to."""
        return self._hear()

    def kill(self) -> int:
        """Kill it (SIGKILL), and return how it ended."""
        self._process.kill()
        return self._ended()

    def _ended(self) -> int:
        ended = self._process.wait()
        self._watch.cancel()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        return ended

    def end(self) -> int:
        """Wait for its end, and return how it ended."""
        return self._ended()

    def _send(self, said: dict[str, Any]) -> None:
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        try:
            self._process.stdin.write(json.dumps(said).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return  # It has ended; whoever listens for its answer hears nothing.

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        heard: dict[str, Any] = json.loads(self._process.stdout.readline() or b"{}")
        return heard


@dataclass(slots=True)
class Demo:
    """What is shown, where, and what was seen of it."""

    store: str
    keys: str
    quiet: bool
    claims: list[tuple[str, bool]] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)
    session: str = field(default_factory=lambda: f"demo-{uuid4().hex[:8]}")

    def worker(self, do: str, run: str, **job: Any) -> Worker:
        """Start a process for one job."""
        places = {"tenant": TENANT, "session": self.session, "run": run, "call": _turn()["reserved_call_ids"][0]}
        made = Worker({"store": self.store, "keys": self.keys, "do": do, **places, **job})
        self.workers.append(made)
        return made

    def say(self, *lines: str) -> None:
        """Tell what goes on, as it goes on."""
        if not self.quiet:
            say(lines, sys.stdout)

    def claim(self, claim: str, seen: object) -> None:
        """State what was to be seen, and whether it was."""
        self.claims.append((claim, bool(seen)))
        self.say(f"   {'seen' if seen else 'NOT SEEN'}: {claim}")

    def paused(self, run: str, worker: Worker) -> dict[str, Any]:
        """Pause the recorded turn in a process that exits."""
        recorded = _turn()
        worker.ready()
        worker.go(format=recorded["format"], messages=recorded["messages"])
        told = worker.heard()
        self.claim(f"process {worker.pid} paused {run} and exited", "token" in told and worker.end() == 0)
        return told


def demonstrate(*, store: str | None, keep: bool, quiet: bool) -> Outcome:
    """Run the demo, on a SQLite file in a directory of its own where no store is given.

    Raises:
        InteractionConfigurationError: the store is one that processes cannot share.
        StoreUnavailable: it could not speak, or has no tables yet.
    """
    began = time.monotonic()
    # Keys in the environment come before those in a directory, and the user's own have no business here.
    users_keys = os.environ.pop(KEYS_VARIABLE, None)
    room = Path(tempfile.mkdtemp(prefix="pauseledger-demo-"))
    demo = Demo(store or f"sqlite:///{room / 'ledger.db'}", str(room / "keys"), quiet)
    try:
        _begin(demo)
        pauses = [_race(demo), _rescue(demo)]
    finally:
        for worker in demo.workers:
            worker.kill()
        if users_keys is not None:
            os.environ[KEYS_VARIABLE] = users_keys
        if not keep:
            shutil.rmtree(room, ignore_errors=True)
    return _ending(demo, pauses, time.monotonic() - began, room if keep else None)


def _begin(demo: Demo) -> None:
    if not demo.store.startswith(("sqlite:", "postgres")):
        raise InteractionConfigurationError("processes share a SQLite file or a PostgreSQL database; give one of these")
    KeyFile(Path(demo.keys)).create()
    recorder = open_recorder(demo.store, LedgerSettings())
    try:
        recorder.identity()
    finally:
        recorder.close()


def _race(demo: Demo) -> str | None:
    source = _turn()["source"]
    demo.say(f"1  A recorded turn of {source['model']} ({source['repo']}) stops for a person.")
    pauser, stranger = demo.worker("pause", "run-1"), demo.worker("redeem", "run-1")
    paused = demo.paused("run-1", pauser)
    if "token" not in paused:
        return None
    # Started early, for a process takes most of its time to begin.
    racers = [demo.worker("redeem", "run-1") for _ in RACERS]
    demo.say("2  Another tenant got hold of the token.")
    stranger.ready()
    stranger.go(token=paused["token"], label=LABELS[0], by="mallory", tenant="another-tenant")
    refused = stranger.heard()
    demo.claim(f"process {stranger.pid} was refused, by name, on record", refused == _refusal("scope_mismatch"))
    demo.say(f"3  {len(racers)} processes that never saw the turn redeem the token at the same moment.")
    told = _raced(racers, paused["token"])
    won = [heard for heard in told if "fence" in heard]
    lost = [heard for heard in told if heard == _refusal("already_consumed")]
    demo.claim(f"1 won, {len(racers) - 1} were told already_consumed", (len(won), len(lost)) == (1, len(racers) - 1))
    _prove_one(demo, paused["pause_id"])
    for winner in won:
        label = LABELS[told.index(winner) % len(LABELS)]
        _went_on(demo, winner, label, fence=1)
    demo.say("4  The pause's story:", *(f"   {line}" for line in _story(demo, paused["pause_id"])))
    return str(paused["pause_id"])


def _raced(racers: Sequence[Worker], token: str) -> list[dict[str, Any]]:
    for racer in racers:
        racer.ready()
    at = time.time() + HEAD_START
    for place, (racer, name) in enumerate(zip(racers, RACERS, strict=True)):
        racer.go(token=token, label=LABELS[place % len(LABELS)], by=name, at=at)
    return [racer.heard() for racer in racers]


def _rescue(demo: Demo) -> str | None:
    demo.say("5  The same again, and whoever redeems it is killed before going on.")
    pauser, doomed, rescuer = (demo.worker(do, "run-2") for do in ("pause", "redeem_and_hang", "recover"))
    paused = demo.paused("run-2", pauser)
    if "token" not in paused:
        return None
    doomed.ready()
    rescuer.ready()
    doomed.go(token=paused["token"], label=LABELS[0], by=RACERS[0])
    redeemed = doomed.heard()
    killed = doomed.kill() == -signal.SIGKILL
    demo.claim(f"process {doomed.pid} redeemed it and was killed (SIGKILL)", redeemed.get("fence") == 1 and killed)
    rescuer.go(pause_id=paused["pause_id"], by="night-shift")
    rescued = rescuer.heard()
    waited = " once the dead worker's lease had ended" if rescued.get("held") else ""
    demo.claim(f"process {rescuer.pid} recovered it{waited}; nobody was asked again", "fence" in rescued)
    _went_on(demo, rescued, LABELS[0], fence=2)
    demo.claim("the idempotency key is the same in every recovery", rescued.get("key") == paused["pause_id"])
    _prove_one(demo, paused["pause_id"])
    demo.say("6  The pause's story:", *(f"   {line}" for line in _story(demo, paused["pause_id"])))
    return str(paused["pause_id"])


def _went_on(demo: Demo, told: dict[str, Any], label: str, *, fence: int) -> None:
    tail = told.get("tail", [])
    answers = [entry["content"] for entry in tail if entry.get("tool_call_id") == _turn()["reserved_call_ids"][0]]
    demo.claim(f"the answer stands on its own call, under fence {fence}", answers == [f"q1: {label}"])
    demo.claim("the turn went on to its end and was settled", told.get("settled") and told.get("fence") == fence)
    demo.say("   the end of the history it went on with:", *(f"     {json.dumps(entry)}" for entry in tail))


def _prove_one(demo: Demo, pause_id: str) -> None:
    count = _consumed_rows(demo.store, UUID(pause_id))
    demo.claim("the table itself holds one pause.consumed@1 of this pause", count == 1)


def _consumed_rows(store: str, pause: UUID) -> int:
    """Count past all of our own code, in the raw table."""
    question = "SELECT count(*) FROM {} WHERE topic = 'pause.consumed@1' AND originator_id = {}"
    if store.startswith("sqlite:"):
        file = Path(unquote(urlsplit(store).path)[1:]).resolve()
        connection = sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)
        try:
            found = connection.execute(question.format("stored_events", "?"), (pause.hex,)).fetchone()
        finally:
            connection.close()
        return int(found[0])
    import psycopg  # noqa: PLC0415 - a demo in a file needs no PostgreSQL

    with psycopg.connect(store) as database:
        row = database.execute(question.format("pauseledger.stored_events", "%s"), (pause,)).fetchone()
    return int(row[0]) if row else 0


def _story(demo: Demo, pause_id: str) -> list[str]:
    async def inside() -> list[str]:
        async with open_ledger(demo.store, LedgerSettings(keys_directory=Path(demo.keys))) as ledger:
            return tell_all(await ledger.story(UUID(pause_id)))

    try:
        return asyncio.run(inside())
    except LedgerError as failed:
        demo.claim(f"the story can be read ({type(failed).__name__})", seen=False)
        return []


def _refusal(reason: str) -> dict[str, Any]:
    return {"refused": reason, "recorded": True}


def _ending(demo: Demo, pauses: Sequence[str | None], seconds: float, kept: Path | None) -> Outcome:
    missing = [claim for claim, seen in demo.claims if not seen]
    shape = {
        "outcome": "unproven" if missing or None in pauses else "demonstrated",
        "pauses": list(pauses),
        "claims": [{"claim": claim, "seen": seen} for claim, seen in demo.claims],
        "seconds": round(seconds, 1),
        "kept": None if kept is None else str(kept),
    }
    where = [] if kept is None else [f"store and keys were kept in {kept}"]
    if shape["outcome"] == "unproven":
        return Outcome(shape, [f"not seen: {claim}" for claim in missing] or ["the turn could not be paused"])
    return Outcome(shape, [f"all {len(demo.claims)} claims were seen, in {seconds:.1f} s", *where])


def _turn() -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(files(__package__).joinpath("turns", "dice_game.json").read_text("utf-8"))
    return recorded


if __name__ == "__main__":
    work()
