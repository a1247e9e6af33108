"""The log as CloudEvents: every fact once and in order, behind cursors, within a scope, and nothing people wrote."""

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from cloudevents.core.formats.json import JSONFormat
from pauseledger import (
    Actor,
    InteractionConfigurationError,
    ReissueCommand,
    Scope,
    ScopeMismatch,
    StoreUnavailable,
    TokenSuperseded,
)
from pauseledger.domain.facts import FACTS, Reissued
from pauseledger.domain.switches import SwitchFlipped
from pauseledger.infrastructure import cli, events
from pauseledger.infrastructure.mapper import Registry
from pauseledger.infrastructure.stories import ANSWER, SCOPE, Stage, ask, asked, axes

DOCS = Path(__file__).resolve().parent.parent / "docs" / "events.md"
#: How many subscribers are killed at their work.
KILLS = 16
OTHER = Scope(tenant_id="acme", namespace="other")


@pytest.fixture
def stage(store_url, tmp_path):
    return Stage(store_url, tmp_path / "keys")


def of(scope, run):
    return axes(scope=scope, run_id=run)


async def lived(ledger):
    """Two tenants' pauses, a refused attempt, a token minted again, and what belongs to no tenant."""
    mine = await asked(ledger, axes=of(SCOPE, "mine"))
    theirs = await asked(ledger, axes=of(OTHER, "theirs"))
    with pytest.raises(ScopeMismatch):
        await mine.redeem(axes=of(OTHER, "mine"))
    await ledger.capability.reissue(ReissueCommand(theirs.pause_id, axes=theirs.axes, ends_earlier=True))
    await ledger.flip("run", on=False, by=Actor("ops"))
    with pytest.raises(TokenSuperseded):
        await theirs.redeem()
    await mine.redeem(answered_by=Actor("maria@example.org"))


async def walk(read, limit=1, after=None):
    """Go through pages to the end."""
    found = []
    while True:
        page = await read(after=after, limit=limit)
        assert len(page.events) <= limit
        found += page.events
        after = page.next
        if not page.more:
            return found


def place(event):
    return int(event.get_extension("sequence"))


async def test_every_fact_is_an_event_once_and_in_order(stage):
    async with stage.ledger() as ledger:
        await lived(ledger)
        told = await walk(ledger.events.page_of_all_tenants)
        rows = stage.rows()
        assert [place(event) for event in told] == [row.position for row in rows]
        for event, row in zip(told, rows, strict=True):
            name, revision = row.topic.split("@")
            assert event.get_type() == f"pauseledger.{name}.v{revision}"
            assert event.get_source() == f"urn:uuid:{row.header['ledger']}"
            assert event.get_subject() == event.get_extension("partitionkey") == row.header["pause"]
            assert event.get_time().isoformat().startswith(row.header["at"][:-1].rstrip("0").rstrip("."))
            assert event.get_data() == row.header
            assert event.get_extension("unreadable") is None
        assert len({event.get_id() for event in told}) == len(rows)
        assert told == sorted(told, key=lambda event: event.get_extension("sequence"))


async def test_events_are_written_by_the_library_and_hold_nothing_that_people_wrote(stage):
    async with stage.ledger() as ledger:
        await lived(ledger)
        written = [JSONFormat().write(event) for event in await walk(ledger.events.page_of_all_tenants)]
        again = [JSONFormat().read(None, text) for text in written]
        assert [event.get_id() for event in again] == [f"{row.stream}.{row.version}" for row in stage.rows()]
        for secret in (b"Whose name", b"Anne", b"maria", b"plp1", b"Hello"):
            assert not any(secret in text for text in written)


async def test_a_scope_is_told_its_own_and_nothing_else(stage):
    async with stage.ledger() as ledger:
        await lived(ledger)
        rows = stage.rows()
        for scope in (SCOPE, OTHER):
            told = await walk(lambda scope=scope, **page: ledger.events.page(scope, **page))
            own = [row.position for row in rows if row.header["scope"] == scope.model_dump()]
            assert [place(event) for event in told] == own
            assert len(own) >= 3
        nobody = await ledger.events.page(Scope(tenant_id="nobody"))
        assert (nobody.events, nobody.more, int(nobody.next)) == ((), False, rows[-1].position)


async def test_a_page_of_a_quiet_scope_ends_and_says_that_there_is_more(stage, monkeypatch):
    monkeypatch.setattr(events, "LOOKED_AT", 4)
    monkeypatch.setattr(events, "AT_A_TIME", 2)
    async with stage.ledger() as ledger:
        for number in range(9):
            await asked(ledger, axes=of(OTHER, str(number)))
        await asked(ledger, axes=of(SCOPE, "late"))
        pages, cursor = [], None
        while not pages or pages[-1].more:
            pages.append(await ledger.events.page(SCOPE, after=cursor))
            cursor = pages[-1].next
        assert [len(page.events) for page in pages] == [0, 0, 1]


