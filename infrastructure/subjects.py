"""Where in a ledger a person is named: found by their tag in headers alone, whether or not their name can be read."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from ..domain.axes import Scope
from ..projections.seen import Seen
from .headers import Log

_BATCH = 500
#: Facts of whoever runs the ledger and handled a question. Their names are sealed by the pause's person key.
_HANDLED = frozenset({"pause.reissued", "pause.recovered", "pause.withdrawn", "pause.abandoned"})


@dataclass(frozen=True, slots=True)
class Named:
    """Where a person is named.

    Attributes:
        pauses: The pauses, and the streams of holds, of the scope asked for, oldest first; of each, the streams of its
            presentations that name them.
        elsewhere: Positions and stored names of the facts of no tenant that name somebody with that id: policies,
            switches, readings, refused attempts on pauses that are not in this store.
        unreadable: Positions of the rows that cannot be read. Whether they name anybody cannot be told.
        part: The pauses they had a part in: they asked, were asked, answered, tried to, or were shown the question.
        handled: Those in which they only acted as an operator, under a name that the pause's person key seals. Those
            in neither name them in clear alone, as whoever ordered an erasure or placed a hold.
    """

    pauses: dict[UUID, tuple[UUID, ...]]
    elsewhere: tuple[tuple[int, str], ...]
    unreadable: tuple[int, ...]
    part: frozenset[UUID] = frozenset()
    handled: frozenset[UUID] = frozenset()


def named_in(log: Log, scope: Scope, tag: str) -> Named:
    """Walk the log (blocks), and list where the facts of a scope name a tag.

    A scope's parts that are None choose nothing: a tenant's covers all that is narrower.
    """
    wanted = {name: value for name, value in scope.model_dump().items() if value is not None}
    pauses: dict[UUID, tuple[UUID, ...]] = {}
    elsewhere: list[tuple[int, str]] = []
    unreadable: list[int] = []
    part: set[UUID] = set()
    handled: set[UUID] = set()
    for position, fact in _walk(log):
        if fact is None:
            unreadable.append(position)
        elif tag.encode() in fact.header:
            of = fact.fields.get("scope")
            if not isinstance(of, dict):
                elsewhere.append((position, fact.name))
            elif wanted.items() <= of.items():
                pause, stream = UUID(fact.pause), UUID(fact.stream)
                shown = pauses.setdefault(pause, ())
                if fact.name.startswith("pause."):
                    (handled if _handling(fact, tag) else part).add(pause)
                if fact.name == "pause.presented" and stream not in shown:
                    pauses[pause] = (*shown, stream)
    return Named(pauses, tuple(elsewhere), tuple(unreadable), frozenset(part), frozenset(handled - part))


def _handling(fact: Seen, tag: str) -> bool:
    """Tell whether a fact names somebody as an operator alone."""
    return fact.name in _HANDLED or (fact.name == "pause.presented" and tag not in json.dumps(fact.fields.get("to")))


def _walk(log: Log) -> Iterator[tuple[int, Seen | None]]:
    """Go through the log; None stands for what cannot be read."""
    position = 0
    while rows := log.fronts(position, _BATCH):
        for row in rows:
            position = row[4]
            try:
                [fact] = log.seen([row])
                yield position, fact if fact.unreadable != "corrupt" and fact.readable() else None
            except (AttributeError, TypeError, ValueError):
                # A column's type is a wish in SQLite: what was altered there may hold anything.
                yield position, None
