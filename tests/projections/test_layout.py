"""What is cut out of a header laid out as ours are is what a parser reads of it, however the header was damaged."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pauseledger.domain.axes import Scope
from pauseledger.domain.content import Content
from pauseledger.domain.facts import (
    ActorRecord,
    Agent,
    Answered,
    AxesRecord,
    CallRecord,
    Claim,
    Consumed,
    InteractionRecord,
    OnLapse,
    Policy,
    Refused,
    RoundCall,
    RoundRecord,
    RoutingRecord,
    SiblingEnd,
    TokenRecord,
)
from pauseledger.infrastructure.headers import Log, json_object
from pauseledger.infrastructure.layout import HEARD
from pauseledger.infrastructure.mapper import FRONT, MAGIC, NO_PREDECESSOR, FactMapper
from pauseledger.infrastructure.memory import MemoryRecorder
from pauseledger.infrastructure.stories import a_paused
from pauseledger.projections.rows import spelled
from pauseledger.projections.said import Parsed

LEDGER, PAUSE, OTHER = UUID(int=7), UUID(int=1 << 100), UUID(int=2 << 100)
BEGIN = datetime(2030, 1, 1, tzinfo=UTC)

words = st.text('abc ,:{}[]"\\\x7f\u00e9\U0001f600\n', max_size=8) | st.sampled_from(["run-1", ',"round":{', "None"])
plain_words = st.text("abc-19 :,{}", min_size=1, max_size=8)
tags = st.integers(0, 1 << 63).map("{:016x}".format)
numbers = st.integers(0, 12)
digests = st.just("ab" * 32)


def contents():
    return st.just(Content.of(b"x"))


def maybe(strategy):
    return st.none() | strategy


def a_question(called, **fields):
    return a_paused(**fields).model_copy(update={"call": called})


def facts(text):
    actors = st.builds(
        ActorRecord, tag=tags, kind=st.just("person"), assurance=st.just("claimed"), method=maybe(text),
        on_behalf_of=maybe(tags), who=maybe(contents()),
    )  # fmt: skip
    policies = st.builds(Policy, name=text, revision=numbers, digest=digests, quorum=numbers)
    tokens = st.builds(TokenRecord, kid=text, generation=numbers, tag=tags)
    common = {
        "pause": st.just(PAUSE), "ledger": st.just(LEDGER), "originator_id": st.just(PAUSE), "writer": text,
        "originator_version": st.just(2), "attempt": st.uuids(), "predecessor": st.just(NO_PREDECESSOR), "trace": maybe(text),
        "scope": maybe(st.builds(Scope, tenant_id=text.filter(bool), namespace=maybe(text.filter(bool)))),
        "at": st.integers(0, 10**9).map(lambda microseconds: BEGIN + timedelta(microseconds=microseconds)),
    }  # fmt: skip
    calls = st.lists(
        st.builds(RoundCall, call_id=text, pause=maybe(st.just(OTHER)), done=st.booleans()), max_size=3
    ).map(lambda further: (RoundCall(call_id="call_1", pause=PAUSE), *further))
    paused = st.builds(
        a_question,
        **common | {"originator_version": st.just(1)},
        session_id=text, run_id=text, call_id=text,
        called=st.builds(CallRecord, index=numbers, origin=st.just("provider"), tool=maybe(text)),
        interaction=st.builds(InteractionRecord, name=text, revision=numbers, request_schema=digests,
                              response_schema=digests),
        round=st.builds(RoundRecord, id=st.just(PAUSE), lead=st.just(PAUSE), calls=calls),
        on_lapse=st.just(OnLapse()) | st.builds(OnLapse, action=st.just("answer"), response=contents()),
        supersedes=maybe(st.just(OTHER)),
        routing=st.builds(RoutingRecord, queue=maybe(text), priority=st.integers(-3, 3),
                          groups=st.lists(tags, max_size=2), assignees=st.lists(tags, max_size=2)),
        asked_by=maybe(actors), agent=maybe(st.builds(Agent, name=text, version=maybe(text))),
        labels=st.dictionaries(text, text, max_size=2), policy=maybe(policies), retention=maybe(text),
    )  # fmt: skip
    answered = st.builds(
        Answered, **common, number=numbers, origin=st.just("person"), by=maybe(actors), submitted_by=maybe(actors),
        response=contents(), decision=st.just("edit"), shown=digests, note=maybe(contents()), token=maybe(tokens),
        cites=st.lists(st.uuids(), max_size=2), policy=maybe(policies),
    )  # fmt: skip
    consumed = st.builds(
        Consumed, **common, lead=st.sampled_from([PAUSE, OTHER]), origin=st.just("redeem"), by=maybe(actors),
        claim=maybe(st.builds(Claim, fence=numbers, holder=tags, lease_seconds=numbers)),
        siblings=st.lists(st.builds(SiblingEnd, pause=st.uuids(), version=numbers, end=st.just("lapsed")), max_size=2),
        answers=st.lists(numbers, max_size=2), unstated_axes=st.lists(text, max_size=2), key=maybe(tags),
    )  # fmt: skip
    refused = st.builds(
        Refused, **common, step=numbers, axis=text, reason=text, rule=maybe(text), seen_version=numbers,
        by=maybe(actors), token=maybe(tokens), presented=st.builds(AxesRecord, run=maybe(tags)), at_pointer=maybe(text),
    )  # fmt: skip
    return st.one_of(paused, answered, consumed, refused)


class _Gone(MemoryRecorder):
    def whole(self, position):
        raise ValueError(position)


mapper = FactMapper(LEDGER)
log = Log(_Gone(), mapper, LEDGER)


def row_of(fact):
    [(row, _)] = mapper.encode([fact])
    end = FRONT + int.from_bytes(row.state[FRONT - 4 : FRONT], "big")
    return row.topic, row.state[FRONT:end]


def seen(topic, header):
    state = MAGIC + bytes(32) + len(header).to_bytes(4, "big") + header
    [fact] = log.seen([(str(PAUSE), 2, topic, state, 5)])
    return fact


def agrees(fact, topic, header):
    """Hold what was cut out against a parser; whether anything was."""
    if fact.unreadable is not None or not fact.heard() or isinstance(fact.said, Parsed):
        return False
    fields = json_object(header)
    parsed = Parsed(topic.partition("@")[0], fields)
    for name, cut in zip(fact.said._fields, fact.said, strict=True):
        assert (name, cut, type(cut)) == (name, getattr(parsed, name), type(getattr(parsed, name)))
    assert (fact.scope, fact.at, fact.pause) == (spelled(fields["scope"]), fields["at"], fields["pause"])
    return True


@given(facts(plain_words))
@settings(max_examples=60, deadline=None)
def test_what_this_package_writes_is_cut_out_and_as_it_was_said(fact):
    topic, header = row_of(fact)
    assert topic in HEARD
    # Of two labels one could be the other's double.
    assert agrees(seen(topic, header), topic, header) or len(getattr(fact, "labels", ())) > 1


@given(facts(words), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_a_damaged_header_is_read_as_a_parser_would_or_by_one(fact, chance):
    topic, header = row_of(fact)
    agrees(seen(topic, header), topic, header)
    for _ in range(20):
        damaged = damage(header, chance)
        agrees(seen(topic, damaged), topic, damaged)


def damage(header, chance):
    at, length = chance.randrange(len(header)), chance.randrange(1, 9)
    piece = chance.choice([b'"', b"\\", b"{", b"}", b",", b"0", b"null", b"\xff", b"\xc3\xa9", b" ", b"-", b"e", b"[]"])
    field = chance.choice([
        b'"session_id":"x",', b'"lead":"y",', b'"number":9,', b'"policy":null,', b'"scope":null,', b'"new":[{}],',
        b'"at":"2031-01-01T00:00:00.000000Z",', b'"claim":null,', b'"presented":{},', b'"attempt":"z",',
    ])  # fmt: skip
    comma = chance.choice([place for place in range(len(header)) if header[place] == ord(",")])
    return chance.choice([
        header[:at] + piece + header[at:],
        header[:at] + piece + header[at + len(piece) :],
        header[:at] + header[at + length :],
        header[: comma + 1] + field + header[comma + 1 :],
        header[:1] + field + header[1:],
        header[:at],
        header + piece,
        header.replace(b":null", b":" + piece, 1),
    ])  # fmt: skip


def a_refusal(**fields):
    standard = {
        "pause": PAUSE, "ledger": LEDGER, "originator_id": PAUSE, "originator_version": 2, "attempt": OTHER, "at": BEGIN,
        "predecessor": NO_PREDECESSOR, "writer": "w", "scope": Scope(tenant_id="acme"), "step": 2, "axis": "run",
        "reason": "run_mismatch", "seen_version": 1, "presented": AxesRecord(),
    }  # fmt: skip
    return Refused(**standard | fields)


@pytest.mark.parametrize("odd", ["\u00e9", 'a"b', "a\\b", "\x00"])
def test_a_text_that_can_be_spelled_in_more_than_one_way_is_left_to_the_parser(odd):
    topic, header = row_of(a_refusal(axis=odd))
    fact = seen(topic, header)
    assert fact.heard()
    assert (type(fact.said), fact.said.axis) == (Parsed, odd)


@pytest.mark.parametrize(
    ("written", "damaged"),
    [
        (b'"labels":{}', b'"labels":{"a":"1","a":"2"}'),
        (b'"revision":1,', b'"revision":01,'),
        (b'"priority":0,', b'"priority":-0,'),
        (b'"run_id":"run-1"', b'"run_id":"run\t1"'),
        (b'"run_id":"run-1"', b'"run_id":"run-1","run_id":"run-2"'),
        (b'"done":false', b'"done":0'),
        (b'"call_id":"call_1","pause"', b'"call_id":"call_1","more":1,"pause"'),
        (b'"generation":0', b'"generation":0,"policy":{"quorum":2}'),
        (b'"retention":null}', b'"retention":null}}'),
    ],
)
def test_what_is_not_laid_out_so_to_the_letter_is_left_to_the_parser(written, damaged):
    topic, header = row_of(a_paused(ledger=LEDGER, pause=PAUSE, originator_id=PAUSE))
    assert agrees(seen(topic, header), topic, header)
    assert written in header
    header = header.replace(written, damaged, 1)
    assert not agrees(seen(topic, header), topic, header)


def test_of_two_fields_of_one_name_the_last_one_holds():
    topic, header = row_of(a_refusal())
    fact = seen(topic, header.replace(b',"axis":', b',"reason":"first","axis":', 1))
    assert fact.heard()
    assert (type(fact.said), fact.said.reason) == (Parsed, "run_mismatch")
