"""The operations inside the host's own transaction: both or neither, whoever else is at it, by raw rows."""

import asyncio
import json
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from uuid import uuid4

import psycopg
import pytest
from pauseledger import (
    Actor,
    AlreadyAnswered,
    AlreadyConsumed,
    InteractionConfigurationError,
    LapseCommand,
    RecoverCommand,
    ReissueCommand,
    RoundOpen,
    ScopeMismatch,
    SettleCommand,
    StoreUnavailable,
    TransactionStale,
    WithdrawCommand,
    open_ledger,
    resume_run,
)
from pauseledger.domain.axes import Scope
from pauseledger.infrastructure import raw_check
from pauseledger.infrastructure.stories import (
    ANSWER,
    OTHER_ANSWER,
    Asked,
    Stage,
    ask,
    asked,
    asked_round,
    axes,
    round_of,
    topics,
    turn,
)
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row

LEVELS = [
    psycopg.IsolationLevel.READ_COMMITTED,
    psycopg.IsolationLevel.REPEATABLE_READ,
    psycopg.IsolationLevel.SERIALIZABLE,
]
FIXED = LEVELS[1:]


@pytest.fixture(scope="module")
def dsn(pg, pg_template):
    """One ledger for all tests here, which is emptied between them; no copy of the template's."""
    name = pg.fresh_database(pg_template)
    with psycopg.connect(pg.dsn(name), autocommit=True) as connection:
        connection.execute("UPDATE pauseledger.ledger SET ledger_id = gen_random_uuid()")
        connection.execute("CREATE SCHEMA app")
        connection.execute("CREATE TABLE app.orders (id text PRIMARY KEY, said text)")
    yield pg.dsn(name)
    pg.drop_database(name)


@pytest.fixture
def stage(dsn, tmp_path):
    stage = Stage(dsn, tmp_path / "keys")
    stage.forget()
    stage.sql("TRUNCATE app.orders, pauseledger.lease")
    return stage


@pytest.fixture
async def ledger(stage):
    async with stage.ledger(lease=2) as ledger:
        yield ledger


class Blocking:
    """A blocking connection, as a host has it that is used to threads."""

    def __init__(self, connection):
        self.lent = connection

    async def execute(self, statement, values=()):
        return await asyncio.to_thread(self.lent.execute, statement, values)

    async def commit(self):
        await asyncio.to_thread(self.lent.commit)

    async def rollback(self):
        await asyncio.to_thread(self.lent.rollback)


class Waiting:
    """An asynchronous connection."""

    def __init__(self, connection):
        self.lent = connection
        self.execute, self.commit, self.rollback = connection.execute, connection.commit, connection.rollback


@asynccontextmanager
async def host(dsn, *, blocking=False, level=None, **options):
    """Connect as the host does; what is left open is rolled back."""
    if blocking:
        with psycopg.connect(dsn, **options) as connection:
            connection.isolation_level = level
            yield Blocking(connection)
            connection.rollback()
    else:
        async with await psycopg.AsyncConnection.connect(dsn, **options) as connection:
            await connection.set_isolation_level(level)
            yield Waiting(connection)
            if not connection.closed:
                await connection.rollback()


@pytest.fixture(params=[False, True], ids=["asynchronous", "blocking"])
async def own(request, dsn):
    """The host's connection, with a row factory of the host's taste."""
    async with host(dsn, blocking=request.param, row_factory=dict_row) as own:
        yield own


async def order(own, said="new"):
    await own.execute("INSERT INTO app.orders VALUES (%s, %s)", (uuid4().hex, said))


def orders(stage):
    return [said for (said,) in stage.sql("SELECT said FROM app.orders ORDER BY said")]


class Kernel:
    def __init__(self):
        self.seen = []

    async def run(self, prompt, *, run_id, session_id, history):
        self.seen.append(history)


# Both or neither


async def every_operation(ledger, joined):
    """Do each of them once in the transaction, on pauses of its own making and on one that stood before."""
    one = Asked(ledger, await joined.pause(ask(axes=axes(run_id="one"))), axes(run_id="one"))
    await joined.answer(one.command())
    two = await joined.pause_round(of_two())
    await joined.withdraw(WithdrawCommand(two[0].pause_id, axes=axes("call_1", run_id="two")))
    three = Asked(ledger, await joined.pause(ask(axes=axes(run_id="three"))), axes(run_id="three"))
    await joined.reissue(ReissueCommand(three.pause_id, axes=three.axes))
    turn = await joined.redeem(three.token, ANSWER, axes=three.axes, by=Actor("maria"))
    await joined.settle(SettleCommand(three.pause_id, three.axes, turn.fence, "released"))
    again = await joined.recover(RecoverCommand(three.pause_id, axes=three.axes))
    assert (turn.fence, again.fence) == (1, 2)
    await joined.operator(Actor("ops")).settle(SettleCommand(three.pause_id, None, 2, "abandoned"))


