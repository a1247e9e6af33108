"""How far the ledger is from hand-written SQL on PostgreSQL: one workload, interleaved rounds, one table.

    python benchmarks/against_hand.py [--at-once 1,8,32] [--rounds 5] [--seconds 0.5] [--slow SHIM --slow-us 1500]

The workload: a turn of 12 messages (8 KB), a request of 1 KB, a token, an answer. By hand, a pause is one INSERT and a
redeem a SELECT and an INSERT that only the first one wins, with a token, JSON both ways and pydantic: all that is
needed, and none of what makes a ledger (events, log, refusals, axes, recovery). Once with the server's own compression,
once with STORAGE EXTERNAL and zstd in the client. Ratios are of the same round; only they count. `--slow` preloads a
library into the server that makes each flush slower. Figures are of the machine they were taken on; nothing asserts
them.
"""

import argparse
import asyncio
import base64
import hashlib
import hmac
import json
import os
import platform
import random
import statistics
import tempfile
import time
import uuid
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Literal

import pauseledger as pl
import psycopg
import zstandard
from pauseledger.infrastructure.keys import KeyFile
from pauseledger.infrastructure.postgres import PostgresRecorder
from pauseledger.infrastructure.testing import TemporaryPostgres
from pydantic import BaseModel

SAID = (
    "the refund order customer invoice asked for a manager approval because amount limit exceeds policy and shipping"
    " address changed after payment status pending review ticket opened by agent with details of account history"
)
WORDS = SAID.split()
SECRET = b"a secret of the benchmark"
KINDS = ("pause", "redeem")


def text(chance, size):
    made = ""
    while len(made) < size:
        made += (chance.choice(WORDS) if chance.random() < 0.8 else f"{chance.getrandbits(32):x}") + " "
    return made[:size]


def call(chance, number, name, **arguments):
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": text(chance, 180),
        "tool_calls": [{"id": number, "type": "function", "function": function}],
    }


def turn(seed):
    """Make twelve messages that stop at a call, and what is asked there."""
    chance = random.Random(seed)
    messages = [{"role": "system", "content": text(chance, 900)}, {"role": "user", "content": text(chance, 500)}]
    for number in range(4):
        messages.append(call(chance, f"call_{number}", f"lookup_{number}", q=text(chance, 120)))
        messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": text(chance, 1000)})
    messages.append({"role": "user", "content": text(chance, 250)})
    messages.append(call(chance, "call_pause", "ask_user", reason=text(chance, 100)))
    options = [{"label": label, "description": text(chance, 60)} for label in ("approve", "reject")]
    return messages, {"kind": "approval", "title": text(chance, 60), "body": text(chance, 600), "options": options}


TURNS = [turn(seed) for seed in range(64)]
ANSWER = {"decision": "approve", "amount": 42, "note": "fine by me, but keep it under the limit next time"}


class Answer(BaseModel, frozen=True, extra="forbid"):
    decision: Literal["approve", "reject"]
    amount: int
    note: str


class Hand:
    """Two tables, and the least that is needed."""

    name = "by hand"
    storage = ""

    def __init__(self, dsn, at_once):
        self.dsn, self.at_once = dsn, at_once

    async def __aenter__(self):
        self.free = asyncio.LifoQueue()
        for number in range(self.at_once):
            connection = await psycopg.AsyncConnection.connect(self.dsn, autocommit=True, prepare_threshold=0)
            if not number:
                await connection.execute(
                    "CREATE TABLE pause (id uuid PRIMARY KEY, tenant text, body bytea, request bytea)"
                )
                await connection.execute("CREATE TABLE consumed (id uuid PRIMARY KEY, answer bytea)")
                if self.storage:
                    await connection.execute(self.storage)
            self.free.put_nowait(connection)
        return self

    async def __aexit__(self, *_):
        while not self.free.empty():
            await self.free.get_nowait().close()

    def pack(self, value):
        return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()

    def unpack(self, stored):
        return json.loads(stored)

    async def say(self, statement, values):
        connection = await self.free.get()
        try:
            return await connection.cursor(binary=True).execute(statement, values, prepare=True)
        finally:
            self.free.put_nowait(connection)

    async def pause(self, number):
        messages, request = TURNS[number % len(TURNS)]
        pause, asked = uuid.uuid4(), self.pack(request)
        values = (pause, "acme", self.pack(messages), asked)
        await self.say("INSERT INTO pause (id, tenant, body, request) VALUES (%s, %s, %s, %s)", values)
        claims = {"p": pause.hex, "h": hashlib.sha256(asked).hexdigest(), "t": "acme", "e": int(time.time()) + 3600}
        body = base64.urlsafe_b64encode(json.dumps(claims).encode())
        return body + b"." + base64.urlsafe_b64encode(hmac.digest(SECRET, body, "sha256"))

    async def redeem(self, token):
        body, _, seal = token.partition(b".")
        if not hmac.compare_digest(base64.urlsafe_b64encode(hmac.digest(SECRET, body, "sha256")), seal):
            raise ValueError("forged")
        claims = json.loads(base64.urlsafe_b64decode(body))
        if claims["e"] < time.time() or claims["t"] != "acme":
            raise ValueError("refused")
        pause = uuid.UUID(claims["p"])
        found = await (await self.say("SELECT body, request FROM pause WHERE id = %s", (pause,))).fetchone()
        if hashlib.sha256(found[1]).hexdigest() != claims["h"]:
            raise ValueError("changed")
        answer = Answer.model_validate(ANSWER).model_dump_json().encode()
        statement = "INSERT INTO consumed (id, answer) VALUES (%s, %s) ON CONFLICT DO NOTHING"
        if (await self.say(statement, (pause, answer))).rowcount != 1:
            raise ValueError("consumed")
        return self.unpack(found[0])


