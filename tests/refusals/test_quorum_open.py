"""`quorum_open`: not enough people have given the same answer; the one presented is kept."""

import pytest
from pauseledger import (
    NOT_ANSWERED,
    STORED,
    Actor,
    AlreadyAnswered,
    AlreadyConsumed,
    LapseAnswer,
    LapseCommand,
    NotAnswered,
    NotConsumed,
    PauseLapsed,
    Policy,
    QuorumOpen,
    RecoverCommand,
    RoundOpen,
    TokenExpired,
)
from pauseledger.infrastructure.stories import (
    ANSWER,
    ANSWER_TEXT,
    OTHER_ANSWER,
    approve,
    ask,
    asked,
    asked_round,
    axes,
    contents,
    refusal,
    round_of,
    topics,
)

YES, NO = {"decision": "approve"}, {"decision": "reject", "reason": "too dear"}
ANNE, BOB, CARL, DORA = map(Actor, ("anne", "bob", "carl", "dora"))


@pytest.fixture
async def governed(ledger):
    for interaction in ("ask_user", "approval"):
        await ledger.capability.govern(interaction, Policy(name="two", quorum=2), by=Actor("carla"))
    return ledger


@pytest.fixture
async def question(governed):
    return await asked(governed)


async def test_the_answer_is_kept_and_the_refusal_says_how_many_are_missing(stage, governed, question):
    before = stage.count()
    with pytest.raises(QuorumOpen) as raised:
        await question.redeem(answered_by=ANNE)
    refused = raised.value
    assert (refused.reason, refused.step, refused.axis, refused.missing) == ("quorum_open", 6, "consumption", 1)
    assert refused.retryable
    assert refused.recorded
    assert topics(stage.rows()[before:]) == ["answered", "refused"]
    assert "anne" not in str(refused)
    for attempt in (question.redeem(STORED), question.answer(STORED), question.redeem(answered_by=ANNE)):
        assert (await refusal(stage, attempt, QuorumOpen)).missing == 1
    turn = await question.redeem(answered_by=BOB)
    assert contents(turn) == {"call_1": ANSWER_TEXT}
    [*_, answered, consumed] = stage.rows(question.pause_id)
    assert (answered.header["number"], answered.header["policy"]["quorum"]) == (2, 2)
    assert consumed.header["answers"] == [2, answered.version]


async def test_nothing_stored_at_all_is_not_answered(stage, question):
    await refusal(stage, question.redeem(STORED), NotAnswered)


async def test_answers_that_disagree_wait_for_others_and_only_those_that_agree_are_listed(stage, question):
    assert (await question.answer(ANSWER, answered_by=ANNE)).missing == 1
    receipt = await question.answer(OTHER_ANSWER, answered_by=BOB)
    assert (receipt.state, receipt.missing) == ("open", 1)
    receipt = await question.answer(ANSWER, answered_by=CARL)
    assert (receipt.state, receipt.missing) == ("answered", 0)
    assert (await question.answer(ANSWER, answered_by=DORA)).position is None
    await refusal(stage, question.redeem(OTHER_ANSWER, answered_by=DORA), AlreadyAnswered)
    await refusal(stage, question.redeem(OTHER_ANSWER, answered_by=BOB), AlreadyAnswered)
    assert contents(await question.redeem(STORED)) == {"call_1": ANSWER_TEXT}
    assert stage.rows(question.pause_id)[-1].header["answers"] == [2, 4]
    await refusal(stage, question.redeem(ANSWER, answered_by=ANNE), AlreadyConsumed)


async def test_what_answers_come_to_is_compared_and_not_how_they_are_spelled(stage, governed):
    arguments = {"amount": 7, "to": "Bob"}
    edit = {"decision": "edit", "arguments": dict(reversed(arguments.items()))}
    question = await asked(governed, approve(arguments=arguments))
    assert (await question.answer(YES, answered_by=ANNE)).missing == 1
    assert (await question.answer({**edit, "arguments": {"amount": 8, "to": "Bob"}}, answered_by=BOB)).missing == 1
    turn = await question.redeem(edit, answered_by=CARL)
    assert turn.dispatch[0].arguments == arguments
    assert stage.rows(question.pause_id)[-1].header["answers"] == [2, 4]


async def test_two_rejections_agree_whatever_their_reasons_and_one_is_not_enough(stage, governed):
    question = await asked(governed, approve())
    assert (await question.answer(NO, answered_by=ANNE)).state == "open"
    assert (await question.answer({**NO, "reason": "too late"}, answered_by=BOB)).state == "answered"
    turn = await question.redeem(NO, answered_by=ANNE)
    assert turn.dispatch == ()
    assert turn.history[-1]["content"].endswith("Reason: too late")