def of_two():
    return [ask(call, turn=turn("call_1", "call_2"), axes=axes(call, run_id="two")) for call in ("call_1", "call_2")]


WRITTEN = [
    "paused", "answered", "paused", "paused", "withdrawn", "paused", "reissued", "answered", "consumed", "stalled",
    "recovered", "abandoned",
]  # fmt: skip


async def test_what_the_host_rolls_back_has_not_happened(stage, ledger, own):
    lapsing = await asked(ledger, axes=axes(run_id="lapses"), closes_in=1)
    before = stage.rows()
    ledger.wait(seconds=2)
    joined = ledger.joined(own.lent)
    await order(own)
    await every_operation(ledger, joined)
    await joined.lapse(LapseCommand(lapsing.pause_id, axes=lapsing.axes))
    assert stage.rows() == before
    await own.rollback()
    assert stage.rows() == before
    assert orders(stage) == []
    assert stage.sql("SELECT * FROM pauseledger.lease") == []


async def test_what_the_host_commits_has_happened_with_its_own(stage, ledger, own):
    lapsing = await asked(ledger, axes=axes(run_id="lapses"), closes_in=1)
    ledger.wait(seconds=2)
    joined = ledger.joined(own.lent)
    await order(own)
    await every_operation(ledger, joined)
    await joined.lapse(LapseCommand(lapsing.pause_id, axes=lapsing.axes))
    await own.commit()
    assert topics(stage.rows()) == ["paused", *WRITTEN, "lapsed"]
    assert orders(stage) == ["new"]


async def test_a_token_of_a_committed_pause_is_redeemed_by_anybody_and_one_rolled_back_names_nothing(
    stage, ledger, own
):
    joined = ledger.joined(own.lent)
    lost = Asked(ledger, await joined.pause(ask()), axes())
    await own.rollback()
    kept = Asked(ledger, await ledger.joined(own.lent).pause(ask()), axes())
    await own.commit()
    assert (lost.pause_id, kept.receipt.existing) == (kept.pause_id, False)
    with pytest.raises(Exception, match="request_mismatch") as refused:
        await lost.redeem()
    assert refused.value.recorded
    assert (await kept.redeem()).outcome.response == ANSWER


async def test_a_savepoint_of_the_host_takes_back_what_was_done_behind_it(stage, ledger, dsn):
    async with host(dsn) as own:
        joined = ledger.joined(own.lent)
        await order(own)
        for force_rollback in (True, False):
            async with own.lent.transaction(force_rollback=force_rollback):
                receipt = await joined.pause(ask())
                assert not receipt.existing
                await joined.redeem(receipt.token, ANSWER, axes=axes())
        await own.commit()
    assert topics(stage.rows()) == ["paused", "answered", "consumed"]


async def test_many_transactions_race_and_each_books_what_it_won_and_nothing_else(stage, ledger, dsn):
    chance = random.Random(3)
    questions = [await asked(ledger, axes=axes(run_id=f"run {number}")) for number in range(8)]
    won = Counter()

    async def book(level, question):
        async with host(dsn, level=level) as own:
            for _ in range(20):
                await order(own, question.axes.run_id)
                await asyncio.sleep(0.004 * chance.random())
                try:
                    await ledger.joined(own.lent).redeem(question.token, ANSWER, axes=question.axes)
                except TransactionStale:
                    await own.rollback()
                    continue
                except AlreadyConsumed:
                    await own.rollback()
                    return
                if chance.random() < 0.5:
                    await own.rollback()
                    continue
                try:
                    await own.commit()
                except psycopg.errors.SerializationFailure:
                    # PostgreSQL may object as late as this; nothing happened, and a host runs the transaction again.
                    assert level is psycopg.IsolationLevel.SERIALIZABLE
                    await own.rollback()
                    continue
                won[question.axes.run_id] += 1
                return

    async def redeem(question):
        await asyncio.sleep(0.02 * chance.random())
        with suppress(AlreadyConsumed):
            await question.redeem()

    races = [book(level, question) for question in questions for level in LEVELS]
    await asyncio.gather(*races, *(redeem(question) for question in questions[:4]))
    booked = Counter(orders(stage))
    assert booked == won
    assert set(booked.values()) == {1}
    assert {question.axes.run_id for question in questions[4:]} <= set(booked)
    raw = raw_check.read(dsn)
    assert raw_check.faults(raw) == []
    assert len(raw.of("pause.consumed")) == len(questions)


