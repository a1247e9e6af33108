"""The door: which body opens a token, and what is counted; an older engine that signs by HMAC stands beside it."""

import asyncio
import dataclasses
import hashlib
import hmac
import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import aclosing, contextmanager
from pathlib import Path
from uuid import uuid5

import pytest
from pauseledger import (
    Actor,
    AlreadyConsumed,
    AskUserAnsweredEvent,
    CheckpointReference,
    InteractionConfigurationError,
    LedgerCorrupt,
    LedgerTooNew,
    NotRedeemable,
    RecoverCommand,
    Refusal,
    RoundOpen,
    Scope,
    StoreUnavailable,
)
from pauseledger.domain import continuation
from pauseledger.domain.continuation import ContinuationDoor
from pauseledger.domain.facts import FACTS
from pauseledger.domain.switches import SURFACES, MemorySwitches, SwitchFlipped
from pauseledger.infrastructure import raw_check, switches
from pauseledger.infrastructure.mapper import Registry
from pauseledger.infrastructure.stories import (
    ANSWER,
    ANSWER_TEXT,
    SCOPE,
    WRONG_ANSWER,
    Stage,
    approve,
    asked,
    asked_round,
    axes,
    round_of,
    topics,
    turn,
)

OPS = Actor("ops-anna", kind="person", assurance="authenticated")
BESIDE = {"scope": SCOPE, "session_id": "session-1", "run_id": "run-1", "call_id": "call_1"}
DOOR_PAGE = (Path(__file__).resolve().parent.parent / "docs" / "door.md").read_text()


class OlderEngine:
    """What a host had before: its token says the run and signs it. It records what it was handed."""

    def __init__(self):
        self.handed = []
        self.closed = 0

    def mint(self, run_id="run-1"):
        return f"{run_id}.{hmac.new(b'older', run_id.encode(), hashlib.sha256).hexdigest()}"

    def _open(self, delegate, pause_token, response, said):
        self.handed.append((delegate, pause_token, response, said))
        return f"older: {pause_token == self.mint(said['run_id'])}"

    async def resume_run(self, delegate, pause_token, response, **said):
        return self._open(delegate, pause_token, response, said)

    async def resume_stream(self, delegate, pause_token, response, **said):
        try:
            yield self._open(delegate, pause_token, response, said)
            yield "older: end"
        finally:
            self.closed += 1

    resume_stream_typed = resume_stream


class Kernel:
    """An agent kernel that says what it finds on the last call, and records how it was entered."""

    def __init__(self, breaks=None):
        self.breaks = breaks
        self.entered = []
        self.closed = 0

    def _enter(self, prompt, said):
        self.entered.append((prompt, said))
        if self.breaks is not None:
            raise self.breaks
        return f"kernel: {said['history'][-1]['content']}"

    async def run(self, prompt, **said):
        return self._enter(prompt, said)

    async def stream(self, prompt, **said):
        try:
            yield self._enter(prompt, said)
            yield "kernel: end"
        finally:
            self.closed += 1

    stream_typed = stream


async def through(door, surface, kernel, token, response=ANSWER, **said):
    """Knock, and give what comes out: what is returned, or the texts of the stream."""
    body = getattr(door, f"resume_{surface}")
    if surface == "run":
        return await body(kernel, token, response, **{**BESIDE, **said})
    items = [item async for item in body(kernel, token, response, **{**BESIDE, **said})]
    texts = [item for item in items if isinstance(item, str)]
    return texts[0] if len(texts) == 2 else texts


async def counts(door, surface):
    return door.report().surfaces[surface]


IN_MEMORY = pytest.mark.parametrize("stage", ["memory"], indirect=True)


@pytest.fixture(params=["memory", "sqlite"])
def stage(request, tmp_path):
    url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path / 'ledger.db'}"
    return Stage(url, tmp_path / "keys")


@pytest.fixture
def checkpoints():
    return HostCheckpoints()


@pytest.fixture
async def ledger(stage, checkpoints):
    async with stage.ledger(checkpoints={"host": checkpoints}) as opened:
        yield opened


class HostCheckpoints:
    """Where a host keeps its turns, until it loses them."""

    lost = False

    async def read(self, reference):
        return None if self.lost else json.dumps(turn().messages).encode()


@pytest.fixture
def older():
    return OlderEngine()


@pytest.fixture
def door(ledger, older):
    return ContinuationDoor(ledger.capability, MemorySwitches(*SURFACES), legacy=older)


@pytest.fixture(params=SURFACES)
def surface(request):
    return request.param


# Who opens a token


