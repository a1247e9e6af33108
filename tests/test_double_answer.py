"""The double-answer table: what it promises of the ledger's half, and what makes a cell of it wrong."""

import re
import sys
from pathlib import Path

import pytest
from pauseledger.infrastructure import double_answer
from pauseledger.infrastructure.double_answer import FRAMEWORKS, SCENARIOS, Cell, measure, missing, table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "double-answer.md"
ABSENT = {name: why for name in FRAMEWORKS if (why := missing(name)) is not None}
#: With the ledger: what is told to whoever may not go on, in order.
TOLD = {
    "one answer": [],
    "two at once": ["AlreadyConsumed"],
    "replay": ["AlreadyConsumed"],
    "stale state": ["AlreadyConsumed"],
    "wrong thread": ["SessionMismatch"],
    "half a round": ["RoundOpen", "AlreadyConsumed"],
    "invalid, then valid": ["ResponseInvalid"],
    "killed": [],
}


@pytest.fixture(scope="module")
def cells():
    measured = measure([name for name in FRAMEWORKS if name not in ABSENT], takes=0.2)
    return {(cell.framework, cell.scenario, cell.on_ledger): cell for cell in measured}


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    if request.param in ABSENT:
        pytest.skip(f"{request.param} cannot be played here: {ABSENT[request.param]}")
    return request.param


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_with_the_ledger_the_effect_ran_as_often_as_it_was_to(cells, framework, scenario):
    cell = cells[framework, scenario, True]
    assert (cell.ran, cell.ran_unapproved, cell.poisoned) == (SCENARIOS[scenario].right, False, False)
    assert cell.is_right
    assert [said.partition(":")[0] for said in cell.errors] == TOLD[scenario]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_bare_the_scenario_was_played_or_it_is_said_why_not(cells, framework, scenario):
    cell = cells[framework, scenario, False]
    assert (cell.cannot is None) == (str(cell) != "n/a")
    if scenario == "one answer":
        assert cell.is_right
    if cell.cannot:
        assert cell.cannot in " ".join(PAGE.read_text().split())


RIGHT = Cell("plain", "replay", False, {"A": 1}, {"A": 1})


@pytest.mark.parametrize(
    ("cell", "spelt"),
    [
        (RIGHT, "1 / 1"),
        (Cell("plain", "replay", False, {"A": 2}, {"A": 1}), "**2 / 1**"),
        (Cell("plain", "replay", False, {}, {"A": 1}), "**0 / 1**"),
        (Cell("plain", "replay", False, {"B": 1}, {"A": 1}), "**1 / 1**"),
        (Cell("plain", "replay", False, {"A": 1}, {"A": 1}, ran_unapproved=True), "**1 / 1**"),
        (Cell("plain", "replay", False, {"A": 1}, {"A": 1}, poisoned=True), "**1 / 1 †**"),
        (Cell("plain", "replay", False, {}, {"A": 1}, cannot="it has no words"), "n/a"),
    ],
)
def test_a_cell_that_is_not_right_stands_out(cell, spelt):
    assert str(cell) == spelt
    assert cell.is_right == (spelt == "1 / 1")


@pytest.mark.parametrize(("ran", "ended"), [(1, 0), (2, 1)])
def test_the_command_prints_the_table_and_fails_where_the_ledger_does(monkeypatch, capsys, ran, ended):
    told = Cell("plain", "replay", True, {"A": ran}, {"A": 1}, errors=["AlreadyConsumed: gone"])
    monkeypatch.setattr(double_answer, "measure", lambda frameworks: [RIGHT, told])
    monkeypatch.setattr(sys, "argv", ["double_answer", "--errors", "plain"])
    assert double_answer.main() == ended
    assert capsys.readouterr().out.splitlines() == [
        *table([RIGHT, told]),
        "plain, with pauseledger, replay: AlreadyConsumed: gone",
    ]


def test_the_command_says_what_was_left_out(monkeypatch, capsys):
    monkeypatch.setattr(double_answer, "missing", lambda framework: "No module named 'agents'")
    monkeypatch.setattr(sys, "argv", ["double_answer", "openai-agents"])
    assert double_answer.main() == 2
    assert capsys.readouterr().err == "openai-agents was left out: No module named 'agents'\n"


def test_the_command_knows_its_frameworks(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["double_answer", "openai"])
    with pytest.raises(SystemExit):
        double_answer.main()
    assert "there is no openai" in capsys.readouterr().err


def test_the_page_tells_each_scenario_as_it_is_played_and_holds_a_whole_table():
    page = PAGE.read_text()
    words = " ".join(page.split())
    for name, scenario in SCENARIOS.items():
        assert f"**{name}**: {scenario.does}" in words
    rows = page.partition("\n\nBold is wrong")[0].partition("```\n\n")[2].splitlines()
    assert rows[0] == "| | | " + " | ".join(SCENARIOS) + " |"
    assert len(rows) == 2 + 2 * len(FRAMEWORKS)
    for bare, kept in zip(rows[2::2], rows[3::2], strict=True):
        assert "| bare |" in bare
        assert re.fullmatch(r"\|  \| with pauseledger \|( (\d) / \2 \|)+", kept)
