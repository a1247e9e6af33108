"""Interactions: the registry, `ask_user`, `approval`, and what comes of a response."""

import dataclasses
import hashlib

import pytest
from pauseledger.domain import answers
from pauseledger.domain.answers import built_in, digest_of_arguments
from pauseledger.domain.errors import InteractionConfigurationError
from pauseledger.domain.interactions import (
    APPROVAL,
    ASK_USER,
    AskUserAnsweredEvent,
    Interaction,
    Interactions,
    Objection,
    SchemaMismatch,
)
from pauseledger.domain.strict_json import canonical
from pauseledger.infrastructure.schemas import compile_schema
from pydantic import ValidationError


def known():
    return Interactions(compile_schema, built_in(compile_schema))


def ask_user():
    return known().of(ASK_USER, 1)


def approval():
    return known().of(APPROVAL, 1)


def made(**fields):
    defaults = {"name": "pick", "request_schema": {}, "response_schema": {"type": "integer"}, "as_text": str}
    return Interaction(**{**defaults, **fields})


def registered(**fields):
    interaction = made(**fields)
    return Interactions(compile_schema, [interaction]).of(interaction.name, interaction.revision)


def question(**fields):
    options = [{"label": "Red"}, {"label": "Green", "description": "like grass"}, {"label": "Blue"}]
    return {"question": "Which colour?", "options": options, **fields}


def rule_of(call, *args):
    with pytest.raises(Objection) as caught:
        call(*args)
    return caught.value.rule


# --- the registry ---


def test_a_taken_name_is_a_configuration_error_and_the_first_stays():
    interactions = known()
    first = interactions.of(ASK_USER, 1)
    with pytest.raises(InteractionConfigurationError):
        interactions.register(made(name=ASK_USER))
    assert interactions.of(ASK_USER, 1) is first


def test_pauses_keep_their_revision_and_new_ones_take_the_newest():
    interactions = Interactions(compile_schema, [made(revision=2), made(revision=10), made(revision=1)])
    assert interactions.newest("pick").interaction.revision == 10
    assert interactions.of("pick", 2).interaction.revision == 2
    assert interactions.of("pick", 3) is None
    assert interactions.newest("other") is None


@pytest.mark.parametrize("name", ["", "A", "a b", "a" * 65, "a\n", "é", None, 3])
def test_a_name_that_cannot_be_stored_is_a_configuration_error(name):
    with pytest.raises(InteractionConfigurationError):
        made(name=name)


@pytest.mark.parametrize("revision", [0, -1, True, 1.0, "1", None])
def test_a_revision_counts_from_one(revision):
    with pytest.raises(InteractionConfigurationError):
        made(revision=revision)


def test_a_schema_that_is_none_is_a_configuration_error():
    with pytest.raises(InteractionConfigurationError):
        Interactions(compile_schema, [made(response_schema={"type": "nope"})])


def test_an_interaction_is_frozen_and_shows_no_schema():
    interaction = made(response_schema={"title": "hidden"})
    with pytest.raises(dataclasses.FrozenInstanceError):
        interaction.name = "other"
    assert "hidden" not in repr(interaction)


# --- a host's own interaction ---


def test_a_response_that_fits_answers():
    verdict = registered(cross_check=lambda request, response: None).judge({}, 7)
    assert (verdict.response, verdict.decision, verdict.effective) == (7, "answer", None)


def test_an_invalid_answer_first_does_not_poison_the_next():
    pick = registered(cross_check=lambda request, response: None if response in request else "not_offered")
    with pytest.raises(SchemaMismatch) as caught:
        pick.judge([7], "seven")
    assert (caught.value.rule, caught.value.pointer) == ("schema", "/type")
    assert rule_of(pick.judge, [7], 8) == "not_offered"
    assert pick.judge([7], 7).response == 7


TOOL = {"tool": "deploy"}


def test_a_rule_that_cannot_be_evaluated_lets_nothing_through():
    def broken(*given):
        raise KeyError("secret")

    for field in ("cross_check", "decision", "as_text"):
        with pytest.raises(Objection) as caught:
            registered(**{field: broken}).judge({}, 7)
        assert caught.value.rule == field
        assert isinstance(caught.value.cause, KeyError)
        assert caught.value.__context__ is None
        assert "secret" not in str(caught.value)
    assert rule_of(registered(decision=lambda r: "approve", effective=broken).judge, TOOL, 7) == "effective"
    assert rule_of(registered(prepare_request=broken).ask, {}) == "prepare_request"


