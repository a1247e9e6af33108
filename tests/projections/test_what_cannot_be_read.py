"""What a view cannot fold is set aside, counted and shown first; it blocks nothing and hides no pause."""

import asyncio
import json

import pytest
from pauseledger import Actor, LedgerTooNew, PauseRejected, Routing, Scope, StoreUnavailable
from pauseledger.domain.facts import Answered, Consumed, Paused, Refused
from pauseledger.infrastructure.check_views import views_faults
from pauseledger.infrastructure.mapper import FRONT, LENGTH_BYTES, STORED, Registry
from pauseledger.infrastructure.store import HEADER_BYTES
from pauseledger.infrastructure.stories import ANSWER, SCOPE, Stage, ask, asked, axes, turn
from pauseledger.projections import PROJECTIONS
from pauseledger.projections.rows import Query

GARBAGE = b"neither magic nor JSON"


@pytest.fixture
def stage(store_url, tmp_path):
    return Stage(store_url, tmp_path / "keys")


def version_without(*kinds):
    """The closed registry of an earlier version, which knows nothing of these facts."""
    return Registry([kind for kind in STORED if kind not in kinds])


async def pauses(ledger, count, **fields):
    return [
        await asked(ledger, ask(f"c{n}", turn=turn(f"c{n}", said=str(n)), axes=axes(f"c{n}"), **fields))
        for n in range(count)
    ]


def rewritten(state, change):
    """Change a row's header, and keep its length field right."""
    end = FRONT + int.from_bytes(state[FRONT - LENGTH_BYTES : FRONT], "big")
    header = json.dumps(change(json.loads(state[FRONT:end])), ensure_ascii=False, separators=(",", ":")).encode()
    front = state[: FRONT - LENGTH_BYTES] + len(header).to_bytes(LENGTH_BYTES, "big")
    return front + header + state[end:]


async def test_one_corrupt_row_among_a_hundred_is_shown_first_and_the_others_as_ever(stage):
    async with stage.ledger() as ledger:
        with pytest.raises(PauseRejected):
            await asked(ledger, ask(request={"questions": [{"question": "x" * 5_000_000}]}))
        all_of_them = await pauses(ledger, 20)
        broken = all_of_them[7]
        [row] = stage.rows(broken.pause_id)
        stage.overwrite(row, GARBAGE)
        await ledger.views.catch_up()
        # Its header is gone, and with it whose it is: only an operator is shown it.
        page = await ledger.views.open_pauses.most_urgent_of_all_tenants()
        assert len(page.rows) == 20
        first = page.rows[0]
        assert (first.pause, first.unreadable, first.scope, first.since) == (broken.pause_id, True, None, None)
        assert len((await ledger.views.open_pauses.most_urgent(SCOPE)).rows) == 19
        assert (await ledger.views.open_pauses.count_of_all_tenants()).unreadable == 1
        assert {one.set_aside for one in await ledger.views.lag()} == {1}
        [aside] = await ledger.views.refusals.unreadable_of_all_tenants()
        assert (aside.stream, aside.version, aside.why, aside.position) == (broken.pause_id, 1, "corrupt", row.position)
        [told] = await ledger.views.history.of_pause_of_all_tenants(broken.pause_id)
        assert (told.unreadable, told.what) == (True, "paused")
        assert "cannot be read here" in (await ledger.views.sentences([told], content=True))[0]
        [item] = await ledger.views.stranded.stranded_of_all_tenants()
        assert (item.pause_id, item.state, item.axes) == (broken.pause_id, "unreadable", None)
        assert await ledger.views.question(first) is None


