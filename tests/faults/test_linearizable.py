"""The judge of histories finds the right ones right and the wrong ones wrong; its register is what a ledger does."""

import random
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pauseledger as pl
import pytest
from pauseledger.infrastructure.linearizable import Operation, Table, linearizable


def _load(name):
    folder = Path(__file__).parents[1] / "processes"
    spec = spec_from_file_location(f"pauseledger_tests_{name}", folder / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


play = _load("play")
PAUSE = Operation("pause", 0, 1, "paused")


def redeem(called, returned, said, key, value="Anne", **more):
    more = {"fence": 1, **more} if said == "won" else more
    return Operation("redeem", called, returned, said, value, key, **more)


def unknown(called, key, value="Anne"):
    return Operation("redeem", called, value=value, key=key)


def table(**held):
    return Operation("table", 90, 91, "seen", table=Table(paused=True, **held))


RIGHT = {
    "one wins, the other is told": [redeem(2, 5, "won", "a"), redeem(3, 4, "already_consumed", "b")],
    "the loser returns before the winner": [redeem(2, 9, "won", "a"), redeem(3, 4, "already_consumed", "b")],
    "nobody knows, and it happened": [unknown(2, "a"), redeem(3, 4, "already_consumed", "b")],
    "nobody knows, and it did not": [unknown(2, "a"), redeem(3, 4, "won", "b")],
    "it happened long after its worker died": [
        unknown(2, "a"),
        Operation("answer", 3, 4, "answered", "Anne"),
        redeem(5, 6, "already_consumed", "b"),
    ],
    "the same key tells": [unknown(2, "a"), redeem(3, 4, "already_consumed", "a", own=True)],
    "taken up again": [
        redeem(2, 3, "won", "a"),
        Operation("recover", 4, 5, "won", fence=2),
        Operation("settle", 6, 7, "settled", fence=1),
        Operation("recover", 8, 9, "already_continued"),
        table(answer="Anne", consumed_by="a", fence=2, continued=True),
    ],
    "answered now, consumed by a recovery": [
        Operation("answer", 2, 3, "answered", "Bob"),
        Operation("recover", 4, 5, "won", fence=1),
        redeem(6, 7, "already_consumed", "a"),
        table(answer="Bob", consumed_by="recovery", fence=1),
    ],
    "withdrawn while it was answered": [
        Operation("answer", 2, 9, "answered", "Bob"),
        Operation("withdraw", 3, 8, "withdrawn"),
        redeem(10, 11, "withdrawn", "a", value="Bob"),
        Operation("recover", 12, 13, "nothing_owed"),
    ],
}
WRONG = {
    "two win": [redeem(2, 5, "won", "a"), redeem(3, 4, "won", "b")],
    "two win, one after the other": [redeem(2, 3, "won", "a"), redeem(4, 5, "won", "b")],
    "it is open again": [redeem(2, 3, "won", "a"), Operation("pause", 4, 5, "existing")],
    "told that it is consumed before anybody came": [
        redeem(2, 3, "already_consumed", "b"),
        redeem(4, 5, "won", "a"),
    ],
    "a foreign win is told as one's own": [redeem(2, 3, "won", "a"), redeem(4, 5, "already_consumed", "b", own=True)],
    "one's own win is told as foreign": [unknown(2, "a"), redeem(3, 4, "already_consumed", "a")],
    "a win that the table lost": [redeem(2, 3, "won", "a"), table(answer="Anne")],
    "an answer that the table lost": [Operation("answer", 2, 3, "answered", "Bob"), table()],
    "another's win in the table": [
        redeem(2, 3, "won", "a"),
        redeem(2, 3, "already_consumed", "b"),
        table(answer="Anne", consumed_by="b", fence=1),
    ],
    "what was not started is in the table": [table(answer="Anne", consumed_by="a", fence=1)],
    "two answers stand": [
        Operation("answer", 2, 3, "answered", "Anne"),
        Operation("answer", 4, 5, "answered", "Bob"),
    ],
    "won with another answer than stands": [
        Operation("answer", 2, 3, "answered", "Anne"),
        redeem(4, 5, "won", "a", value="Bob"),
    ],
    "a fence twice": [
        redeem(2, 3, "won", "a"),
        Operation("recover", 4, 9, "won", fence=2),
        Operation("recover", 5, 8, "won", fence=2),
    ],
    "taken up after its end": [
        redeem(2, 3, "won", "a"),
        Operation("settle", 4, 5, "settled", fence=1),
        Operation("recover", 6, 7, "won", fence=2),
    ],
    "withdrawn and won": [Operation("withdraw", 2, 3, "withdrawn"), redeem(4, 5, "won", "a")],
    "paused twice": [Operation("pause", 2, 3, "paused")],
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_could_have_happened_is_found_so(name):
    assert linearizable([PAUSE, *RIGHT[name]])


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_have_happened_is_found_so(name):
    assert not linearizable([PAUSE, *WRONG[name]])


def test_a_word_that_nobody_knows_is_an_error():
    with pytest.raises(KeyError):
        linearizable([PAUSE, redeem(2, 3, "perhaps", "a")])


async def test_the_register_is_what_a_ledger_does_one_by_one():
    """Any step in any order, one by one; a history changed in one word is found out."""
    found_out = 0
    async with pl.open_ledger("memory:") as ledger:
        for seed in range(60):
            chance = random.Random(seed)
            player = play.Player(ledger, f"player-{seed}", chance)
            told = [one for _ in range(14) for one in await player.step(f"run {seed}")]
            history = play.operations(told)
            assert linearizable(history), history
            won = next((one for one in history if one.name == "redeem" and one.said == "won"), None)
            if won is not None:
                again = Operation("redeem", 1e9, 1e9 + 1, "won", won.value, "another", fence=1)
                found_out += not linearizable([*history, again])
                assert not linearizable([*history, again])
    assert found_out > 10
