"""The peers of one run, each in its own process, and the rounds in which they take turns."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from threading import Timer
from urllib.parse import urlsplit

import tables

HERE = Path(__file__).resolve().parent
RACERS = 32
#: So many operations have their statements counted.
COUNTED = 10
#: The least that are measured at a time, and the most.
LEAST, MOST = 8, 1000
#: The first pass opens connections and prepares; the slow need no second to be warm.
PASSES = 3
#: A peer that says nothing for so many seconds has hung.
PATIENCE = 120


class BrokenError(Exception):
    """A peer could not do its job; that is told, and the others go on."""


class Peer:
    """One at work in its own process."""

    def __init__(self, contender, where, at_once, stored, folder, **variables):
        self.contender, self.where, self.at_once, self.stored = contender, where, at_once, stored
        self.size, self.log = LEAST, folder / "log"
        command = [sys.executable, str(HERE / "worker.py"), contender.module, contender.kind, where, str(at_once)]
        quiet = {"LANGSMITH_TRACING": "false", "PYTHONWARNINGS": "ignore"}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, **quiet, **variables},
            )

    def tell(self, do, **given):
        self.process.stdin.write(json.dumps({"do": do, **given}) + "\n")
        self.process.stdin.flush()

    def hear(self, patience=PATIENCE):
        hung = Timer(patience, self.process.kill)
        hung.start()
        line = self.process.stdout.readline()
        hung.cancel()
        said = json.loads(line) if line else {"error": f"its process ended. {self.log.read_text()[-500:]}"}
        if "error" in said:
            raise BrokenError(said["error"].strip().splitlines()[-1])
        return said

    def measure(self, op, count, at_once=None):
        self.tell("measure", op=op, count=count, at_once=at_once or self.at_once)
        return self.hear()

    def race(self):
        self.tell("race", racers=RACERS)
        return self.hear()

    def warm_up(self, seconds):
        """Do a few, and find out how many fit into the seconds."""
        count, rate = max(LEAST, self.at_once), 0.0
        for _ in range(PASSES):
            rate = min(self.measure(op, count)["rate"] for op in tables.OPS)
            if count > rate * seconds:
                break
        self.size = max(LEAST, 2 * self.at_once, min(MOST, int(seconds * rate)))

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def say(text):
    """Tell how it goes on, beside the tables."""
    print(text, file=sys.stderr, flush=True)


class Stage:
    """All who take part at one number at once, on one server."""

    def __init__(self, server, at_once, folder, **slow):
        self.server, self.at_once, self.folder, self.slow = server, at_once, Path(folder), slow
        self.peers = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for peer in self.peers:
            peer.end()

    def open(self, contenders, sizes=(0,)):
        """Start a process for each contender, and for each number of pauses that are to be there before."""
        for contender in contenders:
            for stored in sizes:
                folder = self.folder / f"{contender.name}-{self.at_once}-{stored}"
                folder.mkdir()
                where = str(folder / "ledger.db") if contender.sqlite else self.server.fresh()
                # Slow for whoever flushes: the server, or the process that has the file.
                slow = self.slow if contender.sqlite else {}
                self.peers.append(Peer(contender, where, self.at_once, stored, folder, **slow))
        self.each(Peer.hear)

    def tried(self, peer, work, *given):
        """Do something with a peer; one that cannot is left out from here on."""
        try:
            return work(peer, *given)
        except BrokenError as broken:
            say(f"{peer.contender.name}, {self.at_once} at once, is left out from here: {broken}")
            self.peers.remove(peer)
            peer.end()
            return None

    def each(self, work, *given):
        """Do something with each, and give what comes of it."""
        done = [(peer, self.tried(peer, work, *given)) for peer in list(self.peers)]
        return [(peer, came) for peer, came in done if peer in self.peers]

    def prefill(self, patience=3600):
        """Let all of them fill their stores at the same time."""
        begun = time.monotonic()
        for peer in self.peers:
            peer.tell("prefill", count=peer.stored)
        for peer, _ in self.each(Peer.hear, patience):
            say(f"{peer.contender.name}: {peer.stored:,} stored after {time.monotonic() - begun:.0f} s")

    def rounds(self, rounds):
        """Let each pause, then each redeem, round after round, in an order that shifts; give the measurements."""
        for number in range(rounds):
            shift = number % max(1, len(self.peers))
            for op in tables.OPS:
                for peer in self.peers[shift:] + self.peers[:shift]:
                    done = self.tried(peer, self.measured, op)
                    if done:
                        yield done | {"op": op, "round": number, "at_once": self.at_once, "stored": peer.stored}

    def measured(self, peer, op):
        done = {"peer": peer.contender.name, "count": peer.size}
        self.server.rest()
        with contextlib.nullcontext() if peer.contender.sqlite else self.server.metered(done):
            done |= peer.measure(op, peer.size)
        return done

    def races(self, races):
        """Let each have one handle redeemed by many at once, in turns."""
        self.each(Peer.measure, "pause", max(races, LEAST))
        for number in range(races):
            for peer, done in self.each(Peer.race):
                yield done | {"peer": peer.contender.name, "round": number}

    def statements(self):
        """Count what each says to the server for an operation, and ours for a refusal; a measurement of its own."""
        with self.server.listened() as counted:
            for op in ("pause", "refuse", "redeem"):
                for peer in list(self.peers):
                    if peer.contender.sqlite or (op == "refuse" and not peer.contender.ours):
                        continue
                    if self.tried(peer, Peer.measure, op, COUNTED, 1):
                        self.server.rest()
                        said = counted()[urlsplit(peer.where).path[1:]] / COUNTED
                        place = {"op": op, "round": "listened", "at_once": self.at_once, "stored": peer.stored}
                        yield {"peer": peer.contender.name, **place, "statements": said}
