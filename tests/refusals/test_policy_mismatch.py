"""`policy_mismatch`: the policy on record is not the one the pause was made under."""

import pytest
from pauseledger import (
    STORED,
    Actor,
    InteractionConfigurationError,
    LedgerCorrupt,
    PauseConflict,
    Policy,
    PolicyMismatch,
)
from pauseledger.infrastructure.stories import SCOPE, ask, asked, refusal

STRICT = Policy(name="strict", least_assurance="signed")
LOOSE = Policy(name="loose")
BY = Actor("carla")
MARIA = Actor("maria")
SIGNED = Actor("maria", assurance="signed")


async def test_a_changed_policy_ends_what_was_asked_under_the_earlier_one(stage, ledger):
    first = await ledger.capability.govern("ask_user", LOOSE, by=BY)
    question = await asked(ledger)
    assert stage.rows(question.pause_id)[0].header["policy"] == {
        "name": "loose",
        "revision": 1,
        "digest": first.policy.digest,
        "quorum": 1,
    }
    await ledger.capability.govern("ask_user", STRICT, by=BY)
    async with stage.ledger() as other:
        for attempt in (question.at(other).answer(answered_by=MARIA), question.redeem(answered_by=MARIA)):
            refused = await refusal(stage, attempt, PolicyMismatch)
            assert (refused.reason, refused.step, refused.axis, refused.rule) == (
                "policy_mismatch",
                4,
                "policy",
                "changed",
            )
            assert not refused.retryable


async def test_a_policy_taken_away_ends_them_too_and_new_pauses_have_none(stage, ledger):
    await ledger.capability.govern("ask_user", LOOSE, by=BY)
    question = await asked(ledger)
    await ledger.capability.govern("ask_user", None, by=BY)
    await refusal(stage, question.answer(answered_by=MARIA), PolicyMismatch)
    again = await asked(ledger, ask(occurrence=1))
    assert stage.rows(again.pause_id)[0].header["policy"] is None
    assert (await again.answer()).state == "answered"


async def test_where_the_change_spares_earlier_pauses_each_is_judged_by_its_own_policy(stage, ledger):
    await ledger.capability.govern("ask_user", LOOSE, by=BY)
    question = await asked(ledger)
    await ledger.capability.govern("ask_user", STRICT, by=BY, ends_earlier=False)
    assert (await asked(ledger)).receipt.existing
    assert (await question.answer(answered_by=MARIA)).state == "answered"
    assert [change.revision for change in await ledger.capability.policies()] == [1, 2]


@pytest.mark.parametrize("second", [STRICT, None])
async def test_what_a_change_spared_is_ended_by_the_same_policy_said_again(stage, ledger, second):
    govern = ledger.capability.govern
    await govern("ask_user", LOOSE, by=BY)
    question = await asked(ledger)
    await govern("ask_user", second, by=BY, ends_earlier=False)
    assert (await govern("ask_user", second, by=BY, ends_earlier=False)).existing
    between = await asked(ledger, ask(occurrence=1))
    assert not (await govern("ask_user", second, by=BY)).existing
    await refusal(stage, question.answer(answered_by=MARIA), PolicyMismatch)
    if second is None:
        assert (await between.answer()).state == "answered"
    else:
        await refusal(stage, between.answer(answered_by=SIGNED), PolicyMismatch)
    for _ in range(2):
        assert (await govern("ask_user", second, by=BY)).existing
    assert [change.ends_earlier for change in await ledger.capability.policies()] == [True, False, True]


async def test_the_same_policy_spared_twice_ends_nothing_of_its_own(stage, ledger):
    await ledger.capability.govern("ask_user", LOOSE, by=BY)
    question = await asked(ledger)
    for ends_earlier in (False, True):
        assert (await ledger.capability.govern("ask_user", LOOSE, by=BY, ends_earlier=ends_earlier)).existing
    await ledger.capability.govern("approval", STRICT, by=BY)
    assert (await ledger.capability.govern("ask_user", LOOSE, by=BY)).existing
    assert (await question.answer(answered_by=MARIA)).state == "answered"


async def test_a_pause_without_a_policy_and_an_answer_that_is_stored_stay_as_they_are(stage, ledger):
    free = await asked(ledger)
    await ledger.capability.govern("ask_user", LOOSE, by=BY)
    kept = await asked(ledger, ask(occurrence=1))
    await kept.answer(answered_by=MARIA)
    await ledger.capability.govern("ask_user", STRICT, by=BY)
    assert (await free.redeem()).fence == 1
    assert (await kept.redeem(STORED)).outcome.answered_by == "maria"


async def test_the_same_round_asked_again_under_another_policy_is_a_conflict(stage, ledger):
    await ledger.capability.govern("ask_user", LOOSE, by=BY)
    await asked(ledger)
    await ledger.capability.govern("ask_user", STRICT, by=BY)
    with pytest.raises(PauseConflict, match="policy"):
        await asked(ledger)


async def test_a_policy_that_was_lost_or_forged_lets_nobody_answer(stage, ledger):
    await ledger.capability.govern("ask_user", STRICT, by=BY)
    question = await asked(ledger)
    [row] = [row for row in stage.rows() if row.topic == "policy.changed@1"]
    looser = {"rules": {"least_assurance": "claimed", "kinds": ["person"]}}
    stage.forge(row, lambda fact: type(fact).model_validate({**dict(fact), **looser}))
    refused = await refusal(stage, question.answer(answered_by=MARIA), PolicyMismatch)
    assert refused.rule == "digest_differs"
    stage.forge(row, lambda fact: fact.model_copy(update={"interaction": "approval"}))
    assert (await refusal(stage, question.answer(answered_by=MARIA), PolicyMismatch)).rule == "absent"
    stage.alter(row, lambda segments: segments[:-1] + bytes([segments[-1] ^ 1]))
    with pytest.raises(LedgerCorrupt):
        await question.answer(answered_by=MARIA)


async def test_who_changed_what_is_on_record_and_the_same_again_is_no_news(stage, ledger):
    first = await ledger.capability.govern("ask_user", STRICT, by=BY)
    assert (first.existing, first.policy.revision, first.position) == (False, 1, 1)
    async with stage.ledger() as other:
        again = await other.capability.govern("ask_user", STRICT, by=Actor("tom"))
    assert (again.existing, again.policy, again.position) == (True, first.policy, 1)
    assert (await ledger.capability.govern("approval", None, by=BY)).existing
    [row] = stage.rows()
    assert (row.topic, row.header["scope"], row.header["ends_earlier"]) == ("policy.changed@1", None, True)
    [change] = await ledger.capability.policies()
    assert (change.by.who.clear(), change.rules.least_assurance) == (b"carla", "signed")
    for wrong in (
        {"interaction": "No Name"},
        {"policy": "strict"},
        {"by": None},
        {"ends_earlier": None},
    ):
        given = {"interaction": "ask_user", "policy": LOOSE, "by": BY, "ends_earlier": True, **wrong}
        with pytest.raises(InteractionConfigurationError):
            await ledger.capability.govern(
                given["interaction"], given["policy"], by=given["by"], ends_earlier=given["ends_earlier"]
            )
    assert SCOPE.tenant_id not in str(row.header)