@pytest.mark.parametrize("unknown", [Paused, Answered, Consumed])
async def test_a_version_that_does_not_know_a_fact_shows_its_pause_and_hides_none(stage, unknown):
    async with stage.ledger() as newer:
        first, second = await pauses(newer, 2)
        await second.redeem(answered_by=Actor("ann"))
    async with stage.ledger(registry=version_without(unknown)) as older:
        await older.views.catch_up()
        with pytest.raises(LedgerTooNew):
            await second.at(older).redeem()
        shown = (await older.views.open_pauses.most_urgent(SCOPE)).rows
        if unknown is Paused:
            assert {row.pause for row in shown if row.unreadable} == {first.pause_id}
        elif unknown is Answered:
            # What closed it afterwards could be read.
            assert [(row.pause, row.unreadable) for row in shown] == [(first.pause_id, False)]
        else:
            assert (shown[0].pause, shown[0].unreadable) == (second.pause_id, True)
        aside = await older.views.open_pauses.unreadable(SCOPE)
        assert {one.why for one in aside} == {"too_new"}
        assert {one.topic for one in aside} == {unknown.topic()}
        assert {one.scope for one in aside} == {SCOPE}
        assert await older.views.open_pauses.unreadable(Scope(tenant_id="else")) == []
        assert [item async for item in older.owed(SCOPE)] == []
        told = await older.views.history.of_pause_of_all_tenants(second.pause_id)
        assert [fact.unreadable for fact in told if fact.topic == unknown.topic()] == [True]
        assert all(fact.at for fact in told)
        lag = await older.views.lag()
        assert max(one.set_aside for one in lag) >= 1
        assert {one.learnt for one in lag} == {0}
    # The next version notices by itself.
    async with stage.ledger() as newer:
        assert [(one.view, one.learnt) for one in await newer.views.lag()] == [(one.view, one.set_aside) for one in lag]
        async with newer.follow(sweep=False):
            while any(one.set_aside for one in await newer.views.lag()):
                await asyncio.sleep(0.01)
        assert [row.pause for row in (await newer.views.open_pauses.most_urgent(SCOPE)).rows] == [first.pause_id]


async def test_a_fact_of_no_use_to_a_view_is_set_aside_there_as_well(stage):
    async with stage.ledger() as newer:
        [pause] = await pauses(newer, 1)
        with pytest.raises(Exception, match="run"):
            await pause.redeem(axes=axes("c0", run_id="else"))
    async with stage.ledger(registry=version_without(Refused)) as older:
        await older.views.catch_up()
        [row] = (await older.views.open_pauses.most_urgent(SCOPE)).rows
        assert (row.pause, row.unreadable, row.call_id) == (pause.pause_id, True, "c0")
        assert [one.why for one in await older.views.refusals.unreadable(SCOPE)] == ["too_new"]


SHAPES = [
    lambda header: {**header, "pause": "x"},
    lambda header: {**header, "pause": "z" * 36},
    lambda header: {**header, "scope": {"tenant": 1}},
    lambda header: {**header, "at": 7},
    lambda header: {**header, "ledger": "another"},
    lambda header: [header],
    lambda header: {**header, "round": None},
    lambda header: {**header, "round": {**header["round"], "lead": "no uuid at all"}},
    lambda header: {**header, "round": {**header["round"], "calls": []}},
    lambda header: {**header, "interaction": "ask_user"},
    lambda header: {**header, "routing": {**header["routing"], "priority": 1 << 90}},
    lambda header: {**header, "session_id": {"deep": ["er"]}},
    lambda header: {key: value for key, value in header.items() if key != "closes_at"},
]


async def test_headers_of_other_shapes_block_no_view(stage):
    async with stage.ledger() as ledger:
        all_of_them = await pauses(ledger, len(SHAPES) + 2)
        for pause, change in zip(all_of_them[1:], SHAPES, strict=False):
            [row] = stage.rows(pause.pause_id)
            stage.overwrite(row, rewritten(row.state, change))
        assert await ledger.views.catch_up(20)
        shown = await ledger.views.open_pauses.most_urgent_of_all_tenants()
        assert {one.pause for one in shown.rows} == {pause.pause_id for pause in all_of_them}
        readable = [one for one in shown.rows if not one.unreadable]
        assert shown.rows[-len(readable) :] == tuple(readable)
        assert {all_of_them[0].pause_id, all_of_them[-1].pause_id} <= {one.pause for one in readable}
        # One shape leaves a header whole that lacks what only another view needs.
        assert len(readable) <= 3
        for name in ledger.views.runner.views:
            assert await ledger.views.rebuild(name) == {name: ledger.views.runner.newest()}
        assert await ledger.views.open_pauses.most_urgent_of_all_tenants() == shown


