"""A pause's story as sentences: every fact is told, nothing people wrote slips out, nothing moves a terminal."""

import hashlib
from datetime import UTC, datetime
from uuid import UUID

import pytest
from pauseledger.domain.axes import Scope
from pauseledger.domain.content import TEXT_TYPE, Content
from pauseledger.domain.facts import (
    FACTS,
    Abandoned,
    ActorRecord,
    Agent,
    Answered,
    AxesRecord,
    CallRecord,
    Claim,
    Consumed,
    Continued,
    InteractionRecord,
    Lapsed,
    OnLapse,
    Paused,
    Recovered,
    Refused,
    Reissued,
    RoundRecord,
    RoutingRecord,
    Stalled,
    TurnRecord,
    Withdrawn,
)
from pauseledger.domain.sentences import harmless, tell, tell_all
from pauseledger.domain.switches import SwitchFlipped

PAUSE = UUID(int=7)
OTHER = UUID(int=8)
AT = datetime(2026, 11, 30, 9, 0, 0, 123456, UTC)
DIGEST = hashlib.sha256(b"").hexdigest()
SECRET = "what people wrote"


def actor(name: str = "maria", kind: str = "person", assurance: str = "claimed") -> ActorRecord:
    return ActorRecord(tag="0123456789abcdef", kind=kind, assurance=assurance, who=Content.of(name.encode(), TEXT_TYPE))


def said(text: str = f'"{SECRET}"') -> Content:
    return Content.of(text.encode())


def fact(kind, **fields):
    common = {"originator_id": PAUSE, "originator_version": 1, "ledger": UUID(int=1), "pause": PAUSE, "at": AT}
    scope = Scope(tenant_id="acme")
    return kind(**{**common, "scope": scope, "attempt": UUID(int=2), "writer": "test/1", **fields})


def paused(**fields):
    return fact(
        Paused,
        **{
            "session_id": "s1",
            "run_id": "r1",
            "call_id": "call_1",
            "call": CallRecord(index=0, origin="provider", tool="get_name"),
            "interaction": InteractionRecord(
                name="ask_user", revision=1, request_schema=DIGEST, response_schema=DIGEST
            ),
            "request": said(),
            "turn": TurnRecord(format="openai-chat", digest=DIGEST, content=said()),
            "round": RoundRecord(id=PAUSE, lead=PAUSE, calls=()),
            "opens_at": AT.replace(microsecond=0),
            "closes_at": AT.replace(microsecond=0, hour=10),
            "on_lapse": OnLapse(action="answer", response=said()),
            "occurrence": 0,
            "routing": RoutingRecord(people=said()),
            **fields,
        },
    )


def answered(**fields):
    defaults = {"number": 1, "origin": "person", "response": said(), "decision": "answer", "shown": DIGEST}
    return fact(Answered, **{**defaults, **fields})


CLAIM = Claim(fence=1, holder="0123456789abcdef", lease_seconds=60)

FLIPPED = {"by": actor("anna"), "surface": "run"}

