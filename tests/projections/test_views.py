"""What each view tells, on every store, through the ledger itself."""

import asyncio
from datetime import timedelta

import pytest
from pauseledger import (
    Actor,
    Axes,
    InteractionConfigurationError,
    LapseAnswer,
    RecoverCommand,
    Refusal,
    ReissueCommand,
    RoundOpen,
    Routing,
    Scope,
    SettleCommand,
    WithdrawCommand,
)
from pauseledger.infrastructure.stories import (
    ANSWER,
    SCOPE,
    Stage,
    approve,
    ask,
    asked,
    asked_round,
    axes,
    round_of,
    turn,
)
from pauseledger.projections.open_pauses import ALL, Inbox
from pauseledger.projections.projection import ViewBehind

OTHER = Scope(tenant_id="acme", sub_tenant_id="")
SUPPORT = Actor("support@acme")


@pytest.fixture
async def ledger(store_url, tmp_path):
    async with Stage(store_url, tmp_path / "keys").ledger() as ledger:
        yield ledger


async def inbox(ledger, scope=SCOPE, chosen=ALL, **more):
    await ledger.views.catch_up()
    return await ledger.views.open_pauses.most_urgent(scope, chosen, **more)


async def stranded(ledger, scope=SCOPE):
    await ledger.views.catch_up()
    return [(item.pause_id, item.state) for item in await ledger.views.stranded.stranded(scope)]


async def one(ledger, number, **fields):
    """Ask in a turn of its own."""
    command = ask(f"c{number}", turn=turn(f"c{number}", said=str(number)), **{"axes": axes(f"c{number}"), **fields})
    return await asked(ledger, command)


async def test_the_inbox_tells_who_is_asked_what_until_when(ledger):
    routing = Routing(queue="tier-1", priority=3, groups=("night",), assignees=("ann@acme",))
    pause = await asked(ledger, approve(routing=routing, asked_by=Actor("bot"), labels={"kind": "money"}, closes_in=90))
    [row] = (await inbox(ledger)).rows
    assert (row.pause, row.scope, row.session_id, row.run_id, row.call_id) == (
        pause.pause_id, SCOPE, "session-1", "run-1", "call_1"
    )  # fmt: skip
    assert (row.interaction, row.queue, row.priority, row.labels) == ("approval", "tier-1", 3, {"kind": "money"})
    assert (len(row.groups), len(row.assignees), row.asked_by is not None) == (1, 1, True)
    assert row.closes_at == pause.receipt.closes_at
    assert row.closes_at - row.since <= timedelta(seconds=90)
    assert (await ledger.views.question(row))["tool"] == "transfer"


async def test_the_inbox_is_chosen_from_by_person_group_queue_session_kind_and_deadline(ledger):
    await one(ledger, 1, routing=Routing(assignees=("ann", "bob"), queue="q"), closes_in=100)
    await one(ledger, 2, routing=Routing(assignees=("bob",), groups=("ann",)), closes_in=300)
    await asked(ledger, approve("c3", turn=turn("c3", said="3"), axes=axes("c3", session_id="s3"), closes_in=200))

    async def calls(**chosen):
        return [row.call_id for row in (await inbox(ledger, chosen=Inbox(**chosen))).rows]

    assert await calls() == ["c1", "c3", "c2"]
    assert await calls(assignee="ann") == ["c1"]
    assert await calls(assignee="bob") == ["c1", "c2"]
    assert await calls(assignee="nobody") == []
    assert await calls(group="ann") == ["c2"]
    assert await calls(queue="q") == ["c1"]
    assert await calls(session_id="s3") == ["c3"]
    assert await calls(interaction="approval") == ["c3"]
    assert await calls(closes_before=ledger.pauses.now() + timedelta(seconds=150)) == ["c1"]
    assert [row.call_id for row in (await ledger.views.open_pauses.newest(SCOPE)).rows] == ["c3", "c2", "c1"]
    counts = await ledger.views.open_pauses.count(SCOPE)
    assert (counts.open, counts.by_interaction, counts.unreadable) == (3, {"ask_user": 2, "approval": 1}, 0)