async def test_a_rolled_back_surface_never_touches_the_transport(stage, ledger, older, surface):
    question = await asked(ledger)
    ledger.capability.decode_token = lambda _: pytest.fail("the transport was touched")
    others = [other for other in SURFACES if other != surface]
    door, kernel = ContinuationDoor(ledger.capability, MemorySwitches(*others), legacy=older), Kernel()
    before = stage.rows()
    assert await through(door, surface, kernel, question.token) == "older: False"
    assert await through(door, surface, kernel, older.mint()) == "older: True"
    assert stage.rows() == before
    assert kernel.entered == []
    assert (await counts(door, surface)).legacy == {"switched_off": 2}
    assert not door.report().certified


async def test_a_token_of_ours_goes_on_in_the_kernel_with_the_answer_on_its_call(ledger, older, door, surface):
    question, kernel = await asked(ledger), Kernel()
    said = await through(door, surface, kernel, question.token, answered_by=Actor("maria"), temperature=0)
    assert said == f"kernel: {ANSWER_TEXT}"
    [(prompt, given)] = kernel.entered
    assert (prompt, given["run_id"], given["session_id"], given["temperature"]) == ("", "run-1", "session-1", 0)
    assert set(given) == {"run_id", "session_id", "history", "temperature"}
    story = await ledger.story(question.pause_id)
    assert [fact.NAME.removeprefix("pause.") for fact in story] == ["paused", "answered", "consumed", "continued"]
    assert story[1].by.who.clear() == b"maria"
    assert older.handed == []
    assert await counts(door, surface) == continuation.SurfaceCounts(1, {}, {}, {}, {})
    assert door.report().certified


@IN_MEMORY
async def test_a_token_that_is_not_ours_is_handed_over_as_it_came_with_the_same_arguments(stage, older, door, surface):
    kernel, token, response, before = Kernel(), older.mint() + " \n", object(), stage.rows()
    by = Actor("maria")
    await through(door, surface, kernel, token, response, answered_by=by, attempt_key="key", temperature=0)
    [(delegate, handed, answered, said)] = older.handed
    assert (delegate, handed, answered) == (kernel, token, response)
    assert handed is token
    assert said == {**BESIDE, "answered_by": by, "attempt_key": "key", "temperature": 0}
    await through(door, surface, kernel, token)
    assert older.handed[1][3] == BESIDE
    assert stage.rows() == before
    assert (await counts(door, surface)).legacy == {"not_a_capability_token": 2}


async def test_the_typed_stream_says_first_what_was_answered(ledger, door):
    question = await asked(ledger)
    events = [event async for event in door.resume_stream_typed(Kernel(), question.token, ANSWER, **BESIDE)]
    assert isinstance(events[0], AskUserAnsweredEvent)
    assert events[1:] == [f"kernel: {ANSWER_TEXT}", "kernel: end"]


@IN_MEMORY
async def test_flipping_back_and_forth_moves_the_next_token_and_no_other(ledger, older, surface):
    levers = MemorySwitches()
    door, kernel = ContinuationDoor(ledger.capability, levers, legacy=older), Kernel()
    for on in (False, True, False):
        levers.flip(surface, on=on)
        await through(door, surface, kernel, older.mint())
    assert (await counts(door, surface)).legacy == {"switched_off": 2, "not_a_capability_token": 1}
    question = await asked(ledger)
    levers.flip(surface, on=True)
    assert await through(door, surface, kernel, question.token) == f"kernel: {ANSWER_TEXT}"


async def test_mixed_tokens_at_once_each_find_their_body(ledger, older, door, surface):
    questions = [await asked(ledger, axes=axes(run_id=f"run-{n}")) for n in range(10)]
    knocks = [through(door, surface, Kernel(), one.token, run_id=one.axes.run_id) for one in questions]
    knocks += [through(door, surface, Kernel(), older.mint(f"old-{n}"), run_id=f"old-{n}") for n in range(10)]
    assert await asyncio.gather(*knocks) == [f"kernel: {ANSWER_TEXT}"] * 10 + ["older: True"] * 10
    counted = await counts(door, surface)
    assert (counted.kernel, counted.legacy) == (10, {"not_a_capability_token": 10})


class Bare:
    """A capability that never learnt to decode."""


class Undecided:
    decode_token = None


@pytest.mark.parametrize(
    ("capability", "reason"),
    [(None, "no_pause_capability"), (Bare(), "no_decode_transport"), (Undecided(), "no_decode_transport")],
)
async def test_what_cannot_recognise_leaves_every_token_to_the_older_engine(older, surface, capability, reason):
    door = ContinuationDoor(capability, MemorySwitches(*SURFACES), legacy=older)
    assert await through(door, surface, Kernel(), older.mint()) == "older: True"
    assert (await counts(door, surface)).legacy == {reason: 1}
    alone = ContinuationDoor(capability, MemorySwitches(*SURFACES))
    with pytest.raises(NotRedeemable) as unserved:
        await through(alone, surface, Kernel(), older.mint())
    assert unserved.value.reason == reason
    assert (await counts(alone, surface)).unserved == {reason: 1}


