"""Approvals: what a person let through runs as they let it through, and what they declined never runs."""

import pytest
from pauseledger import (
    NOT_DISPATCHED,
    InteractionConfigurationError,
    LapseAnswer,
    RecoverCommand,
    ResponseInvalid,
    SettleCommand,
    continuing,
)
from pauseledger.domain.answers import digest_of_arguments
from pauseledger.infrastructure.stories import (
    STORED,
    Stage,
    approve,
    asked,
    call_of,
    contents,
    refusal,
    topics,
    turn,
)

SHOWN = {"amount": 7, "to": "Bob"}
EDITED = {"to": "Bob", "amount": 5}
SCHEMA = {
    "type": "object",
    "properties": {"amount": {"type": "integer", "maximum": 10}, "to": {"type": "string"}},
    "required": ["amount", "to"],
    "additionalProperties": False,
}


@pytest.fixture
def stage(store_url, tmp_path):
    return Stage(store_url, tmp_path / "keys")


@pytest.fixture
async def ledger(stage):
    async with stage.ledger() as opened:
        yield opened


@pytest.fixture
async def approval(ledger):
    stopped = turn(call_of("call_1", "transfer"), call_of("call_2", "log"))
    request = {"tool": "transfer", "arguments": SHOWN, "schema": SCHEMA, "reason": "more than 5"}
    return await asked(ledger, approve(turn=stopped, request=request))


async def test_approved_the_call_is_left_open_for_the_host_to_run(stage, approval):
    turned = await approval.redeem({"decision": "approve", "shown": digest_of_arguments(SHOWN)})
    [call] = turned.dispatch
    assert (call.tool, call.arguments, call.digest) == ("transfer", SHOWN, digest_of_arguments(SHOWN))
    assert (call.interrupt_id, call.tool_call_id) == ("call_1", "call_1")
    assert call.idempotency_key == str(approval.pause_id)
    assert contents(turned) == {"call_2": NOT_DISPATCHED}
    folded = turned.with_results({"call_1": "moved 7"})
    assert [entry["tool_call_id"] for entry in folded.history[2:]] == ["call_1", "call_2"]
    assert contents(folded) == {"call_1": "moved 7", "call_2": NOT_DISPATCHED}
    said = stage.rows()[1].header
    assert (said["decision"], said["shown"]) == ("approve", stage.rows()[0].header["request"]["digest"])


async def test_edited_the_effective_arguments_stand_apart_from_those_shown(stage, approval):
    turned = await approval.redeem({"decision": "edit", "arguments": EDITED, "shown": digest_of_arguments(SHOWN)})
    [call] = turned.dispatch
    assert (call.arguments, call.digest) == (EDITED, digest_of_arguments(EDITED))
    assert turned.outcome.request["arguments"] == SHOWN
    said = stage.rows()[1].header
    assert said["decision"] == "edit"
    assert said["shown"] == stage.rows()[0].header["request"]["digest"] != call.digest
    assert said["effective"]["digest"] != said["response"]["digest"]


@pytest.mark.parametrize(
    ("response", "rule"),
    [
        ({"decision": "edit", "arguments": {"amount": 7000, "to": "Bob"}}, "edited_arguments"),
        ({"decision": "edit", "arguments": {"amount": 5}}, "edited_arguments"),
        ({"decision": "edit"}, "schema"),
        ({"decision": "approve", "arguments": EDITED}, "schema"),
        ({"decision": "approve", "shown": digest_of_arguments(EDITED)}, "shown"),
        ({"decision": "reject", "reason": "no", "shown": digest_of_arguments({})}, "shown"),
        ({"decision": "approve", "shown": "7"}, "schema"),
        ({"decision": "maybe"}, "schema"),
        ({"decision": "reject"}, "schema"),
        (True, "schema"),
    ],
    ids=str,
)
async def test_what_is_no_decision_on_these_arguments_lets_nothing_run(stage, approval, response, rule):
    refused = await refusal(stage, approval.redeem(response), ResponseInvalid)
    assert refused.rule == rule
    assert len((await approval.redeem({"decision": "approve"})).dispatch) == 1


@pytest.mark.parametrize(
    ("response", "text"),
    [
        ({"decision": "reject", "reason": "not to Bob"}, "not to Bob"),
        ({"decision": "reject", "reason": ""}, "none given"),
        ({"decision": "respond", "text": "Ask Anne first."}, "Ask Anne first."),
    ],
    ids=str,
)
async def test_declined_nothing_is_dispatched_and_the_denial_stands_on_the_call(approval, response, text):
    turned = await approval.redeem(response)
    assert turned.dispatch == ()
    assert text in contents(turned)["call_1"]
    assert contents(turned)["call_2"] == NOT_DISPATCHED
    with pytest.raises(InteractionConfigurationError, match="dispatch"):
        turned.with_results({"call_1": "moved 7"})


async def test_a_dispatch_keeps_its_key_and_arguments_in_every_recovery(stage, ledger, approval):
    first = await approval.redeem({"decision": "edit", "arguments": EDITED})
    named = {"pause_id": approval.pause_id, "axes": approval.axes}
    await ledger.capability.settle(SettleCommand(**named, fence=1, end="stalled"))
    async with stage.ledger() as other:
        second = await other.capability.recover(RecoverCommand(**named))
        assert second.dispatch == first.dispatch
        async with continuing(second) as going:
            going.with_results({"call_1": "moved 5"})
    assert topics(stage.rows())[-1] == "continued"


async def test_an_approval_answered_now_is_dispatched_later(ledger, approval):
    await approval.answer({"decision": "approve"})
    ledger.wait(days=30)
    assert (await approval.redeem(STORED)).dispatch[0].arguments == SHOWN


@pytest.mark.parametrize("decision", ["approve", "reject"])
async def test_nobody_decided_and_the_lapse_answer_does(ledger, decision):
    lapse = {"decision": "reject", "reason": "too late"} if decision == "reject" else {"decision": "approve"}
    approval = await asked(ledger, approve(closes_in=60, on_lapse=LapseAnswer(lapse)))
    ledger.wait(seconds=61)
    turned = await ledger.capability.recover(RecoverCommand(approval.pause_id, axes=approval.axes))
    assert len(turned.dispatch) == (decision == "approve")
    assert turned.outcome.answered_by is None
