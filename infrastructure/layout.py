"""Headers exactly as this package lays them out: what views need is cut out of the text, and nothing is parsed.

A pattern takes a header whole, so that it is strict JSON of known names in a known order, each once, and what was cut
out is what a parser would read. Anything else (escapes, control characters, other fields) is left to the parser, and
so is what is not ASCII: tables of so few characters are several times as fast.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from ..domain.facts import Answered, Consumed, Paused, Refused
from ..projections.said import Answer, Consumption, Question, Refusal

Hear = Callable[[str], Any]

_HEX = "[0-9a-f]"
_UUID = f"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
_ONE_UUID = f'"({_UUID})"'
#: A text without escapes: what stands between the quotes is what it says, and every encoder spells it alike.
_TEXT = r"[ !#-\[\]-~]*+"
_ANY, _CUT = f'"{_TEXT}"', f'"({_TEXT})"'
_NUMBER = "(?:0|[1-9][0-9]{0,15})"
_FLAG = "(?:true|false)"


def _or_null(pattern: str) -> str:
    return f"(?:null|{pattern})"


def _list(pattern: str) -> str:
    return rf"\[(?:{pattern}(?:,{pattern})*)?\]"


def _object(**fields: str) -> str:
    return r"\{" + ",".join(f'"{name}":{pattern}' for name, pattern in fields.items()) + r"\}"


def _rest(**fields: str) -> re.Pattern[str]:
    """Spell what follows the front of a header, the fields that every fact has among it."""
    every = {"attempt": _ONE_UUID, "writer": _ANY, "trace": _or_null(_ANY), **fields}
    return re.compile("".join(f',"{name}":{pattern}' for name, pattern in every.items()) + r"\}")


_CONTENT = _object(
    segment=_NUMBER, media_type=_ANY, size=_NUMBER, stored=_NUMBER, digest=_ANY, comp=_ANY, cipher=_ANY,
    key=_or_null(_ANY),
)  # fmt: skip
_CONTENT_OR_NULL = _or_null(_CONTENT)
_ACTOR_OR_NULL, _ITS_TAG = (
    _or_null(_object(
        tag=tag, kind=_ANY, assurance=_ANY, method=_or_null(_ANY), authenticated_at=_or_null(_ANY),
        on_behalf_of=_or_null(_ANY), who=_CONTENT_OR_NULL,
    ))
    for tag in (_ANY, _CUT)
)  # fmt: skip
_TOKEN_OR_NULL = _or_null(_object(kid=_ANY, generation=_NUMBER, tag=_ANY))
_QUORUM_OR_NULL = _or_null(_object(name=_ANY, revision=_NUMBER, digest=_ANY, quorum=f"({_NUMBER})"))
_CLAIM_OR_NULL = _or_null(_object(fence=f"({_NUMBER})", holder=_CUT, lease_seconds=f"({_NUMBER})"))

_CALL = _object(call_id=_CUT, pause=_or_null(_ONE_UUID), done=_FLAG)
_FURTHER_CALLS = "((?:," + _object(call_id=_ANY, pause=_or_null(f'"{_UUID}"'), done=_FLAG) + ")*)"
_PAUSED = _rest(
    session_id=_CUT,
    run_id=_CUT,
    call_id=_CUT,
    call=_object(index=_NUMBER, origin=_ANY, tool=_or_null(_CUT)),
    interaction=_object(name=_CUT, revision=f"({_NUMBER})", request_schema=_ANY, response_schema=_ANY),
    request=_CONTENT,
    turn=_object(
        format=_ANY,
        digest=_ANY,
        content=_CONTENT_OR_NULL,
        checkpoint=_or_null(_object(store=_ANY, locator=_ANY, version=_ANY)),
    ),
    round=_object(id=_ANY, lead=_ONE_UUID, calls=rf"\[{_CALL}{_FURTHER_CALLS}\]"),
    opens_at=_CUT,
    closes_at=_CUT,
    on_lapse=_object(action=_CUT, response=_CONTENT_OR_NULL),
    occurrence=_NUMBER,
    supersedes=_or_null(_ANY),
    generation=_NUMBER,
    routing=_object(
        queue=_or_null(_CUT),
        priority="(0|-?[1-9][0-9]{0,15})",
        groups=f"({_list(_ANY)})",
        assignees=f"({_list(_ANY)})",
        people=_CONTENT_OR_NULL,
    ),
    asked_by=_ITS_TAG,
    agent=_or_null(_object(name=_CUT, version=_or_null(_ANY), model=_or_null(_ANY))),
    # Of two one could be the other's double, and the last one hold.
    labels=rf"(\{{(?:{_ANY}:{_ANY})?\}})",
    policy=_QUORUM_OR_NULL,
    retention=_or_null(_ANY),
)
_CALLS = re.compile(_CALL)
_ANSWERED = _rest(
    number=f"({_NUMBER})", origin=_ANY, by=_ITS_TAG, submitted_by=_ACTOR_OR_NULL, response=_CONTENT, decision=_ANY,
    shown=_ANY, effective=_CONTENT_OR_NULL, note=_CONTENT_OR_NULL, token=_TOKEN_OR_NULL, cites=_list(_ANY),
    policy=_QUORUM_OR_NULL,
)  # fmt: skip
_CONSUMED = _rest(
    claim=_CLAIM_OR_NULL, lead=_CUT, siblings=_list(_object(pause=_ANY, version=_NUMBER, end=_ANY)),
    answers=_list(_NUMBER), response_digest=_or_null(_ANY), unstated_axes=_list(_ANY), key=_or_null(_ANY),
    by=_ACTOR_OR_NULL, token=_TOKEN_OR_NULL, origin=_ANY,
)  # fmt: skip
_TAG_OR_NULL = _or_null(_ANY)
_REFUSED = _rest(
    step=f"({_NUMBER})", axis=_CUT, reason=_CUT, rule=_or_null(_CUT), seen_version=f"({_NUMBER})", by=_ITS_TAG,
    token=_TOKEN_OR_NULL,
    presented="(" + _object(scope=_TAG_OR_NULL, session=_TAG_OR_NULL, run=_TAG_OR_NULL, call=_TAG_OR_NULL) + ")",
    at_pointer=_or_null(_ANY),
)  # fmt: skip


def _paused(rest: str) -> Question | None:
    found = _PAUSED.fullmatch(rest)
    if found is None:
        return None
    (
        _, session_id, run_id, call_id, tool, interaction, revision, lead, first_call, first_pause, further, opens_at,
        closes_at, action, queue, priority, groups, assignees, asked_by, agent, labels, needed,
    ) = found.groups()  # fmt: skip
    calls = [(first_call, first_pause), *_CALLS.findall(further)] if further else [(first_call, first_pause)]
    of_lead = [call for call, pause in calls if pause == lead]
    if len(of_lead) != 1:
        return None
    gated = sum(bool(pause) for _, pause in calls)
    return Question(
        session_id, run_id, call_id, tool, interaction, int(revision), lead, gated, of_lead[0], opens_at,
        closes_at, action == "answer", queue, int(priority), groups, assignees, asked_by, agent, labels,
        1 if needed is None else int(needed),
    )  # fmt: skip


def _answered(rest: str) -> Answer | None:
    found = _ANSWERED.fullmatch(rest)
    if found is None:
        return None
    _, number, by, needed = found.groups()
    return Answer(int(number), by, needed is None or int(number) >= int(needed))


def _consumed(rest: str) -> Consumption | None:
    found = _CONSUMED.fullmatch(rest)
    if found is None:
        return None
    _, fence, holder, lease_seconds, lead = found.groups()
    return Consumption(None if fence is None else (int(fence), holder, int(lease_seconds)), lead)


def _refused(rest: str) -> Refusal | None:
    found = _REFUSED.fullmatch(rest)
    if found is None:
        return None
    attempt, step, axis, reason, rule, seen_version, by, presented = found.groups()
    return Refusal(int(step), axis, reason, rule, int(seen_version), by, attempt, presented)


#: By topic: cuts out of what follows a header's front what views read; None where it is not laid out so.
HEARD: Mapping[str, Hear] = {
    Paused.topic(): _paused,
    Answered.topic(): _answered,
    Consumed.topic(): _consumed,
    Refused.topic(): _refused,
}
