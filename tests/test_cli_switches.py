"""The command line's lever of the door: what it flips holds in other processes, and it stands on record who did."""

import asyncio
import json
from pathlib import Path

import pytest
from pauseledger import Actor, LedgerSettings, open_ledger
from pauseledger.infrastructure import cli, raw_check


@pytest.fixture
def store(tmp_path, monkeypatch):
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    monkeypatch.setenv("PAUSELEDGER_STORE", url)
    monkeypatch.setenv("PAUSELEDGER_KEYS_DIR", str(tmp_path / "keys"))
    return url


@pytest.fixture
def pl(store, capsys):
    def ran(*arguments):
        code = cli.run(arguments)
        return code, *capsys.readouterr()

    return ran


def test_a_surface_is_rolled_back_until_somebody_flips_it(pl, store):
    pl("migrate")
    code, out, _ = pl("switches", "--json")
    assert (code, json.loads(out)) == (
        0,
        {
            "outcome": "switches",
            "surfaces": {"run": False, "stream": False, "stream_typed": False},
            "flips": [],
            "sentences": [],
        },
    )
    assert raw_check.read(store).rows == ()


def test_a_flip_holds_for_whoever_opens_the_ledger_and_says_who(pl, store, tmp_path):
    pl("migrate")
    code, out, _ = pl("switch", "stream_typed", "--on", "--operator", "anna", "--json")
    assert (code, json.loads(out)) == (
        0,
        {"outcome": "switched", "surface": "stream_typed", "on": True, "changed": True},
    )

    async def elsewhere():
        async with open_ledger(store, LedgerSettings(keys_directory=tmp_path / "keys")) as ledger:
            stands = [await ledger.switches.is_on(surface) for surface in ("run", "stream", "stream_typed")]
            await ledger.flip("run", True, Actor("li"))
            return stands

    assert asyncio.run(elsewhere()) == [False, False, True]
    told = json.loads(pl("switches", "--json")[1])
    assert told["surfaces"] == {"run": True, "stream": False, "stream_typed": True}
    assert [(flip["topic"], flip["surface"], flip["on"]) for flip in told["flips"]] == [
        ("switch.flipped@1", "stream_typed", True),
        ("switch.flipped@1", "run", True),
    ]
    assert ["anna" in one for one in told["sentences"]] == [True, False]
    assert len(raw_check.read(store).of("switch.flipped")) == 2


def test_a_flip_that_changes_nothing_writes_nothing(pl, store):
    pl("migrate")
    assert pl("switch", "run", "--on", "--operator", "anna")[1] == "surface run now is on\n"
    assert pl("switch", "run", "--on", "--operator", "li")[1] == "surface run was already on\n"
    assert pl("switch", "run", "--off", "--operator", "li")[1] == "surface run now is rolled back\n"
    assert len(raw_check.read(store).of("switch.flipped")) == 2
    _, out, _ = pl("switches")
    assert out.startswith("surface run is rolled back\nsurface stream is off; nobody flipped it yet\n")
    assert 'person "li" (claimed) rolled surface "run" back' in out


@pytest.mark.parametrize(
    "arguments",
    [
        ("switch", "run", "--operator", "anna"),
        ("switch", "run", "--on"),
        ("switch", "walk", "--on", "--operator", "anna"),
        ("switch", "--on", "--operator", "anna"),
    ],
)
def test_a_flip_needs_a_surface_a_direction_and_a_name(pl, store, arguments):
    code, out, _ = pl(*arguments, "--json")
    assert (code, json.loads(out)["outcome"]) == (2, "usage")
    assert not Path(store.removeprefix("sqlite:///")).exists()