@IN_MEMORY
async def test_without_an_older_engine_the_reason_is_raised_and_nothing_is_told_of_the_token(ledger, older, surface):
    levers = MemorySwitches(*SURFACES)
    door = ContinuationDoor(ledger.capability, levers)
    with pytest.raises(NotRedeemable) as unserved:
        await through(door, surface, Kernel(), older.mint())
    assert unserved.value.reason == "not_a_capability_token"
    assert older.mint() not in str(unserved.value) + repr(door) + repr(door.report())
    levers.flip(surface, on=False)
    with pytest.raises(NotRedeemable) as unserved:
        await through(door, surface, Kernel(), (await asked(ledger)).token)
    assert unserved.value.reason == "switched_off"
    assert (await counts(door, surface)).unserved == {"not_a_capability_token": 1, "switched_off": 1}
    assert door.report().certified


# After recognition nothing falls back


@contextmanager
def nothing_falls_back(stage, ledger, older, question):
    """Expect that the older engine is handed nothing, and that the pause stands as it stood."""
    before = [row for row in stage.rows(question.pause_id) if not row.topic.startswith("pause.refused")]
    yield
    after = [row for row in stage.rows(question.pause_id) if not row.topic.startswith("pause.refused")]
    assert after == before
    assert older.handed == []


async def is_refused(door, surface, question, reason, **said):
    kernel = Kernel()
    with pytest.raises(Refusal) as refused:
        await through(door, surface, kernel, question.token, **said)
    assert refused.value.reason == reason
    assert kernel.entered == []
    assert await counts(door, surface) == continuation.SurfaceCounts(0, {}, {}, {reason: 1}, {})
    assert door.report().certified


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("scope_mismatch", {"scope": Scope(tenant_id="other")}),
        ("session_mismatch", {"session_id": "session-2"}),
        ("run_mismatch", {"run_id": "run-2"}),
        ("call_mismatch", {"call_id": "call_2"}),
        ("response_invalid", {"response": WRONG_ANSWER}),
    ],
)
async def test_an_axis_or_an_answer_that_does_not_hold_is_refused(stage, ledger, older, door, surface, reason, said):
    question = await asked(ledger)
    with nothing_falls_back(stage, ledger, older, question):
        await is_refused(door, surface, question, reason, **said)
    assert await through(door, surface, Kernel(), question.token) == f"kernel: {ANSWER_TEXT}"


async def test_an_expired_token_is_refused(stage, ledger, older, door, surface):
    question = await asked(ledger, closes_in=60)
    ledger.wait(seconds=61)
    with nothing_falls_back(stage, ledger, older, question):
        await is_refused(door, surface, question, "token_expired")


async def test_a_turn_that_is_gone_is_refused(stage, ledger, checkpoints, older, door, surface):
    question = await asked(ledger, turn=CheckpointReference("openai-chat", "host", "thread-1", "1"))
    checkpoints.lost = True
    with nothing_falls_back(stage, ledger, older, question):
        await is_refused(door, surface, question, "turn_missing")


async def test_a_token_that_was_redeemed_is_refused(stage, ledger, older, door, surface):
    question = await asked(ledger)
    await question.redeem()
    with nothing_falls_back(stage, ledger, older, question):
        await is_refused(door, surface, question, "already_consumed")


@IN_MEMORY
async def test_the_same_attempt_key_again_is_told_so_and_the_kernel_runs_once(ledger, door, surface):
    question, kernel = await asked(ledger), Kernel()
    await through(door, surface, kernel, question.token, attempt_key="key-1")
    with pytest.raises(AlreadyConsumed) as refused:
        await through(door, surface, kernel, question.token, attempt_key="key-1")
    assert refused.value.own
    assert len(kernel.entered) == 1


def mangled(token):
    middle = len(token) // 2
    other = "a" if token[middle] != "a" else "b"
    return {
        "truncated": token[:-1],
        "extended": token + "x",
        "changed": token[:middle] + other + token[middle + 1 :],
        "lower-cased": token.lower(),
    }


@IN_MEMORY
@pytest.mark.parametrize("how", ["truncated", "extended", "changed", "lower-cased"])
async def test_a_forged_token_is_refused_and_counted_and_never_handed_over(stage, ledger, older, door, surface, how):
    question = await asked(ledger)
    forged = dataclasses.replace(
        question, receipt=dataclasses.replace(question.receipt, token=mangled(question.token)[how])
    )
    with nothing_falls_back(stage, ledger, older, forged):
        await is_refused(door, surface, forged, "token_forged")


@IN_MEMORY
@pytest.mark.parametrize(
    "strange", ["", " ", "eyJhbGciOiJub25lIn0.e30.", "PLP1", "../../etc/passwd", "\x00", "ü" * 300]
)
async def test_a_string_without_our_prefix_is_the_older_engines(older, door, surface, strange):
    assert await through(door, surface, Kernel(), strange) == "older: False"
    assert [handed[1] for handed in older.handed] == [strange]


