"""What cannot be carried is rejected by name when pausing; what can be carried comes back as it was, on every store."""

import json
import traceback
import unicodedata

import pytest
from pauseledger import Interaction, PauseRejected, ResponseInvalid, Turn
from pauseledger.infrastructure.stories import (
    FORMAT,
    Stage,
    asked,
    axes,
    contents,
    refusal,
    turn,
)
from pydantic import BaseModel


@pytest.fixture
def stage(store_url, tmp_path):
    return Stage(store_url, tmp_path / "keys")


def free():
    """An interaction that takes anything."""
    return Interaction(name="free", request_schema={}, response_schema={}, as_text=json.dumps)


@pytest.fixture
async def ledger(stage):
    async with stage.ledger(interactions=[free()]) as opened:
        yield opened


@pytest.fixture
async def in_memory(tmp_path):
    """What is rejected when it comes in reaches no store, so one is enough."""
    async with Stage("memory:", tmp_path / "keys").ledger(interactions=[free()]) as opened:
        yield opened


def deep(levels, bottom="bottom"):
    for _ in range(levels):
        bottom = [bottom]
    return bottom


VALUES = {
    "nan": float("nan"),
    "infinity": float("inf"),
    "minus infinity": float("-inf"),
    "lone_surrogate": "\udfff",
    "lone_surrogate in a key": {"\ud800": 1},
    "duplicate_key": {1: "a", "1": "b"},
    "duplicate_key of null": {None: "a", "null": "b"},
    "too_deep": deep(65),
    "number_too_long": -(10**400),
    "not_json": {"a": b"bytes"},
}


def named(case):
    return {"minus infinity": "infinity"}.get(case, case.split()[0])


@pytest.mark.parametrize("case", VALUES)
async def test_a_request_that_cannot_be_carried_is_rejected_by_name(in_memory, case):
    with pytest.raises(PauseRejected) as caught:
        await asked(in_memory, interaction="free", request={"n": VALUES[case]})
    assert caught.value.name == named(case)
    assert in_memory.recorder.max_notification_id() is None


@pytest.mark.parametrize("case", VALUES)
async def test_so_is_a_turn(in_memory, case):
    stopped = turn()
    stopped.messages[0]["extra"] = VALUES[case]
    with pytest.raises(PauseRejected) as caught:
        await asked(in_memory, turn=stopped)
    assert caught.value.name == named(case)
    assert in_memory.recorder.max_notification_id() is None


TEXTS = {
    "nan": b'[{"role": "user", "content": NaN}]',
    "infinity": b"[1e999]",
    "lone_surrogate": rb'["\ud800"]',
    "duplicate_key": b'[{"role": "user", "role": "user"}]',
    "too_deep": b"[" * 65 + b"]" * 65,
    "number_too_long": b"[" + b"9" * 401 + b"]",
    "not_utf8": b'["\xff"]',
    "byte_order_mark": b"\xef\xbb\xbf[]",
    "not_json": b"[",
    "turn_too_large": b'["' + b"x" * (4 << 20) + b'"]',
}


@pytest.mark.parametrize("name", TEXTS)
async def test_so_is_a_turn_given_as_bytes(in_memory, name):
    with pytest.raises(PauseRejected) as caught:
        await asked(in_memory, turn=Turn(FORMAT, TEXTS[name]))
    assert caught.value.name == name
    assert in_memory.recorder.max_notification_id() is None


async def test_the_sizes_are_exact(stage, ledger):
    room = 256 * 1024 - len(b'{"t":""}')
    with pytest.raises(PauseRejected) as caught:
        await asked(ledger, interaction="free", request={"t": "x" * (room + 1)})
    assert caught.value.name == "request_too_large"
    largest = await asked(ledger, interaction="free", request={"t": "x" * room})
    await refusal(stage, largest.redeem("y" * (256 * 1024 - 1)), ResponseInvalid)
    response = "y" * (256 * 1024 - 2)
    assert (await largest.redeem(response)).outcome.response == response


async def test_a_turn_of_four_mebibytes_goes_there_and_back(stage, ledger):
    shell = len(json.dumps(turn(said="").messages, separators=(",", ":")))
    said = "x" * ((4 << 20) - shell)
    question = await asked(ledger, turn=turn(said=said))
    assert (await question.redeem()).history[0]["content"] == said
    with pytest.raises(PauseRejected) as caught:
        await asked(ledger, turn=turn(said=said + "x"))
    assert caught.value.name == "turn_too_large"


async def test_the_deepest_and_the_longest_are_carried(stage, ledger):
    request = {"deep": deep(63), "long": 10**400 - 1}
    question = await asked(ledger, interaction="free", request=request)
    assert (await question.redeem(request)).outcome.request == request


