"""What a row repeats or keeps has a bound, and what stands in a record is true of its own pause."""

import pytest
from pauseledger import (
    NOT_ANSWERED,
    CheckpointReference,
    LedgerSettings,
    PauseRejected,
    WithdrawCommand,
    open_ledger,
)
from pauseledger.infrastructure.stories import ANSWER, ask, asked_round, axes, contents, round_of, turn


@pytest.mark.parametrize(
    "where",
    [
        CheckpointReference("openai-chat", "free text", "thread", "1"),
        CheckpointReference("openai-chat", "saver", "x" * 256, "1"),
        CheckpointReference("openai-chat", "saver", "thread", ""),
        CheckpointReference("openai-chat", "saver", "thread\x1b[2J", "1"),
    ],
)
async def test_a_reference_to_a_checkpoint_is_a_word_and_two_short_ids(where):
    async with open_ledger("memory:", LedgerSettings(checkpoints={"saver": None})) as ledger:
        with pytest.raises(PauseRejected, match="checkpoint_invalid"):
            await ledger.capability.pause(ask(turn=where))
        assert ledger.recorder.max_notification_id() is None


@pytest.mark.parametrize(("reserved", "gated"), [(257, 1), (100, 65)])
async def test_a_message_with_more_calls_than_a_round_may_list_is_rejected(reserved, gated):
    calls = [f"call_{number}" for number in range(reserved)]
    async with open_ledger("memory:") as ledger:
        with pytest.raises(PauseRejected, match="too_many_calls"):
            await ledger.capability.pause_round([ask(call, turn=turn(*calls)) for call in calls[:gated]])
        assert ledger.recorder.max_notification_id() is None


async def test_the_largest_round_is_taken_and_read_again():
    calls = [f"call_{number}" for number in range(256)]
    async with open_ledger("memory:") as ledger:
        asked_ = await asked_round(ledger, *[ask(call, turn=turn(*calls)) for call in calls[:64]])
        for question in asked_[:-1]:
            await question.answer(ANSWER)
        assert len((await asked_[-1].redeem()).history) == 2 + 256


@pytest.mark.parametrize("call_id", ["x" * 256, "ü" * 128])
async def test_an_id_of_the_models_has_a_bound_where_nobody_gates_it(call_id):
    async with open_ledger("memory:") as ledger:
        with pytest.raises(PauseRejected, match="id_too_long"):
            await ledger.capability.pause(ask("call_1", turn=turn("call_1", call_id)))


async def test_an_answer_that_was_withdrawn_is_no_part_of_what_was_consumed():
    async with open_ledger("memory:") as ledger:
        first, second = await asked_round(ledger, *round_of("call_1", "call_2"))
        await first.answer(ANSWER)
        await ledger.capability.withdraw(WithdrawCommand(first.pause_id, axes=axes("call_1")))
        turned = await second.redeem()
        assert contents(turned)["call_1"] == NOT_ANSWERED
        consumed = (await ledger.story(first.pause_id))[-1]
        assert (consumed.NAME, consumed.answers, consumed.response_digest) == ("pause.consumed", (), None)


async def test_a_token_stands_on_the_pause_it_is_for_and_the_position_is_the_claims():
    async with open_ledger("memory:") as ledger:
        first, second = await asked_round(ledger, *round_of("call_1", "call_2"))
        await first.answer(ANSWER)
        turned = await second.redeem()
        mine, other = [(await ledger.story(one.pause_id))[-1] for one in (second, first)]
        assert mine.token is not None
        assert other.token is None
        lead = other if other.claim else mine
        assert turned.outcome.position == lead.position
