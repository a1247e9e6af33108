"""Rounds: the gated calls of one message are answered one by one, and consumed together."""

import asyncio
from itertools import permutations

import pytest
from pauseledger import (
    NOT_ANSWERED,
    NOT_DISPATCHED,
    STORED,
    AlreadyConsumed,
    LapseAnswer,
    NotConsumed,
    NothingOwed,
    PauseWithdrawn,
    RecoverCommand,
    ResumedTurn,
    RoundOpen,
    ScopeMismatch,
    WithdrawCommand,
    continuing,
)
from pauseledger.infrastructure.stories import (
    ANSWER,
    OTHER_ANSWER,
    SCOPE,
    Stage,
    approve,
    ask,
    asked,
    asked_round,
    axes,
    contents,
    refusal,
    round_of,
    topics,
    turn,
)

CALLS = ("call_1", "call_2", "call_3")


@pytest.fixture
def stage(store_url, tmp_path):
    return Stage(store_url, tmp_path / "keys")


@pytest.fixture
async def ledger(stage):
    async with stage.ledger() as opened:
        yield opened


def saying(text):
    return {"answers": [{"question_id": "q1", "selections": [], "other": text}]}


def read(text):
    return f"q1: other: {text}"


async def recover(question, **fields):
    return await question.ledger.capability.recover(RecoverCommand(question.pause_id, axes=question.axes, **fields))


async def withdraw(question):
    await question.ledger.capability.withdraw(WithdrawCommand(question.pause_id, axes=question.axes))


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
async def test_answers_in_any_order_land_on_their_own_calls_in_one_continuation(stage, ledger, order):
    questions = await asked_round(ledger, *round_of(*CALLS))
    for done, at in enumerate(order[:2], 1):
        with pytest.raises(RoundOpen) as caught:
            await questions[at].redeem(saying(f"for {CALLS[at]}"))
        assert set(caught.value.open) == {CALLS[other] for other in order[done:]}
        assert not caught.value.continued_by_other
        assert caught.value.pause_id == questions[at].pause_id
    last = questions[order[2]]
    turned = await last.redeem(saying(f"for {CALLS[order[2]]}"))
    assert contents(turned) == {call: read(f"for {call}") for call in CALLS}
    assert [entry["tool_call_id"] for entry in turned.history[2:]] == list(CALLS)
    assert turned.outcome.pause_id == last.pause_id
    assert {sibling.interrupt_id: (sibling.end, sibling.response) for sibling in turned.outcome.siblings} == {
        CALLS[at]: ("answered", saying(f"for {CALLS[at]}")) for at in order[:2]
    }
    assert turned.idempotency_key == str(questions[0].pause_id)
    assert stage.count("pause.refused@1") == 0


async def test_it_is_consumed_in_one_append_and_claimed_in_the_leads_stream_alone(stage, ledger):
    questions = await asked_round(ledger, *round_of(*CALLS))
    for question in questions[1:]:
        await question.answer()
    turned = await questions[0].redeem()
    rows = [row for row in stage.rows() if row.topic == "pause.consumed@1"]
    assert len({row.header["attempt"] for row in rows}) == len({row.header["at"] for row in rows}) == 1
    assert {row.stream for row in rows} == {question.pause_id for question in questions}
    last = stage.rows()[-4:]
    assert [(str(row.stream), row.version) for row in last] == sorted((str(row.stream), row.version) for row in last)
    claims = {row.stream: row.header["claim"] for row in rows}
    assert claims.pop(questions[0].pause_id)["fence"] == 1
    assert set(claims.values()) == {None}
    assert {row.header["lead"] for row in rows} == {str(questions[0].pause_id)}
    async with continuing(turned):
        pass
    assert topics(stage.rows(questions[0].pause_id)) == ["paused", "answered", "consumed", "continued"]
    assert topics(stage.rows(questions[1].pause_id)) == ["paused", "answered", "consumed"]


async def test_the_turn_is_stored_once_with_the_lead(stage, ledger):
    await asked_round(ledger, *round_of(*CALLS, turn=turn(*CALLS, said="a sentence of its own")))
    assert [row.header["turn"]["content"] is not None for row in stage.rows()].count(True) == 1
    assert len({row.header["turn"]["digest"] for row in stage.rows()}) == 1


