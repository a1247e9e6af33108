"""One peer in a process of its own: reads commands on standard input, a JSON object a line, and answers alike."""

import asyncio
import importlib
import inspect
import json
import os
import sys
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

PERCENT = 100


class Worker:
    """Does what it is told with its peer: as many at once as asked, each on a lane of its own."""

    def __init__(self, peer):
        self.peer, self.made, self.handles = peer, 0, []
        self.threads = None if peer.is_async else ThreadPoolExecutor(peer.conc)

    async def call(self, function, *given):
        """Call what may be a coroutine function."""
        called = function(*given)
        return await called if inspect.isawaitable(called) else called

    async def lanes(self, function, given, at_once):
        """Give the results in their order, the seconds each took, and those of all."""
        waiting, took, done = iter(enumerate(given)), [], [None] * len(given)
        begun = time.perf_counter()
        if self.peer.is_async:
            await asyncio.gather(*[self.lane(function, waiting, done, took) for _ in range(at_once)])
        elif at_once == 1:
            self.thread_lane(function, waiting, threading.Lock(), done, took)
        else:
            turns = threading.Lock()
            running = [
                self.threads.submit(self.thread_lane, function, waiting, turns, done, took) for _ in range(at_once)
            ]
            for one in running:
                one.result()
        return done, took, time.perf_counter() - begun

    async def lane(self, function, waiting, done, took):
        for place, one in waiting:
            begun = time.perf_counter()
            done[place] = await function(one)
            took.append(time.perf_counter() - begun)

    def thread_lane(self, function, waiting, turns, done, took):
        while True:
            with turns:
                place, one = next(waiting, (None, None))
            if place is None:
                return
            begun = time.perf_counter()
            done[place] = function(one)
            took.append(time.perf_counter() - begun)

    async def measure(self, op, count, at_once):
        """Do so many, and tell operations a second, milliseconds of each, and this process's own processor time."""
        given = list(range(self.made, self.made + count)) if op == "pause" else self.taken(op, count)
        cpu = time.process_time()
        done, took, spent = await self.lanes(getattr(self.peer, op), given, at_once)
        cpu = time.process_time() - cpu
        took.sort()
        if op == "pause":
            self.made += count
            self.handles += done
        elif op == "redeem" and any(len(messages) < 12 for messages in done):
            raise AssertionError("a turn came back without its messages")
        return {
            "count": len(took),
            "rate": len(took) / spent,
            "p50": took[len(took) // 2] * 1000,
            "p99": took[len(took) * 99 // PERCENT] * 1000,
            "client_cpu": cpu / len(took) * 1000,
        }

    def taken(self, op, count):
        """Take handles, once each where they are used up by it."""
        if op != "redeem":
            return (self.handles * (count // len(self.handles) + 1))[:count]
        given, self.handles = self.handles[:count], self.handles[count:]
        return given

    async def race(self, racers):
        """Redeem one handle many times at once; tell the milliseconds to the last outcome, and the outcomes."""
        handle = self.handles.pop()
        begun = time.perf_counter()
        if self.peer.is_async:
            ends = await self.peer.race(handle, racers)
        else:
            running = [self.threads.submit(self.peer.race_one, handle) for _ in range(racers)]
            ends = [one.result() for one in running]
        return {"ms": (time.perf_counter() - begun) * 1000, "ends": Counter(ends)}

    async def prefill(self, count):
        await self.call(self.peer.prefill, count)
        return {}


async def serve(peer, answers):
    """Answer commands to their end. The loop runs meanwhile: some peers work on it between two commands."""

    def answer(said):
        answers.write(json.dumps(said) + "\n")
        answers.flush()

    worker = Worker(peer)
    try:
        await worker.call(peer.setup)
    except Exception:  # noqa: BLE001 - whatever a peer's product raises is told, and the others go on
        answer({"error": traceback.format_exc()})
        return
    answer({"ready": True})
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        try:
            answer(await getattr(worker, command.pop("do"))(**command))
        except Exception:  # noqa: BLE001 - as above
            answer({"error": traceback.format_exc()})
    await worker.call(peer.close)


def main():
    module, name, where, at_once = sys.argv[1:]
    # A peer's own words go to standard error, so that the answers stand alone.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peer = getattr(importlib.import_module(module), name)(where, int(at_once))
    asyncio.run(serve(peer, answers))
    answers.flush()
    # Some peers leave threads behind that wait for work of days.
    os._exit(0)


if __name__ == "__main__":
    main()
