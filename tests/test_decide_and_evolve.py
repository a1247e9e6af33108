"""The aggregate by itself: given facts, when something is decided, then these facts or that objection."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, get_args
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pauseledger import (
    AlreadyAnswered,
    AlreadyConsumed,
    AlreadyContinued,
    InteractionConfigurationError,
    LeaseHeld,
    NotAnswered,
    NotConsumed,
    NothingOwed,
    PauseClosed,
    PauseLapsed,
    PauseWithdrawn,
    RoundOpen,
    Scope,
    TokenSuperseded,
    TurnAbandoned,
    WindowOpen,
)
from pauseledger.domain import closing, settlement
from pauseledger.domain import facts as kinds
from pauseledger.domain.content import Content
from pauseledger.domain.facts import (
    Abandoned,
    Answered,
    Claim,
    Consumed,
    Continued,
    Lapsed,
    Paused,
    PauseFact,
    Recovered,
    Refused,
    Reissued,
    Stalled,
    Withdrawn,
)
from pauseledger.domain.pause import Pause, State, evolve, replay
from pauseledger.domain.round import (
    Attempt,
    GivenAnswer,
    Round,
    answer,
    consume,
    judge_consumption,
    judge_generation,
    judge_own,
    stored_answer,
)
from pauseledger.domain.settlement import Settlement
from pauseledger.domain.stamp import Stamp

LEDGER, MINE, YOURS = UUID(int=1), UUID(int=11), UUID(int=12)
LEAD, SIBLING = UUID(int=101), UUID(int=102)
NOON = datetime(2026, 3, 5, 12, tzinfo=UTC)
CLOSES = NOON + timedelta(seconds=300)
D = "0" * 64
YES, NO = b'"yes"', b'"no"'
LEASE = 60
ATTEMPT = Attempt("redeem", LEASE)


def after(seconds: float, attempt: UUID = MINE) -> Stamp:
    return Stamp(LEDGER, NOON + timedelta(seconds=seconds), attempt, "test/1", "f" * 16)


def paused(pause: UUID = LEAD, calls: Sequence[UUID] = (LEAD,), lapse: bytes | None = None) -> Paused:
    response = None if lapse is None else Content.of(lapse)
    return Paused(
        originator_id=pause,
        originator_version=1,
        ledger=LEDGER,
        pause=pause,
        scope=Scope(tenant_id="acme"),
        at=NOON,
        attempt=YOURS,
        writer="test/1",
        session_id="s",
        run_id="r",
        call_id=f"c{pause.int}",
        call=kinds.CallRecord(index=0, origin="provider"),
        interaction=kinds.InteractionRecord(name="i", revision=1, request_schema=D, response_schema=D),
        request=Content.of(b"{}"),
        turn=kinds.TurnRecord(format="openai-chat", digest=D),
        round=kinds.RoundRecord(
            id=LEAD, lead=LEAD, calls=tuple(kinds.RoundCall(call_id=f"c{one.int}", pause=one) for one in calls)
        ),
        opens_at=NOON,
        closes_at=CLOSES,
        on_lapse=kinds.OnLapse(action="close" if lapse is None else "answer", response=response),
        occurrence=0,
        routing=kinds.RoutingRecord(),
    )


def fields_of(response: bytes) -> dict[str, Any]:
    return {"origin": "person", "response": Content.of(response), "decision": "answer", "shown": D}


def given_answer(response: bytes) -> GivenAnswer:
    return GivenAnswer(response, fields_of(response))


#: What may stand in a stream after its first fact, in words for the tables below.
HAPPENED: dict[str, Callable[[Pause, Stamp], Any]] = {
    "answered": lambda pause, stamp: stamp.write(pause, Answered, number=1, **fields_of(YES)),
    "consumed": lambda pause, stamp: stamp.write(
        pause,
        Consumed,
        claim=Claim(fence=1, holder="f" * 16, lease_seconds=LEASE) if pause.id == pause.lead_id else None,
        lead=pause.lead_id,
        key="k" * 16,
        origin="redeem",
    ),
    "taken": lambda pause, stamp: stamp.write(pause, Consumed, claim=None, lead=pause.lead_id, origin="redeem"),
    "refused": lambda pause, stamp: stamp.write(
        pause, Refused, step=2, axis="run", reason="run_mismatch", seen_version=1, presented=kinds.AxesRecord()
    ),
    "continued": lambda pause, stamp: stamp.write(pause, Continued, fence=pause.fence, late=False, end="finished"),
    "stalled": lambda pause, stamp: stamp.write(pause, Stalled, fence=pause.fence, cause="error", entered=True),
    "old stall": lambda pause, stamp: stamp.write(pause, Stalled, fence=pause.fence - 1, cause="error", entered=True),
    "recovered": lambda pause, stamp: stamp.write(
        pause,
        Recovered,
        claim=Claim(fence=pause.fence + 1, holder="f" * 16, lease_seconds=LEASE),
        from_fence=pause.fence,
        because="stalled",
    ),
    "withdrawn": lambda pause, stamp: stamp.write(pause, Withdrawn, reason="host"),
    "lapsed": lambda pause, stamp: stamp.write(pause, Lapsed, closed_at=CLOSES, leeway_seconds=0),
    "reissued": lambda pause, stamp: stamp.write(
        pause, Reissued, generation=pause.generation + 1, ends_earlier=False, kid="00112233", reason="lost"
    ),
    "replaced": lambda pause, stamp: stamp.write(
        pause, Reissued, generation=pause.generation + 1, ends_earlier=True, kid="00112233", reason="lost"
    ),
    "abandoned": lambda pause, stamp: stamp.write(pause, Abandoned, fence=pause.fence, reason="host"),
}


def pause_of(*happened: str, pause: UUID = LEAD, calls: Sequence[UUID] = (LEAD,), lapse: bytes | None = None) -> Pause:
    now = evolve(None, paused(pause, calls, lapse))
    for word in happened:
        now = evolve(now, HAPPENED[word](now, after(1, YOURS)))
    return now


def round_of(
    *happened: str, sibling: Sequence[str] | None = None, lapse: bytes | None = None, leeway: int = 0
) -> Round:
    calls = (LEAD,) if sibling is None else (LEAD, SIBLING)
    pauses = [pause_of(*happened, calls=calls, lapse=lapse)]
    if sibling is not None:
        pauses.append(pause_of(*sibling, pause=SIBLING, calls=calls))
    return Round(tuple(pauses), timedelta(seconds=leeway))


def topics(facts: Sequence[PauseFact]) -> list[str]:
    return [type(fact).__name__ for fact in facts]


# Evolve


@pytest.mark.parametrize(
    ("happened", "state"),
    [
        ((), "open"),
        (("refused", "reissued", "replaced"), "open"),
        (("answered",), "answered"),
        (("withdrawn",), "withdrawn"),
        (("answered", "withdrawn"), "withdrawn"),
        (("lapsed",), "lapsed"),
        (("lapsed", "withdrawn"), "withdrawn"),
        (("answered", "taken"), "consumed"),
        (("answered", "consumed"), "owed"),
        (("withdrawn", "consumed"), "owed"),
        (("answered", "consumed", "stalled"), "stalled"),
        (("answered", "consumed", "stalled", "recovered"), "owed"),
        (("answered", "consumed", "recovered", "old stall"), "owed"),
        (("answered", "consumed", "recovered", "stalled"), "stalled"),
        (("answered", "consumed", "continued"), "continued"),
        (("answered", "consumed", "stalled", "continued"), "continued"),
        (("answered", "consumed", "abandoned"), "abandoned"),
        (("answered", "consumed", "abandoned", "continued"), "continued"),
    ],
)
def test_a_stream_brings_back_its_state(happened: tuple[str, ...], state: str) -> None:
    assert pause_of(*happened).state == state


@pytest.mark.parametrize(("happened", "open_"), [((), True), (("refused",), True), (("reissued",), True),
    (("answered",), False), (("withdrawn",), False), (("lapsed",), False), (("taken",), False)])  # fmt: skip
def test_open_is_what_somebody_may_still_answer(happened: tuple[str, ...], open_: bool) -> None:
    assert pause_of(*happened).is_open is open_


def test_generations_ends_and_refusals_are_counted() -> None:
    pause = pause_of("refused", "reissued", "replaced", "reissued", "refused")
    assert (pause.generation, pause.ends_below, pause.refusals, pause.version) == (3, 2, 2, 6)


def test_the_lease_ends_where_it_was_granted_or_renewed_to() -> None:
    pause = pause_of("answered", "consumed")
    granted = NOON + timedelta(seconds=1 + LEASE)
    assert pause.lease_end(None) == granted
    assert pause.lease_end(NOON) == granted
    assert pause.lease_end(granted + timedelta(seconds=5)) == granted + timedelta(seconds=5)
    assert pause_of("answered").lease_end(granted) is None
    assert pause_of("answered", "taken").lease_end(None) is None


STORIES = st.lists(st.sampled_from(sorted(HAPPENED)), max_size=12)


@given(STORIES, st.booleans())
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_evolve_never_objects_never_alters_and_replays_alike(story: list[str], lapses: bool) -> None:
    now = evolve(None, paused(lapse=NO if lapses else None))
    told: list[PauseFact] = [now.paused]
    for word in story:
        fact = HAPPENED[word](now, after(len(told), YOURS))
        before, written = repr(now), fact.model_dump()
        then = evolve(now, fact)
        assert (repr(now), fact.model_dump()) == (before, written)
        assert (then.version, then.at, then.paused) == (now.version + 1, fact.at, now.paused)
        assert then.state in get_args(State)
        assert then.is_owed is (then.state in ("owed", "stalled"))
        assert then.is_open or then.state != "open"
        assert then.recoveries >= now.recoveries
        assert then.fence >= now.fence or word in ("taken", "consumed")
        told.append(fact)
        now = then
    assert replay(told) == now


@given(STORIES, st.integers(0, 900))
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
def test_a_settled_word_is_never_taken_back(story: list[str], seconds: int) -> None:
    """Whatever else happens afterwards, `continued` stays: nothing is owed twice."""
    now = pause_of(*story)
    if now.continued:
        assert now.state == "continued"
        assert not now.is_owed
        with pytest.raises(AlreadyContinued):
            settlement.recover(Round((now,)), after(seconds), ATTEMPT)


def test_nothing_is_brought_back_from_nothing() -> None:
    assert replay([]) is None


# Answer


@pytest.mark.parametrize(
    ("happened", "said", "then"),
    [
        ((), YES, ["Answered"]),
        (("refused", "reissued"), YES, ["Answered"]),
        ((), None, NotAnswered),
        (("answered",), YES, []),
        (("answered",), None, []),
        (("answered",), NO, AlreadyAnswered),
        (("lapsed",), YES, PauseLapsed),
        (("lapsed",), None, PauseLapsed),
    ],
)
def test_answer(happened: tuple[str, ...], said: bytes | None, then: Any) -> None:
    round_ = round_of(*happened)
    given_ = None if said is None else given_answer(said)
    if isinstance(then, list):
        assert topics(answer(round_, LEAD, given_, after(2))) == then
    else:
        with pytest.raises(then):
            answer(round_, LEAD, given_, after(2))


@pytest.mark.parametrize(("said", "then"), [(NO, []), (None, []), (YES, PauseLapsed)])
def test_a_lapse_answer_stands_as_an_answer_would(said: bytes | None, then: Any) -> None:
    round_ = round_of("lapsed", lapse=NO)
    given_ = None if said is None else given_answer(said)
    if isinstance(then, list):
        assert answer(round_, LEAD, given_, after(400)) == then
    else:
        with pytest.raises(then):
            answer(round_, LEAD, given_, after(400))


def test_the_same_answer_twice_is_one_fact() -> None:
    round_ = round_of()
    once = round_.after(answer(round_, LEAD, given_answer(YES), after(2)))
    assert once.lead.state == "answered"
    assert answer(once, LEAD, given_answer(YES), after(3, YOURS)) == []
    stored = stored_answer(once.lead)
    assert stored is not None
    assert stored.clear() == YES


# Step 6, in its order


def test_a_token_that_was_ended_is_told_before_anything_else() -> None:
    judge_generation(pause_of("replaced"), 1, 7, 7)
    judge_generation(pause_of("reissued"), 0, 7, 7)
    for generation, epoch in ((0, 7), (1, 8)):
        with pytest.raises(TokenSuperseded):
            judge_generation(pause_of("replaced", "withdrawn"), generation, epoch, 7)


@pytest.mark.parametrize(
    ("happened", "then"),
    [
        (("withdrawn",), PauseWithdrawn),
        (("answered", "withdrawn"), PauseWithdrawn),
        (("answered", "consumed"), AlreadyConsumed),
        (("answered", "taken"), AlreadyConsumed),
        (("lapsed", "taken"), AlreadyConsumed),
    ],
)
def test_what_is_over_is_over_by_name(happened: tuple[str, ...], then: Any) -> None:
    with pytest.raises(then):
        judge_consumption(pause_of(*happened))


def test_the_same_key_learns_that_it_won_and_another_does_not() -> None:
    pause = pause_of("answered", "consumed", "stalled")
    with pytest.raises(AlreadyConsumed) as own:
        judge_consumption(pause, "k" * 16)
    assert (own.value.own, own.value.state) == (True, "stalled")
    for key in ("j" * 16, None):
        with pytest.raises(AlreadyConsumed) as other:
            judge_consumption(pause, key)
        assert (other.value.own, other.value.state) == (False, None)


def test_an_attempt_without_a_key_never_takes_another_one_for_its_own() -> None:
    with pytest.raises(AlreadyConsumed) as other:
        judge_consumption(pause_of("answered", "taken"), None)
    assert not other.value.own


def test_an_attempt_knows_its_own_consumption() -> None:
    pause = pause_of("answered", "consumed")
    assert judge_own(pause, after(2, YOURS))
    assert not judge_own(pause, after(2, MINE))
    assert not judge_own(pause_of("answered"), after(2, YOURS))


# Consume


@pytest.mark.parametrize(
    ("lead", "sibling", "seconds", "then"),
    [
        (("answered",), None, 2, ["Consumed"]),
        ((), None, 2, []),
        ((), None, 400, []),
        (("withdrawn",), None, 2, []),
        (("lapsed",), None, 400, []),
        (("answered",), (), 2, []),
        (("answered",), ("answered",), 2, ["Consumed", "Consumed"]),
        (("answered",), ("withdrawn",), 2, ["Consumed", "Consumed"]),
        (("withdrawn",), ("answered",), 2, ["Consumed", "Consumed"]),
        (("answered",), (), 300, ["Lapsed", "Consumed", "Consumed"]),
        (("answered",), (), 299, []),
        (("answered",), ("lapsed",), 400, ["Consumed", "Consumed"]),
        (("answered", "withdrawn"), ("withdrawn",), 2, []),
        (("answered", "withdrawn"), ("lapsed",), 400, []),
        ((), (), 400, []),
    ],
)
def test_consume(lead: tuple[str, ...], sibling: tuple[str, ...] | None, seconds: int, then: list[str]) -> None:
    assert topics(consume(round_of(*lead, sibling=sibling), after(seconds), ATTEMPT)) == then


def test_the_leeway_keeps_a_window_open() -> None:
    round_ = round_of("answered", sibling=(), leeway=10)
    assert consume(round_, after(309), ATTEMPT) == []
    facts = consume(round_, after(310), ATTEMPT)
    assert topics(facts) == ["Lapsed", "Consumed", "Consumed"]
    assert isinstance(facts[0], Lapsed)
    assert (facts[0].closed_at, facts[0].leeway_seconds) == (CLOSES, 10)


def test_a_lapse_answer_makes_a_round_ready() -> None:
    facts = consume(round_of(lapse=NO), after(300), Attempt("lapse", LEASE))
    assert topics(facts) == ["Lapsed", "Consumed"]
    consumed = facts[-1]
    assert isinstance(consumed, Consumed)
    assert consumed.answers == ()
    assert consumed.response_digest is not None


def test_consumed_says_what_it_took_and_the_lead_alone_has_the_claim() -> None:
    round_ = round_of("answered", sibling=("refused", "withdrawn"))
    mine, other = consume(round_, after(2), Attempt("redeem", LEASE, unstated_axes=("run",), key="k" * 16))
    assert isinstance(mine, Consumed)
    assert isinstance(other, Consumed)
    assert mine.claim is not None
    assert (mine.claim.fence, mine.claim.lease_seconds, mine.answers) == (1, LEASE, (2,))
    assert (other.claim, other.answers, other.response_digest) == (None, (), None)
    assert [(end.pause, end.version, end.end) for end in mine.siblings] == [(SIBLING, 3, "withdrawn")]
    assert [(end.pause, end.version, end.end) for end in other.siblings] == [(LEAD, 2, "answered")]
    assert {(fact.lead, fact.key, fact.unstated_axes, fact.attempt) for fact in (mine, other)} == {
        (LEAD, "k" * 16, ("run",), MINE)
    }


def test_nothing_is_owed_where_no_turn_was_asked_for() -> None:
    [fact] = consume(round_of("answered"), after(2), Attempt("redeem", LEASE, owed=False))
    assert isinstance(fact, Consumed)
    assert fact.claim is None
    assert round_of("answered").after([fact]).lead.state == "consumed"


def test_a_person_named_in_several_rows_is_salted_anew_in_each() -> None:
    by = kinds.ActorRecord(tag="a" * 16, kind="person", assurance="claimed", who=Content.of(b"maria"))
    rows = consume(round_of("answered", sibling=("answered",)), after(2), Attempt("redeem", LEASE, by=by))
    who = [row.by.who for row in rows if isinstance(row, Consumed) and row.by and row.by.who]
    assert [one.clear() for one in who] == [b"maria", b"maria"]
    assert len({one.digest for one in who}) == 2


# Close


@pytest.mark.parametrize(
    ("happened", "lapse", "then"),
    [
        ((), None, ["Withdrawn"]),
        (("answered",), None, ["Withdrawn"]),
        (("withdrawn",), None, []),
        (("withdrawn", "consumed"), None, []),
        (("lapsed",), NO, ["Withdrawn"]),
        (("lapsed",), None, PauseClosed),
        (("answered", "consumed"), None, PauseClosed),
        (("answered", "taken"), None, PauseClosed),
    ],
)
def test_withdraw(happened: tuple[str, ...], lapse: bytes | None, then: Any) -> None:
    pause = pause_of(*happened, lapse=lapse)
    if isinstance(then, list):
        facts = closing.withdraw(pause, after(2), reason="host", note="why")
        assert topics(facts) == then
        assert Round((pause,)).after(facts).lead.withdrawn
    else:
        with pytest.raises(then):
            closing.withdraw(pause, after(2), reason="host")


@pytest.mark.parametrize(
    ("happened", "seconds", "then"),
    [
        ((), 299, WindowOpen),
        ((), 300, ["Lapsed"]),
        (("lapsed",), 300, []),
        (("lapsed",), 0, []),
        (("answered",), 400, PauseClosed),
        (("withdrawn",), 400, PauseClosed),
        (("answered", "consumed"), 400, PauseClosed),
        (("lapsed", "withdrawn"), 400, PauseClosed),
    ],
)
def test_lapse(happened: tuple[str, ...], seconds: int, then: Any) -> None:
    round_ = round_of(*happened)
    if isinstance(then, list):
        facts = closing.lapse(round_, LEAD, after(seconds))
        assert topics(facts) == then
        assert closing.lapse(round_.after(facts), LEAD, after(seconds)) == [], "lapsed twice"
    else:
        with pytest.raises(then):
            closing.lapse(round_, LEAD, after(seconds))


def reissue(pause: Pause, *, ends_earlier: bool = False, closes_at: datetime | None = None) -> list[PauseFact]:
    return closing.reissue(
        pause, after(2), kid="00112233", ends_earlier=ends_earlier, closes_at=closes_at, reason="lost", by=None
    )


@pytest.mark.parametrize(
    ("happened", "lapse", "allowed"),
    [
        ((), None, True),
        (("answered",), None, True),
        (("lapsed",), NO, True),
        (("lapsed",), None, False),
        (("withdrawn",), None, False),
        (("answered", "consumed"), None, False),
    ],
)
def test_reissue(happened: tuple[str, ...], lapse: bytes | None, allowed: bool) -> None:
    pause = pause_of(*happened, lapse=lapse)
    if allowed:
        assert topics(reissue(pause)) == ["Reissued"]
    else:
        with pytest.raises(PauseClosed):
            reissue(pause)


def test_a_tokens_window_never_exceeds_its_pauses() -> None:
    soon = NOON + timedelta(seconds=1)
    for asked, got in ((None, CLOSES), (soon, soon), (CLOSES + timedelta(days=1), CLOSES)):
        [fact] = reissue(pause_of(), closes_at=asked)
        assert isinstance(fact, Reissued)
        assert fact.closes_at == got
    with pytest.raises(InteractionConfigurationError, match="opens"):
        reissue(pause_of(), closes_at=NOON)


def test_a_token_minted_again_by_this_very_attempt_is_no_news() -> None:
    [fact] = reissue(pause_of())
    assert reissue(evolve(pause_of(), fact)) == []


@pytest.mark.parametrize(("ends_earlier", "ends_below"), [(False, 1), (True, 2)])
def test_a_token_minted_again_ends_earlier_ones_only_where_it_says_so(ends_earlier: bool, ends_below: int) -> None:
    pause = pause_of("replaced")
    [fact] = reissue(pause, ends_earlier=ends_earlier)
    assert (evolve(pause, fact).generation, evolve(pause, fact).ends_below) == (2, ends_below)


def test_generations_end_where_a_token_can_hold_no_more() -> None:
    last = HAPPENED["reissued"](pause_of(), after(1)).model_copy(
        update={"generation": 2**16 - 1, "attempt": UUID(int=7)}
    )
    with pytest.raises(PauseClosed):
        reissue(evolve(pause_of(), last))


# Settle

OWED = ("answered", "consumed")


@pytest.mark.parametrize(
    ("happened", "fence", "end", "then"),
    [
        ((), 1, "finished", NotConsumed),
        (("answered",), 1, "stalled", NotConsumed),
        (("answered", "taken"), 1, "finished", NothingOwed),
        (OWED, 0, "finished", InteractionConfigurationError),
        (OWED, 2, "finished", InteractionConfigurationError),
        (OWED, 1, "finished", ["Continued"]),
        (OWED, 1, "paused_again", ["Continued"]),
        (OWED, 1, "handed_over", ["Continued"]),
        (OWED, 1, "stalled", ["Stalled"]),
        (OWED, 1, "released", ["Stalled"]),
        (OWED, 1, "abandoned", ["Abandoned"]),
        ((*OWED, "stalled"), 1, "stalled", []),
        ((*OWED, "stalled"), 1, "released", []),
        ((*OWED, "stalled"), 1, "finished", ["Continued"]),
        ((*OWED, "stalled"), 1, "abandoned", ["Abandoned"]),
        ((*OWED, "recovered"), 1, "stalled", []),
        ((*OWED, "recovered"), 1, "abandoned", []),
        ((*OWED, "recovered"), 1, "finished", ["Continued"]),
        ((*OWED, "recovered"), 2, "stalled", ["Stalled"]),
        ((*OWED, "continued"), 1, "finished", []),
        ((*OWED, "continued"), 1, "stalled", []),
        ((*OWED, "continued"), 1, "abandoned", []),
        ((*OWED, "abandoned"), 1, "abandoned", []),
        ((*OWED, "abandoned"), 1, "stalled", []),
        ((*OWED, "abandoned"), 1, "finished", ["Continued"]),
    ],
)
def test_settle(happened: tuple[str, ...], fence: int, end: Any, then: Any) -> None:
    pause, said = pause_of(*happened), Settlement(fence, end)
    if isinstance(then, list):
        facts = settlement.settle(pause, said, after(2))
        assert topics(facts) == then
        again = Round((pause,)).after(facts).lead
        assert settlement.settle(again, said, after(3)) == [], "the same settlement twice"
    else:
        with pytest.raises(then):
            settlement.settle(pause, said, after(2))


@pytest.mark.parametrize(("fence", "end"), [(1, "nonsense"), (1, "lapsed"), ("1", "finished"), (True, "finished")])
def test_what_is_no_settlement_settles_nothing(fence: Any, end: Any) -> None:
    with pytest.raises(InteractionConfigurationError):
        settlement.settle(pause_of(*OWED), Settlement(fence, end), after(2))


@pytest.mark.parametrize(
    ("happened", "fence", "late"),
    [
        (OWED, 1, False),
        ((*OWED, "recovered"), 2, False),
        ((*OWED, "recovered"), 1, True),
        ((*OWED, "abandoned"), 1, True),
    ],
)
def test_a_finish_is_late_where_its_claim_is_not_the_newest(happened: tuple[str, ...], fence: int, late: bool) -> None:
    [fact] = settlement.settle(pause_of(*happened), Settlement(fence, "finished"), after(2))
    assert isinstance(fact, Continued)
    assert (fact.fence, fact.late) == (fence, late)


def test_a_release_and_a_cancellation_say_so() -> None:
    [released] = settlement.settle(pause_of(*OWED), Settlement(1, "released", cause="error"), after(2))
    [cancelled] = settlement.settle(pause_of(*OWED), Settlement(1, "stalled", cause="cancelled"), after(2))
    assert isinstance(released, Stalled)
    assert isinstance(cancelled, Stalled)
    assert (released.cause, cancelled.cause) == ("released", "cancelled")


# Recover


@pytest.mark.parametrize(
    ("happened", "seconds", "forced", "then"),
    [
        ((), 2, False, NotConsumed),
        ((), 400, False, NothingOwed),
        (("withdrawn",), 2, False, NothingOwed),
        (("lapsed",), 400, False, NothingOwed),
        (("answered", "taken"), 2, False, NothingOwed),
        (("answered",), 2, False, ["Consumed"]),
        (("answered",), 400, False, ["Consumed"]),
        (OWED, 60, False, LeaseHeld),
        (OWED, 61, False, ["Recovered"]),
        (OWED, 2, True, ["Recovered"]),
        ((*OWED, "stalled"), 2, False, ["Recovered"]),
        ((*OWED, "recovered"), 60, False, LeaseHeld),
        ((*OWED, "recovered", "old stall"), 60, False, LeaseHeld),
        ((*OWED, "continued"), 400, True, AlreadyContinued),
        ((*OWED, "abandoned"), 400, True, TurnAbandoned),
        ((*OWED, "abandoned", "continued"), 400, True, AlreadyContinued),
        ((*OWED, *["recovered"] * 4, "stalled"), 2, False, ["Recovered"]),
        ((*OWED, *["recovered"] * 5), 60, False, LeaseHeld),
        ((*OWED, *["recovered"] * 5, "stalled"), 2, False, ["Abandoned"]),
    ],
)
def test_recover(happened: tuple[str, ...], seconds: int, forced: bool, then: Any) -> None:
    round_ = round_of(*happened)
    if isinstance(then, list):
        assert topics(settlement.recover(round_, after(seconds), ATTEMPT, forced=forced)) == then
    else:
        with pytest.raises(then):
            settlement.recover(round_, after(seconds), ATTEMPT, forced=forced)


@pytest.mark.parametrize(
    ("happened", "seconds", "because"),
    [((*OWED, "stalled"), 2, "stalled"), (OWED, 61, "lease_ended"), (OWED, 2, "forced"),
     ((*OWED, "stalled"), 400, "stalled")],
)  # fmt: skip
def test_a_recovery_says_why_and_opens_the_next_claim(happened: tuple[str, ...], seconds: int, because: str) -> None:
    [fact] = settlement.recover(round_of(*happened), after(seconds), ATTEMPT, forced=True)
    assert isinstance(fact, Recovered)
    assert (fact.because, fact.from_fence, fact.claim.fence) == (because, 1, 2)


def test_a_renewed_lease_is_held_longer() -> None:
    renewed = Round((pause_of(*OWED),), leased_until=NOON + timedelta(seconds=100))
    with pytest.raises(LeaseHeld) as held:
        settlement.recover(renewed, after(99), ATTEMPT)
    assert (held.value.fence, held.value.until) == (1, NOON + timedelta(seconds=100))
    assert topics(settlement.recover(renewed, after(100), ATTEMPT)) == ["Recovered"]


def test_a_round_that_still_waits_names_the_open_calls() -> None:
    with pytest.raises(RoundOpen) as waits:
        settlement.recover(round_of("answered", sibling=()), after(2), ATTEMPT)
    assert waits.value.open == (f"c{SIBLING.int}",)
    with pytest.raises(NotConsumed):
        settlement.recover(round_of(sibling=()), after(2), ATTEMPT)


# What every decision keeps to


def redeem(round_: Round, stamp: Stamp) -> list[PauseFact]:
    """What a redemption of the lead's token decides in one append."""
    judge_consumption(round_.lead)
    answered = answer(round_, LEAD, given_answer(YES), stamp)
    return [*answered, *consume(round_.after(answered), stamp, ATTEMPT)]