@IN_MEMORY
async def test_a_line_wrap_in_a_token_of_ours_is_tolerated(ledger, door, surface):
    token = (await asked(ledger)).token
    assert await through(door, surface, Kernel(), f" {token[:70]}\r\n{token[70:]}\n") == f"kernel: {ANSWER_TEXT}"


class KernelError(Exception):
    pass


async def test_a_kernel_that_raises_leaves_the_turn_owed_and_nobody_is_asked_twice(ledger, older, door, surface):
    question = await asked(ledger)
    with pytest.raises(KernelError):
        await through(door, surface, Kernel(breaks=KernelError()), question.token)
    assert older.handed == []
    assert (await ledger.story(question.pause_id))[-1].NAME == "pause.stalled"
    assert await counts(door, surface) == continuation.SurfaceCounts(1, {}, {}, {}, {"KernelError": 1})
    turn_again = await ledger.capability.recover(RecoverCommand(pause_id=question.pause_id, axes=axes()))
    assert turn_again.history[-1]["content"] == ANSWER_TEXT


@IN_MEMORY
async def test_a_refusal_that_the_kernel_itself_meets_is_no_refusal_of_this_token(ledger, older, door, surface):
    question = await asked(ledger)
    with pytest.raises(AlreadyConsumed):
        await through(door, surface, Kernel(breaks=AlreadyConsumed()), question.token)
    assert await counts(door, surface) == continuation.SurfaceCounts(1, {}, {}, {}, {"AlreadyConsumed": 1})
    assert older.handed == []


@IN_MEMORY
async def test_a_decoder_that_raises_is_heard(stage, ledger, older, door, surface):
    question = await asked(ledger)

    def broken(_):
        raise OSError("the key service is away")

    ledger.capability.decode_token = broken
    with nothing_falls_back(stage, ledger, older, question), pytest.raises(OSError, match="key service"):
        await through(door, surface, Kernel(), question.token)
    assert await counts(door, surface) == continuation.SurfaceCounts(0, {}, {}, {}, {"OSError": 1})


@IN_MEMORY
@pytest.mark.parametrize("unstated", ["scope", "session_id", "run_id", "call_id"])
async def test_an_axis_left_unstated_is_the_hosts_mistake(stage, ledger, older, door, surface, unstated):
    question = await asked(ledger)
    with (
        nothing_falls_back(stage, ledger, older, question),
        pytest.raises(InteractionConfigurationError, match=unstated),
    ):
        await through(door, surface, Kernel(), question.token, **{unstated: None})
    assert (await counts(door, surface)).failed == {"InteractionConfigurationError": 1}


@IN_MEMORY
async def test_a_store_that_cannot_speak_is_no_reason_to_fall_back(ledger, older, door, surface, monkeypatch):
    question = await asked(ledger)

    def away(_):
        raise StoreUnavailable("away")

    monkeypatch.setattr(ledger.recorder, "load", away)
    with pytest.raises(StoreUnavailable):
        await through(door, surface, Kernel(), question.token)
    assert older.handed == []
    assert (await counts(door, surface)).failed == {"StoreUnavailable": 1}


@IN_MEMORY
async def test_switches_that_break_are_heard_and_hand_nothing_over(ledger, older, surface):
    class Broken:
        async def is_on(self, surface):
            raise KeyError(surface)

    door = ContinuationDoor(ledger.capability, Broken(), legacy=older)
    with pytest.raises(KeyError):
        await through(door, surface, Kernel(), older.mint())
    assert older.handed == []
    assert (await counts(door, surface)).failed == {"KeyError": 1}


@IN_MEMORY
async def test_what_the_older_engine_raises_is_raised_and_is_its_own_business(older, door, surface):
    def broken(*_):
        raise PermissionError("no")

    older._open = broken
    with pytest.raises(PermissionError):
        await through(door, surface, Kernel(), older.mint())
    assert await counts(door, surface) == continuation.SurfaceCounts(0, {"not_a_capability_token": 1}, {}, {}, {})


@IN_MEMORY
async def test_a_round_still_open_keeps_the_answer_and_the_last_one_carries_all(ledger, older, door, surface):
    first, second = await asked_round(ledger, *round_of("call_1", "call_2"))
    with pytest.raises(RoundOpen):
        await through(door, surface, Kernel(), first.token)
    kernel = Kernel()
    await through(door, surface, kernel, second.token, call_id="call_2")
    history = kernel.entered[0][1]["history"]
    assert [entry["content"] for entry in history if entry["role"] == "tool"] == [ANSWER_TEXT, ANSWER_TEXT]
    assert older.handed == []
    assert await counts(door, surface) == continuation.SurfaceCounts(1, {}, {}, {}, {"RoundOpen": 1})