async def test_any_event_is_a_cursor(stage):
    async with stage.ledger() as ledger:
        await lived(ledger)
        told = (await ledger.events.page_of_all_tenants()).events
        for at, event in enumerate(told):
            rest = await walk(ledger.events.page_of_all_tenants, limit=2, after=event.get_extension("sequence"))
            assert [one.get_id() for one in rest] == [one.get_id() for one in told[at + 1 :]]


async def test_what_this_version_does_not_know_comes_marked_and_hides_nothing(stage):
    async with stage.ledger() as ledger:
        await lived(ledger)
    older = Registry([*(fact for fact in FACTS if fact is not Reissued), SwitchFlipped])
    async with stage.ledger(registry=older) as ledger:
        told = await walk(ledger.events.page_of_all_tenants)
        assert len(told) == stage.count()
        [unknown] = [event for event in told if event.get_extension("unreadable")]
        assert unknown.get_extension("unreadable") == "too_new"
        assert (unknown.get_type(), unknown.get_data()) == ("pauseledger.pause.reissued.v1", None)
        assert unknown.get_time() is not None
        assert unknown.get_id() in [event.get_id() for event in (await ledger.events.page(OTHER)).events]


async def test_data_is_what_was_stored_at_the_revision_that_the_type_names(stage):
    class Newer(Reissued):
        REVISION = 2
        channel: str

    async with stage.ledger() as ledger:
        await lived(ledger)
    newer = Registry(
        [*(fact for fact in FACTS if fact is not Reissued), Newer, SwitchFlipped],
        {("pause.reissued", 1): lambda header: {**header, "channel": "unknown"}},
    )
    async with stage.ledger(registry=newer) as ledger:
        told = (await ledger.events.page(OTHER)).events
        [stored] = [row for row in stage.rows() if row.topic == "pause.reissued@1"]
        [event] = [one for one in told if place(one) == stored.position]
        assert (event.get_type(), event.get_data()) == ("pauseledger.pause.reissued.v1", stored.header)
        assert event.get_extension("unreadable") is None


async def test_a_damaged_row_comes_marked_without_a_time_and_to_operators_alone(stage):
    async with stage.ledger() as ledger:
        first, second = await asked(ledger, axes=of(SCOPE, "1")), await asked(ledger, axes=of(SCOPE, "2"))
        stage.overwrite(stage.rows()[0], b"junk")
        damaged, whole = (await ledger.events.page_of_all_tenants()).events
        assert (damaged.get_extension("unreadable"), damaged.get_time(), damaged.get_data()) == ("corrupt", None, None)
        assert (damaged.get_subject(), whole.get_subject()) == (str(first.pause_id), str(second.pause_id))
        assert b'"time"' not in JSONFormat().write(damaged)
        assert [event.get_id() for event in (await ledger.events.page(SCOPE)).events] == [whole.get_id()]


def test_types_come_from_stored_names_alone():
    assert events.type_of("pause.paused@12") == "pauseledger.pause.paused.v12"
    for odd in ("", "pause", "pause@", "@1", "pause@x", "pa use@1", "pause@1@2", "päuse@1", "pause@１"):
        assert events.type_of(odd) == events.UNNAMED


async def test_a_follower_gets_what_was_and_what_comes_through_an_outage(stage, monkeypatch):
    async with stage.ledger() as ledger:
        await asked(ledger, axes=of(SCOPE, "before"))
        following, seen = ledger.events, []
        read, outages = following._log.after, [None, None]

        def after(position, limit):
            if seen and outages:
                outages.pop()
                raise StoreUnavailable("away")
            return read(position, limit)

        monkeypatch.setattr(following._log, "after", after)
        monkeypatch.setattr(events, "UNAVAILABLE", 0.05)

        async def follow():
            async for event in following.follow(SCOPE):
                seen.append(event.get_data()["run_id"])
                if len(seen) == 3:
                    return

        task = asyncio.ensure_future(follow())
        while not seen:
            await asyncio.sleep(0.01)
        await asked(ledger, axes=of(OTHER, "not mine"))
        await asked(ledger, axes=of(SCOPE, "second"))
        await asked(ledger, axes=of(SCOPE, "third"))
        await asyncio.wait_for(task, 10)
        assert (seen, outages) == (["before", "second", "third"], [])


async def test_a_follower_ends_with_its_ledger(tmp_path):
    async with Stage("memory:", tmp_path / "keys").ledger() as ledger:
        await asked(ledger)
        following = ledger.events.follow(SCOPE)
        await anext(following)
    with pytest.raises(StoreUnavailable, match="the ledger is closed"):
        await asyncio.wait_for(anext(following), 5)


