"""The store's answer is lost: whether a commit happened is asked, and success is never told while nothing is stored."""

import pytest
from pauseledger import (
    STORED,
    LapseCommand,
    RecoverCommand,
    ReissueCommand,
    ResponseInvalid,
    SettleCommand,
    StoreUnavailable,
    WithdrawCommand,
)
from pauseledger.infrastructure.stories import ANSWER_TEXT, WRONG_ANSWER, Stage, asked, contents, refusal, topics


@pytest.fixture
def stage(store_url, tmp_path):
    return Stage(store_url, tmp_path / "keys")


@pytest.fixture
async def ledger(stage):
    async with stage.ledger() as opened:
        yield opened


def unsure(ledger, monkeypatch, *, commits, times=1, outcome="unknown"):
    """Let the next appends commit or not, and lose what the store said of it either way."""
    append, left = ledger.pauses._streams.append, [times]

    async def lost(rows, **more):
        if not left[0]:
            return await append(rows, **more)
        left[0] -= 1
        if commits:
            await append(rows, **more)
        raise StoreUnavailable("the connection broke", outcome=outcome)

    monkeypatch.setattr(ledger.pauses._streams, "append", lost)


async def pause(ledger, _):
    return await asked(ledger, occurrence=1)


async def redeem(_, question):
    return await question.redeem()


async def answer(_, question):
    return await question.answer()


async def withdraw(ledger, question):
    return await ledger.capability.withdraw(WithdrawCommand(question.pause_id, axes=question.axes))


async def lapse(ledger, question):
    ledger.wait(days=8)
    return await ledger.capability.lapse(LapseCommand(question.pause_id, axes=question.axes))


async def reissue(ledger, question):
    return await ledger.capability.reissue(ReissueCommand(question.pause_id, axes=question.axes))


WRITES = {
    pause: ["paused"],
    redeem: ["answered", "consumed"],
    answer: ["answered"],
    withdraw: ["withdrawn"],
    lapse: ["lapsed"],
}


@pytest.mark.parametrize("commits", [True, False], ids=["committed", "not committed"])
@pytest.mark.parametrize("work", WRITES, ids=lambda work: work.__name__)
async def test_the_work_is_done_once_whatever_was_lost(stage, ledger, monkeypatch, work, commits):
    question = await asked(ledger)
    unsure(ledger, monkeypatch, commits=commits)
    done = await work(ledger, question)
    assert topics(stage.rows()[1:]) == WRITES[work]
    if work is redeem:
        assert (done.fence, contents(done)) == (1, {"call_1": ANSWER_TEXT})
    if work is pause:
        assert done.receipt.existing is False


@pytest.mark.parametrize("work", [*WRITES, reissue], ids=lambda work: work.__name__)
async def test_what_was_not_started_is_told_as_such_and_works_the_next_time(stage, ledger, monkeypatch, work):
    question = await asked(ledger)
    unsure(ledger, monkeypatch, commits=False, outcome="not_started")
    with pytest.raises(StoreUnavailable) as caught:
        await work(ledger, question)
    assert caught.value.outcome == "not_started"
    assert stage.count() == 1
    await work(ledger, question)
    assert topics(stage.rows()[1:]) == WRITES.get(work, ["reissued"])


@pytest.mark.parametrize("commits", [True, False], ids=["committed", "not committed"])
async def test_a_recovery_and_a_settlement_are_done_once_too(stage, ledger, monkeypatch, commits):
    question = await asked(ledger)
    await question.answer()
    named = {"pause_id": question.pause_id, "axes": question.axes}
    unsure(ledger, monkeypatch, commits=commits)
    turned = await ledger.capability.recover(RecoverCommand(**named))
    assert turned.fence == 1
    unsure(ledger, monkeypatch, commits=commits)
    assert (await ledger.capability.settle(SettleCommand(**named, fence=1, end="stalled"))).state == "stalled"
    unsure(ledger, monkeypatch, commits=commits)
    assert (await ledger.capability.recover(RecoverCommand(**named))).fence == 2
    assert topics(stage.rows()) == ["paused", "answered", "consumed", "stalled", "recovered"]


async def test_after_unknown_the_same_key_tells(stage, ledger, monkeypatch):
    question = await asked(ledger)
    monkeypatch.setattr("pauseledger.domain.doubt.WAITS", (0.0, 0.01))
    load = ledger.pauses._streams.load
    unsure(ledger, monkeypatch, commits=True)

    async def gone(streams):
        if stage.count("pause.consumed@1"):
            raise StoreUnavailable("the database went away")
        return await load(streams)

    monkeypatch.setattr(ledger.pauses._streams, "load", gone)
    with pytest.raises(StoreUnavailable) as caught:
        await question.redeem(attempt_key="click-7")
    assert caught.value.outcome == "unknown"
    monkeypatch.undo()
    with pytest.raises(Exception, match="own attempt") as caught:
        await question.redeem(attempt_key="click-7")
    assert (caught.value.own, caught.value.state) == (True, "owed")


async def test_a_refusal_whose_acknowledgement_is_lost_stands_unrecorded(stage, ledger, monkeypatch):
    question = await asked(ledger)
    unsure(ledger, monkeypatch, commits=False)
    await refusal(stage, question.redeem(WRONG_ANSWER), ResponseInvalid, writes=0)
    await question.answer()
    assert contents(await question.redeem(STORED)) == {"call_1": ANSWER_TEXT}
