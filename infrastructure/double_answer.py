"""The double-answer table: how often an approved side effect ran, by framework, bare and with the ledger.

    python -m pauseledger.infrastructure.double_answer [--errors] [framework ...]

Plays each scenario with each installed framework, offline, and prints the table as Markdown. Ends with 1 where the
ledger's half is not all right, with 2 where nothing could be played.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

from .double_answer_stage import INVALID, TAKES, Stage, Ticket, World, preload, way

#: Scenarios played at the same time: most of what they do is to wait.
AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Scenario:
    """One thing that happens to an answer.

    Attributes:
        does: What it does, as the page tells it.
        plans: What the model of each session asks for, message by message.
        right: How often each order is to be refunded.
        play: Does it; gives the call that waits for an answer if the run did not come to its end.
    """

    does: str
    plans: Mapping[str, Sequence[Sequence[str]]]
    right: Mapping[str, int]
    play: Callable[[Stage], Ticket]


def _one_answer(stage: Stage) -> Ticket:
    (ticket,) = stage.ask("s1")
    stage.answer(ticket)
    return ticket


def _two_at_once(stage: Stage) -> Ticket:
    (ticket,) = stage.ask("s1")
    stage.answer_at_once([ticket, ticket])
    return ticket


def _replay(stage: Stage) -> Ticket:
    (ticket,) = stage.ask("s1")
    stage.answer(ticket)
    stage.answer(ticket)
    return ticket


def _stale(stage: Stage) -> Ticket:
    (first,) = stage.ask("s1")
    (second,) = stage.stopped_again(first)
    stage.answer({**first, "stale": True})
    return second


def _wrong_thread(stage: Stage) -> Ticket:
    (ticket,) = stage.ask("s1")
    stage.ask("s2")
    stage.answer({**ticket, "session": "s2"})
    stage.answer(ticket)
    return ticket


def _half_a_round(stage: Stage) -> Ticket:
    first, second = stage.ask("s1")
    stage.answer(first)
    stage.answer(second)
    stage.answer(second)
    return second


def _invalid(stage: Stage) -> Ticket:
    (ticket,) = stage.ask("s1")
    stage.answer_invalidly(ticket)
    stage.answer(ticket)
    return ticket


def _killed(stage: Stage) -> Ticket:
    (ticket,) = stage.ask("s1")
    stage.answer_and_kill(ticket)
    stage.recover(ticket)
    return ticket


_ONE = {"s1": [["A"]]}
SCENARIOS = {
    "one answer": Scenario("A call is approved: the control.", _ONE, {"A": 1}, _one_answer),
    "two at once": Scenario(
        "Two people approve one call at the same moment, from two processes.", _ONE, {"A": 1}, _two_at_once
    ),
    "replay": Scenario(
        "A call is approved, the run comes to its end, and the same answer comes again.", _ONE, {"A": 1}, _replay
    ),
    "stale state": Scenario(
        "A call is approved and the run goes on to a second stop, at B. Then the first stop is approved again, against "
        "the state as it was there: the stored state of that stop, or its checkpoint.",
        {"s1": [["A"], ["B"]]},
        {"A": 1},
        _stale,
    ),
    "wrong thread": Scenario(
        "Two sessions wait, one at A, one at B. The approval of A is given to the session that waits at B; then it is "
        "given to its own.",
        {"s1": [["A"]], "s2": [["B"]]},
        {"A": 1},
        _wrong_thread,
    ),
    "half a round": Scenario(
        "One message calls the tool twice. One call is approved, then the other, then the other again.",
        {"s1": [["A", "B"]]},
        {"A": 1, "B": 1},
        _half_a_round,
    ),
    "invalid, then valid": Scenario(
        f'A call is answered with "{INVALID}", which is no decision, and then approved.', _ONE, {"A": 1}, _invalid
    ),
    "killed": Scenario(
        "A call is approved, and the process is killed (SIGKILL) in the tool, before its effect. Another process goes "
        "on, and nobody is asked again.",
        _ONE,
        {"A": 1},
        _killed,
    ),
}


@dataclass(frozen=True, slots=True)
class Framework:
    """Where a framework's way is, and how the table names it, with the versions of its distributions."""

    title: str
    module: str
    distributions: tuple[str, ...] = ()


_LANGCHAIN = ("langchain", "langgraph")
FRAMEWORKS = {
    "plain": Framework("A plain loop", "plain"),
    "langchain": Framework("LangChain {} on LangGraph {}, batched requests", "langchain", _LANGCHAIN),
    "langchain-per-call": Framework("LangChain {} on LangGraph {}, a request a call", "langchain", _LANGCHAIN),
    "pydantic-ai": Framework("Pydantic AI {}", "pydantic_ai", ("pydantic-ai-slim",)),
    "openai-agents": Framework("OpenAI Agents SDK {}", "openai_agents", ("openai-agents",)),
}