@pytest.mark.parametrize("found", [False, "", 0, "free text with the answer in it", "x" * 65, ["a"], "/a b"])
def test_only_none_means_fine_and_free_text_is_not_told(found):
    assert rule_of(registered(cross_check=lambda request, response: found).judge, {}, 7) == "cross_check"


def test_words_and_pointers_are_told():
    assert rule_of(registered(cross_check=lambda request, response: "too_many").judge, {}, 7) == "too_many"
    assert rule_of(registered(cross_check=lambda request, response: "/properties/a").judge, {}, 7) == "/properties/a"


def test_words_that_cannot_be_kept_are_refused_before_the_answer_is():
    assert rule_of(registered(as_text=lambda response: response).judge, {}, 7) == "as_text"
    assert rule_of(registered(as_text=lambda response: "\ud800").judge, {}, 7) == "as_text"
    assert rule_of(registered(decision=lambda response: "maybe").judge, {}, 7) == "decision"
    edits = registered(decision=lambda response: "edit", effective=lambda request, response: {1: 0, "1": 0})
    assert rule_of(edits.judge, TOOL, 7) == "effective"


@pytest.mark.parametrize("request_", [{}, {"tool": 7}, [], "tool"])
def test_a_call_that_names_no_tool_cannot_be_let_through(request_):
    lets = registered(decision=lambda response: "approve", effective=lambda request, response: {})
    assert rule_of(lets.judge, request_, 7) == "tool"


def test_a_prepared_request_is_validated_again():
    pick = registered(request_schema={"maxProperties": 1}, prepare_request=lambda request: {**request, "b": 1, "c": 2})
    with pytest.raises(SchemaMismatch):
        pick.ask({})


# --- ask_user ---


def test_ids_left_out_are_filled_in_by_place():
    asked = ask_user().ask({"questions": [question(), question(id="size"), question()]})
    assert [q["id"] for q in asked["questions"]] == ["q1", "size", "q3"]
    assert "multi_select" not in asked["questions"][0]
    assert ask_user().ask(asked) == asked


@pytest.mark.parametrize(
    ("questions", "pointer"),
    [
        ([question(id="q2"), question()], "/properties/questions/items/properties/id"),
        ([question(id="a"), question(id="a")], "/properties/questions/items/properties/id"),
        ([question(id="")], "/properties/questions/items/properties/id/minLength"),
        ([], "/properties/questions/minItems"),
        ([question()] * 5, "/properties/questions/maxItems"),
        ([question(options=[{"label": "a"}])], "/properties/questions/items/properties/options/minItems"),
        (
            [question(options=[{"label": c} for c in "abcde"])],
            "/properties/questions/items/properties/options/maxItems",
        ),
        (
            [question(options=[{"label": "a"}, {"label": "a", "description": "b"}])],
            "/properties/questions/items/properties/options/items/properties/label",
        ),
        ([question(surprise=1)], "/properties/questions/items/additionalProperties"),
        ([question(multi_select=None)], "/properties/questions/items/properties/multi_select/type"),
    ],
)
def test_a_question_that_cannot_be_asked_says_where(questions, pointer):
    with pytest.raises(SchemaMismatch) as caught:
        ask_user().ask({"questions": questions})
    assert caught.value.pointer == pointer


ASKED = {
    "questions": [
        question(id="q1"),
        question(id="q2", multi_select=True, allow_other=True),
        question(id="q3", allow_other=True),
    ]
}
FITS = {
    "q1": {"selections": ["Blue"]},
    "q2": {"selections": ["Red", "Green"], "other": "a bit of both"},
    "q3": {"selections": [], "other": "mauve"},
}


def answered(**changes):
    merged = {**FITS, **changes}
    return {"answers": [{"question_id": key, **answer} for key, answer in merged.items() if answer is not None]}