async def test_a_window_that_closes_before_enough_agree_lapses_and_tells_which_answers_stood(stage, governed):
    question = await asked(governed, closes_in=60)
    await question.answer(answered_by=ANNE)
    governed.wait(seconds=61)
    await refusal(stage, question.answer(answered_by=BOB), TokenExpired)
    assert (await governed.capability.lapse(LapseCommand(question.pause_id, axes=question.axes))).state == "lapsed"
    assert stage.rows(question.pause_id)[-1].header["answers_standing"] == [2]
    reissued = governed.capability.recover(RecoverCommand(question.pause_id, axes=question.axes))
    with pytest.raises(Exception, match="without any answer"):
        await reissued
    await refusal(stage, question.redeem(STORED), TokenExpired)


async def test_a_lapse_answer_stands_without_a_quorum(stage, governed):
    question = await asked(governed, closes_in=60, on_lapse=LapseAnswer(OTHER_ANSWER))
    await question.answer(ANSWER, answered_by=ANNE)
    governed.wait(seconds=61)
    turn = await governed.capability.recover(RecoverCommand(question.pause_id, axes=question.axes))
    assert contents(turn) == {"call_1": "q1: Bob"}
    lapsed, consumed = stage.rows(question.pause_id)[-2:]
    assert lapsed.header["answers_standing"] == [2]
    assert (consumed.header["origin"], consumed.header["answers"]) == ("lapse", [])
    await refusal(stage, question.redeem(ANSWER, answered_by=BOB), TokenExpired)


async def test_before_enough_agree_there_is_nothing_to_recover(stage, governed, question):
    await question.answer(answered_by=ANNE)
    with pytest.raises(NotConsumed):
        await governed.capability.recover(RecoverCommand(question.pause_id, axes=question.axes))
    await question.answer(answered_by=BOB)
    turn = await governed.capability.recover(RecoverCommand(question.pause_id, axes=question.axes))
    assert contents(turn) == {"call_1": ANSWER_TEXT}
    assert stage.rows(question.pause_id)[-1].header["answers"] == [2, 3]


async def test_a_round_waits_for_the_quorum_of_each_of_its_calls(stage, governed):
    first, second = await asked_round(governed, *round_of("c1", "c2", closes_in=600))
    await first.answer(answered_by=ANNE)
    with pytest.raises(RoundOpen) as open_:
        await first.redeem(answered_by=BOB)
    assert open_.value.open == ("c2",)
    with pytest.raises(QuorumOpen):
        await second.redeem(answered_by=ANNE)
    turn = await second.redeem(answered_by=CARL)
    assert contents(turn) == {"c1": ANSWER_TEXT, "c2": ANSWER_TEXT}
    heads = [stage.rows(one.pause_id)[-1].header for one in (first, second)]
    assert [header["answers"] for header in heads] == [[2, 3], [2, 4]]


async def test_a_call_without_its_quorum_is_not_answered_once_its_window_has_closed(stage, governed):
    stopped = round_of("c1", "c2")[0].turn
    commands = [
        ask("c1", turn=stopped, axes=axes("c1"), closes_in=600),
        ask("c2", turn=stopped, axes=axes("c2"), closes_in=60),
    ]
    first, second = await asked_round(governed, *commands)
    await second.answer(answered_by=ANNE)
    await first.answer(answered_by=ANNE)
    governed.wait(seconds=61)
    turn = await first.redeem(answered_by=BOB)
    assert contents(turn) == {"c1": ANSWER_TEXT, "c2": NOT_ANSWERED}
    assert [row.header.get("answers_standing") for row in stage.rows(second.pause_id)][-2] == [2]
    assert PauseLapsed.reason == "lapsed"


async def test_the_views_tell_how_much_of_the_quorum_is_there(stage, governed, question):
    receipt = await question.answer(answered_by=ANNE)
    scope = question.axes.scope
    [row] = (await governed.views.open_pauses.most_urgent(scope, after=receipt.position)).rows
    assert (row.answers_needed, row.answers_agreeing) == (2, 1)
    assert [one async for one in governed.owed(scope)] == []
    [times] = await governed.views.response_times.report(scope, after=receipt.position)
    assert (times.open, times.answered) == (1, 0)
    receipt = await question.answer(answered_by=BOB)
    assert (await governed.views.open_pauses.most_urgent(scope, after=receipt.position)).rows == ()
    assert [one.state async for one in governed.owed(scope)] == ["ready"]
    [times] = await governed.views.response_times.report(scope, after=receipt.position)
    assert (times.open, times.answered) == (0, 1)
    told = await governed.views.history.of_pause(scope, question.pause_id, after=receipt.position)
    assert [(one.what, one.fields.get("number")) for one in told] == [
        ("paused", None),
        ("answered", 1),
        ("answered", 2),
    ]
