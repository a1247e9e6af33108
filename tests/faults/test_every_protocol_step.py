"""An append is cut or stalled at every step of the protocol, by the loop's way and by threads: it happens once."""

import asyncio
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pauseledger as pl
import pytest
from pauseledger.infrastructure import raw_check, wiring
from pauseledger.infrastructure.pauses import ThreadedStreams


def _load(name):
    folder = Path(__file__).parents[1] / "processes"
    spec = spec_from_file_location(f"pauseledger_tests_{name}", folder / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


host = _load("host")
proxy = host.proxy
MOMENTS = (proxy.BEFORE, proxy.MIDST, proxy.SENT, proxy.ANSWER, proxy.AFTER)

#: How long a statement may take in the server here, and how long a silent server is waited for beyond that (seconds).
STATEMENT, SILENCE = 0.4, 0.2


@pytest.fixture(params=["loop", "threads"])
def way(request, monkeypatch):
    """Reach PostgreSQL from the event loop, or over threads."""
    for module in ("postgres", "postgres_async"):
        monkeypatch.setattr(f"pauseledger.infrastructure.{module}.SILENCE", SILENCE)
    if request.param == "threads":
        monkeypatch.setattr(wiring, "open_streams", lambda _, recorder, executor: ThreadedStreams(recorder, executor))
    return request.param


@pytest.mark.parametrize("stall", [False, True], ids=["cut", "stalled"])
@pytest.mark.parametrize("moment", MOMENTS)
async def test_it_is_asked_about_and_happened_once(pg, pg_dsn, tmp_path, way, moment, stall):
    """All operations at once, each with a ledger of its own."""

    async def one(operation):
        before, _ = host.OPERATIONS[operation]
        async with host.host_behind_a_proxy(
            pg, pg_dsn, tmp_path, operation, pool_timeout=5, statement_timeout=STATEMENT
        ) as made:
            for earlier in before:
                await getattr(made, earlier)()
            made.cutting.arm(moment, stall=stall)
            host.judge(operation, await getattr(made, operation)())
            assert made.cutting.cut == 1
            return made.receipt.pause_id

    pauses = await asyncio.gather(*map(one, host.OPERATIONS))
    raw = raw_check.read(pg_dsn)
    assert raw_check.faults(raw) == []
    assert raw_check.refusals(raw) == {}
    for pause, (_, fact) in zip(pauses, host.OPERATIONS.values(), strict=True):
        assert len(raw.of(fact, pause)) == 1


async def test_a_network_that_stays_silent_is_given_up_and_nobody_is_told_what_is_not_so(pg, pg_dsn, tmp_path, way):
    """Whoever comes later stalls as well, readers too; the calls end by their deadlines, and say what they know."""
    async with host.host_behind_a_proxy(pg, pg_dsn, tmp_path, statement_timeout=STATEMENT) as made:
        await made.pause()
        made.cutting.stall_all()
        with pytest.raises(pl.StoreUnavailable) as reading:
            await made.ledger.story(made.receipt.pause_id)
        with pytest.raises(pl.StoreUnavailable) as redeeming:
            await made.redeem()
        assert (reading.value.outcome, redeeming.value.outcome) == ("not_started", "not_started")
        made.cutting.heal()
        # The pool pauses between its attempts.
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            try:
                assert (await made.redeem()).fence == 1
                break
            except pl.StoreUnavailable as gone:
                assert gone.outcome == "not_started"
        raw = raw_check.read(pg_dsn)
        assert raw_check.faults(raw) == []
        assert len(raw.of("pause.consumed")) == 1
