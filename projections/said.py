"""What views read of a fact's header: the same names whether it was cut out of the text or parsed."""

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple
from uuid import UUID

from .rows import as_json


class Question(NamedTuple):
    """Of `pause.paused`. Groups, assignees and labels are JSON texts.

    Attributes:
        calls: How many calls of the round wait for a person.
        lead_call: The lead's own.
        answers: Whether a lapse answers it.
        asked_by: A tag.
        needed: How many people have to agree.
    """

    session_id: str
    run_id: str
    call_id: str
    tool: str | None
    interaction: str
    revision: int
    lead: str
    calls: int
    lead_call: str
    opens_at: str
    closes_at: str
    answers: bool
    queue: str | None
    priority: int
    groups: str
    assignees: str
    asked_by: str | None
    agent: str | None
    labels: str
    needed: int


class Answer(NamedTuple):
    """Of `pause.answered`; `complete` where enough people agree with this one, or one is enough."""

    number: int
    by: str | None
    complete: bool


class Consumption(NamedTuple):
    """Of `pause.consumed`; fence, holder and lease (seconds) where something is owed."""

    claim: tuple[int, str, int] | None
    lead: str


class Refusal(NamedTuple):
    """Of `pause.refused`; `by` is a tag, `presented` a JSON text."""

    step: int
    axis: str
    reason: str
    rule: str | None
    seen_version: int
    by: str | None
    attempt: str
    presented: str


class Parsed:
    """The same out of a header that was parsed whole, when it is asked for: one view may read what another cannot.

    Raises (every attribute):
        KeyError, TypeError, ValueError, AttributeError, IndexError: the header does not have it.
    """

    def __init__(self, name: str, fields: Mapping[str, Any]) -> None:
        self._reads = _READS[name]
        self._fields = fields

    def __getattr__(self, name: str) -> Any:
        """Read one."""
        return self._reads[name](self._fields)


def _uuid(value: Any) -> str:
    return str(UUID(value))


def _tag(actor: dict[str, Any] | None) -> Any:
    return None if actor is None else actor["tag"]


def _tag_if_any(actor: Any) -> str | None:
    """Give the tag of whoever tried; who cannot be told counts as nobody."""
    tag = actor.get("tag") if isinstance(actor, dict) else None
    return tag if isinstance(tag, str) else None


def _gated(said: Mapping[str, Any]) -> list[Any]:
    return [call for call in said["round"]["calls"] if call["pause"] is not None]


def _lead_call(said: Mapping[str, Any]) -> Any:
    lead = said["round"]["lead"]
    [call] = [call["call_id"] for call in _gated(said) if call["pause"] == lead]
    return call


def _claim(said: Mapping[str, Any]) -> tuple[Any, ...] | None:
    claim = said["claim"]
    return None if claim is None else (claim["fence"], claim["holder"], claim["lease_seconds"])


def _needed(policy: Mapping[str, Any] | None) -> Any:
    return 1 if policy is None else policy.get("quorum", 1)


def _plain(*names: str) -> dict[str, Callable[[Mapping[str, Any]], Any]]:
    return {name: itemgetter(name) for name in names}


_READS: dict[str, dict[str, Callable[[Mapping[str, Any]], Any]]] = {
    "pause.paused": {
        **_plain("session_id", "run_id", "call_id", "opens_at", "closes_at"),
        "tool": lambda said: said["call"]["tool"],
        "interaction": lambda said: said["interaction"]["name"],
        "revision": lambda said: said["interaction"]["revision"],
        "lead": lambda said: _uuid(said["round"]["lead"]),
        "calls": lambda said: len(_gated(said)),
        "lead_call": _lead_call,
        "answers": lambda said: said["on_lapse"]["action"] == "answer",
        "queue": lambda said: said["routing"]["queue"],
        "priority": lambda said: said["routing"]["priority"],
        "groups": lambda said: as_json(said["routing"]["groups"]),
        "assignees": lambda said: as_json(said["routing"]["assignees"]),
        "asked_by": lambda said: _tag(said["asked_by"]),
        "agent": lambda said: None if said["agent"] is None else said["agent"]["name"],
        "labels": lambda said: as_json(said["labels"]),
        "needed": lambda said: _needed(said["policy"]),
    },
    "pause.answered": {
        **_plain("number"),
        "by": lambda said: _tag(said["by"]),
        "complete": lambda said: said["policy"] is None or bool(said["number"] >= _needed(said["policy"])),
    },
    "pause.consumed": {"claim": _claim, "lead": itemgetter("lead")},
    "pause.refused": {
        **_plain("step", "axis", "reason", "rule", "seen_version"),
        "by": lambda said: _tag_if_any(said.get("by")),
        "attempt": lambda said: _uuid(said["attempt"]),
        "presented": lambda said: as_json(said["presented"]),
    },
    "pause.recovered": {"claim": _claim},
    "pause.stalled": _plain("fence", "cause"),
}