async def test_pages_go_through_all_once_while_others_come_and_go(ledger):
    pauses = [await one(ledger, number, closes_in=100 + number) for number in range(5)]
    seen, page = [], None
    while True:
        found = await inbox(ledger, limit=2, page=page)
        seen += [row.call_id for row in found.rows]
        if found.next is None:
            break
        page = found.next
        if len(seen) == 2:
            await pauses[0].answer()
            await one(ledger, 9, closes_in=50)
    assert seen == ["c0", "c1", "c2", "c3", "c4"]
    for nonsense in ("", "x", "readable 2026 not-a-uuid"):
        with pytest.raises(InteractionConfigurationError):
            await ledger.views.open_pauses.most_urgent(SCOPE, page=nonsense)


async def test_a_round_tells_how_much_of_it_is_answered(ledger):
    first, second, third = await asked_round(ledger, *round_of("c1", "c2", "c3"))
    await second.answer()
    assert {(row.call_id, row.round_calls, row.round_answered) for row in (await inbox(ledger)).rows} == {
        ("c1", 3, 1), ("c3", 3, 1)
    }  # fmt: skip
    await ledger.operator(SUPPORT).withdraw(WithdrawCommand(first.pause_id))
    [row] = (await inbox(ledger)).rows
    assert (row.call_id, row.round, row.round_answered) == ("c3", first.pause_id, 1)
    await third.redeem()
    assert (await inbox(ledger)).rows == ()


async def test_no_question_crosses_a_scope_and_an_operator_has_names_for_all(ledger):
    scopes = [SCOPE, OTHER, Scope(tenant_id="acme", namespace="n"), Scope(tenant_id="zeta")]
    for number, scope in enumerate(scopes):
        pause = await one(ledger, number, axes=axes(f"c{number}", scope=scope))
        with pytest.raises(Refusal):
            await pause.redeem(axes=axes("elsewhere", scope=scope))
        later = await one(ledger, f"{number}b", axes=axes(f"c{number}b", scope=scope))
        await later.answer()
    views = ledger.views
    await views.catch_up()
    for number, scope in enumerate(scopes):
        [row] = (await views.open_pauses.most_urgent(scope)).rows
        assert (row.call_id, row.scope) == (f"c{number}", scope)
        assert (await views.open_pauses.count(scope)).open == 1
        assert {told.scope for told in await views.history.of_session(scope, "session-1")} == {scope}
        assert {told.scope for told in await views.history.of_run(scope, "run-1")} == {scope}
        assert [count.count for count in await views.refusals.counts(scope)] == [1]
        assert [who.count for who in await views.refusals.insistent(scope)] == [1]
        assert [(time.answered, time.open) for time in await views.response_times.report(scope)] == [(1, 1)]
        assert (await views.response_times.rubber_stamps(scope, 60)).hasty == 1
        assert [item.axes.scope for item in await views.stranded.stranded(scope)] == [scope]
        assert [item.axes.scope async for item in ledger.owed(scope)] == [scope]
        for other in scopes[:number]:
            assert await views.history.of_pause(other, row.pause) == []
            assert await views.history.of_round(other, row.pause) == []
            assert await views.refusals.last_attempts(other, row.pause) == []
    assert len((await views.open_pauses.most_urgent_of_all_tenants()).rows) == 4
    assert len((await views.open_pauses.newest_of_all_tenants()).rows) == 4
    assert (await views.open_pauses.count_of_all_tenants()).open == 4
    assert {told.scope for told in await views.history.of_pause_of_all_tenants(row.pause)} == {scopes[-1]}
    assert len(await views.refusals.counts_of_all_tenants()) == 4
    assert len(await views.refusals.last_attempts_of_all_tenants()) == 4
    assert len(await views.refusals.insistent_of_all_tenants()) == 4
    assert len(await views.response_times.report_of_all_tenants()) == 4
    assert (await views.response_times.rubber_stamps_of_all_tenants(60)).hasty == 4
    assert len(await views.stranded.stranded_of_all_tenants()) == 4
    assert len([item async for item in views.stranded.owed_of_all_tenants()]) == 4
    for no_scope in (None, "acme", {"tenant_id": "acme"}):
        with pytest.raises(InteractionConfigurationError):
            await views.open_pauses.most_urgent(no_scope)
        with pytest.raises(InteractionConfigurationError):
            await views.history.unreadable(no_scope)
        with pytest.raises(InteractionConfigurationError):
            await anext(ledger.owed(no_scope))


