"""`token_forged`: our prefix, but not our seal. It names no pause, so nothing is written."""

import logging

import pytest
from pauseledger import AnswerCommand, InteractionConfigurationError, NotRedeemable, TokenForged
from pauseledger.infrastructure.seal import ALPHABET, TOKEN_CHARS
from pauseledger.infrastructure.stories import ANSWER, asked


def altered(token, place):
    other = ALPHABET[(ALPHABET.index(token[place].encode()) + 1) % len(ALPHABET)]
    return token[:place] + chr(other) + token[place + 1 :]


MANGLED = {
    "one character": lambda token: altered(token, 40),
    "truncated": lambda token: token[:-1],
    "extended": lambda token: token + "0",
    "cut to its prefix": lambda token: token[:4],
    "another version": lambda token: "plp2" + token[4:],
    "lower-cased": str.lower,
    "a key id like a path": lambda token: "plp1" + "../../etc/passwd" + token[20:],
    "reversed": lambda token: token[:4] + token[:3:-1],
}


@pytest.mark.parametrize("mangle", MANGLED.values(), ids=MANGLED)
async def test_a_mangled_token_is_forged_and_writes_nothing(stage, ledger, question, mangle, caplog):
    before = stage.rows()
    with caplog.at_level(logging.INFO, "pauseledger"), pytest.raises(TokenForged) as caught:
        await ledger.redeem(mangle(question.token), ANSWER, axes=question.axes)
    refused = caught.value
    assert (refused.reason, refused.step, refused.axis, refused.pause_id) == ("token_forged", 1, "token", None)
    assert not refused.recorded
    assert not refused.retryable
    assert stage.rows() == before
    assert "token_forged" in caplog.text
    assert ledger.refused == {"token_forged": 1}
    assert (await question.redeem()).fence == 1


async def test_no_character_of_a_token_can_be_changed(stage, ledger, question):
    for place in range(TOKEN_CHARS):
        with pytest.raises((TokenForged, NotRedeemable)) as caught:
            await ledger.redeem(altered(question.token, place), ANSWER, axes=question.axes)
        assert isinstance(caught.value, NotRedeemable) == (place < 3)
    assert stage.count() == 1


async def test_what_mail_and_urls_do_to_a_token_is_tolerated(question):
    wrapped = f" \t{question.token[:76]}\r\n{question.token[76:152]}\n{question.token[152:]}\r\n "
    turn = await question.redeem(token=wrapped)
    assert turn.outcome.pause_id == question.pause_id


@pytest.mark.parametrize("text", ["", " ", "eyJhbGciOi", "plpgsql", "PLP1" + "a" * 197])
async def test_a_string_without_our_prefix_is_not_ours_and_no_refusal(stage, ledger, text):
    with pytest.raises(NotRedeemable) as caught:
        await ledger.redeem(text, ANSWER, axes=None)
    assert caught.value.reason == "not_a_capability_token"
    assert stage.rows() == []


async def test_a_token_of_another_audience_is_forged(stage, question):
    async with stage.ledger(audience="staging") as other:
        with pytest.raises(TokenForged):
            await other.redeem(question.token, ANSWER, axes=question.axes)


async def test_an_envelope_cannot_be_made_from_a_token_by_hand(ledger, question):
    command = AnswerCommand(question.token, ANSWER, *question.axes.__dict__.values())
    with pytest.raises(InteractionConfigurationError, match="envelope"):
        await ledger.capability.answer(command)


async def test_a_token_of_another_ledger_is_forged(stage, ledger, tmp_path):
    question = await asked(ledger)
    elsewhere = type(stage)("memory:", tmp_path / "others")
    async with elsewhere.ledger() as other:
        with pytest.raises(TokenForged):
            await other.redeem(question.token, ANSWER, axes=question.axes)
    assert elsewhere.rows() == []
