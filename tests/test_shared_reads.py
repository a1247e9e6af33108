"""Reads that are shared: whoever asks is told what was read after they asked, whoever else gives up or fails."""

import asyncio
from random import Random
from uuid import UUID

import pytest
from pauseledger.infrastructure.shared_reads import REREADS, SharedReads

WHAT = UUID(int=7)


class Shelf:
    """What is read: the reads and writes that began or ended on it are counted."""

    def __init__(self, random=None, *, ready=None):
        self.random = random
        self.clock = 0
        self.reads = []
        self.under_way = 0
        self.shared = SharedReads(ready or self.settle, self.read)

    def tick(self):
        self.clock += 1
        return self.clock

    async def settle(self, _):
        for _ in range(self.random.randrange(3) if self.random else 0):
            await asyncio.sleep(0)

    async def read(self, _):
        began = self.tick()
        self.under_way += 1
        assert self.under_way == 1, "two read at once"
        try:
            for _ in range(self.random.randrange(1, 4) if self.random else 1):
                await asyncio.sleep(0)
            if self.random and self.random.random() < 0.2:
                raise OSError("the store is away")
        finally:
            self.under_way -= 1
        self.reads.append(began)
        return began


@pytest.mark.parametrize("seed", range(60))
async def test_whoever_asks_is_told_what_was_read_after_they_asked(seed):
    random = Random(seed)
    shelf = Shelf(random)

    async def ask():
        for _ in range(random.randrange(6)):
            await asyncio.sleep(0)
        asked = shelf.tick()
        try:
            told = await shelf.shared.find(WHAT)
        except OSError:
            return "failed"
        assert told > asked
        return "told"

    asking = [asyncio.ensure_future(ask()) for _ in range(24)]
    for task in random.sample(asking, 8):
        await asyncio.sleep(0)
        if random.random() < 0.5:
            shelf.shared.wrote(WHAT.int)
        task.cancel()
    ends = await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), 5)
    assert {end if isinstance(end, str) else type(end).__name__ for end in ends} <= {"told", "failed", "CancelledError"}
    assert "told" in ends
    assert shelf.shared._reading == {}


async def test_those_who_come_while_a_read_is_not_begun_share_it():
    gate = asyncio.Event()
    shelf = Shelf(ready=lambda _: gate.wait())
    asking = [asyncio.ensure_future(shelf.shared.find(WHAT)) for _ in range(3)]
    await asyncio.sleep(0)
    asking += [asyncio.ensure_future(shelf.shared.find(WHAT)) for _ in range(3)]
    await asyncio.sleep(0)
    gate.set()
    assert set(await asyncio.gather(*asking)) == {1}


async def test_what_was_read_before_a_write_is_read_again_but_not_without_end():
    shelf = Shelf()

    async def read(what):
        told = await Shelf.read(shelf, what)
        shelf.shared.wrote(WHAT.int)
        return told

    shelf.shared = SharedReads(shelf.settle, read)
    assert await shelf.shared.find(WHAT) == REREADS
    shelf.shared = SharedReads(shelf.settle, shelf.read)
    assert await shelf.shared.find(WHAT) == REREADS + 1
    assert len(shelf.reads) == REREADS + 1


async def test_one_that_fails_fails_for_its_reader_alone():
    shelf = Shelf()
    failing = [OSError("away")]

    async def read(what):
        await asyncio.sleep(0)
        if failing:
            raise failing.pop()
        return what

    shelf.shared = SharedReads(shelf.settle, read)
    ends = await asyncio.gather(*[shelf.shared.find(WHAT) for _ in range(4)], return_exceptions=True)
    assert [type(end).__name__ for end in ends] == ["OSError", "UUID", "UUID", "UUID"]


async def test_all_who_share_a_read_are_woken_in_one_round_of_the_loop():
    shelf, woken = Shelf(), []

    async def ask():
        await shelf.shared.find(WHAT)
        woken.append("told")

    gathered = asyncio.gather(*[ask() for _ in range(8)])
    rounds = []
    while not gathered.done():
        before = len(woken)
        await asyncio.sleep(0)
        rounds.append(len(woken) - before)
    await gathered
    # The first had begun to read before the others asked. One of these reads for all, and goes on at once.
    assert [count for count in rounds if count] == [1, 1, 6]