async def test_what_is_no_cursor_no_limit_and_no_scope_is_told(tmp_path):
    async with Stage("memory:", tmp_path / "keys").ledger() as ledger:
        for cursor in ("", "1", "x" * 20, "9" * 20, 7, "²" * 20):
            with pytest.raises(InteractionConfigurationError, match="a cursor is the `next`"):
                await ledger.events.page(SCOPE, after=cursor)
        for limit in (0, -1, 10_001, True, "1"):
            with pytest.raises(InteractionConfigurationError, match="limit must be"):
                await ledger.events.page_of_all_tenants(limit=limit)
        for scope in (None, "acme"):
            with pytest.raises(InteractionConfigurationError, match="Scope"):
                await ledger.events.page(scope)
            with pytest.raises(InteractionConfigurationError, match="Scope"):
                ledger.events.follow(scope)


async def test_without_the_library_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudevents.core.v1.event", None)
    async with Stage("memory:", tmp_path / "keys").ledger() as ledger:
        with pytest.raises(InteractionConfigurationError, match=r"pip install 'pauseledger\[events\]'"):
            _ = ledger.events


def test_the_command_line_tells_a_page_and_where_to_go_on(tmp_path, capsys):
    stage = Stage(f"sqlite:///{tmp_path / 'ledger.db'}", tmp_path / "keys")

    async def live():
        async with stage.ledger() as ledger:
            await lived(ledger)

    asyncio.run(live())
    where = ["--store", stage.url, "--keys-dir", str(stage.keys)]

    def said(*arguments):
        assert cli.run(["events", *where, *arguments]) == 0
        return capsys.readouterr().out

    first = json.loads(said("--all-tenants", "--limit", "3", "--json"))
    rest = json.loads(said("--all-tenants", "--after", first["next"], "--json"))
    assert (first["more"], rest["more"]) == (True, False)
    sequences = [int(event["sequence"]) for event in first["events"] + rest["events"]]
    assert sequences == [row.position for row in stage.rows()]
    table = said("--tenant", SCOPE.tenant_id, "--limit", "1")
    assert "pauseledger.pause.paused.v1" in table
    assert "--after 00000000000000000001" in table
    assert cli.run(["events", *where, "--tenant", "acme", "--after", "1"]) == 2


# PostgreSQL: other writers, and a subscriber in another schema


async def test_an_open_transaction_holds_the_page_and_nothing_is_skipped(pg_dsn, tmp_path):
    stage = Stage(pg_dsn, tmp_path / "keys")
    async with stage.ledger() as ledger, await psycopg.AsyncConnection.connect(pg_dsn) as host:
        held = await ledger.joined(host).pause(ask(axes=of(SCOPE, "held")))
        later = await asked(ledger, axes=of(SCOPE, "later"))
        assert held.position < later.receipt.position
        page = await ledger.events.page(SCOPE)
        assert (page.events, page.more) == ((), False)
        await host.commit()
        told = (await ledger.events.page(SCOPE, after=page.next)).events
        assert [event.get_data()["run_id"] for event in told] == ["held", "later"]


async def test_subscribers_that_are_killed_hand_every_fact_over_exactly_once(pg_dsn, tmp_path):
    stage, names = Stage(pg_dsn, tmp_path / "keys"), {}
    for snippet in re.findall(r"```python\n(import.*?)```", DOCS.read_text(), re.DOTALL):
        exec(snippet, names)
    stage.sql(names["TABLES"])
    script = Path(__file__).parent / "processes" / "subscriber.py"
    subscribers = subprocess.Popen([sys.executable, str(script), pg_dsn, str(stage.keys), str(DOCS), str(KILLS)])
    async with stage.ledger() as ledger, await psycopg.AsyncConnection.connect(pg_dsn) as host:
        number = 0
        while subscribers.poll() is None:
            number += 1
            await ledger.joined(host).pause(ask(axes=of(SCOPE, f"joined {number}")))
            asking = [asked(ledger, axes=of(SCOPE, f"{number}.{one}")) for one in range(4)]
            one, *_ = await asyncio.gather(*asking)
            await one.redeem(ANSWER)
            await (host.commit() if number % 3 else host.rollback())
            await asyncio.sleep(0.02)
        during = stage.sql("SELECT count(*) FROM crm.decisions")[0][0]
        while await names["take_a_page"](ledger, host):
            pass
    handed = stage.sql("SELECT event, pause::text, fact ->> 'at' FROM crm.decisions")
    rows = [(f"{row.stream}.{row.version}", row.header["pause"], row.header["at"]) for row in stage.rows()]
    assert sorted(handed) == sorted(rows)
    assert (subscribers.returncode, during >= KILLS) == (0, True)
