"""The page on authority, as it stands there: four eyes, two of three, and what must have been seen."""

import re
from dataclasses import fields
from pathlib import Path

import pytest
from pauseledger import (
    Actor,
    ActorNotAllowed,
    AskerMayNotAnswer,
    Policy,
    PresentationMissing,
    PresentationStale,
    QuorumOpen,
    rendering_digest,
)
from pauseledger.domain.errors import REFUSALS
from pauseledger.infrastructure.stories import STORED, Stage, approve, asked, refusal

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "authority.md").read_text()
ADMIN = Actor("carla", assurance="signed")
YES = {"decision": "approve"}


@pytest.fixture(scope="module")
def page():
    names = {}
    for snippet in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(snippet, names)
    return names


@pytest.fixture
def stage(tmp_path):
    return Stage("memory:", tmp_path / "keys")


def sure(name):
    return Actor(name, assurance="authenticated", method="oidc")


async def test_four_eyes_on_an_approval(page, stage):
    async with stage.ledger() as ledger:
        await page["want_four_eyes"](ledger, ADMIN)
        question = await asked(ledger, approve(asked_by=page["asked_for"]("maria")))
        await refusal(stage, question.redeem(YES, answered_by=sure("maria")), AskerMayNotAnswer)
        await refusal(stage, question.redeem(YES, answered_by=Actor("tom")), ActorNotAllowed)
        turn = await question.redeem(YES, answered_by=sure("tom"))
        assert [call.tool for call in turn.dispatch] == ["transfer"]


async def test_two_of_three(page, stage):
    async with stage.ledger() as ledger:
        await page["want_two_of_three"](ledger, ADMIN, ["anne", "bob", "carl"])
        question = await asked(ledger, approve())

        async def vote(decision, name):
            said = page["vote"](
                ledger, lambda given, by: question.command(given, answered_by=by), decision, Actor(name)
            )
            receipt = await said
            return receipt.state, receipt.missing

        await refusal(stage, vote(YES, "eve"), ActorNotAllowed)
        assert await vote(YES, "anne") == ("open", 1)
        assert await vote({"decision": "reject", "reason": "too dear"}, "bob") == ("open", 1)
        await refusal(stage, question.redeem(STORED), QuorumOpen)
        assert await vote(YES, "carl") == ("answered", 0)
        turn = await question.redeem(STORED)
        assert [call.tool for call in turn.dispatch] == ["transfer"]


async def test_it_must_have_been_seen(page, stage):
    async with stage.ledger() as ledger:
        await page["want_it_seen"](ledger, ADMIN)
        question, maria = await asked(ledger, approve()), Actor("maria")
        await refusal(stage, question.redeem(YES, answered_by=maria), PresentationMissing)
        html = "<p>Transfer 7 to Bob?</p>"
        seen = await page["show"](ledger, question.pause_id, question.axes, maria, html)
        ledger.wait(seconds=15 * 60 + 1)
        await refusal(stage, question.redeem(YES, answered_by=maria, cites=[seen]), PresentationStale)
        assert await page["show"](ledger, question.pause_id, question.axes, maria, html) == seen
        assert (await question.redeem(YES, answered_by=maria, cites=[seen])).fence == 1
        [shown, again] = [fact for fact in await ledger.story(question.pause_id) if fact.NAME == "pause.presented"]
        assert shown.digest.clear() == again.digest.clear() == rendering_digest(html).encode()


def test_the_page_names_every_rule_and_every_reason():

    for field in fields(Policy):
        assert f"`{field.name}`" in PAGE or field.name == "name", field.name
    for reason, kind in REFUSALS.items():
        assert kind.axis not in {"actor", "policy", "presentation"} or f"`{reason}`" in PAGE, reason