async def test_a_round_of_three_identical_calls_is_three_pauses(ledger):
    questions = await asked_round(ledger, *round_of(*CALLS))
    assert len({question.pause_id for question in questions}) == 3
    assert len({question.token for question in questions}) == 3
    for question in questions[:2]:
        await question.answer(saying(question.axes.call_id))
    turned = await questions[2].redeem(saying("call_3"))
    assert contents(turned) == {call: read(call) for call in CALLS}


async def test_a_siblings_token_is_bound_to_its_own_call(stage, ledger):
    first, second = await asked_round(ledger, *round_of("call_1", "call_2"))
    with pytest.raises(Exception, match="call_mismatch"):
        await first.redeem(axes=second.axes)
    with pytest.raises(ScopeMismatch):
        await second.redeem(axes=axes("call_2", scope=SCOPE.model_copy(update={"tenant_id": "evil"})))


async def test_ungated_calls_are_told_not_dispatched_and_finished_ones_keep_their_result(ledger):
    stopped = turn("call_1", "call_2", "call_3", "call_4", done=["call_2"])
    question = await asked(ledger, ask("call_3", turn=stopped))
    turned = await question.redeem()
    assert contents(turned) == {
        "call_2": "done before",
        "call_1": NOT_DISPATCHED,
        "call_3": "q1: Anne",
        "call_4": NOT_DISPATCHED,
    }
    assert [seen.interrupt_id for seen in turned.outcome.observations] == ["call_1", "call_3", "call_4"]
    assert turned.history[:3] == tuple(stopped.messages)


async def test_a_withdrawn_call_is_not_answered(stage, ledger):
    first, second, third = await asked_round(ledger, *round_of(*CALLS))
    with pytest.raises(RoundOpen):
        await second.redeem()
    await withdraw(first)
    with pytest.raises(RoundOpen) as caught:
        await second.redeem()
    assert caught.value.open == ("call_3",)
    await refusal(stage, first.redeem(), PauseWithdrawn)
    turned = await third.redeem(OTHER_ANSWER)
    assert contents(turned) == {"call_1": NOT_ANSWERED, "call_2": "q1: Anne", "call_3": "q1: Bob"}
    assert {one.interrupt_id: one.end for one in turned.outcome.siblings} == {
        "call_1": "withdrawn",
        "call_2": "answered",
    }


async def test_a_window_that_closes_lapses_in_the_consuming_append(stage, ledger):
    stopped = turn(*CALLS)
    first, second, _ = await asked_round(
        ledger,
        ask("call_1", turn=stopped, closes_in=600),
        ask("call_2", turn=stopped, closes_in=60),
        ask("call_3", turn=stopped, closes_in=60, on_lapse=LapseAnswer(OTHER_ANSWER)),
    )
    with pytest.raises(RoundOpen):
        await first.redeem()
    ledger.wait(seconds=61)
    turned = await first.redeem(STORED)
    assert contents(turned) == {"call_1": "q1: Anne", "call_2": NOT_ANSWERED, "call_3": "q1: Bob"}
    written = stage.rows()[4:]
    assert sorted(topics(written)) == ["consumed"] * 3 + ["lapsed"] * 2
    assert len({row.header["attempt"] for row in written}) == 1
    ends = {end["end"] for row in written if row.topic == "pause.consumed@1" for end in row.header["siblings"]}
    assert ends == {"answered", "lapsed"}
    assert topics(stage.rows(second.pause_id)) == ["paused", "lapsed", "consumed"]


async def test_an_answer_kept_in_an_open_round_is_continued_once_the_windows_close(stage, ledger):
    first, second = await asked_round(ledger, *round_of("call_1", "call_2", closes_in=60))
    await second.answer()
    with pytest.raises(RoundOpen) as caught:
        await recover(first)
    assert caught.value.open == ("call_1",)
    ledger.wait(seconds=61)
    turned = await recover(first)
    assert contents(turned) == {"call_1": NOT_ANSWERED, "call_2": "q1: Anne"}
    assert (turned.outcome.pause_id, turned.fence) == (second.pause_id, 1)