def test_answers_that_fit_read_as_a_line_each():
    verdict = ask_user().judge(ASKED, answered(q1={"selections": ["Blue"], "other": None}))
    assert verdict.decision == "answer"
    text = ask_user().interaction.as_text(verdict.response)
    assert text == "q1: Blue\nq2: Red, Green; other: a bit of both\nq3: other: mauve"


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"q1": {"selections": ["Mauve"]}}, "label_unknown"),
        ({"q1": {"selections": ["blue"]}}, "label_unknown"),
        ({"q1": {"selections": ["Red", "Blue"]}}, "more_than_one_selected"),
        ({"q3": {"selections": ["Red"], "other": "mauve"}}, "more_than_one_selected"),
        ({"q2": {"selections": ["Red", "Red"]}}, "label_selected_twice"),
        ({"q1": {"selections": ["Blue", "Blue"]}}, "label_selected_twice"),
        ({"q1": {"selections": [], "other": "mauve"}}, "other_not_allowed"),
        ({"q1": {"selections": []}}, "answer_empty"),
        ({"q2": {"selections": [], "other": None}}, "answer_empty"),
        ({"q2": None}, "question_left_out"),
        ({"q9": {"selections": ["Red"]}}, "question_unknown"),
        ({"q3": {"selections": [], "other": ""}}, "schema"),
        ({"q1": {"selections": "Blue"}}, "schema"),
        ({"q1": {"selections": ["Blue"], "note": "x"}}, "schema"),
    ],
)
def test_answers_that_do_not_fit_are_refused_by_name(changes, rule):
    assert rule_of(ask_user().judge, ASKED, answered(**changes)) == rule


def test_a_question_answered_twice_is_refused():
    twice = answered()
    twice["answers"][1] = twice["answers"][0]
    assert rule_of(ask_user().judge, ASKED, twice) == "question_answered_twice"


def test_the_wrong_kind_of_answer_is_refused_by_either():
    assert rule_of(ask_user().judge, ASKED, {"decision": "approve"}) == "schema"
    assert rule_of(approval().judge, {"tool": "t", "arguments": {}}, answered()) == "schema"


def test_composed_and_decomposed_labels_are_two_labels_and_nul_is_carried():
    options = [{"label": "caf\u00e9"}, {"label": "cafe\u0301"}, {"label": "\x00\u202e"}]
    asked = ask_user().ask({"questions": [question(options=options)]})
    for option in options:
        answer = {"answers": [{"question_id": "q1", "selections": [option["label"]]}]}
        assert ask_user().judge(asked, answer).response == answer


def test_the_answered_event_is_frozen_and_takes_a_call_without_id():
    event = AskUserAnsweredEvent(
        run_id="r",
        session_id="s",
        tool_call_id=None,
        selected_labels=["a"],
        has_other=False,
        time_to_answer_seconds=1.5,
    )
    with pytest.raises(ValidationError):
        event.run_id = "other"


# --- approval ---

ARGUMENTS = {"order": 7, "amount": 2**53 + 1}
SCHEMA = {"type": "object", "properties": {"amount": {"type": "integer", "maximum": 10}}, "required": ["amount"]}
GATED = {"tool": "refund", "arguments": ARGUMENTS, "schema": SCHEMA, "reason": "over the limit"}


@pytest.mark.parametrize(
    ("response", "effective", "text"),
    [
        ({"decision": "approve"}, ARGUMENTS, None),
        ({"decision": "edit", "arguments": {"amount": 3}}, {"amount": 3}, None),
        ({"decision": "reject", "reason": "too much"}, None, "too much"),
        ({"decision": "respond", "text": "ask me tomorrow"}, None, "ask me tomorrow"),
    ],
)
def test_each_decision_says_what_the_call_runs_with_or_what_is_put_on_it(response, effective, text):
    for cited in ({}, {"shown": digest_of_arguments(ARGUMENTS)}):
        verdict = approval().judge(GATED, {**response, **cited})
        assert (verdict.decision, verdict.effective) == (response["decision"], effective)
        spelled = approval().interaction.as_text(verdict.response)
        assert isinstance(spelled, str)
        assert text is None or text in spelled


def test_a_declined_call_has_no_arguments_to_run_with():
    assert approval().interaction.effective(GATED, {"decision": "reject", "reason": ""}) is None
    assert approval().interaction.as_text({"decision": "respond", "text": "just this"}) == "just this"


