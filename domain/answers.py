"""The built-in interactions, `ask_user` and `approval`. Their schemas are written by hand: digests never change."""

from collections.abc import Iterable
from typing import Any

from .errors import InteractionConfigurationError
from .facts import Decision
from .interactions import APPROVAL, ASK_USER, CompileSchema, Interaction, SchemaMismatch, prompt
from .strict_json import digest

_TEXT = {"type": "string", "minLength": 1}
_SHOWN = {"type": "string", "pattern": "^[0-9a-f]{64}$"}


def _closed(required: Iterable[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_OPTION = _closed(["label"], label=_TEXT, description={"type": "string"})
_QUESTION = _closed(
    ["question", "options"],
    id=_TEXT,
    question=_TEXT,
    header={"type": "string"},
    options={"type": "array", "items": _OPTION, "minItems": 2, "maxItems": 4},
    multi_select={"type": "boolean"},
    allow_other={"type": "boolean"},
)
ASK_USER_REQUEST = _closed(["questions"], questions={"type": "array", "items": _QUESTION, "minItems": 1, "maxItems": 4})
_ANSWER = _closed(
    ["question_id", "selections"],
    question_id=_TEXT,
    selections={"type": "array", "items": _TEXT, "maxItems": 4},
    other={"type": ["string", "null"], "minLength": 1},
)
ASK_USER_RESPONSE = _closed(["answers"], answers={"type": "array", "items": _ANSWER, "minItems": 1, "maxItems": 4})

APPROVAL_REQUEST = _closed(
    ["tool", "arguments"],
    tool=_TEXT,
    arguments={"type": "object"},
    schema={"type": "object"},
    reason={"type": "string"},
)
APPROVAL_RESPONSE = {
    "oneOf": [
        _closed(["decision"], decision={"const": "approve"}, shown=_SHOWN),
        _closed(["decision", "arguments"], decision={"const": "edit"}, arguments={"type": "object"}, shown=_SHOWN),
        _closed(["decision", "reason"], decision={"const": "reject"}, reason={"type": "string"}, shown=_SHOWN),
        _closed(["decision", "text"], decision={"const": "respond"}, text={"type": "string"}, shown=_SHOWN),
    ]
}

_QUESTION_ID = "/properties/questions/items/properties/id"
_LABEL = "/properties/questions/items/properties/options/items/properties/label"


def built_in(compile_schema: CompileSchema) -> tuple[Interaction, ...]:
    """Make the built-in interactions; `approval` compiles the schema that a request brings along."""
    return (
        Interaction(
            name=ASK_USER,
            request_schema=ASK_USER_REQUEST,
            response_schema=ASK_USER_RESPONSE,
            prepare_request=_with_ids,
            cross_check=_answers_fit,
            as_text=_answers_as_text,
        ),
        _approval(compile_schema),
    )


def digest_of_arguments(arguments: Any) -> str:
    """Digest a call's arguments: what `shown` cites, and what shown, edited and effective arguments are told apart by.

    SHA-256 over canonical JSON, lower-case hex.

    Raises:
        Unfit: the arguments cannot be carried.
    """
    return digest(arguments)


@prompt
def _with_ids(request: Any) -> Any:
    """Give every question an id: its own, or `q` and its place from 1."""
    questions = [
        {**question, "id": question.get("id", f"q{place}")} for place, question in enumerate(request["questions"], 1)
    ]
    if not _all_differ(question["id"] for question in questions):
        raise SchemaMismatch(_QUESTION_ID)
    if not all(_all_differ(option["label"] for option in question["options"]) for question in questions):
        raise SchemaMismatch(_LABEL)
    return {**request, "questions": questions}


def _all_differ(texts: Iterable[str]) -> bool:
    listed = list(texts)
    return len(set(listed)) == len(listed)


@prompt
def _answers_fit(request: Any, response: Any) -> str | None:
    """Hold the answers against the questions: each question once, and each as it may be answered."""
    questions = {question["id"]: question for question in request["questions"]}
    answered = [answer["question_id"] for answer in response["answers"]]
    if not questions.keys() >= set(answered):
        return "question_unknown"
    if not _all_differ(answered):
        return "question_answered_twice"
    if len(answered) < len(questions):
        return "question_left_out"
    found = (_answer_fits(questions[answer["question_id"]], answer) for answer in response["answers"])
    return next((word for word in found if word), None)


def _answer_fits(question: Any, answer: Any) -> str | None:
    """Text of one's own stands beside selections where several may be selected, and in their place where one may."""
    selections, other = answer["selections"], answer.get("other")
    given = len(selections) + (other is not None)
    if not {option["label"] for option in question["options"]}.issuperset(selections):
        return "label_unknown"
    if not _all_differ(selections):
        return "label_selected_twice"
    if other is not None and not question.get("allow_other", False):
        return "other_not_allowed"
    if given == 0:
        return "answer_empty"
    if given > 1 and not question.get("multi_select", False):
        return "more_than_one_selected"
    return None


def _answers_as_text(response: Any) -> str:
    """Write a line per answer, such as `q2: Red, Green; other: a bit of both`."""
    return "\n".join(f"{answer['question_id']}: {_answer_as_text(answer)}" for answer in response["answers"])


def _answer_as_text(answer: Any) -> str:
    selected, other = ", ".join(answer["selections"]), answer.get("other")
    return "; ".join(part for part in (selected, other and f"other: {other}") if part)


def _approval(compile_schema: CompileSchema) -> Interaction:
    def prepared(request: Any) -> Any:
        if "schema" in request and not compiles(request["schema"]):
            raise SchemaMismatch("/properties/schema")
        return request

    def fits(request: Any, response: Any) -> str | None:
        if "shown" in response and response["shown"] != digest_of_arguments(request["arguments"]):
            return "shown"
        if response["decision"] == "edit" and "schema" in request:
            try:
                compile_schema(request["schema"]).validate(response["arguments"])
            except SchemaMismatch:
                # Its pointer would name parts of the request, which is not told.
                return "edited_arguments"
        return None

    def compiles(schema: Any) -> bool:
        try:
            compile_schema(schema)
        except InteractionConfigurationError:
            return False
        return True

    return Interaction(
        name=APPROVAL,
        request_schema=APPROVAL_REQUEST,
        response_schema=APPROVAL_RESPONSE,
        prepare_request=prepared,
        cross_check=fits,
        as_text=_approval_as_text,
        decision=_decided,
        effective=_effective,
    )


def _decided(response: Any) -> Decision:
    decision: Decision = response["decision"]
    return decision


def _effective(request: Any, response: Any) -> Any:
    return {"approve": request["arguments"], "edit": response.get("arguments")}.get(response["decision"])


def _approval_as_text(response: Any) -> str:
    if response["decision"] == "reject":
        return f"A person rejected this call, and it was not run. Reason: {response['reason'] or 'none given'}"
    if response["decision"] == "respond":
        text: str = response["text"]
        return text
    return "A person let this call run."
