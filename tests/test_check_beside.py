"""Check beside those who write, seal and follow: what comes while it reads is no fault."""

import asyncio
from uuid import uuid4

import pytest
from pauseledger.infrastructure import check_views
from pauseledger.infrastructure.check_tree import TreeCheck
from pauseledger.infrastructure.headers import Log
from pauseledger.infrastructure.keys import KeyFile
from pauseledger.infrastructure.mapper import FactMapper
from pauseledger.infrastructure.sealed import sealed_rows
from pauseledger.infrastructure.sealer import Sealer
from pauseledger.infrastructure.sqlite import SQLiteRecorder
from pauseledger.infrastructure.stories import Stage, asked
from pauseledger.infrastructure.testing import row
from pauseledger.infrastructure.views import rows_of
from pauseledger.projections import PROJECTIONS


class Sealing:
    """A sealed log in which somebody seals more whenever its end was reached, and again before its tip is told."""

    def __init__(self, recorder, more):
        self._recorder, self._rows, self._more = recorder, sealed_rows(recorder), list(more)

    def __getattr__(self, name):
        return getattr(self._rows, name)

    def grow(self):
        if self._more:
            self._recorder.insert_events([row(uuid4(), 1) for _ in range(self._more.pop())])
            Sealer(self._rows, "pauseledger/one").seal()

    def leaves(self, start, limit):
        found = self._rows.leaves(start, limit)
        if not found:
            self.grow()
        return found

    def tiles(self, *place):
        self.grow()
        return self._rows.tiles(*place)


def test_what_is_sealed_while_the_tree_is_read_is_no_fault(tmp_path):
    recorder = SQLiteRecorder(tmp_path / "ledger.db")
    rows = Sealing(recorder, [300, 3, 600, 2, 5])
    rows.grow()
    check = TreeCheck(rows, "pauseledger/one", [])
    assert list(check.faults([])) == []
    assert check.size > 600
    recorder.close()


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
async def test_a_view_that_moves_on_all_the_while_is_compared_as_it_stood_at_one_moment(
    store, request, tmp_path, monkeypatch
):
    url = f"sqlite:///{tmp_path / 'ledger.db'}" if store == "sqlite" else request.getfixturevalue("pg_dsn")
    KeyFile(tmp_path / "keys").create()
    loop, differing, moved = asyncio.get_running_loop(), check_views._differing, []
    async with Stage(url, tmp_path / "keys").ledger() as ledger:

        async def move_on():
            await asked(ledger, idempotency_key=str(uuid4()))
            await ledger.views.catch_up()

        def on_the_way(*_):
            asyncio.run_coroutine_threadsafe(move_on(), loop).result()
            moved.append(ledger.recorder.max_notification_id())

        def meanwhile(*given):
            on_the_way()
            return differing(*given)

        await move_on()
        monkeypatch.setattr(check_views, "_differing", meanwhile)
        ledger_id = ledger.recorder.identity().ledger_id
        log = Log(ledger.recorder, FactMapper(ledger_id), ledger_id)
        views = [(one, rows_of(one, ledger.recorder)) for one in (projection() for projection in PROJECTIONS)]
        assert await asyncio.to_thread(lambda: list(check_views.views_faults(log, views, on_the_way))) == []
    assert len(moved) > len(views)
