"""Two processes on one file: what the first was told is stored stays stored when the second has come and gone."""

import asyncio
import subprocess
import sys
from uuid import UUID

from pauseledger import LedgerSettings, open_ledger
from pauseledger.infrastructure.stories import asked, axes

VISIT = """
import asyncio, sys
from pathlib import Path
from uuid import UUID
from pauseledger import LedgerSettings, open_ledger
async def visit():
    async with open_ledger(sys.argv[1], LedgerSettings(keys_directory=Path(sys.argv[2]))) as ledger:
        print(*[len(await ledger.story(UUID(pause))) for pause in sys.argv[3:]])
asyncio.run(visit())
"""


def visit(url, keys, *pauses):
    command = [sys.executable, "-c", VISIT, url, str(keys), *map(str, pauses)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return [int(length) for length in run.stdout.split()]


def test_a_visitor_takes_no_lock_and_no_log_away(tmp_path):
    url, keys = f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "keys"

    async def serve() -> list[UUID]:
        async with open_ledger(url, LedgerSettings(keys_directory=keys)) as ledger:
            first = await asked(ledger)
            assert visit(url, keys, first.pause_id) == [1]
            later = [await asked(ledger, axes=axes(run_id=f"run {number}")) for number in range(3)]
            await later[0].redeem()
            pauses = [first.pause_id, *(one.pause_id for one in later)]
            assert visit(url, keys, *pauses) == [1, 3, 1, 1]
            return pauses

    assert visit(url, keys, *asyncio.run(serve())) == [1, 3, 1, 1]