@IN_MEMORY
async def test_a_call_that_a_person_lets_through_goes_to_a_kernel_that_dispatches(ledger, door, surface):
    question, kernel = await asked(ledger, approve()), Kernel()
    kernel.dispatches = True
    await through(door, surface, kernel, question.token, {"decision": "approve"})
    [(_, given)] = kernel.entered
    assert given["dispatch"][0].interrupt_id == "call_1"
    assert given["fence"] == 1


# Streams

STREAMS = pytest.mark.parametrize("surface", ["stream", "stream_typed"])


class CountedSwitches(MemorySwitches):
    def __init__(self, *on):
        super().__init__(*on)
        self.asked = 0

    async def is_on(self, surface):
        self.asked += 1
        return await super().is_on(surface)


@STREAMS
async def test_a_stream_returns_at_once_and_decides_at_the_first_item(stage, ledger, older, surface):
    question, levers, kernel = await asked(ledger), CountedSwitches(), Kernel()
    door, before = ContinuationDoor(ledger.capability, levers, legacy=older), stage.rows()
    stream = getattr(door, f"resume_{surface}")(kernel, question.token, ANSWER, **BESIDE)
    await asyncio.sleep(0)
    assert (levers.asked, stage.rows(), kernel.entered, older.handed) == (0, before, [], [])
    levers.flip(surface, on=True)
    async with aclosing(stream):
        await anext(stream)
        levers.flip(surface, on=False)
        assert [item async for item in stream][-1] == "kernel: end"
    assert levers.asked == 1
    assert older.handed == []


@IN_MEMORY
@STREAMS
async def test_a_stream_nobody_iterates_redeems_nothing_and_is_counted_nowhere(stage, ledger, older, surface):
    question, levers, kernel = await asked(ledger), CountedSwitches(*SURFACES), Kernel()
    door, before = ContinuationDoor(ledger.capability, levers, legacy=older), stage.rows()
    knock = getattr(door, f"resume_{surface}")
    for token in (question.token, older.mint(), "plp1forged"):
        await knock(kernel, token, ANSWER, **BESIDE).aclose()
        knock(kernel, token, ANSWER, **BESIDE)
    assert (levers.asked, stage.rows(), kernel.entered, older.handed) == (0, before, [], [])
    assert await counts(door, surface) == continuation.SurfaceCounts(0, {}, {}, {}, {})


async def first_item(stream):
    """Take items until the kernel's or the older engine's first."""
    while not isinstance(item := await anext(stream), str):
        pass
    return item


@STREAMS
async def test_whoever_leaves_a_kernels_stream_early_closes_it_and_the_turn_is_owed(ledger, door, surface):
    question, kernel = await asked(ledger), Kernel()
    stream = getattr(door, f"resume_{surface}")(kernel, question.token, ANSWER, **BESIDE)
    await first_item(stream)
    await stream.aclose()
    assert kernel.closed == 1
    stalled = (await ledger.story(question.pause_id))[-1]
    assert (stalled.NAME, stalled.cause) == ("pause.stalled", "consumer_gone")
    assert await counts(door, surface) == continuation.SurfaceCounts(1, {}, {}, {}, {})


@IN_MEMORY
@STREAMS
async def test_whoever_leaves_the_older_engines_stream_early_closes_it(older, door, surface):
    stream = getattr(door, f"resume_{surface}")(Kernel(), older.mint(), ANSWER, **BESIDE)
    await first_item(stream)
    assert older.closed == 0
    await stream.aclose()
    assert older.closed == 1


@IN_MEMORY
@STREAMS
@pytest.mark.parametrize("whose", ["kernel", "older"])
async def test_a_consumer_that_breaks_off_or_raises_closes_what_was_opened(ledger, older, door, surface, whose):
    kernel, token = Kernel(), (await asked(ledger)).token if whose == "kernel" else older.mint()
    opened = kernel if whose == "kernel" else older
    with pytest.raises(ZeroDivisionError):
        async with aclosing(getattr(door, f"resume_{surface}")(kernel, token, ANSWER, **BESIDE)) as stream:
            async for item in stream:
                if isinstance(item, str):
                    raise ZeroDivisionError
    assert opened.closed == 1


@IN_MEMORY
@STREAMS
@pytest.mark.parametrize("whose", ["kernel", "older"])
async def test_a_consumer_that_is_cancelled_closes_what_was_opened(ledger, older, door, surface, whose):
    question, under_way, closed = await asked(ledger), asyncio.Event(), []

    async def slow(*_, **__):
        try:
            yield "first"
            under_way.set()
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    kernel = Kernel()
    kernel.stream = kernel.stream_typed = older.resume_stream = older.resume_stream_typed = slow
    token = question.token if whose == "kernel" else older.mint()
    consumer = asyncio.create_task(through(door, surface, kernel, token))
    await under_way.wait()
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert closed == [True]
    if whose == "kernel":
        assert (await ledger.story(question.pause_id))[-1].cause == "cancelled"
        assert (await counts(door, surface)).failed == {"CancelledError": 1}


