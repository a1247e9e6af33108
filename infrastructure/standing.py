"""Which pauses still stand: what a key, or anything else tokens need, must not be taken from."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from ..domain.errors import LedgerCorrupt, LedgerTooNew
from ..domain.facts import Answered, Consumed, Fact, Lapsed, Paused, Withdrawn


def standing(
    facts: Iterable[Fact | LedgerTooNew | LedgerCorrupt],
    *,
    made_before: datetime,
    now: datetime,
    leeway: timedelta = timedelta(0),
) -> Sequence[UUID]:
    """Walk the whole log (blocks) and list the pauses made before a time that are open or ready, oldest first.

    Open: it may still be answered. Ready: it holds an answer, or will have the one registered for its lapse, and was
    not consumed. One whose window has closed with neither is over, whether or not its lapse was written down.

    Raises:
        LedgerTooNew, LedgerCorrupt: a row cannot be read, so nothing can be said for certain.
    """
    held: dict[UUID, datetime | None] = {}
    for fact in facts:
        match fact:
            case LedgerTooNew() | LedgerCorrupt():
                raise fact
            case Paused() if fact.at < made_before:
                held[fact.pause] = None if fact.on_lapse.action == "answer" else fact.closes_at + leeway
            case Answered() if fact.pause in held:
                held[fact.pause] = None
            case Consumed() | Withdrawn():
                held.pop(fact.pause, None)
            case Lapsed() if held.get(fact.pause) is not None:
                del held[fact.pause]
            case _:
                pass
    return [pause for pause, ends in held.items() if ends is None or now < ends]