DECISIONS: dict[str, Callable[[Round, Stamp], list[PauseFact]]] = {
    "answer yes": lambda round_, stamp: answer(round_, LEAD, given_answer(YES), stamp),
    "answer no": lambda round_, stamp: answer(round_, round_.pauses[-1].id, given_answer(NO), stamp),
    "stored": lambda round_, stamp: answer(round_, LEAD, None, stamp),
    "redeem": redeem,
    "withdraw": lambda round_, stamp: closing.withdraw(round_.pauses[-1], stamp, reason="host", note="no"),
    "lapse": lambda round_, stamp: closing.lapse(round_, LEAD, stamp),
    "reissue": lambda round_, stamp: reissue(round_.lead),
    "finish": lambda round_, stamp: settlement.settle(round_.lead, Settlement(1, "finished"), stamp),
    "stall": lambda round_, stamp: settlement.settle(round_.lead, Settlement(round_.lead.fence, "stalled"), stamp),
    "abandon": lambda round_, stamp: settlement.settle(round_.lead, Settlement(round_.lead.fence, "abandoned"), stamp),
    "recover": lambda round_, stamp: settlement.recover(round_, stamp, ATTEMPT),
    "force": lambda round_, stamp: settlement.recover(round_, stamp, ATTEMPT, forced=True),
}
OBJECTIONS = (
    AlreadyAnswered, AlreadyConsumed, AlreadyContinued, InteractionConfigurationError, LeaseHeld, NotAnswered,
    NotConsumed, NothingOwed, PauseClosed, PauseLapsed, PauseWithdrawn, RoundOpen, TurnAbandoned, WindowOpen,
)  # fmt: skip