STORY = [
    (
        fact(SwitchFlipped, scope=None, on=True, **FLIPPED),
        'person "anna" (claimed) handed surface "run" to the kernel.',
    ),
    (fact(SwitchFlipped, scope=None, on=False, **FLIPPED), 'person "anna" (claimed) rolled surface "run" back.'),
    (
        paused(agent=Agent(name="dice"), asked_by=actor("bot", "service", "authenticated")),
        (
            'run "r1" of agent "dice" in session "s1" of tenant "acme" stopped at call "call_1" ("get_name") and asked '
            'ask_user by service "bot" (authenticated); it may be answered until 2026-11-30 10:00:00 UTC.'
        ),
    ),
    (paused(occurrence=2, scope=None), "asked ask_user again (occurrence 2); it"),
    (paused(opens_at=AT.replace(minute=30)), "answered from 2026-11-30 09:30:00 UTC until"),
    (answered(by=actor()), 'person "maria" (claimed) answered.'),
    (answered(decision="reject"), "somebody unnamed rejected the call."),
    (answered(by=actor(), submitted_by=actor("desk", "service")), 'answered, handed in by service "desk" (claimed).'),
    (
        fact(Consumed, claim=CLAIM, lead=PAUSE, origin="redeem", by=actor("li", "person", "signed")),
        'person "li" (signed) consumed the pause by redeeming its token; the turn is owed under claim 1, leased for 60 s.',
    ),
    (fact(Consumed, lead=OTHER, origin="ready"), f"together with its round; the turn is told of in pause {OTHER}."),
    (fact(Consumed, lead=PAUSE, origin="lapse"), "consumed the pause once its window had closed, and nothing is owed."),
    (
        fact(
            Refused, step=2, axis="scope", reason="scope_mismatch", seen_version=1, presented=AxesRecord(), by=actor()
        ),
        'an attempt by person "maria" (claimed) was refused in step 2 on the axis scope: scope_mismatch.',
    ),
    (
        fact(
            Refused,
            step=4,
            axis="response",
            reason="response_invalid",
            rule="label_unknown",
            seen_version=1,
            presented=AxesRecord(),
        ),
        'in step 4 on the axis response: response_invalid (rule "label_unknown").',
    ),
    (fact(Continued, fence=1, late=False, end="finished"), "the turn went on to its end under claim 1."),
    (
        fact(Continued, fence=1, late=True, end="paused_again", next=(OTHER,)),
        f"the turn went on and paused again in {OTHER} under claim 1, told late.",
    ),
    (
        fact(Stalled, fence=1, cause="error", error_type="ValueError", entered=True),
        'the turn broke off under claim 1: it failed with "ValueError"; it is still owed.',
    ),
    (
        fact(Stalled, fence=1, cause="cancelled", entered=False),
        "under claim 1 before it was entered: it was cancelled;",
    ),
    (
        fact(Recovered, claim=CLAIM.model_copy(update={"fence": 2}), from_fence=1, because="lease_ended"),
        "a worker took the turn up again under claim 2, leased for 60 s, after claim 1: the lease had ended.",
    ),
    (
        fact(Withdrawn, reason="superseded", superseded_by=OTHER, by=actor(), note=said()),
        f'the question was taken back by person "maria" (claimed), as another took its place (pause {OTHER}).',
    ),
    (
        fact(Lapsed, closed_at=AT, leeway_seconds=5),
        "the question lapsed: its window had closed at 2026-11-30 09:00:00 UTC and 5 s of leeway had passed.",
    ),
    (
        fact(Reissued, generation=1, ends_earlier=True, kid="0badcafe", reason="lost"),
        "token number 2 was minted under key 0badcafe (lost); it ends the earlier ones.",
    ),
    (
        fact(Abandoned, fence=6, reason="exhausted", note=said()),
        "the turn was given up for good under claim 6: it had been taken up too often.",
    ),
]


@pytest.mark.parametrize(("happened", "sentence"), STORY)
def test_each_fact_is_one_sentence(happened, sentence):
    told = tell(happened)
    assert sentence in told
    assert told.startswith("At 2026-11-30 09:00:00 UTC ")
    assert told.endswith(".")


def test_every_kind_of_fact_has_its_sentence():
    assert {type(happened) for happened, _ in STORY} == {*FACTS, SwitchFlipped}


@pytest.mark.parametrize("happened", [happened for happened, _ in STORY])
def test_what_people_wrote_is_told_with_content_alone(happened):
    written = any(isinstance(getattr(happened, name, None), Content) for name in ("request", "response", "note"))
    assert SECRET not in tell(happened)
    assert (SECRET in tell(happened, content=True)) is written


def test_a_story_is_told_in_the_order_given():
    told = tell_all([happened for happened, _ in STORY])
    assert len(told) == len(STORY)
    assert all(sentence in line for line, (_, sentence) in zip(told, STORY, strict=True))


def test_an_id_that_cannot_be_read_leaves_its_tag():
    header_only = ActorRecord.model_validate_json(actor().model_dump_json())
    assert "person tagged 0123456789abcdef (claimed) answered" in tell(answered(by=header_only))
    assert "person tagged 0123456789abcdef (claimed) answered" in tell(
        answered(by=ActorRecord(tag="0123456789abcdef", kind="person", assurance="claimed"))
    )


def test_content_that_cannot_be_read_is_said_to_be_so():
    happened = answered(response=Content.model_validate_json(said().model_dump_json()))
    assert "; response: cannot be read" in tell(happened, content=True)


@pytest.mark.parametrize(
    "evil", ["\x1b[2J", "\n", "\r", "\x9b31m", "\u202e", "\u2066", "\u200f", "\u2028", "\x00", "\x7f", "\U000e0041"]
)
def test_nothing_in_a_sentence_moves_a_terminal(evil):
    for told in (
        tell(answered(by=actor(f"maria{evil}"))),
        tell(paused(session_id=f"s{evil}")),
        tell(answered(response=said(evil)), content=True),
        harmless(evil),
    ):
        assert evil not in told
        assert told.isprintable()


def test_a_name_cannot_pretend_to_be_the_rest_of_the_sentence():
    told = tell(answered(by=actor('maria" (signed) answered. At noon "x')))
    assert r'person "maria\" (signed) answered. At noon \"x" (claimed) answered.' in told


def test_letters_of_any_script_stay_as_they_are():
    assert harmless("Ζωή Łukasz 雪 مريم 🎲") == "Ζωή Łukasz 雪 مريم 🎲"
