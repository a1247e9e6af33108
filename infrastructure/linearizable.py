"""Judges a history of operations on one pause: could they have happened one after the other, each within its time?

A pause is a register with a one-shot consume. Every operation has a moment between its call and its return at which it
happened at once; one that never returned happened at some moment after its call, or not at all. The search is that of
Wing and Gong (https://doi.org/10.1006/jpdc.1993.1015) with Lowe's memory of states seen
(https://doi.org/10.1002/cpe.3928). Pauses are independent, so that each is judged by itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

#: How often a turn is taken up again before it is given up.
_RECOVERIES = 5
_BY_RECOVERY = "recovery"


@dataclass(frozen=True, slots=True)
class Table:
    """What the raw table holds of a pause when nobody works on it any more.

    Attributes:
        answer: The answer, in whatever words the history has for it.
        consumed_by: The key of the attempt that consumed it; `recovery` where that was no redemption.
        fence: The newest claim's, 0 where there is none.
    """

    paused: bool = False
    answer: str | None = None
    withdrawn: bool = False
    consumed_by: str | None = None
    fence: int = 0
    continued: bool = False
    abandoned: bool = False


@dataclass(frozen=True, slots=True)
class Operation:
    """One call, and what was said of it.

    Attributes:
        name: pause, answer, redeem, recover, settle, withdraw, or table (a look at the raw table).
        called, returned: Moments of one clock. `returned` is infinite where nobody heard the end.
        said: What came back, as a word of this module; None where nobody knows whether it happened.
        value: The answer given.
        key: What the attempt is known by.
        fence: The claim that was handed out, or is settled.
        own: Whether an `already_consumed` said that the same key had consumed it.
        table: What the raw table holds.
    """

    name: str
    called: float
    returned: float = inf
    said: str | None = None
    value: str | None = None
    key: str | None = None
    fence: int = 0
    own: bool = False
    table: Table | None = None


def linearizable(operations: Sequence[Operation]) -> bool:
    """Tell whether a history of one pause has an order that explains every word said.

    Raises:
        KeyError: an operation or a word is none of this module's.
    """
    known = sorted(operations, key=lambda operation: operation.called)
    required = sum(1 << at for at, operation in enumerate(known) if operation.said is not None)
    everything = (1 << len(known)) - 1
    seen, ahead = set[tuple[int, Table]](), [(everything, Table())]
    while ahead:
        left, state = ahead.pop()
        if not left & required:
            return True
        if (left, state) in seen:
            continue
        seen.add((left, state))
        waiting = [at for at in range(len(known)) if left >> at & 1]
        # Nothing happens after the return of something that has not happened yet.
        first_return = min(known[at].returned for at in waiting)
        for at in waiting:
            if known[at].called > first_return:
                break
            after = _JUDGES[known[at].name](state, known[at])
            if after is not None:
                ahead.append((left & ~(1 << at), after))
    return False


def _if(holds: bool, state: Table) -> Table | None:
    return state if holds else None


def _pause(state: Table, given: Operation) -> Table | None:
    over = state.withdrawn or state.consumed_by is not None
    if given.said in ("paused", None) and not state.paused:
        return replace(state, paused=True)
    return {
        "paused": None,
        "existing": _if(state.paused and not over, state),
        "closed": _if(over, state),
        None: state,
    }[given.said]


def _answer(state: Table, given: Operation) -> Table | None:
    stands = state.paused and not state.withdrawn and state.consumed_by is None
    taken = state.answer not in (None, given.value)
    if given.said in ("answered", None) and stands and not taken:
        return replace(state, answer=given.value)
    return _turned_down(state, given, taken=stands and taken) if given.said != "answered" else None


def _redeem(state: Table, given: Operation) -> Table | None:
    stands = state.paused and not state.withdrawn and state.consumed_by is None
    taken = state.answer not in (None, given.value)
    if given.said in ("won", None) and stands and not taken:
        return _if(
            given.said is None or given.fence == 1,
            replace(state, answer=given.value, consumed_by=given.key, fence=1),
        )
    return _turned_down(state, given, taken=stands and taken) if given.said != "won" else None


def _turned_down(state: Table, given: Operation, *, taken: bool) -> Table | None:
    mine = state.consumed_by is not None and given.key == state.consumed_by
    return {
        "already_answered": _if(taken, state),
        "already_consumed": _if(state.consumed_by is not None and mine == given.own, state),
        "withdrawn": _if(state.withdrawn, state),
        "refused": state,
        None: state,
    }[given.said]


def _recover(state: Table, given: Operation) -> Table | None:
    owed = state.consumed_by is not None and not state.continued and not state.abandoned
    ready = state.answer is not None and not state.withdrawn and state.consumed_by is None
    exhausted = owed and state.fence > _RECOVERIES
    if given.said in ("won", None) and (ready or (owed and not exhausted)):
        by = state.consumed_by or _BY_RECOVERY
        return _if(
            given.said is None or given.fence == state.fence + 1, replace(state, consumed_by=by, fence=state.fence + 1)
        )
    if given.said in ("abandoned", None) and exhausted:
        return replace(state, abandoned=True)
    return {
        "won": None,
        "abandoned": _if(state.abandoned and not state.continued, state),
        "already_continued": _if(state.continued, state),
        "not_consumed": _if(state.answer is None and not state.withdrawn and state.paused, state),
        "nothing_owed": _if(state.withdrawn, state),
        None: state,
    }[given.said]


def _settle(state: Table, given: Operation) -> Table | None:
    if state.consumed_by is not None and given.fence <= state.fence:
        return {"settled": replace(state, continued=True), None: replace(state, continued=True)}[given.said]
    return {"settled": None, None: state}[given.said]


def _withdraw(state: Table, given: Operation) -> Table | None:
    stands = state.paused and state.consumed_by is None
    if given.said in ("withdrawn", None) and stands:
        return replace(state, withdrawn=True)
    return {"withdrawn": None, "closed": _if(state.consumed_by is not None, state), None: state}[given.said]


def _table(state: Table, given: Operation) -> Table | None:
    return _if(state == given.table, state)


_JUDGES: dict[str, Callable[[Table, Operation], Table | None]] = {
    "pause": _pause,
    "answer": _answer,
    "redeem": _redeem,
    "recover": _recover,
    "settle": _settle,
    "withdraw": _withdraw,
    "table": _table,
}
