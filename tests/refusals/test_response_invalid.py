"""`response_invalid`: the answer does not fit the question. It poisons nothing: a valid one redeems afterwards."""

import json
import logging

import pytest
from pauseledger import Interaction, InteractionConfigurationError, ResponseInvalid, ResumeCommand, recognise
from pauseledger.domain.answers import digest_of_arguments
from pauseledger.infrastructure.stories import (
    ANSWER,
    ANSWER_TEXT,
    APPROVAL,
    approve,
    asked,
    contents,
    refusal,
    topics,
)
from pydantic import BaseModel


def deep(levels):
    value = "bottom"
    for _ in range(levels):
        value = [value]
    return value


def of(selections, **more):
    return {"answers": [{"question_id": "q1", "selections": selections, **more}]}


CANNOT_BE_CARRIED = {
    "nan": of(["Anne"], other=float("nan")),
    "infinity": of(["Anne"], other=float("-inf")),
    "lone_surrogate": of(["\ud800"]),
    "duplicate_key": {"answers": [], 1: "a", "1": "b"},
    "too_deep": of(deep(64)),
    "number_too_long": of([10**400]),
    "too_large": of([], other="x" * 256 * 1024),
    "not_json": of([object()]),
}

DOES_NOT_FIT = {
    "label_unknown": of(["Zed"]),
    "more_than_one_selected": of(["Anne", "Bob"]),
    "label_selected_twice": of(["Anne", "Anne"]),
    "answer_empty": of([]),
    "question_unknown": {"answers": [{"question_id": "q9", "selections": ["Anne"]}]},
    "question_answered_twice": {"answers": [*of(["Anne"])["answers"], *of(["Bob"])["answers"]]},
    "schema": {"decision": "approve"},
}


@pytest.mark.parametrize("rule", CANNOT_BE_CARRIED)
async def test_what_cannot_be_carried_is_refused_by_that_name(stage, ledger, question, rule):
    refused = await refusal(stage, question.redeem(CANNOT_BE_CARRIED[rule]), ResponseInvalid)
    assert (refused.rule, refused.step, refused.axis) == (rule, 4, "response")
    await refusal(stage, question.answer(CANNOT_BE_CARRIED[rule]), ResponseInvalid)
    assert contents(await question.redeem()) == {"call_1": ANSWER_TEXT}


@pytest.mark.parametrize("rule", DOES_NOT_FIT)
async def test_what_does_not_fit_is_refused_and_a_valid_answer_redeems_after_it(stage, ledger, question, rule):
    refused = await refusal(stage, question.redeem(DOES_NOT_FIT[rule]), ResponseInvalid)
    assert (refused.reason, refused.rule) == ("response_invalid", rule)
    assert contents(await question.redeem(ANSWER)) == {"call_1": ANSWER_TEXT}
    assert topics(stage.rows()) == ["paused", "refused", "answered", "consumed"]


async def test_where_in_the_schema_is_told_and_nothing_of_the_value(stage, ledger, question):
    refused = await refusal(stage, question.redeem({"answers": "my secret"}), ResponseInvalid)
    assert refused.at_pointer == "/properties/answers/type"
    assert refused.at_pointer in str(refused)
    assert "my secret" not in str(refused)
    assert stage.rows()[-1].header["at_pointer"] == refused.at_pointer


async def test_the_wrong_kind_of_answer_is_refused_both_ways(stage, ledger):
    question = await asked(ledger)
    approval = await asked(ledger, approve(occurrence=1))
    await refusal(stage, question.redeem({"decision": "approve"}), ResponseInvalid)
    await refusal(stage, approval.redeem(ANSWER), ResponseInvalid)
    await refusal(stage, approval.redeem(None), ResponseInvalid)
    assert contents(await question.redeem()) == {"call_1": ANSWER_TEXT}
    assert (await approval.redeem({"decision": "approve"})).outcome.name == APPROVAL


