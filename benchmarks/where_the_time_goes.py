"""Where pauseledger's time goes: a pause and a redemption under the profiler, by function and by file.

    python benchmarks/where_the_time_goes.py [--count 600] [--at-once 1] [--top 25] [--memory]

Microseconds of this process's processor for an operation; waiting for the server is none. What the ledger gives to
threads is done in place here, for the profiler sees one thread, and the profiler makes small functions look dearer than
they are: the first line of each part, taken without it, is what it really costs. `--memory` leaves PostgreSQL out.
"""

import argparse
import asyncio
import cProfile
import pstats
import time
from collections import Counter
from pathlib import Path

import peer_pauseledger
import worker
from pauseledger.infrastructure.executor import Executor
from server import Server

ROOT = Path(__file__).resolve().parent.parent


class InMemory(peer_pauseledger.PauseLedgerSqlite):
    """The ledger with no store behind it."""

    def url(self):
        return "memory:"


async def in_place(_, function, *given):
    """Do here what a thread would do."""
    return function(*given)


def place(file):
    """Name a file as one speaks of it: by its folder, or by its package."""
    path = Path(file)
    if path.is_relative_to(ROOT):
        return str(path.relative_to(ROOT))
    return "/".join(path.parts[-2:]) if path.is_absolute() else file


def report(profile, count, top):
    """Print the functions that take most by themselves, and the files."""
    files, rows = Counter(), []
    for (file, line, name), (_, calls, own, whole, _) in pstats.Stats(profile).stats.items():
        files[place(file)] += own
        rows.append((own, whole, calls, f"{place(file)}:{line} {name}"))
    print(f"{'own us':>8} {'with callees':>13} {'calls':>7}")
    for own, whole, calls, name in sorted(rows, reverse=True)[:top]:
        print(f"{own / count * 1e6:8.1f} {whole / count * 1e6:13.1f} {calls / count:7.1f}  {name}")
    print("own us by file:")
    for file, own in files.most_common(top):
        print(f"{own / count * 1e6:8.1f}  {file}")


async def measure(peer, count, at_once, top):
    """Do it without the profiler and with it."""
    await peer.setup()
    work = worker.Worker(peer)
    for op in ("pause", "redeem"):
        await work.measure(op, 200, at_once)
    for op in ("pause", "redeem"):
        plain = await work.measure(op, count, at_once)
        print(f"\n{op}: {plain['client_cpu'] * 1000:.0f} us of the processor, {1e6 / plain['rate']:.0f} us in all")
        if op == "redeem":
            await work.measure("pause", count, at_once)
        profile = cProfile.Profile(time.thread_time)
        profile.enable()
        seen = await work.measure(op, count, at_once)
        profile.disable()
        print(f"under the profiler: {seen['client_cpu'] * 1000:.0f} us of the processor")
        report(profile, count, top)
    await peer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--top", type=int, default=25)
    parser.add_argument("--memory", action="store_true")
    given = parser.parse_args()
    Executor.__call__ = in_place
    rest = given.count, given.at_once, given.top
    if given.memory:
        asyncio.run(measure(InMemory("", given.at_once), *rest))
        return
    with Server() as server:
        asyncio.run(measure(peer_pauseledger.PauseLedgerPg(server.fresh(), given.at_once), *rest))


if __name__ == "__main__":
    main()
