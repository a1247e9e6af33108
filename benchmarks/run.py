"""The speed of pauseledger beside hand-written SQL, stock eventsourcing, DBOS and LangGraph: one job, one command.

    python benchmarks/run.py                                  what the README shows, in seven minutes
    python benchmarks/run.py --at-once 1,8,32,64 --json figures.json
    python benchmarks/run.py --growth 1000,100000,1000000 [--shared-buffers 64MB]
    python benchmarks/run.py --quick                          whether it works

`workload.py` tells the job. Everyone has a process of their own and takes turns with the others, round after round, in
an order that shifts; a ratio is of the same round, and a figure the median of all. On the fast disk a flush takes what
it takes here, on the slow one 1.5 ms more. Who is not installed is left out, and said to be. Nothing asserts a figure:
they are of the machine they were taken on.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path

import contenders
import judging
import machine
import tables
from server import Server, environment, slow_disk
from stage import RACERS, Stage, say

RACES = 5


def chosen(names):
    """Find who takes part; tell who cannot."""
    known = {one.name: one for one in contenders.ALL}
    unknown = set(names or ()) - known.keys()
    if unknown:
        sys.exit(f"nobody is called {', '.join(sorted(unknown))}; --only takes {', '.join(known)}")
    found = [one for one in contenders.ALL if names is None or one.name in names]
    for one in found:
        if one.missing:
            say(f"{one.name} is left out: {one.package} is not installed; pip install {one.package}")
    return [one for one in found if not one.missing]


@contextlib.contextmanager
def room():
    """Make a folder for a run, where the server's own user comes to as well."""
    with tempfile.TemporaryDirectory(prefix="pauseledger-bench-") as folder:
        Path(folder).chmod(0o755)
        yield folder


def speed(given, peers):
    """Measure everyone on each disk, at each number at once; give the figures, the races and what ran on them."""
    figures, raced, version = [], [], ""
    for disk in given.disks:
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(room())
            slow = slow_disk(folder) if disk == "slow" else {}
            if slow is None:
                say("the slow disk is left out: it needs a C compiler, and there is no `cc`")
                continue
            with environment(**slow):
                server = stack.enter_context(Server())
            version = server.version()
            for at_once in given.at_once:
                say(f"{disk} disk, {at_once} at once")
                with Stage(server, at_once, folder, **slow) as stage:
                    stage.open(peers)
                    stage.each(lambda peer: peer.warm_up(given.seconds))
                    figures += [one | {"disk": disk} for one in stage.rounds(given.rounds)]
                    if at_once == max(given.at_once):
                        figures += [one | {"disk": disk} for one in stage.statements()]
                        raced += [one | {"disk": disk} for one in stage.races(min(RACES, given.rounds))]
    if not figures:
        sys.exit("nothing could be measured; the lines above say why")
    return {
        "figures": figures,
        "raced": raced,
        "judged": judging.judge(1000 if given.quick else 5000),
        "version": version,
    }


def show_speed(given, peers, found):
    """Print what the README shows."""
    figures, most = found["figures"], max(given.at_once)
    disks = [disk for disk in given.disks if any(one["disk"] == disk for one in figures)]
    stages = [(disk, at_once) for disk in disks for at_once in given.at_once]
    print(
        f"A second, and in brackets how many times longer than by hand in the same round (median of {given.rounds}):\n"
    )
    print(tables.compared(peers, figures, stages, "rate"))
    print("\nHow many times as many pauseledger does in the same rounds:\n")
    print(tables.beside(contenders.PAUSELEDGER, peers, figures, stages))
    print("\nThe 99th percentile in milliseconds, and how many times that of by hand:\n")
    print(tables.compared(peers, figures, stages, "p99"))
    print(f"\nWhat one costs, {most} at once on the {disks[0]} disk:\n")
    print(tables.costs(peers, figures, disks[0], most))
    print(f"\nOne token redeemed by {RACERS} at once:\n")
    print(tables.races(peers, found["raced"], disks[0]))
    forged, wrong = found["judged"]["forged"], found["judged"]["wrong_axis"]
    recorded = [one["statements"] for one in figures if one["op"] == "refuse"]
    print(
        f"\nA forged token is judged in {forged:.1f} us, to be counted and logged; a wrong axis in {wrong:.1f} us"
        + (f", and put on record in {tables.number(recorded[0])} statements." if recorded else ".")
    )


def growth(given, peers):
    """Measure everyone with ever more redeemed pauses in the store."""
    settings = {"shared_buffers": given.shared_buffers} if given.shared_buffers else {}
    with (
        Server(**settings) as server,
        room() as folder,
        Stage(server, max(given.at_once), folder) as stage,
    ):
        stage.open(peers, given.growth)
        stage.prefill()
        stage.each(lambda peer: peer.warm_up(given.seconds))
        return {"figures": list(stage.rounds(given.rounds)), "version": server.version()}


def show_growth(given, peers, found):
    """Print the growth."""
    buffers = given.shared_buffers or "the server's own"
    print(
        f"A second with so many redeemed pauses stored, {max(given.at_once)} at once, shared_buffers {buffers};"
        " in brackets how many times slower than with the fewest:\n"
    )
    print(tables.growth(peers, found["figures"], given.growth))


def numbers(text):
    return [int(word) for word in text.split(",")]


def words(text):
    return text.split(",")


def arguments():
    """Read what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", type=numbers, default=[1, 32], help="how many work at once: 1,32")
    parser.add_argument("--disks", type=words, default=["fast", "slow"], help="fast,slow")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="how long one is measured in a round, about")
    parser.add_argument("--only", type=words, help="who takes part: hand_pg,pauseledger_pg")
    parser.add_argument("--growth", type=numbers, help="so many pauses stored: 1000,100000,1000000")
    parser.add_argument("--shared-buffers", help="the server's own memory, for --growth: 64MB")
    parser.add_argument("--quick", action="store_true", help="pauseledger and by hand alone, a moment each")
    parser.add_argument("--json", type=Path, help="where each measurement is written down")
    given = parser.parse_args()
    if given.quick:
        given.at_once, given.disks, given.rounds, given.seconds = [2], ["fast"], 1, 0.02
    if given.only is None and (given.quick or given.growth):
        given.only = ["hand_pg", "pauseledger_pg"] if given.growth else contenders.QUICK
    return given


def main():
    given = arguments()
    if not Path("/proc/mounts").exists():
        sys.exit("processor time and the disk are read from /proc: run it on Linux")
    peers, load = chosen(given.only), os.getloadavg()[0]
    measure, show = (growth, show_growth) if given.growth else (speed, show_speed)
    found = measure(given, peers)
    print(f"{' '.join(['python benchmarks/run.py', *sys.argv[1:]])}\n")
    print(f"{machine.describe(found['version'], contenders.PACKAGES)}; a load of {load:.1f} before it began\n")
    show(given, peers, found)
    if given.json:
        given.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
