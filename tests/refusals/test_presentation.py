"""`presentation_missing`, `presentation_stale`: an answer has to cite what its giver was shown, and not too long ago."""

import hashlib
from uuid import uuid4

import pytest
from pauseledger import (
    Actor,
    InteractionConfigurationError,
    Policy,
    PresentationMissing,
    PresentationStale,
    PresentCommand,
    ReissueCommand,
    RequestMissing,
    SessionMismatch,
    rendering_digest,
)
from pauseledger.infrastructure.stories import ask, asked, axes, refusal, topics

MARIA, TOM = Actor("maria"), Actor("tom")
PAGE = "<h1>Whose name?</h1>"


@pytest.fixture
async def question(ledger):
    await ledger.capability.govern("ask_user", Policy(name="seen", shown_within=600), by=Actor("carla"))
    return await asked(ledger)


async def shown(question, to=MARIA, rendering=PAGE, **fields):
    named = {"pause_id": question.pause_id, "axes": question.axes, **fields}
    return await question.ledger.capability.presented(PresentCommand(to=to, rendering=rendering, **named))


async def test_an_answer_cites_what_its_giver_was_shown(stage, ledger, question):
    other = await asked(ledger, ask(occurrence=1))
    cases = {
        "cites": [],
        "unknown": [uuid4()],
        "another_person": [(await shown(question, TOM)).id],
    }
    cases["both"] = [(await shown(question)).id, *cases["unknown"]]
    for rule, cites in cases.items():
        for attempt in (
            question.answer(answered_by=MARIA, cites=cites),
            question.redeem(answered_by=MARIA, cites=cites),
        ):
            refused = await refusal(stage, attempt, PresentationMissing)
            assert (refused.reason, refused.step, refused.axis) == ("presentation_missing", 4, "presentation")
            assert refused.rule == ("unknown" if rule == "both" else rule)
    for stray in ((await shown(other)).id, other.pause_id, question.pause_id):
        assert (
            await refusal(stage, question.answer(answered_by=MARIA, cites=[stray]), PresentationMissing)
        ).rule == "unknown"
    seen = await shown(question)
    turn = await question.redeem(answered_by=MARIA, cites=[seen.id])
    assert turn.outcome.answered_by == "maria"
    [answered] = [row for row in stage.rows(question.pause_id) if "answered" in row.topic]
    assert answered.header["cites"] == [str(seen.id)]
    assert [fact.NAME for fact in await ledger.story(question.pause_id)].count("pause.presented") == 1


async def test_what_was_seen_too_long_ago_is_stale_until_it_is_shown_again(stage, ledger, question):
    seen = await shown(question)
    ledger.wait(seconds=601)
    for attempt in (
        question.answer(answered_by=MARIA, cites=[seen.id]),
        question.redeem(answered_by=MARIA, cites=[seen.id]),
    ):
        refused = await refusal(stage, attempt, PresentationStale)
        assert (refused.reason, refused.step, refused.axis, refused.rule) == (
            "presentation_stale",
            4,
            "presentation",
            "shown_within",
        )
    again = await shown(question)
    assert (again.id, again.existing) == (seen.id, False)
    assert [row.version for row in stage.rows(seen.id)] == [1, 2]
    assert (await question.answer(answered_by=MARIA, cites=[seen.id])).state == "answered"


async def test_a_token_that_ended_the_earlier_ones_ends_what_was_seen_with_them(stage, ledger, question):
    seen = await shown(question)
    reminded = await ledger.capability.reissue(ReissueCommand(question.pause_id, axes=question.axes, reason="reminder"))
    assert reminded.existing
    minted = await ledger.capability.reissue(ReissueCommand(question.pause_id, axes=question.axes, ends_earlier=True))
    late = question.answer(answered_by=MARIA, cites=[seen.id], token=minted.token)
    assert (await refusal(stage, late, PresentationStale)).rule == "reissued"
    again = await shown(question)
    assert (again.id, again.existing) == (seen.id, False)
    assert (await question.answer(answered_by=MARIA, cites=[again.id], token=minted.token)).state == "answered"


async def test_a_forged_citation_of_another_request_is_stale(stage, ledger, question):
    seen = await shown(question)
    [row] = stage.rows(seen.id)
    stage.forge(row, lambda fact: fact.model_copy(update={"request_digest": "0" * 64}))
    assert (
        await refusal(stage, question.answer(answered_by=MARIA, cites=[seen.id]), PresentationStale)
    ).rule == "request"


async def test_one_stream_per_person_and_rendering_and_a_repeat_is_no_news(stage, ledger, question):
    seen = await shown(question, by=Actor("inbox", kind="service"))
    async with stage.ledger() as other:
        again = await shown(question.at(other))
    assert (again.id, again.existing, again.position) == (seen.id, True, seen.position)
    others = [await shown(question, TOM), await shown(question, rendering=PAGE.encode() + b"!")]
    assert len({seen.id, *(one.id for one in others)}) == 3
    assert (await shown(question, rendering=PAGE.encode())).id == seen.id
    rows = [row for row in stage.rows() if row.topic == "pause.presented@1"]
    assert [row.version for row in rows] == [1, 1, 1]
    header = rows[0].header
    assert (header["pause"], header["generation"]) == (str(question.pause_id), 0)
    assert header["request_digest"] == stage.rows(question.pause_id)[0].header["request"]["digest"]
    assert header["to"]["tag"] != header["by"]["tag"]
    assert topics(stage.rows(question.pause_id)) == ["paused"]
    told = await ledger.views.history.of_pause(question.axes.scope, question.pause_id, after=rows[-1].position)
    assert [one.what for one in told] == ["paused", "presented", "presented", "presented"]
    assert told[1].who == header["to"]["tag"]


async def test_the_digest_is_of_the_bytes_and_stands_beside_the_header_alone(stage, question):
    seen = await shown(question)
    digest = hashlib.sha256(PAGE.encode()).hexdigest()
    assert seen.digest == digest == rendering_digest(PAGE) == rendering_digest(PAGE.encode())
    [row] = stage.rows(seen.id)
    assert digest not in str(row.header)
    assert row.header["digest"]["size"] == len(digest)


async def test_a_presentation_states_the_axes_or_comes_from_an_operator(stage, ledger, question):
    await refusal(stage, shown(question, axes=axes(session_id="elsewhere")), SessionMismatch)
    await refusal(stage, shown(question, pause_id=uuid4()), RequestMissing)
    with pytest.raises(InteractionConfigurationError, match="axes"):
        await shown(question, axes=None)
    by_token = await shown(question, pause_id=None, envelope=question.envelope())
    assert by_token.pause_id == question.pause_id
    command = PresentCommand(question.pause_id, to=TOM, rendering=PAGE)
    seen = await ledger.operator(Actor("op")).presented(command)
    [row] = stage.rows(seen.id)
    assert row.header["by"] is not None


@pytest.mark.parametrize("wrong", [{"to": None}, {"to": "maria"}, {"rendering": ""}, {"rendering": "\ud800"}])
def test_nobody_and_nothing_are_not_presented(wrong):
    with pytest.raises(InteractionConfigurationError):
        PresentCommand(**{"to": MARIA, "rendering": PAGE, **wrong})


async def test_what_is_cited_are_ids(question):
    for wrong in (["no id"], [uuid4()] * 9, 7):
        with pytest.raises(InteractionConfigurationError, match="cites"):
            question.command(cites=wrong)
