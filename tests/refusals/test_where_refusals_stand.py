"""Where a refusal stands: 16 in the pause's own stream, the others in its refusal stream, bounded there as well."""

import asyncio
from datetime import timedelta
from itertools import pairwise

import pytest
from pauseledger import ResponseInvalid, RunMismatch, ScopeMismatch, StoreUnavailable, TokenForged
from pauseledger.infrastructure.stories import REFUSED, SCOPE, WRONG_ANSWER, asked, axes, refusal, topics


async def storm(question, times, **stated):
    async def attempt():
        with pytest.raises((RunMismatch, ScopeMismatch)) as caught:
            await question.redeem(axes=axes(**(stated or {"run_id": "run-2"})))
        return caught.value.recorded

    recorded = []
    for at in range(0, times, 8):
        recorded += await asyncio.gather(*(attempt() for _ in range(min(8, times - at))))
    return recorded


async def test_sixteen_in_its_own_stream_and_the_others_apart(stage, ledger, question):
    for _ in range(20):
        await refusal(stage, question.redeem(WRONG_ANSWER), ResponseInvalid)
    assert topics(stage.rows(question.pause_id)) == ["paused", *["refused"] * 16]
    apart = [row for row in stage.rows() if row.stream != question.pause_id]
    assert [row.version for row in apart] == [1, 2, 3, 4]
    assert len({row.stream for row in apart}) == 1
    assert [row.header["seen_version"] for row in apart] == [17] * 4
    told = await ledger.story(question.pause_id)
    assert len(told) == 21
    assert (await question.redeem()).fence == 1


async def test_once_answered_nothing_more_is_written_to_its_own_stream(stage, ledger, question):
    await question.answer()
    await refusal(stage, question.redeem(WRONG_ANSWER), ResponseInvalid)
    await question.redeem()
    await refusal(stage, question.redeem(WRONG_ANSWER), ResponseInvalid)
    assert topics(stage.rows(question.pause_id)) == ["paused", "answered", "consumed"]


async def test_past_256_only_the_first_of_an_axis_and_hour(stage, ledger, question):
    ledger.go_to(ledger.pauses.now().replace(minute=0, second=1) + timedelta(hours=1))
    assert all(await storm(question, 16 + 256))
    assert stage.count(REFUSED) == 272
    assert await storm(question, 3) == [False] * 3
    assert await storm(question, 1, scope=SCOPE.model_copy(update={"namespace": "x"})) == [True]
    assert await storm(question, 1, scope=SCOPE.model_copy(update={"namespace": "x"})) == [False]
    ledger.wait(hours=1)
    assert await storm(question, 1) == [True]
    assert await storm(question, 2) == [False] * 2
    assert stage.count(REFUSED) == 274
    assert sum(ledger.refused.values()) == 272 + 3 + 2 + 1 + 2
    times = [fact.at for fact in await ledger.story(question.pause_id) if fact.originator_id != question.pause_id]
    assert times == sorted(times)
    assert (await question.redeem()).fence == 1


@pytest.mark.parametrize("short_of", [1, 3])
async def test_whoever_comes_to_the_bound_late_knows_what_stood_before(stage, ledger, question, short_of):
    ledger.go_to(ledger.pauses.now().replace(minute=0, second=1) + timedelta(hours=1))
    await question.redeem()
    await storm(question, 1)
    await storm(question, 256 - 1 - short_of, scope=SCOPE.model_copy(update={"namespace": "x"}))
    async with stage.ledger() as other:
        other.go_to(ledger.pauses.now())
        await storm(question.at(other), short_of, scope=SCOPE.model_copy(update={"namespace": "x"}))
        assert stage.count(REFUSED) == 256
        assert await storm(question.at(other), 1) == [False]
    assert stage.count(REFUSED) == 256


async def test_whoever_waits_is_told_where_the_writer_is_cancelled(stage, ledger, question, monkeypatch):
    await question.redeem()
    stuck = asyncio.Event()

    async def never(stream):
        stuck.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(ledger.pauses._streams, "newest", never)
        refusing = asyncio.ensure_future(question.redeem(axes=axes(run_id="run-2")))
        await stuck.wait()
        [queue] = ledger.pauses._refusals._refusing.values()
        queue.task.cancel()
        with pytest.raises(RunMismatch) as unrecorded:
            await refusing
    assert not unrecorded.value.recorded
    assert (await refusal(stage, question.redeem(axes=axes(run_id="run-2")), RunMismatch)).recorded


async def test_time_never_goes_back_within_a_stream(stage, ledger, question):
    async with stage.ledger() as behind:
        ledger.wait(minutes=5)
        for _ in range(9):
            for process in (ledger, behind):
                await refusal(stage, question.at(process).redeem(WRONG_ANSWER), ResponseInvalid)
        behind.wait(seconds=1)
        await question.at(behind).answer()
    for stream in {row.stream for row in stage.rows()}:
        times = [row.header["at"] for row in stage.rows(stream)]
        assert times == sorted(times)


async def test_a_storm_of_refusals_starves_no_rightful_answer(stage, ledger, question):
    async with stage.ledger() as other:
        ends = await asyncio.gather(
            *(question.at(other).redeem(WRONG_ANSWER) for _ in range(40)),
            question.redeem(),
            *(question.at(other).redeem(WRONG_ANSWER) for _ in range(40)),
            return_exceptions=True,
        )
    assert ends[40].fence == 1
    assert {type(end) for end in ends[:40] + ends[41:]} == {ResponseInvalid}
    assert all(end.recorded for end in ends[:40] + ends[41:])
    chained = [row.version for row in stage.rows(question.pause_id)]
    assert all(after == before + 1 for before, after in pairwise(chained))


async def test_a_refusal_stands_though_the_store_cannot_keep_it(stage, ledger, question, monkeypatch):
    before = stage.rows()

    async def gone(*_, **__):
        raise StoreUnavailable("the database went away")

    monkeypatch.setattr(ledger.pauses._streams, "append", gone)
    await refusal(stage, question.redeem(axes=axes(run_id="run-2")), RunMismatch, writes=0)
    await refusal(stage, question.redeem(WRONG_ANSWER), ResponseInvalid, writes=0)
    monkeypatch.setattr(ledger.pauses._streams, "load", gone)
    await refusal(stage, question.redeem(axes=axes(run_id="run-2")), RunMismatch, writes=0)
    with pytest.raises(StoreUnavailable) as caught:
        await question.redeem()
    assert caught.value.outcome == "not_started"
    monkeypatch.undo()
    assert stage.rows() == before
    assert (await question.redeem()).fence == 1


async def test_forged_tokens_write_nothing(stage, ledger, question):
    before = stage.rows()
    for _ in range(3):
        with pytest.raises(TokenForged):
            await ledger.redeem(question.token[:-1], {}, axes=question.axes)
    assert stage.rows() == before


async def test_refusals_of_two_pauses_stand_apart(stage, ledger, question):
    other = await asked(ledger, axes=axes(run_id="run-9"))
    await question.redeem()
    await other.redeem()
    for one in (question, other):
        await refusal(stage, one.redeem(WRONG_ANSWER), ResponseInvalid)
    assert len({row.stream for row in stage.rows() if row.topic == REFUSED}) == 2