# Going on


async def test_a_turn_is_entered_after_the_commit_alone(stage, ledger, own):
    question, kernel = await asked(ledger), Kernel()
    turn = await ledger.joined(own.lent).redeem(question.token, ANSWER, axes=question.axes)
    with pytest.raises(InteractionConfigurationError, match="has not committed"):
        await resume_run(kernel, turn)
    assert kernel.seen == []
    await own.commit()
    await resume_run(kernel, turn)
    assert len(kernel.seen) == 1
    assert topics(stage.rows()) == ["paused", "answered", "consumed", "continued"]
    with pytest.raises(InteractionConfigurationError, match="entered already"):
        await resume_run(kernel, turn)


async def test_a_turn_that_was_rolled_back_is_never_entered_whoever_redeems_it_next(stage, ledger, own):
    question, kernel = await asked(ledger), Kernel()
    turn = await ledger.joined(own.lent).redeem(question.token, ANSWER, axes=question.axes)
    await own.rollback()
    won = await question.redeem(OTHER_ANSWER)
    assert won.fence == turn.fence
    with pytest.raises(InteractionConfigurationError, match="rolled back"):
        await resume_run(kernel, turn)
    await resume_run(kernel, won)
    assert len(kernel.seen) == 1


async def test_a_claim_that_was_lost_is_not_confirmed_by_another_at_its_position(stage, ledger, own):
    """A server that crashes may give the positions of what it lost to others."""
    kernel, question = Kernel(), await asked(ledger)
    turn = await ledger.joined(own.lent).redeem(question.token, ANSWER, axes=question.axes)
    await own.rollback()
    sequence = "pg_get_serial_sequence('pauseledger.stored_events', 'notification_id')"
    stage.sql(f"SELECT setval({sequence}, {turn.outcome.position - 2})")
    won = await question.redeem(OTHER_ANSWER)
    assert (won.outcome.position, won.fence) == (turn.outcome.position, turn.fence)
    with pytest.raises(InteractionConfigurationError, match="rolled back"):
        await resume_run(kernel, turn)
    await resume_run(kernel, won)
    assert len(kernel.seen) == 1


async def test_a_pause_that_is_cancelled_leaves_nothing_under_way_in_the_transaction(ledger, dsn):
    async with host(dsn) as own:
        for steps in range(1, 60):
            pausing = asyncio.ensure_future(ledger.joined(own.lent).pause(ask(idempotency_key=f"cut {steps}")))
            for _ in range(steps):
                await asyncio.sleep(0)
            pausing.cancel()
            await asyncio.gather(pausing, return_exceptions=True)
            await own.rollback()
            for _ in range(20):
                await asyncio.sleep(0)
                assert own.lent.info.transaction_status == TransactionStatus.IDLE, steps


async def test_a_call_that_is_cancelled_leaves_its_stall_in_the_transaction(stage, ledger, own):
    question = await asked(ledger)
    redeeming = asyncio.ensure_future(ledger.joined(own.lent).redeem(question.token, ANSWER, axes=question.axes))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    redeeming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await redeeming
    assert topics(stage.rows()) == ["paused"]
    await own.commit()
    assert topics(stage.rows()) == ["paused", "answered", "consumed", "stalled"]


# Refusals


async def test_a_refusal_stands_though_the_host_rolls_back(stage, ledger, own):
    question = await asked(ledger)
    joined = ledger.joined(own.lent)
    await order(own)
    with pytest.raises(ScopeMismatch) as refused:
        await joined.redeem(question.token, ANSWER, axes=axes(scope=Scope(tenant_id="other")))
    assert refused.value.recorded
    await own.rollback()
    assert topics(stage.rows()) == ["paused", "refused"]
    assert stage.rows()[-1].stream != question.pause_id
    assert orders(stage) == []