class HandPacked(Hand):
    """The same, stored as the ledger stores: packed by the client, and left alone by the server."""

    name = "by hand, EXTERNAL and zstd"
    storage = "ALTER TABLE pause ALTER body SET STORAGE EXTERNAL, ALTER request SET STORAGE EXTERNAL"

    def pack(self, value):
        return zstandard.ZstdCompressor(3).compress(super().pack(value))

    def unpack(self, stored):
        return super().unpack(zstandard.ZstdDecompressor().decompress(stored))


class Kept:
    """The ledger."""

    name = "pauseledger"

    def __init__(self, dsn, at_once):
        self.dsn, self.at_once = dsn, at_once

    async def __aenter__(self):
        await asyncio.to_thread(PostgresRecorder(self.dsn).migrate)
        self.folder = tempfile.TemporaryDirectory()
        keys = Path(self.folder.name) / "keys"
        KeyFile(keys).create()
        asked = pl.Interaction(
            name="bench",
            request_schema={"type": "object"},
            response_schema=Answer,
            as_text=lambda answer: f"{answer['decision']} {answer['amount']}: {answer['note']}",
        )
        settings = pl.LedgerSettings(keys_directory=keys, interactions=[asked], threads=max(8, self.at_once))
        self.ledger = await pl.open_ledger(self.dsn, settings).__aenter__()
        return self

    async def __aexit__(self, *_):
        await self.ledger.__aexit__(None, None, None)
        self.folder.cleanup()

    async def pause(self, number):
        messages, request = TURNS[number % len(TURNS)]
        axes = pl.Axes(scope=pl.Scope(tenant_id="acme"), session_id="s", run_id=uuid.uuid4().hex, call_id="call_pause")
        stopped = pl.Turn("openai-chat", messages)
        command = pl.PauseCommand(interaction="bench", request=request, turn=stopped, axes=axes, closes_in=3600)
        return (await self.ledger.capability.pause(command)).token, axes

    async def redeem(self, handle):
        token, axes = handle
        envelope = pl.recognise(self.ledger.capability, token).envelope
        turned = await pl.prepare(self.ledger.capability, envelope=envelope, response=ANSWER, **dict(axes))
        return list(turned.history)


async def lanes(work, given, at_once):
    """Do the work on all that is given, so many at once; give the results, the seconds of each, and those of all."""
    waiting, done, took = iter(given), [], []

    async def lane():
        for one in waiting:
            begun = time.perf_counter()
            done.append(await work(one))
            took.append(time.perf_counter() - begun)

    begun = time.perf_counter()
    await asyncio.gather(*[lane() for _ in range(at_once)])
    return done, took, time.perf_counter() - begun


async def measure(server, at_once, rounds, seconds):
    """Take turns, round after round; give each one's operations a second, 99th percentile and processor time."""
    figures = {}
    async with AsyncExitStack() as stack:
        kept = [await stack.enter_async_context(kind(server.dsn(server.fresh_database()), at_once)) for kind in ALL]
        sizes = {}
        for one in kept:
            tokens, _, _ = await lanes(one.pause, range(at_once * 2), at_once)
            _, _, spent = await lanes(one.redeem, tokens, at_once)
            sizes[one.name] = max(at_once * 2, int(seconds * len(tokens) / spent))
        for number in range(rounds):
            tokens = {}
            for kind in KINDS:
                for one in kept[number % len(kept) :] + kept[: number % len(kept)]:
                    given = range(sizes[one.name]) if kind == "pause" else tokens[one.name]
                    cpu = time.process_time()
                    tokens[one.name], took, spent = await lanes(getattr(one, kind), given, at_once)
                    cpu = (time.process_time() - cpu) / len(took) * 1000
                    p99 = sorted(took)[int(len(took) * 0.99)] * 1000
                    figures.setdefault((kind, one.name), []).append((len(took) / spent, p99, cpu))
    return figures


ALL = (Hand, HandPacked, Kept)


def report(at_once, figures):
    """Print the medians, and how many times slower than by hand in the same round."""
    for kind in KINDS:
        base = figures[kind, Hand.name]
        for one in ALL:
            mine = figures[kind, one.name]
            slower = statistics.median(theirs[0] / own[0] for theirs, own in zip(base, mine, strict=True))
            rate, p99, cpu = (statistics.median(column) for column in zip(*mine, strict=True))
            print(
                f"| {kind} | {at_once} | {one.name} | {rate:.0f} | {p99:.1f} | {cpu:.2f} | {slower:.2f} |", flush=True
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--slow", help="a library for LD_PRELOAD of the server")
    parser.add_argument("--slow-us", default="1500")
    chosen = parser.parse_args()
    if chosen.slow:
        os.environ |= {"LD_PRELOAD": chosen.slow, "SLOW_US": chosen.slow_us}
    print(f"{os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}")
    print("| | at once | | a second | p99 ms | client CPU ms | times slower |\n|---|---|---|---|---|---|---|")
    with TemporaryPostgres(durable=True) as server:
        for at_once in map(int, chosen.at_once.split(",")):
            report(at_once, asyncio.run(measure(server, at_once, chosen.rounds, chosen.seconds)))


if __name__ == "__main__":
    main()
