"""Pausing: stored before any token, found again while it stands, and never again without being asked to."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from pauseledger import (
    APPROVAL,
    Actor,
    Agent,
    Interaction,
    InteractionConfigurationError,
    LapseAnswer,
    LapseCommand,
    PauseClosed,
    PauseConflict,
    PauseRejected,
    Routing,
    Turn,
    WithdrawCommand,
)
from pauseledger.infrastructure.stories import (
    ANSWER,
    ANSWER_TEXT,
    FORMAT,
    QUESTION,
    STORED,
    Stage,
    approve,
    ask,
    asked,
    asked_round,
    axes,
    call_of,
    contents,
    round_of,
    topics,
    turn,
)


@pytest.fixture
def stage(store_url, tmp_path):
    return Stage(store_url, tmp_path / "keys")


@pytest.fixture
async def ledger(stage):
    async with stage.ledger() as opened:
        yield opened


@pytest.fixture
async def in_memory(tmp_path):
    async with Stage("memory:", tmp_path / "keys").ledger() as opened:
        yield opened


def questions(**fields):
    return {"questions": [{**QUESTION["questions"][0], **fields}]}


async def test_a_token_exists_only_after_its_pause_is_stored(stage, ledger, monkeypatch):
    seal, minted = ledger.capability._services.seal, []
    mint = type(seal).mint

    def watch(self, terms):
        minted.append(stage.count("pause.paused@1"))
        return mint(self, terms)

    monkeypatch.setattr(type(seal), "mint", watch)
    question = await asked(ledger)
    assert minted == [1]
    assert question.receipt.position == stage.rows()[0].position


async def test_a_fresh_process_redeems_what_another_paused(stage, ledger):
    question = await asked(ledger)
    async with stage.ledger() as other:
        assert contents(await question.at(other).redeem()) == {"call_1": ANSWER_TEXT}


async def test_the_same_command_finds_the_same_pause_while_it_stands(stage, ledger):
    first = await asked(ledger)
    async with stage.ledger() as other:
        again = await asked(other, request={"questions": [dict(reversed(QUESTION["questions"][0].items()))]})
    assert (first.receipt.existing, again.receipt.existing) == (False, True)
    assert (again.pause_id, again.receipt.position) == (first.pause_id, first.receipt.position)
    assert stage.count() == 1
    await first.answer()
    assert (await asked(ledger)).receipt.existing
    assert (await again.at(ledger).redeem(STORED)).fence == 1


CONFLICTS = {
    "request": {"request": questions(question="Whose account?")},
    "interaction": {"interaction": APPROVAL, "request": {"tool": "t", "arguments": {}}},
    "window length": {"closes_in": 60},
    "routing": {"routing": Routing(queue="billing")},
}


@pytest.mark.parametrize("differs", CONFLICTS)
async def test_the_same_round_with_other_contents_is_a_conflict(stage, ledger, differs):
    first = await asked(ledger)
    with pytest.raises(PauseConflict) as caught:
        await asked(ledger, **CONFLICTS[differs])
    assert (caught.value.pause_id, caught.value.differs) == (first.pause_id, differs)
    assert stage.count() == 1


@pytest.mark.parametrize("calls", [("call_1",), ("call_2",), ("call_1", "call_2", "call_3"), ("call_1", "call_3")])
async def test_another_set_of_calls_is_a_conflict(stage, ledger, calls):
    stopped = turn("call_1", "call_2", "call_3")
    await asked_round(ledger, *round_of("call_1", "call_2", turn=stopped))
    with pytest.raises(PauseConflict) as caught:
        await asked_round(ledger, *round_of(*calls, turn=stopped))
    assert caught.value.differs == "set of calls"
    assert stage.count() == 2


async def test_routing_is_compared_by_whom_it_is_for(ledger):
    team = Routing(queue="q", priority=2, groups=("billing",), assignees=("maria", "tom"))
    first = await asked(ledger, routing=team)
    assert (await asked(ledger, routing=team)).pause_id == first.pause_id
    for other in (Routing(queue="q", priority=2), Routing("q", 1, ("billing",), ("maria", "tom"))):
        with pytest.raises(PauseConflict, match="routing"):
            await asked(ledger, routing=other)


async def withdraw(question):
    await question.ledger.capability.withdraw(WithdrawCommand(question.pause_id, axes=question.axes))


async def lapse(question):
    question.ledger.wait(days=8)
    await question.ledger.capability.lapse(LapseCommand(question.pause_id, axes=question.axes))


async def run_out(question):
    question.ledger.wait(days=8)


async def redeem(question):
    await question.redeem()


ENDS = {"withdrawn": withdraw, "lapsed": lapse, "lapsed, not yet written": run_out, "owed": redeem}


@pytest.mark.parametrize("end", ENDS)
async def test_a_closed_round_names_the_next_occurrence_and_that_one_works(stage, ledger, end):
    first = await asked(ledger, run_started=ledger.pauses.now())
    await ENDS[end](first)
    started = datetime.fromisoformat(stage.rows()[0].header["at"])
    with pytest.raises(PauseClosed) as caught:
        await asked(ledger, run_started=started)
    assert (caught.value.state, caught.value.next_occurrence) == (end.partition(",")[0], 1)
    assert caught.value.pause_id == first.pause_id
    second = await asked(ledger, run_started=started, occurrence=1)
    assert second.pause_id != first.pause_id
    assert contents(await second.redeem()) == {"call_1": ANSWER_TEXT}
    with pytest.raises(PauseClosed) as caught:
        await asked(ledger, run_started=started)
    assert caught.value.next_occurrence == 2
    assert stage.rows(second.pause_id)[0].header["occurrence"] == 1


async def test_an_occurrence_in_use_and_open_is_the_next(ledger):
    await (await asked(ledger)).redeem()
    await asked(ledger, occurrence=1)
    with pytest.raises(PauseClosed) as caught:
        await asked(ledger)
    assert caught.value.next_occurrence == 1


async def test_a_lapse_answer_that_still_waits_to_be_taken_up_keeps_it_standing(ledger):
    fields = {"on_lapse": LapseAnswer(ANSWER), "run_started": ledger.pauses.now()}
    first = await asked(ledger, **fields)
    ledger.wait(days=8)
    assert (await asked(ledger, **fields)).pause_id == first.pause_id


@pytest.mark.parametrize(
    "fields",
    [
        {"axes": axes(run_id="run-2")},
        {"axes": axes(session_id="session-2")},
        {"axes": axes(scope=axes().scope.model_copy(update={"namespace": ""}))},
        {"turn": turn(said="Hello!")},
        {"idempotency_key": "message-7"},
        {"occurrence": 1},
    ],
    ids=str,
)
async def test_what_makes_it_another_pause(ledger, fields):
    first = await asked(ledger)
    other = await asked(ledger, **fields)
    assert not other.receipt.existing
    assert other.pause_id != first.pause_id


async def test_an_idempotency_key_stands_in_the_turns_place(stage, ledger):
    first = await asked(ledger, idempotency_key="message-7")
    again = await asked(ledger, idempotency_key="message-7", turn=turn(said="Hello, with a new time stamp"))
    assert (again.pause_id, again.receipt.existing, stage.count()) == (first.pause_id, True, 1)
    assert not any(b"message-7" in row.state for row in stage.rows())


FIRST_DAY = datetime(2031, 3, 1, 0, 0, 5, tzinfo=UTC)


async def test_on_a_months_first_day_the_month_before_is_looked_up(stage, ledger):
    ledger.go_to(FIRST_DAY - timedelta(seconds=30))
    first = await asked(ledger, closes_in=10**6)
    ledger.go_to(FIRST_DAY)
    again = await asked(ledger, closes_in=10**6)
    assert (again.pause_id, again.receipt.existing) == (first.pause_id, True)
    ledger.go_to(FIRST_DAY + timedelta(days=1))
    assert not (await asked(ledger, closes_in=10**6)).receipt.existing


async def test_the_start_of_the_run_fixes_the_month(ledger):
    started = datetime(2031, 2, 28, 23, tzinfo=UTC)
    ledger.go_to(FIRST_DAY - timedelta(seconds=30))
    first = await asked(ledger, closes_in=10**7, run_started=started)
    ledger.go_to(FIRST_DAY + timedelta(days=40))
    again = await asked(ledger, closes_in=10**7, run_started=started.astimezone())
    assert (again.pause_id, again.receipt.existing) == (first.pause_id, True)
    assert int.from_bytes(first.pause_id.bytes[:2], "big") == (2031 - 2020) * 12 + 1
    assert first.pause_id.version == 8


@pytest.mark.parametrize(
    "started", [datetime(2031, 1, 1, tzinfo=UTC).replace(tzinfo=None), datetime(2019, 12, 31, tzinfo=UTC)], ids=str
)
async def test_a_run_started_at_no_possible_time_is_rejected(in_memory, started):
    with pytest.raises(PauseRejected, match="run_started_invalid"):
        await asked(in_memory, run_started=started)


async def test_receipts_come_in_the_order_of_the_commands(stage, ledger):
    commands = round_of("call_1", "call_2", "call_3")[::-1]
    questions = await asked_round(ledger, *commands)
    again = await asked_round(ledger, *commands)
    for found in (questions, again):
        stored = [stage.rows(one.pause_id)[0].header["call_id"] for one in found]
        assert stored == ["call_3", "call_2", "call_1"]
        assert {one.receipt.round for one in found} == {questions[2].pause_id}


async def test_superseding_withdraws_the_whole_older_round_in_the_same_append(stage, ledger):
    first, second = await asked_round(ledger, *round_of("call_1", "call_2"))
    await second.answer()
    newer = await asked(ledger, turn=turn(said="Leave it."), axes=axes(run_id="run-2"), supersedes=second.pause_id)
    written = stage.rows()[3:]
    assert {row.stream: row.topic for row in written} == {
        newer.pause_id: "pause.paused@1",
        first.pause_id: "pause.withdrawn@1",
        second.pause_id: "pause.withdrawn@1",
    }
    assert len({row.header["attempt"] for row in written}) == 1
    assert {row.header.get("superseded_by") for row in written} == {None, str(newer.pause_id)}
    again = await asked(ledger, turn=turn(said="Leave it."), axes=axes(run_id="run-2"), supersedes=second.pause_id)
    assert (again.receipt.existing, stage.count()) == (True, 6)


async def test_what_cannot_be_superseded(stage, ledger):
    first = await asked(ledger)
    before = stage.rows()
    for fields, name in (
        ({"supersedes": uuid4()}, "supersedes_unknown"),
        ({"supersedes": first.pause_id, "axes": axes(session_id="session-2")}, "supersedes_foreign"),
    ):
        with pytest.raises(PauseRejected) as caught:
            await asked(ledger, turn=turn(said="Other."), **fields)
        assert caught.value.name == name
    assert stage.rows() == before
    await first.redeem()
    with pytest.raises(PauseClosed):
        await asked(ledger, turn=turn(said="Other."), supersedes=first.pause_id)


@pytest.mark.parametrize(
    ("calls", "stopped", "name"),
    [
        (["call_9"], turn("call_1"), "call_unknown"),
        (["@0"], turn("call_1"), "call_unknown"),
        (["call_2"], turn("call_1", "call_2", done=["call_2"]), "call_done"),
        (["call_1", "call_1"], turn("call_1"), "call_twice"),
        (["call_1"], turn("call_1", done=["call_1"]), "turn_broken"),
        (["call_1"], Turn(FORMAT, [{"role": "user", "content": "Hi"}]), "turn_broken"),
        (["call_1"], Turn(FORMAT, b'{"role": "user"}'), "turn_broken"),
        (["call_1"], Turn("smoke-signals", []), "format_unknown"),
        (["call_1"], turn("call_1", "call_1"), "call_ambiguous"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_calls_that_the_turn_does_not_leave_open(in_memory, calls, stopped, name):
    with pytest.raises(PauseRejected) as caught:
        await asked_round(in_memory, *(ask(call, turn=stopped) for call in calls))
    assert caught.value.name == name
    assert in_memory.recorder.max_notification_id() is None


async def test_the_commands_of_a_round_have_their_turn_in_common(in_memory):
    first, second = round_of("call_1", "call_2")
    for other in (
        ask("call_2", turn=turn("call_1", "call_2", said="Another.")),
        ask("call_2", turn=first.turn, axes=axes("call_2", run_id="run-2")),
        ask("call_2", turn=first.turn, occurrence=1),
        ask("call_2", turn=first.turn, idempotency_key="other"),
    ):
        with pytest.raises(InteractionConfigurationError, match="round share"):
            await asked_round(in_memory, first, other)
    with pytest.raises(InteractionConfigurationError, match="at least one"):
        await in_memory.capability.pause_round([])
    assert len(await asked_round(in_memory, first, second)) == 2


async def test_a_call_without_an_id_is_addressed_by_its_place(stage, ledger):
    legacy = Turn(
        FORMAT,
        [
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": None, "function_call": {"name": "ask_user", "arguments": "{}"}},
        ],
    )
    question = await asked(ledger, ask("@0", turn=legacy))
    turned = await question.redeem()
    assert turned.history[-1] == {"role": "function", "name": "ask_user", "content": ANSWER_TEXT}
    assert (turned.outcome.interrupt_id, turned.outcome.tool_call_id) == ("@0", None)
    assert "@0" not in str(turned.history)
    assert stage.rows()[0].header["call"] == {"index": 0, "origin": "derived", "tool": "ask_user"}


async def test_labels_and_agents_are_listed_words(stage, ledger):
    agent = Agent(name="support", version="2.1", model="gpt-x")
    await asked(ledger, labels={"team": "billing", "env": "eu-1"}, agent=agent, routing=Routing(queue="q:1"))
    header = stage.rows()[0].header
    assert header["labels"] == {"team": "billing", "env": "eu-1"}
    assert header["agent"] == {"name": "support", "version": "2.1", "model": "gpt-x"}


@pytest.mark.parametrize(
    "fields",
    [
        {"labels": {"team": "two words"}},
        {"labels": {"note": "Anne's account"}},
        {"labels": {str(n): "x" for n in range(17)}},
        {"labels": {"n": 7}},
        {"labels": {"": "x"}},
        {"routing": Routing(queue="a queue")},
        {"agent": Agent(name="The helpful one")},
    ],
    ids=str,
)
async def test_free_text_is_no_label(in_memory, fields):
    with pytest.raises(PauseRejected, match="word_invalid"):
        await asked(in_memory, **fields)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"closes_in": 0}, "window_invalid"),
        ({"closes_in": -1}, "window_invalid"),
        ({"closes_in": 1.5}, "window_invalid"),
        ({"closes_in": True}, "window_invalid"),
        ({"opens_in": 60, "closes_in": 60}, "window_invalid"),
        ({"opens_in": -1}, "window_invalid"),
        ({"closes_in": 10**12}, "window_invalid"),
        ({"occurrence": -1}, "occurrence_invalid"),
        ({"occurrence": 2**32}, "occurrence_invalid"),
        ({"idempotency_key": ""}, "idempotency_key_invalid"),
        ({"idempotency_key": "x" * 256}, "idempotency_key_invalid"),
        ({"idempotency_key": "\ud800"}, "lone_surrogate"),
        ({"routing": Routing(assignees=["\ud800"])}, "lone_surrogate"),
        ({"request": {"questions": []}}, "request_invalid"),
        ({"request": questions(options=[{"label": "a"}, {"label": "a"}])}, "request_invalid"),
        ({"on_lapse": LapseAnswer({"answers": []})}, "lapse_answer_invalid"),
        ({"on_lapse": LapseAnswer(float("nan"))}, "nan"),
    ],
    ids=str,
)
async def test_what_cannot_be_paused_is_rejected_by_name(in_memory, fields, name):
    with pytest.raises(PauseRejected) as caught:
        await asked(in_memory, **fields)
    assert caught.value.name == name
    assert in_memory.recorder.max_notification_id() is None


async def test_an_interaction_that_nobody_registered_is_the_hosts_mistake(in_memory):
    with pytest.raises(InteractionConfigurationError, match="no_such"):
        await asked(in_memory, interaction="no_such")


async def test_a_taken_name_is_a_configuration_error(in_memory):
    mine = Interaction(name="mine", request_schema={}, response_schema={}, as_text=str)
    in_memory.capability.register(mine)
    with pytest.raises(InteractionConfigurationError, match="mine"):
        in_memory.capability.register(mine)


@pytest.mark.parametrize("person", ["\ud800", ""], ids=["no text", "empty"])
async def test_a_person_without_a_name_is_the_hosts_mistake(in_memory, person):
    with pytest.raises(InteractionConfigurationError, match="actor"):
        await asked(in_memory, asked_by=Actor(person))


async def test_a_question_without_ids_gets_them_when_pausing(stage, ledger):
    question = await asked(ledger)
    assert (await question.redeem()).outcome.request["questions"][0]["id"] == "q1"


async def test_the_turn_is_kept_verbatim(stage, ledger):
    given = (
        b'[ {"role":"user",  "content":"z\\u00e9", "b":1,"a":1.50},\n {"role":"assistant","tool_calls":['
        b'{"id":"call_1","type":"function","function":{"name":"t","arguments":"{ }"}}]} ]'
    )
    question = await asked(ledger, turn=Turn(FORMAT, given))
    turned = await question.redeem()
    assert turned.outcome.turn.text == given
    assert list(turned.history[0]) == ["role", "content", "b", "a"]


async def test_who_asked_stands_as_a_tag_and_beside_the_header(stage, ledger):
    question = await asked(ledger, asked_by=Actor("maria@example.org", assurance="authenticated", method="oidc"))
    row = stage.rows()[0]
    assert "maria" not in str(row.header)
    assert len(row.header["asked_by"]["tag"]) == 16
    assert row.header["asked_by"]["who"]["cipher"] == "aes-256-gcm"
    assert (await ledger.story(question.pause_id))[0].asked_by.who.clear() == b"maria@example.org"


async def test_pausing_again_at_once_from_several_tasks_is_one_pause(stage, ledger):
    async with stage.ledger() as other:
        found = await asyncio.gather(*(asked(process) for process in (ledger, other) for _ in range(6)))
    assert len({one.pause_id for one in found}) == 1
    assert [one.receipt.existing for one in found].count(False) == 1
    assert topics(stage.rows()) == ["paused"]
    assert len({one.token for one in found}) == 12


async def test_an_approval_keeps_its_arguments_as_they_were_given(ledger):
    question = await asked(
        ledger, approve(arguments={"b": 1, "a": {"z": None}}, turn=turn(call_of("call_1", "transfer")))
    )
    assert (await question.redeem({"decision": "approve"})).dispatch[0].arguments == {"b": 1, "a": {"z": None}}
