"""What encryption costs: redeeming on PostgreSQL with and without a vault key, in slices that take turns.

    python benchmarks/vault.py --slices 20 --number 200

Both ledgers stand in one temporary server and are used by this process alone, so that whatever else the machine does
meets both. A slice first pauses what it redeems; the pausing is timed for itself. Printed: operations a second and
processor time of this process an operation, medians over the slices, and how the one with a vault compares.
"""

import argparse
import asyncio
import json
import os
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from uuid import uuid4

import pauseledger as pl
from pauseledger.infrastructure.keys import KeyFile
from pauseledger.infrastructure.postgres import PostgresRecorder
from pauseledger.infrastructure.testing import TemporaryPostgres

SCOPE = pl.Scope(tenant_id="acme")
REQUEST = {
    "questions": [
        {
            "question": "Which of the two accounts shall be charged for the order?",
            "header": "Account",
            "options": [
                {"label": "main", "description": "The one that pays everything else"},
                {"label": "spare", "description": "The one with the lower limit"},
            ],
        }
    ]
}
ANSWER = {"answers": [{"question_id": "q1", "selections": ["main"], "other": None}]}
#: A turn of about 8 KB, most of it what earlier tools have said.
TURN = [
    {"role": "user", "content": "Order it again, please."},
    *({"role": "assistant", "content": f"Step {at}: " + os.urandom(120).hex()} for at in range(28)),
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "ask_user", "arguments": "{}"}}],
    },
]


class Side:
    """One ledger, and what was measured of it."""

    def __init__(self, name, ledger):
        self.name, self.ledger = name, ledger
        self.rates = {"pause": [], "redeem": []}
        self.work = {"pause": [], "redeem": []}

    async def slice(self, number, at_once):
        """Pause so many, and redeem them."""
        runs = [str(uuid4()) for _ in range(number)]
        receipts = dict.fromkeys(runs)

        async def pause(run):
            receipts[run] = await self.ledger.capability.pause(
                pl.PauseCommand("ask_user", REQUEST, pl.Turn("openai-chat", TURN), axes(run), asked_by=pl.Actor("a"))
            )

        async def redeem(run):
            await self.ledger.redeem(receipts[run].token, ANSWER, axes=axes(run), by=pl.Actor("maria"))

        for name, one in (("pause", pause), ("redeem", redeem)):
            queue = iter(runs)

            async def work(one=one, queue=queue):
                for run in queue:
                    await one(run)

            began, used = time.perf_counter(), time.process_time()
            await asyncio.gather(*[work() for _ in range(at_once)])
            self.rates[name].append(number / (time.perf_counter() - began))
            self.work[name].append((time.process_time() - used) / number)


def axes(run):
    """State the axes of a run."""
    return pl.Axes(scope=SCOPE, session_id="session", run_id=run, call_id="call_1")


async def measure(slices, number, at_once):
    """Let both sides take turns, and change who begins."""
    with TemporaryPostgres() as server, TemporaryDirectory() as folder:
        sides = []
        for name in ("clear", "vault"):
            keys = Path(folder) / name
            KeyFile(keys).create()
            if name == "clear":
                ring = json.loads((keys / "keys.json").read_text())
                ring["keys"] = [key for key in ring["keys"] if key["use"] == "tokens"]
                (keys / "keys.json").write_text(json.dumps(ring))
            dsn = server.dsn(server.fresh_database())
            recorder = PostgresRecorder(dsn)
            recorder.migrate()
            recorder.close()
            sides.append(Side(name, await pl.open_ledger(dsn, pl.LedgerSettings(keys_directory=keys)).__aenter__()))
        for at in range(slices + 1):
            for side in sides if at % 2 else sides[::-1]:
                await side.slice(number, at_once)
        for side in sides:
            await side.ledger.__aexit__(None, None, None)
    return sides


def main():
    """Measure, and print a line an operation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slices", type=int, default=20)
    parser.add_argument("--number", type=int, default=200, help="pauses a slice")
    parser.add_argument("--at-once", type=int, default=8)
    given = parser.parse_args()
    clear, vault = asyncio.run(measure(given.slices, given.number, given.at_once))
    for op in ("pause", "redeem"):
        # The first slice warms up.
        pairs = list(zip(clear.rates[op][1:], vault.rates[op][1:], strict=True))
        ratio = median(b / a for a, b in pairs)
        work = [median(side.work[op][1:]) * 1e6 for side in (clear, vault)]
        rates = [median(side.rates[op][1:]) for side in (clear, vault)]
        print(
            f"{op:7} clear {rates[0]:6.0f}/s {work[0]:5.0f} us of CPU, vault {rates[1]:6.0f}/s {work[1]:5.0f} us:"
            f" {100 * (ratio - 1):+.1f} % of throughput, {100 * (work[1] / work[0] - 1):+.1f} % of CPU"
        )


if __name__ == "__main__":
    main()
