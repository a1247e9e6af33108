"""A rebuild under odd circumstances comes to what a follower comes to: few rows kept, slow writes, others who begin anew."""

import asyncio
import time

import pytest
from pauseledger import Actor
from pauseledger.infrastructure import follower as following
from pauseledger.infrastructure.stories import Stage, ask, asked, axes, turn
from pauseledger.projections.rows import LostRace, Place, Query


async def live(ledger, pauses=12):
    """Ask one after the other, and answer each once the next two have been asked."""
    held = []
    for number in range(pauses):
        call = f"c{number}"
        held.append(await asked(ledger, ask(call, turn=turn(call, said=call), axes=axes(call))))
        if number >= 2:
            await held[number - 2].redeem(answered_by=Actor("ann"))
    await ledger.views.catch_up()


def rows(ledger):
    """Every row of every view."""
    return {
        name: {table.name: sorted(map(repr, one.rows.select(Query(table)))) for table in one.projection.tables}
        for name, one in ledger.views.runner._followers.items()
    }


async def test_what_is_no_longer_kept_is_looked_up_once_it_is_written(store_url, tmp_path, monkeypatch):
    async with Stage(store_url, tmp_path / "keys").ledger() as ledger:
        await live(ledger)
        followed = rows(ledger)
        monkeypatch.setattr(following, "KEPT_ROWS", 2)
        ledger.views.runner.rebuild_batch = 3
        for one in ledger.views.runner._followers.values():

            def slowly(*given, save=one.rows.save):
                time.sleep(0.005)
                save(*given)

            monkeypatch.setattr(one.rows, "save", slowly)
        await ledger.views.rebuild()
        assert rows(ledger) == followed


@pytest.mark.parametrize("view", ["open_pauses", "stranded"])
async def test_a_rebuild_goes_on_with_the_build_that_another_one_has_begun_in_its_stead(store_url, tmp_path, view):
    async with Stage(store_url, tmp_path / "keys").ledger() as ledger:
        await live(ledger)
        followed, runner = rows(ledger), ledger.views.runner
        begun, theirs = [], runner._followers[view].rows
        runner.rebuild_batch = 3

        def another(*_):
            if len(begun) < 2:
                begun.append(theirs.begin_build())

        await ledger.views.rebuild(view, progress=another)
        assert theirs.place() == Place(begun[-1].build, runner.newest())
        assert (theirs.place_of(begun[0].build), theirs.under_way()) == (None, None)
        assert rows(ledger) == followed


async def test_whoever_looked_before_a_build_was_begun_anew_writes_nothing_into_it(store_url, tmp_path):
    async with Stage(store_url, tmp_path / "keys").ledger() as ledger:
        await live(ledger, 4)
        view, log = ledger.views.runner._followers["history"], ledger.views._log
        facts = log.after(0, 4)
        left = following.Follower(view.projection, view.rows, view.rows.begin_build().build)
        assert left.fold(left.place(), facts[:2])
        stale = left.changes(left.place(), facts[2:])
        anew = following.Follower(view.projection, view.rows, view.rows.begin_build().build)
        # Now it is where the one that was left was.
        assert anew.fold(anew.place(), facts[:2])
        with pytest.raises(LostRace):
            view.rows.save(Place(left._build, facts[1].position), stale, facts[-1].position)
        assert left.place() is None
        assert anew.fold(anew.place(), facts[2:])


async def test_two_rebuilds_at_once_both_end_with_the_view_in_its_place(store_url, tmp_path):
    async with Stage(store_url, tmp_path / "keys").ledger() as ledger:
        await live(ledger)
        followed, runner = rows(ledger), ledger.views.runner
        runner.rebuild_batch = 2
        for _ in range(3):
            await asyncio.gather(*(ledger.views.rebuild("stranded") for _ in range(3)))
            assert runner.position("stranded") == runner.newest()
            assert rows(ledger) == followed
