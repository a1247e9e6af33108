"""How long a rightful redeem takes while others storm its token with refused attempts.

    python benchmarks/storm.py [sqlite|postgresql ...] [--stormers 8] [--redeems 40]

Each redeem is one of a fresh token, from a process of its own; the stormers present the same token under another
tenant, as fast as they can. Figures are of the machine they were taken on; nothing asserts them.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "processes"))

import crew
from pauseledger.infrastructure.keys import KeyFile
from pauseledger.infrastructure.postgres import PostgresRecorder
from pauseledger.infrastructure.testing import TemporaryPostgres


def measure(url, folder, stormers, redeems):
    """Take the milliseconds of each rightful redeem, and what the storm was told."""
    took, refused, recorded, errors = [], 0, 0, 0
    with crew.Crew(url, folder) as made:
        rightful, *others = made.workers(1 + stormers)
        began = time.perf_counter()
        for number in range(redeems):
            paused = rightful.ask(task="pause", run=f"run {number}")
            for worker in others:
                worker.tell(task="storm", token=paused["tokens"][0], run=f"run {number}")
            for worker in others:
                worker.hear()
            time.sleep(0.1)
            start = time.perf_counter()
            said = rightful.ask(task="redeem", token=paused["tokens"][0], run=f"run {number}")
            took.append((time.perf_counter() - start) * 1000)
            if not said.get("won"):
                sys.exit(f"the rightful redeem lost: {said}")
            for worker in others:
                worker.tell(enough=True)
            for said in [worker.result() for worker in others]:
                refused += said["refused"]
                recorded += said["recorded"]
                errors += sum(said["errors"].values())
        spent = time.perf_counter() - began
    return took, refused / spent, recorded, errors


def report(name, url, folder, stormers, redeems):
    """Print one line."""
    took, rate, recorded, errors = measure(url, folder, stormers, redeems)
    took.sort()
    print(
        f"{name:11} {stormers} stormers: redeem median {statistics.median(took):.1f} ms,"
        f" p95 {took[int(len(took) * 0.95)]:.1f} ms, worst {took[-1]:.1f} ms"
        f" ({redeems} redeems; {rate:.0f} refusals/s, {recorded} on record, {errors} other errors)"
    )


def main():
    """Measure each store calm and in the storm."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stores", nargs="*", default=["sqlite", "postgresql"])
    parser.add_argument("--stormers", type=int, default=8)
    parser.add_argument("--redeems", type=int, default=40)
    chosen = parser.parse_args()
    for name in chosen.stores:
        for stormers in (0, chosen.stormers):
            with tempfile.TemporaryDirectory() as folder:
                KeyFile(Path(folder) / "keys").create()
                if name == "sqlite":
                    report(name, f"sqlite:///{Path(folder) / 'ledger.db'}", folder, stormers, chosen.redeems)
                    continue
                with TemporaryPostgres(durable=True) as server:
                    PostgresRecorder(server.dsn()).migrate()
                    report(name, server.dsn(), folder, stormers, chosen.redeems)


if __name__ == "__main__":
    main()