def test_an_answer_that_cites_other_arguments_than_were_asked_for_is_refused():
    stale = digest_of_arguments({**ARGUMENTS, "amount": 2**53})
    for decision in ({"decision": "approve"}, {"decision": "reject", "reason": "no"}):
        assert rule_of(approval().judge, GATED, {**decision, "shown": stale}) == "shown"
    assert rule_of(approval().judge, GATED, {"decision": "approve", "shown": stale + "\n"}) == "schema"
    assert rule_of(approval().judge, GATED, {"decision": "approve", "shown": stale.upper()}) == "schema"


def test_the_digest_is_over_canonical_json_and_key_order_never_matters():
    assert digest_of_arguments({"b": [1], "a": 1.0}) == hashlib.sha256(b'{"a":1.0,"b":[1]}').hexdigest()
    assert digest_of_arguments({"a": 1.0, "b": [1]}) == digest_of_arguments({"b": [1], "a": 1.0})
    assert digest_of_arguments({"a": None}) != digest_of_arguments({})


def test_edited_arguments_are_held_against_the_schema_of_the_request():
    for arguments in ({"amount": 11}, {}, {"amount": "3"}):
        with pytest.raises(Objection) as caught:
            approval().judge(GATED, {"decision": "edit", "arguments": arguments})
        assert (caught.value.rule, caught.value.pointer) == ("edited_arguments", None)
    without = {"tool": "refund", "arguments": ARGUMENTS}
    assert approval().judge(without, {"decision": "edit", "arguments": {}}).effective == {}


@pytest.mark.parametrize(
    "response",
    [
        {"decision": "maybe"},
        {"decision": "approve", "arguments": {}},
        {"decision": "edit"},
        {"decision": "edit", "arguments": [1]},
        {"decision": "reject"},
        {"decision": "respond", "text": None},
        {"decision": "approve", "reason": "fine"},
        {},
        None,
    ],
)
def test_a_decision_of_another_shape_is_refused(response):
    assert rule_of(approval().judge, GATED, response) == "schema"


@pytest.mark.parametrize(
    "request_",
    [
        {"tool": "refund"},
        {"tool": "", "arguments": {}},
        {"tool": "refund", "arguments": "{}"},
        {"tool": "refund", "arguments": {}, "extra": 1},
        {"tool": "refund", "arguments": {}, "reason": None},
        {"tool": "refund", "arguments": {}, "schema": {"type": "nope"}},
        {"tool": "refund", "arguments": {}, "schema": {"$ref": "https://example.com/schema"}},
        {"tool": "refund", "arguments": {}, "schema": True},
    ],
)
def test_an_approval_that_could_not_be_answered_is_not_asked(request_):
    with pytest.raises(SchemaMismatch):
        approval().ask(request_)
    assert approval().ask(GATED) == GATED


def test_the_digests_of_the_built_in_schemas_never_change():
    digests = [schema.digest for kind in (ask_user(), approval()) for schema in (kind.request, kind.response)]
    assert digests == [
        "2ef78c01da8223e94f7895bd98d9a07ccafb2f995c21b8c5d42faddf74e0b25f",
        "ecdcba6370e279e23b910b8d23f733a0c85b84b2c64348a0ba27df6aacb66fc0",
        "dae507e26aeb6bc6b6e25708b70fedf5f50f1727742c6762fa784301e50d0621",
        "8f26d66c3e220780e07a80a7e4efdc7e89f127cc6ad049de72310de72c70fa88",
    ]
    assert digests[0] == hashlib.sha256(canonical(answers.ASK_USER_REQUEST, limit=10_000)).hexdigest()


async def _later(response):
    return str(response)


class _Later:
    async def __call__(self, response):
        return str(response)


@pytest.mark.parametrize("rule", ["as_text", "cross_check", "decision", "effective", "prepare_request"])
@pytest.mark.parametrize("function", [_later, _Later(), "str", 7])
def test_a_rule_that_cannot_be_called_at_once_is_a_configuration_error(rule, function):
    with pytest.raises(InteractionConfigurationError, match=f"{rule} of 'pick'"):
        made(**{rule: function})


def test_an_interaction_without_words_for_its_answers_is_a_configuration_error():
    with pytest.raises(InteractionConfigurationError, match="as_text of 'pick' is no function"):
        made(as_text=None)
