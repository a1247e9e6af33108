"""The reader of raw rows finds each kind of harm that is done to a whole ledger."""

from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pauseledger as pl
import pytest
from pauseledger.infrastructure import raw_check


def _load(name):
    spec = spec_from_file_location(f"pauseledger_tests_{name}", Path(__file__).parent / "processes" / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


scene = _load("scene")


@pytest.fixture
async def raw(tmp_path):
    """A round of three, each with its answer, consumed and gone on; and a refusal on record."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    async with pl.open_ledger(url, pl.LedgerSettings(keys_directory=tmp_path / "keys")) as ledger:
        receipts = await ledger.capability.pause_round(scene.pause_commands("run", scene.CALLS))
        for call, label, receipt in zip(scene.CALLS, scene.LABELS, receipts, strict=True):
            with pytest.raises(pl.ScopeMismatch):
                await ledger.redeem(receipt.token, {}, axes=scene.axes_of("run", call, "intruder"))
            try:
                turn = await ledger.redeem(receipt.token, scene.answer(label), axes=scene.axes_of("run", call))
            except pl.RoundOpen:
                continue
        async with pl.continuing(turn):
            pass
    return raw_check.read(url)


def found(raw, rows):
    return [fault.says for fault in raw_check.faults(replace(raw, rows=tuple(rows)))]


def without(raw, topic, which=0):
    row = raw.of(topic)[which]
    return [one for one in raw.rows if one is not row]


def changed(raw, kind, **fields):
    row = raw.of(kind)[0]
    return [replace(one, **fields) if one is row else one for one in raw.rows]


def test_a_whole_ledger_has_no_faults(raw):
    assert raw_check.faults(raw) == []
    assert raw_check.refusals(raw) == {"scope_mismatch": 3}


@pytest.mark.parametrize("at", [5, 38, 60, -1])
def test_a_flipped_bit_is_found_wherever_it_is(raw, at):
    for row in raw.rows:
        state = bytearray(row.state)
        state[at] ^= 1
        assert found(raw, [replace(one, state=bytes(state)) if one is row else one for one in raw.rows])


def test_a_missing_row_is_found(raw):
    assert "version 2 is missing" in " ".join(found(raw, without(raw, "pause.refused")))


def test_half_a_round_is_found(raw):
    lead = raw.of("pause.continued")[0].stream
    which = next(at for at, row in enumerate(raw.of("pause.consumed")) if row.stream != lead)
    assert "half a round: 2 of its 3 streams are consumed" in found(raw, without(raw, "pause.consumed", which))


def test_a_missing_sibling_is_found(raw):
    sibling = raw.of("pause.paused")[-1].stream
    lead = raw.of("pause.continued")[0].stream
    gone = sibling if sibling != lead else raw.of("pause.paused")[0].stream
    assert "its round names it, and it is not there" in found(raw, [row for row in raw.rows if row.stream != gone])


def test_a_second_consumption_is_found_though_it_stands_in_its_turn(raw):
    last = raw.of("pause.continued")[0]
    again = replace(raw.of("pause.consumed", last.stream)[0], version=last.version + 1, position=1000)
    assert "it holds 2 times pause.consumed@1" in found(raw, [*raw.rows, again])


def test_another_order_of_the_log_is_found(raw):
    says = "its position is not behind that of the row before it"
    assert says in found(raw, changed(raw, "pause.continued", position=0))


def test_a_row_under_another_name_is_found(raw):
    assert found(raw, changed(raw, "pause.continued", topic="pause.stalled@1"))


def test_rows_of_another_ledger_are_found(raw):
    other = replace(raw, ledger_id=raw.rows[0].stream)
    assert len(raw_check.faults(other)) >= 2 * len(raw.rows)