async def test_a_history_tells_who_did_what_when_refused_attempts_included(ledger):
    pause, other = await asked_round(ledger, *round_of("call_1", "c2"))
    with pytest.raises(Refusal):
        await pause.redeem(axes=axes(run_id="another run"), answered_by=Actor("mallory"))
    with pytest.raises(RoundOpen):
        await pause.redeem(answered_by=Actor("ann"))
    turn_ = await other.redeem(answered_by=Actor("ann"))
    await ledger.capability.settle(SettleCommand(turn_.outcome.pause_id, other.axes, turn_.fence, "finished"))
    await ledger.views.catch_up()
    told = await ledger.views.history.of_pause(SCOPE, pause.pause_id)
    assert [fact.what for fact in told] == ["paused", "refused", "answered", "consumed", "continued"]
    paused, refused, answered, consumed, continued = told
    assert (refused.axis, refused.reason, refused.who is not None) == ("run", "run_mismatch", True)
    assert answered.who == consumed.who != refused.who
    assert answered.shown_digest
    assert consumed.response_digest == answered.response_digest != paused.request_digest
    assert (consumed.fence, continued.fence, consumed.holder is not None) == (1, 1, True)
    assert consumed.attempt != refused.attempt
    whole = await ledger.views.history.of_round(SCOPE, pause.receipt.round)
    assert [fact.position for fact in whole] == sorted(fact.position for fact in whole)
    assert whole == await ledger.views.history.of_run(SCOPE, "run-1")
    assert whole == await ledger.views.history.of_session(SCOPE, "session-1")
    assert len(whole) == 8
    assert await ledger.views.history.of_run(SCOPE, "run-2") == []
    assert whole[3:5] == await ledger.views.history.of_run(SCOPE, "run-1", from_position=whole[2].position, limit=2)
    sentences = await ledger.views.sentences(told)
    assert len(sentences) == 5
    assert "mallory" not in "".join(sentences)
    assert "Anne" not in "".join(sentences)
    named = await ledger.views.sentences(told, content=True)
    assert 'person "mallory"' in named[1]
    assert "Anne" in named[2]


async def test_attempts_past_a_pauses_own_stream_belong_to_its_history_as_well(ledger):
    pause = await asked(ledger)
    for _ in range(18):
        with pytest.raises(Refusal):
            await pause.redeem(axes=axes(run_id="another run"))
    await ledger.views.catch_up()
    told = await ledger.views.history.of_pause(SCOPE, pause.pause_id)
    assert [fact.what for fact in told] == ["paused"] + ["refused"] * 18
    assert len({fact.stream for fact in told}) == 2
    attempts = await ledger.views.refusals.last_attempts(SCOPE, pause.pause_id, limit=5)
    assert [attempt.position for attempt in attempts] == [fact.position for fact in told[:-6:-1]]


async def test_refusals_are_counted_by_axis_reason_hour_and_day_and_by_who_keeps_trying(ledger):
    pause = await asked(ledger)
    for number, bad in enumerate([{"run_id": "x"}, {"run_id": "y"}, {"session_id": "z"}]):
        with pytest.raises(Refusal):
            await pause.redeem(axes=axes(**bad), answered_by=Actor("mallory" if number else "ann"))
    ledger.wait(hours=25)
    with pytest.raises(Refusal):
        await pause.redeem(axes=axes(run_id="x"), answered_by=Actor("mallory"))
    await ledger.views.catch_up()
    views = ledger.views.refusals
    days = await views.counts(SCOPE)
    assert sorted((count.axis, count.reason, count.count) for count in days) == [
        ("run", "run_mismatch", 1), ("run", "run_mismatch", 2), ("session", "session_mismatch", 1)
    ]  # fmt: skip
    assert {len(count.period) for count in await views.counts(SCOPE, by="hour")} == {13}
    late = await views.counts(SCOPE, since=ledger.pauses.now() - timedelta(hours=1))
    assert [count.count for count in late] == [1]
    early = await views.counts(SCOPE, until=ledger.pauses.now() - timedelta(hours=1))
    assert sum(count.count for count in early) == 3
    who = await views.insistent(SCOPE)
    assert [one.count for one in who] == [3, 1]
    assert who[0].last_at - who[0].first_at >= timedelta(hours=25)
    assert (await views.last_attempts(SCOPE, pause.pause_id, limit=1))[0].by == who[0].by


