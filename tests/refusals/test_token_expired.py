"""`token_expired`: the window closes answering, not continuing."""

import pytest
from pauseledger import (
    ASK_USER,
    STORED,
    Actor,
    ActorNotAllowed,
    AnsweredTwice,
    LapseAnswer,
    LapseCommand,
    Policy,
    PolicyMismatch,
    PresentationMissing,
    PresentCommand,
    ResumedTurn,
    ScopeMismatch,
    TokenExpired,
    TokenNotYetValid,
)
from pauseledger.infrastructure.stories import (
    ANSWER,
    OTHER_ANSWER,
    SCOPE,
    WRONG_ANSWER,
    Stage,
    asked,
    axes,
    contents,
    refusal,
)

TENANT = SCOPE.model_copy(update={"tenant_id": "evil"})


async def test_an_answer_after_the_window_is_refused_and_recorded(stage, ledger):
    question = await asked(ledger, closes_in=60)
    ledger.wait(seconds=61)
    refused = await refusal(stage, question.redeem(), TokenExpired)
    assert (refused.step, refused.axis, refused.retryable) == (1, "token", False)
    assert "window" in str(refused)
    await refusal(stage, question.answer(), TokenExpired)
    await refusal(stage, question.redeem(STORED), TokenExpired)


async def test_an_answer_just_inside_the_window_counts(ledger):
    question = await asked(ledger, closes_in=60)
    ledger.go_to(question.receipt.closes_at)
    ledger.wait(seconds=-1)
    assert isinstance(await question.redeem(), ResumedTurn)


async def test_a_process_that_slept_takes_no_token_that_expired_meanwhile(stage, ledger, monkeypatch):
    """It judges by its own clock first; the read tells what time it is."""
    question = await asked(ledger, closes_in=60)
    find = ledger.pauses.find

    async def slept(pause_id):
        ledger.wait(seconds=61)
        return await find(pause_id)

    monkeypatch.setattr(ledger.pauses, "find", slept)
    await refusal(stage, question.redeem(), TokenExpired)


async def test_leeway_is_given_to_clocks_that_differ(stage):
    async with stage.ledger(leeway=30) as ledger:
        question = await asked(ledger, closes_in=60)
        ledger.wait(seconds=80)
        await question.redeem()
        late = await asked(ledger, closes_in=60, axes=axes(run_id="run-2"))
        ledger.wait(seconds=91)
        await refusal(stage, late.redeem(), TokenExpired)


async def test_an_answer_given_in_time_is_consumed_late(ledger):
    question = await asked(ledger, closes_in=60)
    await question.answer()
    ledger.wait(minutes=6)
    assert contents(await question.redeem(STORED)) == {"call_1": "q1: Anne"}


async def test_the_equal_answer_is_excused_and_another_is_not(stage, ledger):
    question = await asked(ledger, closes_in=60)
    await question.answer()
    ledger.wait(minutes=6)
    await refusal(stage, question.redeem(OTHER_ANSWER), TokenExpired)
    await refusal(stage, question.redeem(WRONG_ANSWER), TokenExpired)
    before = stage.count()
    assert (await question.answer()).position is None
    assert stage.count() == before
    spelt_otherwise = {"answers": [{"selections": ["Anne"], "question_id": "q1"}]}
    assert (await question.redeem(spelt_otherwise)).outcome.response == ANSWER


async def test_a_pause_that_lapsed_with_an_answer_is_excused_for_stored(stage, ledger):
    question = await asked(ledger, closes_in=60, on_lapse=LapseAnswer(OTHER_ANSWER))
    ledger.wait(seconds=61)
    await refusal(stage, question.redeem(STORED), TokenExpired)
    await ledger.capability.lapse(LapseCommand(question.pause_id, axes=question.axes))
    await refusal(stage, question.redeem(ANSWER), TokenExpired)
    turn = await question.redeem(STORED)
    assert contents(turn) == {"call_1": "q1: Bob"}
    assert turn.outcome.answered_by is None


async def test_an_excused_attempt_still_binds_its_axes(stage, ledger):
    question = await asked(ledger, closes_in=60)
    await question.answer()
    ledger.wait(minutes=6)
    await refusal(stage, question.redeem(STORED, axes=axes(scope=TENANT)), ScopeMismatch)
    assert (await question.redeem(STORED)).fence == 1


def listed():
    """Let another person than Maria try."""
    return Policy(name="listed", actors=["maria"]), Actor("eve"), ActorNotAllowed


def changed():
    """Change the policy once the answer stands."""
    return Policy(name="open"), Actor("maria"), PolicyMismatch


def seen():
    """Let whoever was shown nothing try."""
    return Policy(name="seen", shown_within=600), Actor("tom"), PresentationMissing


@pytest.mark.parametrize("governed", [listed, changed, seen])
async def test_who_answers_is_judged_after_the_window_and_the_axes(stage, ledger, governed):
    policy, by, refused = governed()
    await ledger.capability.govern("ask_user", policy, by=Actor("carla"))
    question = await asked(ledger, closes_in=60)
    shown = await ledger.capability.presented(
        PresentCommand(question.pause_id, axes=question.axes, to=Actor("maria"), rendering="a page")
    )
    await question.answer(answered_by=Actor("maria"), cites=[shown.id])
    if governed is changed:
        await ledger.capability.govern("ask_user", Policy(name="stricter"), by=Actor("carla"))
    ledger.wait(seconds=61)
    wrong = axes("other", scope=TENANT)
    for stated in (question.axes, wrong):
        await refusal(stage, question.redeem(OTHER_ANSWER, axes=stated, answered_by=by), TokenExpired)
    await refusal(stage, question.redeem(axes=wrong, answered_by=by), ScopeMismatch)
    await refusal(stage, question.redeem(answered_by=by), refused)


async def test_whoever_answered_otherwise_is_told_of_the_window_first(stage, ledger):
    await ledger.capability.govern("ask_user", Policy(name="two", quorum=2), by=Actor("carla"))
    question = await asked(ledger, closes_in=60)
    await question.answer(OTHER_ANSWER, answered_by=Actor("zoe"))
    for name in ("maria", "tom"):
        await question.answer(answered_by=Actor(name))
    ledger.wait(seconds=61)
    await refusal(stage, question.redeem(OTHER_ANSWER, answered_by=Actor("maria")), TokenExpired)
    await refusal(stage, question.redeem(axes=axes(scope=TENANT), answered_by=Actor("zoe")), ScopeMismatch)
    await refusal(stage, question.redeem(answered_by=Actor("zoe")), AnsweredTwice)


async def test_expiry_names_the_refusal_before_any_axis(stage, ledger):
    question = await asked(ledger, closes_in=60)
    ledger.wait(seconds=61)
    await refusal(stage, question.redeem(axes=axes("other", scope=TENANT)), TokenExpired)


async def test_a_question_that_lapses_is_answered_in_no_window(tmp_path):
    stage = Stage("memory:", tmp_path / "keys")
    async with stage.ledger() as ledger:
        question = await asked(ledger, opens_in=10, closes_in=20, interaction=ASK_USER)
        await refusal(stage, question.redeem(), TokenNotYetValid)
        ledger.wait(seconds=21)
        await refusal(stage, question.redeem(), TokenExpired)


@pytest.mark.parametrize("opens_in", [0, 5])
async def test_windows_are_whole_seconds(ledger, opens_in):
    question = await asked(ledger, opens_in=opens_in, closes_in=60)
    assert question.receipt.closes_at.microsecond == 0
