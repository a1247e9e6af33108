"""Nobody waits for good: deadlines are settings, a full pool and a lock are told by name, and doubt ends."""

import asyncio
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pauseledger as pl
import psycopg
import pytest
from pauseledger.infrastructure import raw_check


def _load(name):
    folder = Path(__file__).parents[1] / "processes"
    spec = spec_from_file_location(f"pauseledger_tests_{name}", folder / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


host = _load("host")
proxy, scene = host.proxy, host.scene


@pytest.mark.parametrize("name", ["busy_timeout", "connect_timeout", "statement_timeout", "pool_timeout"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), True, "5", None])
def test_a_deadline_that_is_none_is_refused(name, value):
    with pytest.raises(pl.InteractionConfigurationError, match=name):
        pl.LedgerSettings(**{name: value})


@pytest.mark.timeout(40)
async def test_doubt_ends_however_long_the_store_says_nothing(pg, pg_dsn, tmp_path, monkeypatch):
    """The append may have happened; then nobody gets through, and each read could wait its whole deadline."""
    monkeypatch.setattr("pauseledger.domain.doubt.LONGEST", 1.0)
    async with host.host_behind_a_proxy(pg, pg_dsn, tmp_path, pool_timeout=60) as made:
        await made.pause()
        made.cutting.arm(proxy.AFTER, then_unreachable=True)
        with pytest.raises(pl.StoreUnavailable) as gone:
            await made.redeem()
        assert gone.value.outcome == "unknown"
        made.cutting.heal()
        with pytest.raises(pl.AlreadyConsumed) as own:
            await made.redeem()
        assert own.value.own is True
    assert len(raw_check.read(pg_dsn).of("pause.consumed")) == 1


async def redeem(ledger, receipt, run):
    envelope = pl.recognise(ledger.capability, receipt.token).envelope
    axes = scene.axes_of(run, scene.CALLS[0])
    return await pl.prepare(ledger.capability, envelope=envelope, response=scene.answer("Anne"), **dict(axes))


async def test_a_full_pool_and_a_lock_leave_nothing_and_are_told(pg_dsn, tmp_path):
    """One connection, held up by a lock on the table: whoever comes second gets none."""
    settings = pl.LedgerSettings(tmp_path / "keys", threads=1, pool_timeout=0.3, statement_timeout=1.5)
    host.KeyFile(tmp_path / "keys").create()
    async with pl.open_ledger(pg_dsn, settings) as ledger:
        receipt = await ledger.capability.pause(scene.pause_commands("run")[0])
        with psycopg.connect(pg_dsn) as other:
            other.execute("LOCK TABLE pauseledger.stored_events IN EXCLUSIVE MODE")
            locked = asyncio.ensure_future(redeem(ledger, receipt, "run"))
            await asyncio.sleep(0.3)
            with pytest.raises(pl.StoreUnavailable, match="all 1 are in use") as full:
                await redeem(ledger, receipt, "run")
            with pytest.raises(pl.StoreUnavailable, match="took too long") as late:
                await locked
        assert (full.value.outcome, late.value.outcome) == ("not_started", "not_started")
        assert (await redeem(ledger, receipt, "run")).fence == 1
    raw = raw_check.read(pg_dsn)
    assert raw_check.faults(raw) == []
    assert len(raw.rows) == 3


async def test_a_server_that_cannot_be_reached_says_why_and_no_secret(pg, tmp_path):
    host.KeyFile(tmp_path / "keys").create()
    dsn = pg.dsn("nowhere").replace("pauseledger@", "pauseledger:hunter2@")
    with pytest.raises(pl.StoreUnavailable, match='database "nowhere" does not exist') as gone:
        async with pl.open_ledger(dsn, pl.LedgerSettings(tmp_path / "keys", pool_timeout=0.3)):
            pass
    assert "hunter2" not in str(gone.value)


def test_nothing_is_printed_that_nobody_asked_for(tmp_path):
    """The driver's pool warns by its logger; without a handler Python would print that."""
    code = f"""
import asyncio, pauseledger as pl
from pauseledger.infrastructure.keys import KeyFile
from pathlib import Path
KeyFile(Path({str(tmp_path / "keys")!r})).create()
async def main():
    settings = pl.LedgerSettings(Path({str(tmp_path / "keys")!r}), pool_timeout=0.3)
    try:
        async with pl.open_ledger("postgresql://nobody@/none?host={tmp_path}", settings):
            pass
    except pl.StoreUnavailable as gone:
        print(gone.outcome)
asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("not_started\n", "")


async def test_a_ledger_is_entered_once_at_a_time():
    ledger = pl.open_ledger("memory:")
    async with ledger:
        with pytest.raises(pl.InteractionConfigurationError, match="open already"):
            await ledger.__aenter__()
        await ledger.capability.pause(scene.pause_commands("run")[0])
    async with ledger:
        await ledger.capability.pause(scene.pause_commands("run")[0])