@dataclass(frozen=True, slots=True)
class Cell:
    """What came of a scenario.

    Attributes:
        framework: The framework's name.
        scenario: The scenario's name.
        on_ledger: Whether it was played with the ledger.
        ran: How often each order was refunded.
        right: How often it was to be.
        ran_unapproved: The tool ran on an invalid answer.
        poisoned: The run came to no end, and no valid answer brings it there any more.
        cannot: Why the bare framework cannot express it; then nothing was played.
        errors: What was raised, in order.
    """

    framework: str
    scenario: str
    on_ledger: bool
    ran: Mapping[str, int]
    right: Mapping[str, int]
    ran_unapproved: bool = False
    poisoned: bool = False
    cannot: str | None = None
    errors: Sequence[str] = ()

    @property
    def is_right(self) -> bool:
        """Whether each order was refunded as often as it was to be, and when, and the run could be finished."""
        return self.cannot is None and self.ran == self.right and not (self.ran_unapproved or self.poisoned)

    def __str__(self) -> str:
        """Spell it as the table does: how often the effect ran / how often it was to run."""
        if self.cannot is not None:
            return "n/a"
        counts = f"{sum(self.ran.values())} / {sum(self.right.values())}"
        mark = " †" if self.poisoned else ""
        return counts if self.is_right else f"**{counts}{mark}**"


def play(framework: str, scenario: str, *, on_ledger: bool, takes: float = TAKES) -> Cell:
    """Play one scenario in a folder of its own, with a tool that takes so many seconds.

    Raises:
        ImportError: the framework is not installed.
        RuntimeError: the run did not stop for a person, or a process was not killed: nothing was measured.
    """
    module, played = FRAMEWORKS[framework].module, SCENARIOS[scenario]
    cannot = way(module, framework).cannot.get(scenario)
    if cannot is not None and not on_ledger:
        return Cell(framework, scenario, on_ledger, {}, played.right, cannot=cannot)
    with tempfile.TemporaryDirectory(prefix="double-answer-") as folder:
        stage = Stage(module, framework, World(Path(folder), played.plans, takes), on_ledger=on_ledger)
        waiting = played.play(stage)
        ran, errors = dict(stage.world.refunds()), tuple(stage.errors)
        # Only now, for what finishes a run may run the tool.
        poisoned = not stage.ended and not stage.answer(stage.asked_again(waiting)).get("ended")
        unapproved = stage.ran_unapproved
        return Cell(framework, scenario, on_ledger, ran, played.right, unapproved, poisoned, errors=errors)


def measure(frameworks: Sequence[str], *, takes: float = TAKES) -> list[Cell]:
    """Play each scenario with each framework, bare and with the ledger; the tool takes so many seconds."""
    preload(sorted({FRAMEWORKS[name].module for name in frameworks}))
    jobs = [(name, told, ledger) for name in frameworks for ledger in (False, True) for told in SCENARIOS]
    with ThreadPoolExecutor(AT_ONCE) as players:
        return list(players.map(lambda job: play(job[0], job[1], on_ledger=job[2], takes=takes), jobs))


def missing(framework: str) -> str | None:
    """Tell what is not installed that a framework needs, if anything."""
    try:
        way(FRAMEWORKS[framework].module, framework)
    except ImportError as absent:
        return str(absent)
    return None


def table(cells: Sequence[Cell]) -> Iterator[str]:
    """Spell cells as lines of Markdown."""
    scenarios = list(dict.fromkeys(cell.scenario for cell in cells))
    yield "| | | " + " | ".join(scenarios) + " |"
    yield "| --- | --- |" + " --- |" * len(scenarios)
    for name in dict.fromkeys(cell.framework for cell in cells):
        for on_ledger in (False, True):
            found = {c.scenario: c for c in cells if (c.framework, c.on_ledger) == (name, on_ledger)}
            row = " | ".join(str(found[scenario]) for scenario in scenarios)
            title = "" if on_ledger else _titled(name)
            yield f"| {title} | {'with pauseledger' if on_ledger else 'bare'} | {row} |"


def _titled(name: str) -> str:
    framework = FRAMEWORKS[name]
    return framework.title.format(*map(version, framework.distributions))


def main() -> int:
    """Measure the frameworks that were asked for, and print the table."""
    told = "\n".join(f"{name}: {scenario.does}" for name, scenario in SCENARIOS.items())
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, epilog=told, formatter_class=plain)
    parser.add_argument("frameworks", nargs="*", metavar="framework", help=", ".join(FRAMEWORKS))
    parser.add_argument("--errors", action="store_true", help="tell what was raised as well")
    chosen = parser.parse_args()
    names = chosen.frameworks or list(FRAMEWORKS)
    if unknown := set(names) - set(FRAMEWORKS):
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(FRAMEWORKS)}")
    absent = {name: reason for name in names if (reason := missing(name)) is not None}
    for name, reason in absent.items():
        _say(f"{name} was left out: {reason}", sys.stderr)
    cells = measure([name for name in names if name not in absent])
    for line in table(cells):
        _say(line)
    for cell in cells if chosen.errors else ():
        who = f"{cell.framework}, {'with pauseledger' if cell.on_ledger else 'bare'}, {cell.scenario}"
        for said in cell.errors:
            _say(f"{who}: {said}")
    if not cells:
        return 2
    return 0 if all(cell.is_right for cell in cells if cell.on_ledger) else 1


def _say(line: str, where: TextIO | None = None) -> None:
    (where or sys.stdout).write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