CHOKING = {
    "a null character": "a\x00b",
    "bidi controls": "\u202eevil\u2066\u2069\u202c",
    "composed": unicodedata.normalize("NFC", "Ångström é"),
    "decomposed": unicodedata.normalize("NFD", "Ångström é"),
    "emoji": "👩\u200d👩\u200d👧",
    "separators": "\u2028\u2029\x85\x1f",
    "the store's own markup": 'PLF1 {"segment":0,"stored":9,"digest":"0","comp":"zstd"}',
}


@pytest.mark.parametrize("text", CHOKING.values(), ids=CHOKING)
async def test_text_that_stores_choke_on_is_carried_unchanged(stage, ledger, text):
    request = {"questions": [{"question": text, "options": [{"label": text}, {"label": "no"}]}]}
    stated = axes(session_id=f"s{text}", run_id=f"r{text}")
    question = await asked(ledger, request=request, turn=turn(said=text), axes=stated)
    async with stage.ledger() as other:
        answer = {"answers": [{"question_id": "q1", "selections": [text]}]}
        turned = await question.at(other).redeem(answer)
    assert turned.outcome.request["questions"][0]["question"] == text
    assert turned.outcome.response == answer
    assert (turned.session_id, turned.history[0]["content"]) == (stated.session_id, text)
    assert contents(turned) == {"call_1": f"q1: {text}"}


async def test_composed_and_decomposed_are_different_texts(stage, ledger):
    composed, decomposed = CHOKING["composed"], CHOKING["decomposed"]
    await asked(ledger, axes=axes(run_id=composed))
    assert not (await asked(ledger, axes=axes(run_id=decomposed))).receipt.existing
    both = {composed: 1, decomposed: 2}
    question = await asked(ledger, interaction="free", request=both)
    assert (await question.redeem(both)).outcome.response == both


MARKUP = {"segment": 0, "media_type": "x", "size": 1, "stored": 1, "digest": "0" * 64, "comp": "zstd", "cipher": "none"}


async def test_user_data_may_hold_any_key_without_being_taken_for_markup(stage, ledger):
    data = {"__class__": "os.system", "$ref": "#/", "pause": MARKUP, "content": [MARKUP], "": None}
    stopped = turn(said=json.dumps(MARKUP))
    stopped.messages[0]["content_record"] = MARKUP
    question = await asked(ledger, interaction="free", request=data, turn=stopped)
    turned = await question.redeem(data)
    assert (turned.outcome.request, turned.outcome.response) == (data, data)
    assert turned.history[0]["content_record"] == MARKUP


def shuffled(value):
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in sorted(value, reverse=True)}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


async def test_the_order_of_keys_never_matters(stage, ledger):
    request = {"z": {"b": [1, {"y": 1, "x": 2}], "a": None}, "a": True}
    first = await asked(ledger, interaction="free", request=request)
    assert (await asked(ledger, interaction="free", request=shuffled(request))).receipt.existing
    await first.answer(request)
    assert (await first.answer(shuffled(request))).position is None


@pytest.mark.parametrize(
    ("one", "other"), [({"a": None}, {}), ([1], [1.0]), ({"a": 0.0}, {"a": -0.0}), ([1, 2], [2, 1])], ids=str
)
async def test_what_differs_differs(stage, ledger, one, other):
    question = await asked(ledger, interaction="free", request=one)
    with pytest.raises(Exception, match="another request"):
        await asked(ledger, interaction="free", request=other)
    await question.answer(one)
    with pytest.raises(Exception, match="already_answered"):
        await question.answer(other)


async def test_numbers_come_back_as_they_were(stage, ledger):
    numbers = [2**53 + 1, -(2**70), 0.1, 1e300, -0.0, 1, 1.0]
    question = await asked(ledger, interaction="free", request=numbers)
    response = (await question.redeem(numbers)).outcome.response
    assert [repr(number) for number in response] == [repr(number) for number in numbers]


SECRET = "DE02-secret"


class Leaky(Exception):
    pass


def leak(request):
    raise Leaky(f"cannot prepare {request}")


async def test_what_a_hosts_own_rule_raises_when_pausing_tells_nothing_of_the_request(stage, caplog):
    broken = Interaction(name="broken", request_schema={}, response_schema={}, as_text=str, prepare_request=leak)
    async with stage.ledger(interactions=[broken]) as ledger:
        with caplog.at_level("INFO"), pytest.raises(PauseRejected, match="request_invalid") as caught:
            await asked(ledger, interaction="broken", request={"iban": SECRET})
    assert SECRET not in "".join(traceback.format_exception(caught.value)) + caplog.text
    assert "Leaky" in caplog.text


async def test_requests_may_be_models(stage, ledger):
    class Option(BaseModel):
        label: str
        description: str | None = None

    class Question(BaseModel):
        question: str
        options: list[Option]

    class Request(BaseModel):
        questions: list[Question]

    model = Request(questions=[Question(question="Whose?", options=[Option(label="Anne"), Option(label="Bob")])])
    question = await asked(ledger, request=model)
    assert (await question.redeem()).outcome.request["questions"][0]["options"][0] == {"label": "Anne"}