async def test_a_long_header_is_read_whole(stage):
    async with stage.ledger() as ledger:
        people = tuple(f"person {number}" for number in range(250))
        pause = await asked(ledger, routing=Routing(assignees=people, groups=people))
        [row] = stage.rows(pause.pause_id)
        assert int.from_bytes(row.state[FRONT - LENGTH_BYTES : FRONT], "big") > HEADER_BYTES
        found = await ledger.views.open_pauses.most_urgent(SCOPE, after=pause.receipt.position)
        assert [len(row.assignees) for row in found.rows] == [250]


@pytest.mark.parametrize(("column", "aside"), [("topic", 1), ("state", 1), ("originator_id", 0)])
async def test_a_text_that_is_none_in_the_log_holds_up_nobody(tmp_path, column, aside):
    stage = Stage(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "keys")
    async with stage.ledger() as ledger:
        await pauses(ledger, 3)
        stage.sql("DROP TRIGGER IF EXISTS stored_events_no_update")
        stage.sql(f"UPDATE stored_events SET {column} = CAST(x'ff41' AS TEXT) WHERE rowid = 2")
        await ledger.views.catch_up()
        assert {(one.position, one.set_aside) for one in await ledger.views.lag()} == {(3, aside)}
        assert len((await ledger.views.open_pauses.newest_of_all_tenants()).rows) == 3
        await ledger.views.rebuild()
        assert list(views_faults(ledger.views._log, views_of(ledger))) == []


@pytest.mark.parametrize(
    ("column", "value", "readable"),
    [
        ("session_id", "CAST(x'ff41' AS TEXT)", True),
        ("pause", "CAST(x'ff41' AS TEXT)", False),
        ("groups", "'[oops'", False),
    ],
)
async def test_a_views_row_that_was_altered_into_none_is_told_and_a_rebuild_mends_it(tmp_path, column, value, readable):
    stage = Stage(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "keys")
    async with stage.ledger() as ledger:
        await pauses(ledger, 2)
        await ledger.views.catch_up()
        inbox = ledger.views.open_pauses
        whole = await inbox.newest(SCOPE)
        stage.sql(f'UPDATE view_open_pauses_2b SET "{column}" = {value} WHERE position = 2')
        if readable:
            assert len((await inbox.newest(SCOPE)).rows) == 2
        else:
            with pytest.raises(StoreUnavailable, match="rebuild all"):
                await inbox.newest(SCOPE)
        [fault] = views_faults(ledger.views._log, views_of(ledger))
        assert (fault.view, fault.position) == ("open_pauses", 2)
        await pauses(ledger, 3)
        await ledger.views.catch_up()
        await ledger.views.rebuild()
        assert [row for row in (await inbox.newest(SCOPE)).rows if row.position < 3] == list(whole.rows)


def views_of(ledger):
    return [(one.projection, one.rows) for one in ledger.views.runner._followers.values()]


async def test_a_switch_flipped_is_nobodys_pause(stage):
    async with stage.ledger() as ledger:
        await ledger.flip("run", False, Actor("op"))
        await ledger.flip("run", True, Actor("op"))
        await ledger.views.catch_up()
        assert (await ledger.views.open_pauses.most_urgent_of_all_tenants()).rows == ()
        assert {one.set_aside for one in await ledger.views.lag()} == {0}


async def test_what_an_unreadable_fact_said_of_a_pause_before_it_began_stands_however_the_log_is_cut(
    stage, monkeypatch
):
    """No row is looked up of a pause that begins in the same batch, and here one stands."""
    monkeypatch.setattr("pauseledger.infrastructure.follower.KEPT_ROWS", -1)
    async with stage.ledger() as ledger:
        _, stranger, late = await pauses(ledger, 3)
        await late.answer(ANSWER)
        [row] = stage.rows(stranger.pause_id)
        stage.overwrite(row, rewritten(row.state, lambda said: {**said, "pause": str(late.pause_id), "at": 7}))
        seen = []
        for batch in (1, 2, 100):
            ledger.views.runner.rebuild_batch = batch
            await ledger.views.rebuild()
            tables = [(rows, table) for one, rows in ledger.views._rows.items() for table in tables_of(one)]
            seen.append([list(map(tuple, rows.stored(Query(table, order=table.key)))) for rows, table in tables])
        assert seen[0] == seen[1] == seen[2]
        [item] = await ledger.views.stranded.unreadable_of_all_tenants()
        assert item.pause == late.pause_id


def tables_of(view):
    return next(one for one in PROJECTIONS if one.name == view)().tables