class Plain:
    """An iterator that cannot be closed."""

    def __init__(self, *items):
        self.items = list(items)

    def __aiter__(self):
        return self

    async def __anext__(self):
        if not self.items:
            raise StopAsyncIteration
        return self.items.pop(0)


@IN_MEMORY
@STREAMS
@pytest.mark.parametrize("awaited", [False, True])
async def test_an_older_engine_may_give_any_iterator_awaited_or_not(older, door, surface, awaited):
    def plain(*_, **__):
        return Plain("a", "b", "c")

    async def later(*_, **__):
        return Plain("a", "b", "c")

    older.resume_stream = older.resume_stream_typed = later if awaited else plain
    stream = getattr(door, f"resume_{surface}")(Kernel(), older.mint(), ANSWER, **BESIDE)
    assert await anext(stream) == "a"
    await stream.aclose()
    assert await through(door, surface, Kernel(), older.mint()) == ["a", "b", "c"]


async def test_a_run_that_is_cancelled_is_owed_and_never_handed_over(ledger, older, door):
    question, under_way = await asked(ledger), asyncio.Event()

    class Slow:
        async def run(self, prompt, **said):
            under_way.set()
            await asyncio.Event().wait()

    running = asyncio.create_task(through(door, "run", Slow(), question.token))
    await under_way.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await ledger.story(question.pause_id))[-1].cause == "cancelled"
    assert older.handed == []
    assert (await counts(door, "run")).failed == {"CancelledError": 1}


# The report


@IN_MEMORY
async def test_the_report_is_a_picture_and_a_reset_begins_anew(ledger, older, door):
    await through(door, "run", Kernel(), older.mint())
    earlier = door.report()
    await through(door, "stream", Kernel(), older.mint())
    assert earlier.surfaces["stream"].legacy == {}
    ended = door.reset()
    assert [ended.surfaces[surface].legacy for surface in SURFACES] == [
        {"not_a_capability_token": 1},
        {"not_a_capability_token": 1},
        {},
    ]
    assert (ended.certified, ended.since) == (False, earlier.since)
    assert door.report().certified
    assert door.report().since > ended.since
    await through(door, "run", Kernel(), (await asked(ledger)).token)
    assert door.report().certified
    await through(door, "stream_typed", Kernel(), older.mint())
    assert not door.report().certified


@IN_MEMORY
async def test_a_report_is_frozen_and_plain_data(door, older):
    await through(door, "run", Kernel(), older.mint())
    report = door.report()
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.surfaces["run"].kernel = 7
    told = json.loads(json.dumps(dataclasses.asdict(report), default=str))
    assert told["surfaces"]["run"]["legacy"] == {"not_a_capability_token": 1}
    report.surfaces["run"].legacy.clear()
    assert not door.report().certified


class Interrupted(Counter):
    """Counts that let another thread in between reading and writing."""

    def __getitem__(self, key):
        found = super().__getitem__(key)
        time.sleep(0)
        return found


def test_no_count_is_lost_between_threads():
    door = ContinuationDoor(None, MemorySwitches(*SURFACES), legacy=OlderEngine())
    door._tally._counts = Interrupted()
    together = threading.Barrier(8)

    async def knock():
        for _ in range(100):
            await through(door, "run", None, "theirs")

    def work():
        together.wait()
        asyncio.run(knock())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert door.report().surfaces["run"].legacy == {"no_pause_capability": 800}


# Switches kept in the ledger


@pytest.fixture
def any_stage(store_url, tmp_path):
    return Stage(store_url, tmp_path / "keys")


async def states(ledger):
    return [await ledger.switches.is_on(surface) for surface in SURFACES]


async def test_a_flip_is_a_fact_in_a_stream_of_its_own(any_stage):
    async with any_stage.ledger() as ledger:
        assert await states(ledger) == [False, False, False]
        assert await ledger.flip("stream", True, OPS)
        assert await states(ledger) == [False, True, False]
        assert await ledger.flip("stream", False, Actor("ops-ben"))
        assert await states(ledger) == [False, False, False]
        stream = ledger.switches.stream
        assert stream == uuid5(ledger.pauses.mapper._ledger, "switches")
        flips = await ledger.story(stream)
        assert [(flip.surface, flip.on, flip.by.who.clear()) for flip in flips] == [
            ("stream", True, b"ops-anna"),
            ("stream", False, b"ops-ben"),
        ]
        assert flips[0].by.assurance == "authenticated"
        rows = any_stage.rows()
        assert [(row.stream, row.version, row.topic) for row in rows] == [
            (stream, 1, "switch.flipped@1"),
            (stream, 2, "switch.flipped@1"),
        ]
        header = rows[0].header
        assert set(header) == {
            "ledger", "pause", "scope", "at", "attempt", "writer", "trace", "surface", "on", "by",
        }  # fmt: skip
        assert (header["pause"], header["scope"], header["on"]) == (str(stream), None, True)
        assert all(isinstance(fact, SwitchFlipped) for fact in ledger.pauses.facts())
    async with any_stage.ledger() as later:
        assert await later.switches.is_on("stream") is False