@given(
    st.lists(st.tuples(st.sampled_from(sorted(DECISIONS)), st.sampled_from((0, 0, 1, 30, 61, 301))), max_size=14),
    st.booleans(),
    st.sampled_from((None, NO)),
)
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_decisions_alter_nothing_and_their_facts_lead_where_they_say(
    decided: list[tuple[str, int]], two: bool, lapse: bytes | None
) -> None:
    """Any sequence of decisions keeps the promises of the stream, and reading it back gives what was held."""
    round_ = round_of(sibling=() if two else None, lapse=lapse)
    streams: dict[UUID, list[PauseFact]] = {pause.id: [pause.paused] for pause in round_.pauses}
    seconds = 0
    for at, (word, passed) in enumerate(decided):
        seconds += passed
        before = repr(round_)
        # An answer, a withdrawal and a redemption are judged before; here each is only asked where it may be.
        if word.startswith("answer") and (round_.pauses[-1].withdrawn or round_.lead.withdrawn or round_.lead.consumed):
            continue
        try:
            facts = DECISIONS[word](round_, after(seconds, UUID(int=1000 + at)))
        except OBJECTIONS:
            facts = []
        assert repr(round_) == before, f"{word} altered what it was given"
        then = round_.after(facts)
        for fact in facts:
            pause, stream = then.of(fact.originator_id), streams[fact.originator_id]
            assert fact.originator_version == len(stream) + 1
            assert fact.at >= stream[-1].at
            assert (fact.pause, fact.scope, fact.ledger) == (pause.id, pause.paused.scope, LEDGER)
            stream.append(fact)
        round_ = then
        keeps_promises(round_, streams)