async def test_an_approval_that_cites_other_arguments_than_were_shown(stage, ledger):
    approval = await asked(ledger, approve(arguments={"amount": 7}))
    shown, other = digest_of_arguments({"amount": 7}), digest_of_arguments({"amount": 7000})
    refused = await refusal(stage, approval.redeem({"decision": "approve", "shown": other}), ResponseInvalid)
    assert refused.rule == "shown"
    turn = await approval.redeem({"decision": "approve", "shown": shown})
    assert turn.dispatch[0].digest == shown


def broken(request, response):
    raise ZeroDivisionError(f"cannot judge {request} by {response}")


def interaction(**fields):
    standard = {"name": "pick", "request_schema": {}, "response_schema": {}, "as_text": json.dumps}
    return Interaction(**{**standard, **fields})


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"cross_check": broken}, "cross_check"),
        ({"as_text": lambda response: broken("the request", response)}, "as_text"),
        ({"as_text": lambda response: response}, "as_text"),
        ({"decision": lambda response: "maybe"}, "decision"),
        ({"cross_check": lambda request, response: "/properties/amount"}, "/properties/amount"),
        ({"cross_check": lambda request, response: f"no: {response}"}, "cross_check"),
    ],
    ids=["cross-check raises", "as_text raises", "no text", "no decision", "a pointer", "a sentence"],
)
async def test_a_rule_that_cannot_be_evaluated_lets_nothing_through(stage, fields, rule, caplog):
    async with stage.ledger(interactions=[interaction(**fields)]) as ledger:
        question = await asked(ledger, interaction="pick", request={"secret": "of the request"})
        with caplog.at_level(logging.INFO, "pauseledger"):
            refused = await refusal(stage, question.redeem({"a": "secret answer"}), ResponseInvalid)
        assert refused.rule == rule
        assert refused.__cause__ is None
        assert "secret" not in caplog.text + str(refused)


async def test_a_rule_that_raised_is_told_as_the_hosts_and_logged_by_type_and_place(stage, caplog):
    async with stage.ledger(interactions=[interaction(cross_check=broken)]) as ledger:
        question = await asked(ledger, interaction="pick", request={})
        with caplog.at_level(logging.INFO, "pauseledger"):
            refused = await refusal(stage, question.redeem({}), ResponseInvalid)
    assert (refused.rule, refused.broke) == ("cross_check", True)
    assert "the host's own rule raised" in str(refused)
    assert "ZeroDivisionError" in caplog.text
    assert f"{__name__}:{broken.__code__.co_firstlineno + 1}" in caplog.text


async def test_a_rule_that_objects_is_the_answers_fault(stage, ledger, question):
    refused = await refusal(stage, question.redeem(of(["Zed"])), ResponseInvalid)
    assert (refused.broke, "host" in str(refused)) == (False, False)


class Amount(BaseModel):
    amount: float


async def test_a_number_that_json_cannot_carry_is_named_whatever_the_model_makes_of_it(stage):
    async with stage.ledger(interactions=[interaction(response_schema=Amount)]) as ledger:
        question = await asked(ledger, interaction="pick", request={})
        assert (await refusal(stage, question.redeem({"amount": "NaN"}), ResponseInvalid)).rule == "nan"
        assert (await question.redeem({"amount": "7.5"})).outcome.response == {"amount": 7.5}


@pytest.mark.parametrize("name", ["answered_by", "submitted_by"])
async def test_whoever_answers_is_an_actor(ledger, question, name):
    with pytest.raises(InteractionConfigurationError, match=rf"{name} must be an Actor; pass Actor\(id\)"):
        ResumeCommand(recognise(ledger.capability, question.token).envelope, ANSWER, **{name: "maria"})
    assert contents(await question.redeem()) == {"call_1": ANSWER_TEXT}


async def test_none_is_an_answer_where_the_schema_takes_it(stage):
    async with stage.ledger(interactions=[interaction()]) as ledger:
        question = await asked(ledger, interaction="pick", request={})
        turn = await question.redeem(None)
        assert (turn.outcome.response, contents(turn)) == (None, {"call_1": "null"})