async def test_a_refusal_waits_for_nothing_the_transaction_holds(stage, ledger, own):
    question = await asked(ledger)
    joined = ledger.joined(own.lent)
    await joined.answer(question.command())
    with pytest.raises(AlreadyAnswered) as refused:
        await asyncio.wait_for(joined.answer(question.command(OTHER_ANSWER)), 5)
    assert refused.value.recorded
    fresh = Asked(ledger, await joined.pause(ask(axes=axes(run_id="fresh"))), axes(run_id="fresh"))
    with pytest.raises(ScopeMismatch) as unseen:
        await asyncio.wait_for(joined.redeem(fresh.token, ANSWER, axes=axes(scope=Scope(tenant_id="other"))), 5)
    assert unseen.value.recorded
    await order(own)
    await own.commit()
    assert sorted(topics(stage.rows())) == ["answered", "paused", "paused", "refused", "refused"]


# Lost races


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_lost_race_leaves_the_transaction_as_it_was(stage, ledger, dsn, blocking):
    question = await asked(ledger)
    async with host(dsn, blocking=blocking) as own, host(dsn) as other:
        await order(own, "before")
        await ledger.joined(other.lent).redeem(question.token, OTHER_ANSWER, axes=question.axes)
        losing = asyncio.ensure_future(ledger.joined(own.lent).redeem(question.token, ANSWER, axes=question.axes))
        await until_somebody_waits(stage)
        await other.commit()
        with pytest.raises(AlreadyConsumed) as lost:
            await losing
        assert lost.value.recorded
        await order(own, "after")
        await own.commit()
    assert orders(stage) == ["after", "before"]
    assert topics(stage.rows()) == ["paused", "answered", "consumed", "refused"]


async def test_the_one_that_waits_wins_when_the_first_is_rolled_back(stage, ledger, dsn):
    question = await asked(ledger)
    async with host(dsn) as own, host(dsn) as other:
        await ledger.joined(other.lent).redeem(question.token, OTHER_ANSWER, axes=question.axes)
        winning = asyncio.ensure_future(ledger.joined(own.lent).redeem(question.token, ANSWER, axes=question.axes))
        await until_somebody_waits(stage)
        await other.rollback()
        turn = await winning
        await own.commit()
    assert turn.outcome.response == ANSWER
    assert topics(stage.rows()) == ["paused", "answered", "consumed"]


@pytest.mark.parametrize("blocking", [False, True])
async def test_who_waits_too_long_for_another_transaction_is_told_and_goes_on(stage, dsn, blocking):
    async with (
        stage.ledger(statement_timeout=0.3) as ledger,
        host(dsn, blocking=blocking) as own,
        host(dsn) as other,
    ):
        question = await asked(ledger)
        await ledger.joined(other.lent).answer(question.command(OTHER_ANSWER))
        await order(own, "before")
        with pytest.raises(StoreUnavailable, match="took too long") as late:
            await asyncio.wait_for(ledger.joined(own.lent).redeem(question.token, ANSWER, axes=question.axes), 20)
        assert late.value.outcome == "not_started"
        await order(own, "after")
        await own.commit()
        await other.commit()
    assert orders(stage) == ["after", "before"]
    assert topics(stage.rows()) == ["paused", "answered"]


async def test_the_deadline_needs_none_of_the_threads_that_wait(stage, dsn):
    async with AsyncExitStack() as opened:
        ledger = await opened.enter_async_context(stage.ledger(statement_timeout=0.3, threads=1))
        holder = await opened.enter_async_context(host(dsn))
        owns = [await opened.enter_async_context(host(dsn, blocking=True)) for _ in range(3)]
        question = await asked(ledger)
        await ledger.joined(holder.lent).answer(question.command(OTHER_ANSWER))
        waiting = [ledger.joined(own.lent).redeem(question.token, ANSWER, axes=question.axes) for own in owns]
        ends = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 20)
        assert [(type(end), end.outcome) for end in ends] == [(StoreUnavailable, "not_started")] * 3
        for own in owns:
            await order(own)
            await own.commit()
        await holder.commit()
    assert orders(stage) == ["new"] * 3
    assert topics(stage.rows()) == ["paused", "answered"]


async def test_the_deadline_needs_no_thread_of_the_hosts_where_the_library_cancels_in_one(stage, dsn, monkeypatch):
    # A psycopg on a libpq before 17 cancels an asynchronous connection's statement in a thread of the loop's.
    monkeypatch.setattr(psycopg.capabilities, "has_cancel_safe", lambda: False)
    busy = ThreadPoolExecutor(1)
    asyncio.get_running_loop().set_default_executor(busy)
    release = threading.Event()
    late = threading.Timer(10, release.set)
    held = asyncio.get_running_loop().run_in_executor(None, release.wait)
    try:
        async with stage.ledger(statement_timeout=0.3) as ledger, host(dsn) as own, host(dsn) as holder:
            question = await asked(ledger)
            await ledger.joined(holder.lent).answer(question.command(OTHER_ANSWER))
            redeeming = ledger.joined(own.lent).redeem(question.token, ANSWER, axes=question.axes)
            late.start()
            with pytest.raises(StoreUnavailable, match="took too long"):
                await redeeming
            assert not release.is_set()
            await holder.commit()
    finally:
        late.cancel()
        release.set()
        await held
    assert topics(stage.rows()) == ["paused", "answered"]