async def test_a_flip_that_changes_nothing_writes_nothing(stage):
    async with stage.ledger() as ledger:
        assert not await ledger.flip("run", False, OPS)
        assert await ledger.flip("run", True, OPS)
        assert not await ledger.flip("run", True, Actor("ops-ben"))
        assert stage.count("switch.flipped@1") == 1


@IN_MEMORY
@pytest.mark.parametrize(
    ("surface", "on", "by"),
    [("streams", True, OPS), ("run", "no", OPS), ("run", 1, OPS), ("run", True, None), ("run", True, "ops-anna")],
)
async def test_a_flip_that_says_nothing_is_the_hosts_mistake(stage, surface, on, by):
    async with stage.ledger() as ledger:
        with pytest.raises(InteractionConfigurationError):
            await ledger.flip(surface, on, by)
        assert stage.count() == 0


@pytest.mark.parametrize(("surface", "on"), [("streams", True), ("run", "no"), ("run", None)])
def test_a_flip_in_memory_that_says_nothing_is_the_hosts_mistake(surface, on):
    with pytest.raises(InteractionConfigurationError):
        MemorySwitches().flip(surface, on=on)


async def test_another_process_knows_once_its_state_is_no_longer_fresh(any_stage, monkeypatch):
    async with any_stage.ledger() as here, any_stage.ledger() as there:
        assert not await there.switches.is_on("run")
        await here.flip("run", True, OPS)
        monkeypatch.setattr(there.switches, "_due", float("inf"))
        assert not await there.switches.is_on("run")
        monkeypatch.setattr(there.switches, "_due", float("-inf"))
        monkeypatch.setattr(switches, "PATIENCE_SECONDS", 30)
        assert await there.switches.is_on("run")
        await here.flip("run", False, OPS)
        assert await there.flip("stream", True, OPS)
        assert await states(there) == [False, True, False]


async def test_reading_a_fresh_state_asks_the_store_nothing(stage, monkeypatch):
    async with stage.ledger() as ledger:
        monkeypatch.setattr(switches, "FRESH_SECONDS", 3600)
        await ledger.flip("run", True, OPS)
        monkeypatch.setattr(ledger.recorder, "load", lambda _: pytest.fail("the store was asked"))
        for _ in range(100):
            assert await ledger.switches.is_on("run")


async def test_flips_from_many_processes_at_once_each_land_once_and_in_order(any_stage):
    ledgers = [any_stage.ledger() for _ in range(4)]
    for ledger in ledgers:
        await ledger.__aenter__()
    flips = [one.flip(surface, True, OPS) for one in ledgers for surface in SURFACES]
    won = await asyncio.gather(*flips)
    assert sum(won) == 3
    rows = any_stage.rows()
    assert [row.version for row in rows] == [1, 2, 3]
    assert {row.header["surface"] for row in rows} == set(SURFACES)
    for ledger in ledgers:
        await ledger.__aexit__(None, None, None)


@pytest.fixture
def unread(monkeypatch):
    """Let every state be stale at once, and let the store fail or hang as the test says."""

    def make(ledger, load):
        monkeypatch.setattr(switches, "FRESH_SECONDS", 0)
        ledger.switches._due = float("-inf")
        monkeypatch.setattr(ledger.recorder, "load", load)

    return make


async def test_a_store_that_fails_leaves_the_last_known_state(stage, older, unread):
    async with stage.ledger() as ledger:
        await ledger.flip("run", True, OPS)
        noted = []
        ledger.switches._services.journal.note = lambda decision, **said: noted.append((decision, said))

        def away(_):
            raise StoreUnavailable("away")

        unread(ledger, away)
        assert await states(ledger) == [True, False, False]
        assert noted[0] == ("switches_unread", {"error": "StoreUnavailable"})
        door = ContinuationDoor(ledger.capability, ledger.switches, legacy=older)
        assert await through(door, "stream", Kernel(), older.mint()) == "older: True"
        with pytest.raises(StoreUnavailable):
            await ledger.flip("run", False, OPS)
        assert await ledger.switches.is_on("run")


async def test_a_ledger_knows_its_switches_from_its_opening_on(stage, unread):
    async with stage.ledger() as ledger:
        await ledger.flip("run", True, OPS)
    async with stage.ledger() as later:

        def away(_):
            raise StoreUnavailable("away")

        unread(later, away)
        assert await states(later) == [True, False, False]