@pytest.mark.parametrize("how", ["withdrawn", "lapsed"])
async def test_a_round_without_any_answer_owes_nothing(stage, ledger, how):
    questions = await asked_round(ledger, *round_of("call_1", "call_2", closes_in=60))
    with pytest.raises(NotConsumed):
        await recover(questions[0])
    if how == "withdrawn":
        for question in questions:
            await withdraw(question)
    else:
        ledger.wait(seconds=61)
    with pytest.raises(NothingOwed):
        await recover(questions[1])
    assert stage.count("pause.consumed@1") == 0


async def test_recover_by_any_of_the_round_takes_it_up(stage, ledger):
    questions = await asked_round(ledger, *round_of(*CALLS))
    for question in questions:
        await question.answer()
    turned = await recover(questions[2])
    assert contents(turned) == dict.fromkeys(CALLS, "q1: Anne")
    await refusal(stage, questions[0].redeem(STORED), AlreadyConsumed)


async def test_the_same_answer_to_an_open_round_again_changes_nothing(stage, ledger):
    first, _ = await asked_round(ledger, *round_of("call_1", "call_2"))
    for _ in range(2):
        with pytest.raises(RoundOpen):
            await first.redeem()
    assert stage.count("pause.answered@1") == 1


async def test_the_last_answers_at_once_make_one_continuation_with_all_of_them(stage, ledger):
    async with stage.ledger() as second, stage.ledger() as third:
        for number in range(8):
            stopped = turn(*CALLS, said=f"turn {number}")
            questions = await asked_round(ledger, *round_of(*CALLS, turn=stopped))
            ends = await asyncio.gather(
                *(
                    question.at(process).redeem(saying(f"{number} {question.axes.call_id}"))
                    for question, process in zip(questions, (ledger, second, third), strict=True)
                ),
                return_exceptions=True,
            )
            won = [end for end in ends if isinstance(end, ResumedTurn)]
            assert len(won) == 1, ends
            assert contents(won[0]) == {call: read(f"{number} {call}") for call in CALLS}
            others = [end for end in ends if end is not won[0]]
            assert {type(end) for end in others} == {RoundOpen}
            consumed = [row for row in stage.rows() if row.topic == "pause.consumed@1"]
            assert len(consumed) == 3 * (number + 1)


async def test_whoever_answered_before_another_consumed_hears_that_it_counted(ledger, monkeypatch):
    first, second = await asked_round(ledger, *round_of("call_1", "call_2"))
    append, held = type(ledger.pauses).append, asyncio.Event()

    async def slowly(self, facts):
        stored = await append(self, facts)
        if facts[0].originator_id == first.pause_id and not held.is_set():
            held.set()
            await second.redeem()
        return stored

    monkeypatch.setattr(type(ledger.pauses), "append", slowly)
    with pytest.raises(RoundOpen) as caught:
        await first.redeem()
    assert caught.value.continued_by_other
    assert "counted" in str(caught.value)


async def test_answer_alone_never_consumes(stage, ledger):
    questions = await asked_round(ledger, *round_of("call_1", "call_2"))
    for question in questions:
        assert (await question.answer()).state == "answered"
    assert stage.count("pause.consumed@1") == 0


async def test_kinds_of_pause_mix_in_a_round(ledger):
    stopped = turn("call_1", "call_2", "call_3")
    question, approval, refused = await asked_round(
        ledger,
        ask("call_1", turn=stopped),
        approve("call_2", turn=stopped),
        approve("call_3", turn=stopped),
    )
    await approval.answer({"decision": "approve"})
    await refused.answer({"decision": "reject", "reason": "too much"})
    turned = await question.redeem(ANSWER)
    assert [call.interrupt_id for call in turned.dispatch] == ["call_2"]
    assert set(contents(turned)) == {"call_1", "call_3"}
    assert "too much" in contents(turned)["call_3"]
    folded = turned.with_results({"call_2": "moved 7"})
    assert contents(folded)["call_2"] == "moved 7"
    assert folded.dispatch == ()


async def test_a_resume_without_the_turn_consumes_the_round_and_owes_nothing(stage, ledger):
    first, second = await asked_round(ledger, *round_of("call_1", "call_2"))
    await first.answer()
    outcome = await ledger.capability.resume(second.command())
    assert (outcome.fence, outcome.turn) == (0, None)
    assert {row.header["claim"] for row in stage.rows() if row.topic == "pause.consumed@1"} == {None}
    with pytest.raises(NothingOwed):
        await recover(first)