async def until_somebody_waits(stage):
    for _ in range(500):
        if stage.sql("SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("nobody waits")


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
async def test_every_level_of_isolation_redeems(stage, ledger, dsn, level):
    question = await asked(ledger)
    async with host(dsn, level=level) as own:
        await order(own)
        turn = await ledger.joined(own.lent).redeem(question.token, ANSWER, axes=question.axes)
        await own.commit()
    kernel = Kernel()
    await resume_run(kernel, turn)
    assert topics(stage.rows()) == ["paused", "answered", "consumed", "continued"]


@pytest.mark.parametrize("level", FIXED, ids=lambda level: level.name)
async def test_a_snapshot_that_is_too_old_says_so_and_the_next_run_is_told_the_truth(stage, ledger, dsn, level):
    question = await asked(ledger)
    async with host(dsn, level=level) as own:
        await order(own, "first run")
        await question.answer(OTHER_ANSWER)
        with pytest.raises(TransactionStale, match="roll the transaction back and run it again") as stale:
            await ledger.joined(own.lent).redeem(question.token, ANSWER, axes=question.axes)
        assert stale.value.outcome == "not_started"
        await own.rollback()
        await order(own, "second run")
        with pytest.raises(AlreadyAnswered):
            await ledger.joined(own.lent).redeem(question.token, ANSWER, axes=question.axes)
        await own.commit()
    assert orders(stage) == ["second run"]
    assert topics(stage.rows()) == ["paused", "answered", "refused"]


@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
async def test_the_same_round_is_found_again_at_every_level(stage, ledger, dsn, level):
    await asked(ledger)
    async with host(dsn, level=level) as own:
        await order(own)
        assert (await ledger.joined(own.lent).pause(ask())).existing
        await own.commit()
    assert orders(stage) == ["new"]


async def test_a_deadlock_is_named_and_nothing_is_lost(stage, ledger, dsn):
    one, two = await asked(ledger), await asked(ledger, axes=axes(run_id="two"))
    async with host(dsn) as left, host(dsn) as right:
        for own in (left, right):
            await own.execute("SET LOCAL deadlock_timeout = '50ms'")
        joined = [ledger.joined(left.lent), ledger.joined(right.lent)]
        await joined[0].answer(one.command())
        await joined[1].answer(two.command())
        ends = [
            asyncio.ensure_future(joined[0].answer(two.command(OTHER_ANSWER))),
            asyncio.ensure_future(joined[1].answer(one.command(OTHER_ANSWER))),
        ]
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_EXCEPTION)
        loser = next(at for at, end in enumerate(ends) if end in done)
        with pytest.raises(TransactionStale, match="deadlock"):
            await ends[loser]
        await (left, right)[loser].rollback()
        await ends[1 - loser]
        await (left, right)[1 - loser].commit()
    assert topics(stage.rows()) == ["paused", "paused", "answered", "answered"]


async def test_the_last_answers_of_a_round_in_two_transactions_leave_it_to_recover(stage, ledger, dsn):
    one, two = await asked_round(ledger, *round_of("call_1", "call_2"))
    async with host(dsn) as left, host(dsn) as right:
        for own, question in ((left, one), (right, two)):
            with pytest.raises(RoundOpen):
                await ledger.joined(own.lent).redeem(question.token, ANSWER, axes=question.axes)
        await left.commit()
        await right.commit()
    [item] = [item async for item in ledger.owed(one.axes.scope)]
    assert item.state == "ready"
    turn = await ledger.capability.recover(RecoverCommand(item.pause_id, axes=item.axes))
    await resume_run(Kernel(), turn)
    assert topics(stage.rows())[-1] == "continued"


# Connections that cannot take part


