"""Subscribers as the page on events has them, in processes of which one after the other is killed at its work."""

import asyncio
import os
import random
import re
import signal
import sys
import time
from pathlib import Path

from pauseledger import LedgerSettings, open_ledger

url, keys, page, kills = sys.argv[1:]
names = {}
for snippet in re.findall(r"```python\n(import.*?)```", Path(page).read_text(), re.DOTALL):
    exec(snippet, names)
hear, tell = os.pipe()
take_a_page = names["take_a_page"]


async def take_and_tell(*given):
    more = await take_a_page(*given)
    os.write(tell, os.getpid().to_bytes(8, "big"))
    return more


names["take_a_page"] = take_and_tell


async def subscribe():
    async with open_ledger(url, LedgerSettings(keys_directory=Path(keys), threads=2)) as ledger:
        await names["subscribe"](ledger, url, 3)


def fork():
    pid = os.fork()
    if not pid:
        try:
            asyncio.run(subscribe())
        finally:
            os._exit(1)
    return pid


def kill(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


living, chance = {fork() for _ in range(3)}, random.Random(7)
for _ in range(int(kills)):
    # Whoever has handed a page over is at the next one, or about to be.
    while (busy := int.from_bytes(os.read(hear, 8), "big")) not in living:
        pass
    time.sleep(chance.uniform(0, 0.008))
    kill(busy)
    living = living - {busy} | {fork()}
for pid in living:
    kill(pid)