async def test_response_times_are_told_by_interaction_and_assignee(ledger):
    for number in range(10):
        pause = await one(ledger, number, routing=Routing(assignees=("ann",) if number % 2 else ()))
        ledger.wait(seconds=number * 10)
        await pause.answer(answered_by=Actor("ann"))
    await one(ledger, "open")
    gone = await one(ledger, "gone", closes_in=5)
    ledger.wait(seconds=10)
    await ledger.operator(SUPPORT).withdraw(WithdrawCommand((await one(ledger, "back")).pause_id))
    await ledger.views.catch_up()
    assert await ledger.views.sweepers(ledger.capability).sweep() == 1
    await ledger.views.catch_up()
    everybody, ann = await ledger.views.response_times.report(SCOPE)
    assert (everybody.answered, everybody.open, everybody.lapsed, everybody.withdrawn) == (10, 1, 1, 1)
    assert [round(p, -1) for p in (everybody.p50, everybody.p90, everybody.p99)] == [40, 80, 90]
    assert everybody.lapsed_share == 1 / 11
    assert everybody.oldest_open <= gone.receipt.closes_at
    assert (ann.answered, ann.assignee is not None, round(ann.p50, -1)) == (5, True, 50)
    assert [ann] == await ledger.views.response_times.report(SCOPE, assignee="ann")
    assert await ledger.views.response_times.report(SCOPE, assignee="bob") == []
    stamps = await ledger.views.response_times.rubber_stamps(SCOPE, 25)
    assert (stamps.hasty, stamps.answered) == (3, 10)
    assert [round(answer.seconds, -1) for answer in stamps.fastest] == [0, 10, 20]
    assert list(stamps.by_answerer.values()) == [(3, 10)]


async def test_what_is_stranded_is_told_until_its_turn_goes_on(ledger):
    pause = await asked(ledger)
    assert await stranded(ledger) == []
    await pause.answer()
    assert await stranded(ledger) == [(pause.pause_id, "ready")]
    turn_ = await pause.redeem()
    assert await stranded(ledger) == []
    settle = SettleCommand(pause.pause_id, pause.axes, turn_.fence, "stalled", error_type="Broken")
    await ledger.capability.settle(settle)
    assert await stranded(ledger) == [(pause.pause_id, "stalled")]
    again = await ledger.capability.recover(RecoverCommand(pause_id=pause.pause_id, axes=pause.axes))
    assert await stranded(ledger) == []
    ledger.wait(seconds=61)
    assert await stranded(ledger) == [(pause.pause_id, "lease_ended")]
    [item] = [item async for item in ledger.owed(SCOPE)]
    assert (item.fence, item.recoveries, item.holder is not None) == (2, 1, True)
    assert item.age(ledger.pauses.now()) >= timedelta(0)
    # A renewal is no fact, and counts all the same.
    assert await ledger.pauses.renew(pause.pause_id, again.fence, 3600)
    assert await stranded(ledger) == []
    await ledger.capability.settle(SettleCommand(pause.pause_id, pause.axes, again.fence, "finished"))
    ledger.wait(hours=2)
    assert await stranded(ledger) == []


async def test_a_round_is_ready_once_all_is_settled_and_something_was_answered(ledger):
    first, second, third = await asked_round(ledger, *round_of("c1", "c2", "c3", closes_in=60))
    await second.answer()
    assert await stranded(ledger) == []
    await ledger.operator(SUPPORT).withdraw(WithdrawCommand(first.pause_id))
    assert await stranded(ledger) == []
    ledger.wait(seconds=61)
    # The window closed unmarked, and the round can be continued without anybody marking it.
    assert await stranded(ledger) == [(first.pause_id, "ready"), (third.pause_id, "closed")]
    [item] = [item async for item in ledger.owed(SCOPE)]
    assert item.axes == Axes(scope=SCOPE, session_id="session-1", run_id="run-1", call_id="c1")
    turn_ = await ledger.capability.recover(RecoverCommand(pause_id=item.pause_id, axes=item.axes))
    assert turn_.outcome.pause_id == second.pause_id
    assert await stranded(ledger) == []