async def test_a_connection_in_autocommit_needs_a_transaction(stage, ledger, dsn):
    async with host(dsn, autocommit=True) as own:
        with pytest.raises(InteractionConfigurationError, match="autocommit.*connection.transaction"):
            await ledger.joined(own.lent).pause(ask())
        async with own.lent.transaction(force_rollback=True):
            await ledger.joined(own.lent).pause(ask())
        assert stage.rows() == []
        async with own.lent.transaction():
            await ledger.joined(own.lent).pause(ask())
    assert topics(stage.rows()) == ["paused"]


async def test_a_failed_transaction_says_to_roll_back(ledger, own):
    with pytest.raises(psycopg.Error):
        await own.execute("SELECT 1 / 0")
    with pytest.raises(InteractionConfigurationError, match="roll it back"):
        await ledger.joined(own.lent).pause(ask())


async def test_a_closed_connection_and_one_that_breaks_are_unavailable(stage, ledger, dsn):
    async with host(dsn) as own:
        joined = ledger.joined(own.lent)
        await joined.pause(ask())
        stage.sql("SELECT pg_terminate_backend(%s)", (own.lent.info.backend_pid,))
        with pytest.raises(StoreUnavailable, match="broke.*begin a new one") as broke:
            await joined.pause(ask(axes=axes(run_id="two")))
        assert broke.value.outcome == "not_started"
        with pytest.raises(StoreUnavailable, match="closed; open another"):
            await joined.pause(ask())
    assert stage.rows() == []


async def test_a_connection_in_pipeline_mode_or_in_the_middle_of_something_says_so(ledger, dsn):
    async with host(dsn) as own:
        async with own.lent.pipeline():
            with pytest.raises(InteractionConfigurationError, match="leave the pipeline"):
                await ledger.joined(own.lent).pause(ask())
        async with own.lent.cursor() as cursor, cursor.copy("COPY app.orders FROM STDIN"):
            with pytest.raises(InteractionConfigurationError, match="under way"):
                await ledger.joined(own.lent).pause(ask())


async def test_what_is_no_connection_and_what_leads_elsewhere_say_so(stage, ledger, pg, dsn, pg_template, tmp_path):
    with pytest.raises(InteractionConfigurationError, match="psycopg 3 connection"):
        ledger.joined(object())
    for database in ("postgres", pg_template):
        async with host(pg.dsn(database)) as own:
            await own.execute("CREATE TEMPORARY TABLE mine (it text) ON COMMIT DROP")
            with pytest.raises(InteractionConfigurationError, match="does not lead to this ledger"):
                await ledger.joined(own.lent).pause(ask())
            await own.execute("INSERT INTO mine VALUES ('still there')")
    async with open_ledger("memory:") as memory, host(dsn) as own:
        with pytest.raises(InteractionConfigurationError, match="open one on PostgreSQL"):
            memory.joined(own.lent)


async def test_a_read_only_transaction_and_one_too_old_say_so_and_live_on(stage, ledger, dsn, a_second_is_old):
    async with host(dsn) as own:
        await own.lent.set_read_only(True)
        with pytest.raises(StoreUnavailable, match="begin one that may write") as unwritten:
            await ledger.joined(own.lent).pause(ask())
        assert not isinstance(unwritten.value, TransactionStale)
        assert await (await own.execute("SELECT 'it lives on'")).fetchone()
        await own.rollback()
        await own.lent.set_read_only(None)
        await own.execute("SELECT pg_sleep(1.1)")
        with pytest.raises(TransactionStale, match="older than 30 seconds.*run it again"):
            await ledger.joined(own.lent).pause(ask())
        await order(own)
        await own.commit()
    assert stage.rows() == []
    assert orders(stage) == ["new"]


@pytest.fixture
def a_second_is_old(stage):
    """Let a transaction be too old to append in after a second."""
    [(made,)] = stage.sql("SELECT pg_get_functiondef('pauseledger.take_floor'::regproc)")
    stage.sql(made.replace("30 seconds", "1 second"))
    yield
    stage.sql(made)


async def test_the_log_tells_which_decisions_may_yet_be_rolled_back(ledger, own, caplog):
    with caplog.at_level("INFO", "pauseledger"):
        await ledger.joined(own.lent).pause(ask())
        await asked(ledger, axes=axes(run_id="own"))
    assert [json.loads(record.message).get("joined") for record in caplog.records] == [True, None]


async def test_two_tasks_in_one_transaction_take_turns(stage, ledger, own):
    joined = ledger.joined(own.lent)
    await asyncio.gather(*(joined.pause(ask(axes=axes(run_id=f"run {number}"))) for number in range(8)))
    await own.commit()
    assert topics(stage.rows()) == ["paused"] * 8