async def test_time_never_goes_back_among_flips(stage):
    async with stage.ledger() as ahead, stage.ledger() as behind:
        ahead.wait(hours=1)
        await ahead.flip("run", True, OPS)
        await behind.flip("run", False, OPS)
        first, second = await ahead.story(ahead.switches.stream)
        assert first.at == second.at


async def test_a_store_that_hangs_is_asked_by_one_and_waited_for_by_nobody(stage, unread, monkeypatch):
    async with stage.ledger() as ledger:
        await ledger.flip("run", True, OPS)
        goes_on, asked_for, read = threading.Event(), [], ledger.recorder.load

        def hangs(streams):
            asked_for.append(streams)
            goes_on.wait(30)
            return read(streams)

        noted = []
        ledger.switches._services.journal.note = lambda decision, **said: noted.append((decision, said))
        monkeypatch.setattr(switches, "PATIENCE_SECONDS", 0.01)
        unread(ledger, hangs)
        monkeypatch.setattr(switches, "FRESH_SECONDS", 3600)
        try:
            answers = await asyncio.gather(*(ledger.switches.is_on("run") for _ in range(50)))
            answers.append(await ledger.switches.is_on("run"))
        finally:
            goes_on.set()
        assert answers == [True] * 51
        assert len(asked_for) == 1
        assert noted == [("switches_unread", {"error": "TimeoutError"})]


async def test_a_reading_that_began_before_a_flip_does_not_undo_it(stage):
    async with stage.ledger() as ledger:
        levers = ledger.switches
        await ledger.flip("run", True, OPS)
        levers._learn([], time.monotonic() + 3600)
        assert await levers.is_on("run")


async def test_a_closed_ledgers_switches_still_say_what_they_were(stage):
    async with stage.ledger() as ledger:
        await ledger.flip("run", True, OPS)
        levers = ledger.switches
    levers._due = float("-inf")
    assert await levers.is_on("run")
    with pytest.raises(InteractionConfigurationError):
        _ = ledger.switches


async def test_altered_flips_leave_every_surface_rolled_back_and_no_flip_builds_on_them(stage):
    async with stage.ledger() as ledger:
        await ledger.flip("run", True, OPS)
        [row] = stage.rows()
        stage.overwrite(row, row.state.replace(b'"surface":"run"', b'"surface":"rum"'))
    async with stage.ledger() as later:
        assert await states(later) == [False, False, False]
        with pytest.raises(LedgerCorrupt):
            await later.flip("stream", True, OPS)
        assert stage.count() == 1


async def test_flips_of_a_newer_version_leave_every_surface_rolled_back(stage):
    async with stage.ledger() as ledger:
        await ledger.flip("run", True, OPS)
    async with stage.ledger(registry=Registry(FACTS)) as older_version:
        assert await states(older_version) == [False, False, False]
        with pytest.raises(LedgerTooNew):
            await older_version.flip("stream", True, OPS)


async def test_a_surface_of_a_newer_version_is_let_pass(stage, monkeypatch):
    monkeypatch.setattr("pauseledger.domain.switches.SURFACES", (*SURFACES, "realtime"))
    async with stage.ledger() as newer:
        await newer.flip("realtime", True, OPS)
        await newer.flip("run", True, OPS)
    monkeypatch.undo()
    async with stage.ledger() as ledger:
        assert await states(ledger) == [True, False, False]


async def test_a_ledger_with_flips_in_it_is_whole_and_pauses_do_not_see_them(tmp_path, older):
    stage = Stage(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "keys")
    async with stage.ledger() as ledger:
        door = ContinuationDoor(ledger.capability, ledger.switches, legacy=older)
        for on in (True, False, True):
            await ledger.flip("run", on, OPS)
        question = await asked(ledger)
        assert await through(door, "run", Kernel(), question.token) == f"kernel: {ANSWER_TEXT}"
        assert topics(stage.rows(question.pause_id)) == ["paused", "answered", "consumed", "continued"]
        assert [row.topic for row in stage.rows()][:3] == ["switch.flipped@1"] * 3
        followed = ledger.pauses.log.notification_log.select(1, 10)
        assert len(followed) == 7
    assert raw_check.faults(raw_check.read(stage.url)) == []


# The page


def test_the_code_on_the_page_prints_what_the_page_says():
    code = "\n\n".join(re.findall(r"```python\n(.*?)```", DOOR_PAGE, re.DOTALL))
    [said] = re.findall(r"```text\n(.*?)```", DOOR_PAGE, re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == said


def test_every_reason_the_door_knows_is_on_the_page():
    for reason in (
        continuation.SWITCHED_OFF,
        continuation.NO_PAUSE_CAPABILITY,
        continuation.NO_DECODE_TRANSPORT,
        continuation.NOT_A_CAPABILITY_TOKEN,
    ):
        assert f"`{reason}`" in DOOR_PAGE