def keeps_promises(round_: Round, streams: dict[UUID, list[PauseFact]]) -> None:
    for pause in round_.pauses:
        names = topics(streams[pause.id])
        assert replay(streams[pause.id]) == pause
        assert all(names.count(once) <= 1 for once in ("Answered", "Consumed", "Continued", "Lapsed", "Withdrawn"))
        closed = [at for at, name in enumerate(names) if name in ("Consumed", "Withdrawn", "Lapsed")]
        assert "Answered" not in names[min(closed, default=len(names)) :]
    assert len({pause.consumed is None for pause in round_.pauses}) == 1, "some of a round were consumed, and some not"
    claims = [fact.claim.fence for fact in streams[LEAD] if isinstance(fact, (Consumed, Recovered)) and fact.claim]
    assert claims == list(range(1, len(claims) + 1))
    assert round_.lead.recoveries <= settlement.RECOVERIES
    assert not any(pause.claim or pause.continued or pause.stalled for pause in round_.pauses[1:])


@given(STORIES, st.integers(0, 900), st.sampled_from(sorted(DECISIONS)))
@settings(max_examples=200, deadline=None, derandomize=True, database=None)
def test_any_stream_at_all_is_decided_on_or_objected_to_by_name(story: list[str], seconds: int, word: str) -> None:
    """Also streams that this version would never write: another one may have."""
    round_ = round_of(*story)
    stamp = after(seconds)
    try:
        facts = DECISIONS[word](round_, stamp)
    except OBJECTIONS:
        return
    assert [fact.originator_version for fact in facts] == [len(story) + 2 + at for at in range(len(facts))]
    assert all(fact.at == max(stamp.now, round_.lead.at) for fact in facts if not isinstance(fact, Reissued))
    round_.after(facts)


def test_time_never_goes_back_within_a_stream_though_a_clock_does() -> None:
    pause = pause_of("answered")
    [fact] = consume(Round((pause,)), after(-50), ATTEMPT)
    assert fact.at == pause.at