async def test_a_lapse_answer_makes_a_round_ready_and_none_leaves_nothing(ledger):
    with_answer = await one(ledger, 1, on_lapse=LapseAnswer(ANSWER), closes_in=60)
    without = await one(ledger, 2, closes_in=62)
    ledger.wait(seconds=63)
    assert await stranded(ledger) == [
        (with_answer.pause_id, "ready"), (with_answer.pause_id, "closed"), (without.pause_id, "closed")
    ]  # fmt: skip
    assert await ledger.views.sweepers(ledger.capability).sweep() == 2
    assert await stranded(ledger) == [(with_answer.pause_id, "ready")]
    [item] = [item async for item in ledger.owed(SCOPE)]
    assert (await ledger.capability.recover(RecoverCommand(pause_id=item.pause_id, axes=item.axes))).fence == 1
    assert await stranded(ledger) == []


async def test_what_was_consumed_without_its_turn_owes_nothing(ledger):
    pause = await asked(ledger)
    await ledger.capability.resume(pause.command())
    await ledger.operator(SUPPORT).reissue(ReissueCommand((await one(ledger, 2)).pause_id))
    assert await stranded(ledger) == []


async def test_of_two_workers_one_takes_an_owed_turn(ledger):
    for number in range(3):
        await (await one(ledger, number)).answer()

    async def work():
        taken = []
        async for item in ledger.owed(SCOPE):
            try:
                taken.append(await ledger.capability.recover(RecoverCommand(pause_id=item.pause_id, axes=item.axes)))
            except Exception as lost:
                assert type(lost).__name__ == "LeaseHeld"
        return taken

    both = await asyncio.gather(work(), work())
    assert sum(map(len, both)) == 3


async def test_what_was_written_is_read_after_its_position(ledger):
    pause = await asked(ledger)
    found = await ledger.views.open_pauses.most_urgent(SCOPE, after=pause.receipt.position)
    assert [row.pause for row in found.rows] == [pause.pause_id]
    receipt = await pause.answer()
    assert (await ledger.views.open_pauses.count(SCOPE, after=receipt.position)).open == 0
    with pytest.raises(ViewBehind) as behind:
        await ledger.views.stranded.stranded(SCOPE, after=receipt.position + 1, seconds=0.1)
    assert isinstance(behind.value, TimeoutError)
    assert (behind.value.view, behind.value.position, behind.value.reached) == (
        "stranded", receipt.position + 1, receipt.position
    )  # fmt: skip


async def test_lag_tells_how_far_each_view_is_behind(ledger):
    pause = await asked(ledger)
    await ledger.views.catch_up(views=["refusals"])
    await pause.answer()
    ledger.wait(seconds=60)
    lag = {one.view: one for one in await ledger.views.lag()}
    assert set(lag) == {"open_pauses", "history", "refusals", "response_times", "stranded"}
    assert (lag["refusals"].behind, lag["history"].behind) == (1, 2)
    assert lag["history"].seconds >= 60
    await ledger.views.catch_up()
    assert {(one.behind, one.seconds, one.set_aside) for one in await ledger.views.lag()} == {(0, 0.0, 0)}


async def test_views_kept_elsewhere_leave_the_ledgers_store_alone(store_url, tmp_path):
    stage = Stage(store_url, tmp_path / "keys")
    async with stage.ledger(views=f"sqlite:///{tmp_path / 'views.db'}") as ledger:
        pause = await asked(ledger)
        found = await ledger.views.open_pauses.most_urgent(SCOPE, after=pause.receipt.position)
        assert [row.pause for row in found.rows] == [pause.pause_id]
    async with stage.ledger() as ledger:
        assert {one.position for one in await ledger.views.lag()} == {0}
