"""`actor_not_allowed`: whoever answers is not one of those the policy lets answer; the rule is named, not its value."""

import pytest
from pauseledger import Actor, ActorNotAllowed, InteractionConfigurationError, Policy
from pauseledger.infrastructure.stories import asked, refusal

SIGNED = Policy(name="signed", least_assurance="signed")
LISTED = Policy(name="listed", actors=["maria", "tom"])
GROUPED = Policy(name="grouped", actors=["maria"], groups=["finance"], kinds=["person", "service"])


@pytest.mark.parametrize(
    ("policy", "wrong", "right", "rule"),
    [
        (SIGNED, Actor("maria"), Actor("maria", assurance="signed"), "least_assurance"),
        (SIGNED, Actor("maria", assurance="authenticated"), Actor("tom", assurance="signed"), "least_assurance"),
        (Policy(name="people"), Actor("maria", kind="rule"), Actor("maria"), "kinds"),
        (LISTED, Actor("Maria"), Actor("maria"), "actors"),
        (LISTED, Actor("assistant", on_behalf_of="maria"), Actor("tom"), "actors"),
        (GROUPED, Actor("eve", groups=["sales"]), Actor("eve", groups=["sales", "finance"]), "groups"),
        (GROUPED, Actor("eve"), Actor("maria"), "groups"),
    ],
)
async def test_the_rule_that_objects_is_named(stage, ledger, policy, wrong, right, rule):
    await ledger.capability.govern("ask_user", policy, by=Actor("carla"))
    question = await asked(ledger)
    for attempt in (question.answer(answered_by=wrong), question.redeem(answered_by=wrong)):
        refused = await refusal(stage, attempt, ActorNotAllowed)
        assert (refused.reason, refused.step, refused.axis, refused.rule) == ("actor_not_allowed", 4, "actor", rule)
        assert not any(name in str(refused) for name in ("maria", "tom", "finance", "signed"))
    assert (await question.redeem(answered_by=right)).outcome.answered_by == right.id


async def test_authority_is_judged_before_the_answer(stage, ledger):
    await ledger.capability.govern("ask_user", LISTED, by=Actor("carla"))
    question = await asked(ledger)
    await refusal(stage, question.answer("no answer at all", answered_by=Actor("eve")), ActorNotAllowed)


async def test_in_the_record_people_stand_as_tags(stage, ledger):
    await ledger.capability.govern("ask_user", GROUPED, by=Actor("carla"))
    [changed] = [row for row in stage.rows() if row.topic == "policy.changed@1"]
    header = str(changed.header)
    assert not any(name in header for name in ("maria", "finance", "carla"))
    [fact] = await ledger.capability.policies()
    assert fact.people.clear() == b'{"actors":["maria"],"groups":["finance"]}'


@pytest.mark.parametrize(
    "fields",
    [
        {"least_assurance": "certain"},
        {"kinds": []},
        {"kinds": ["robot"]},
        {"kinds": "person"},
        {"actors": "maria"},
        {"actors": [""]},
        {"groups": [7]},
        {"four_eyes": 1},
        {"quorum": 0},
        {"quorum": True},
        {"quorum": 3, "actors": ["maria", "tom", "tom"]},
        {"shown_within": 1},
        {"shown_within": 60.0},
        {"name": "free text"},
    ],
)
def test_a_policy_that_could_not_be_judged_is_no_policy(fields):
    with pytest.raises(InteractionConfigurationError):
        Policy(**{"name": "policy", **fields})
