"""What the command line prints: one JSON object an outcome, its exit code, and the same in words."""

import io
import json
import re
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO
from uuid import UUID

from ..domain.commands import Dispatch, PauseReceipt, Receipt
from ..domain.content import Content, ContentAlteredError, ContentErasedError, ContentUnreadError
from ..domain.errors import (
    ErasureHeld,
    InteractionConfigurationError,
    LeaseHeld,
    LedgerCorrupt,
    LedgerError,
    LedgerTooNew,
    NotErasable,
    NotRedeemable,
    PauseClosed,
    PauseConflict,
    PauseRejected,
    RecoveryError,
    Refusal,
    RoundOpen,
    SettingsCorrupt,
    StoreUnavailable,
    WindowOpen,
)
from ..domain.facts import Fact, contents_of, rfc3339
from ..domain.kernel_resume import ResumedTurn
from ..domain.sentences import harmless

DONE, FAULT, USAGE, REFUSED, UNAVAILABLE, FAULTY = range(6)
#: As shells tell that a program was interrupted: 128 and the signal.
INTERRUPTED = 130

#: Outcomes that are not done, and their exit codes.
EXITS = {
    "fault": FAULT,
    "unproven": FAULT,
    "usage": USAGE,
    "misconfigured": USAGE,
    "rejected": USAGE,
    "refused": REFUSED,
    "not_recoverable": REFUSED,
    "not_redeemable": REFUSED,
    "conflict": REFUSED,
    "closed": REFUSED,
    "window_open": REFUSED,
    "held": REFUSED,
    "not_erasable": REFUSED,
    "unavailable": UNAVAILABLE,
    "too_new": UNAVAILABLE,
    "corrupt": FAULTY,
    "faults": FAULTY,
    "interrupted": INTERRUPTED,
}

_TOKEN = re.compile(r"plp[0-9A-Za-z]{6,}")
#: A word before two blanks is a label.
_LABEL = re.compile(r"^[a-z0-9]{1,8}(?=  )")
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command came to: the JSON object, and the same as lines for people."""

    shape: dict[str, Any]
    lines: Sequence[str] = field(default=())

    @property
    def exit_code(self) -> int:
        """0 done, 1 internal fault, 2 usage or configuration, 3 refused, 4 store unavailable, 5 faults found."""
        return EXITS.get(self.shape["outcome"], DONE)


def show(outcome: Outcome, *, as_json: bool) -> None:
    """Print an outcome: JSON and results to standard output, messages of what failed to standard error."""
    if as_json:
        # ASCII alone: whatever people wrote arrives escaped, on any terminal and under any locale.
        sys.stdout.write(json.dumps(outcome.shape) + "\n")
    else:
        say(outcome.lines, sys.stdout if outcome.exit_code == DONE else sys.stderr)
    sys.stdout.flush()


def say(lines: Sequence[str], to: TextIO) -> None:
    """Print lines by rich, with nothing in them interpreted and everything a terminal would obey spelled out.

    What goes to a file or a pipe is UTF-8 under any locale: a signed head is, and one kept in Latin-1 proves nothing.
    """
    if isinstance(to, io.TextIOWrapper) and not to.isatty():
        to.reconfigure(encoding="utf-8")
    from rich.console import Console  # noqa: PLC0415 - scripts use --json, and need not wait for it
    from rich.text import Text  # noqa: PLC0415 - as above

    console = Console(file=to, soft_wrap=True)
    for line in lines:
        safe = harmless(line).encode(to.encoding or "ascii", "backslashreplace").decode(to.encoding or "ascii")
        text = Text(safe)
        text.highlight_regex(_LABEL, "bold")
        console.print(text)


# What was done


def paused(receipts: Sequence[PauseReceipt], calls: Sequence[str], *, as_round: bool) -> Outcome:
    """Tell of a pause, or of a round of them."""
    shapes = [_receipt(receipt) for receipt in receipts]
    lines = [line for receipt, call in zip(receipts, calls, strict=True) for line in _paused_lines(receipt, call)]
    if not as_round:
        return Outcome({"outcome": "paused", **shapes[0]}, lines)
    each = [{"call_id": call, **shape} for call, shape in zip(calls, shapes, strict=True)]
    return Outcome({"outcome": "paused", "round": str(receipts[0].round), "pauses": each}, lines)


def _receipt(receipt: PauseReceipt) -> dict[str, Any]:
    return {
        "pause_id": str(receipt.pause_id),
        "token": receipt.token,
        "existing": receipt.existing,
        "closes_at": rfc3339(receipt.closes_at),
    }


def _paused_lines(receipt: PauseReceipt, call: str) -> list[str]:
    found = " (it stood already)" if receipt.existing else ""
    return [
        f"pause   {receipt.pause_id} waits at call {call} until {rfc3339(receipt.closes_at)}{found}",
        f"token   {receipt.token}",
    ]


def reissued(receipt: PauseReceipt) -> Outcome:
    """Tell of a token minted again."""
    shape = {"outcome": "reissued", **_receipt(receipt)}
    del shape["existing"]
    lines = [f"token   {receipt.token}", f"until   {rfc3339(receipt.closes_at)}"]
    return Outcome(shape, lines)


def receipt(word: str, done: Receipt) -> Outcome:
    """Tell what a pause is after a command."""
    shape = {"outcome": word, "pause_id": str(done.pause_id), "state": done.state, "position": done.position}
    more = f"; at least {done.missing} more have to give the same answer" if done.missing else ""
    return Outcome(
        {**shape, "missing": done.missing} if done.missing else shape,
        [f"{word}: pause {done.pause_id} is {done.state}{more}"],
    )


def resumed(word: str, turn: ResumedTurn, as_whom: str) -> Outcome:
    """Tell of a turn handed out: what a host needs to go on with it, and to settle it (`as_whom`, for a shell)."""
    outcome = turn.outcome
    settle = f"pauseledger settle {outcome.pause_id} --fence {turn.fence}"
    shape = {
        "outcome": word,
        "pause_id": str(outcome.pause_id),
        "run_id": outcome.run_id,
        "interrupt_id": outcome.interrupt_id,
        "tool_call_id": outcome.tool_call_id,
        "response": outcome.response,
        "dispatch": [_dispatch(call) for call in turn.dispatch],
        "fence": turn.fence,
        "idempotency_key": turn.idempotency_key,
        "history": list(turn.history),
        "time_to_resolve_seconds": outcome.time_to_resolve_seconds,
    }
    lines = [
        f"{word}: pause {outcome.pause_id}, call {outcome.interrupt_id}, fence {turn.fence}",
        f"answer  {_compact(outcome.response)}",
        *(f"to run  {call.tool} {_compact(call.arguments)} for call {call.interrupt_id}" for call in turn.dispatch),
        *(f"history {_compact(entry)}" for entry in turn.history),
        f"now go on with the turn, then: {settle} --end finished {as_whom}",
    ]
    return Outcome(shape, lines)


def _dispatch(call: Dispatch) -> dict[str, Any]:
    return {
        "pause_id": str(call.pause_id),
        "interrupt_id": call.interrupt_id,
        "tool_call_id": call.tool_call_id,
        "tool": call.tool,
        "arguments": call.arguments,
        "digest": call.digest,
        "idempotency_key": call.idempotency_key,
    }


def shown(
    pause_id: UUID, state: str | None, facts: Sequence[Fact], sentences: Sequence[str], *, content: bool
) -> Outcome:
    """Tell a pause's story; what people wrote with `content` alone."""
    shape = {
        "outcome": "shown",
        "pause_id": str(pause_id),
        "state": state,
        "facts": [fact_shape(fact, content=content) for fact in facts],
        "sentences": list(sentences),
    }
    return Outcome(shape, [f"pause {pause_id} is {state or 'not in this store'}", *sentences, *_next(pause_id, state)])


def _next(pause_id: UUID, state: str | None) -> list[str]:
    """Say how a turn goes on that nobody has taken up again."""
    recover = f"pauseledger recover {pause_id} --operator NAME"
    match state:
        case "stalled":
            return [f"next    {recover}"]
        case "owed":
            return [f"next    whoever holds the turn settles it; once the lease has ended: {recover}"]
        case _:
            return []


def fact_shape(fact: Fact, *, content: bool) -> dict[str, Any]:
    """Tell a fact, and where it stands; what people wrote with `content` alone."""
    shape = {
        "topic": fact.topic(),
        "stream": str(fact.originator_id),
        "version": fact.originator_version,
        "position": fact.position,
        **fact.model_dump(mode="json"),
    }
    return {**shape, "contents": [_written(one) for one in contents_of(fact)]} if content else shape


def _written(content: Content) -> dict[str, Any]:
    try:
        text: str | None = content.clear().decode(errors="replace")
    except (ContentAlteredError, ContentErasedError, ContentUnreadError):
        text = None
    shape = {"digest": content.digest, "media_type": content.media_type, "text": text}
    return {**shape, "erased": True} if content.erased else shape


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# What was not


def failed(error: LedgerError) -> Outcome:
    """Tell what was said no to, and why."""
    return Outcome(_failure(error), [str(error)])


def _failure(error: LedgerError) -> dict[str, Any]:  # noqa: PLR0912 - one kind of error a branch
    match error:
        case Refusal():
            return _refusal(error)
        case RoundOpen():
            more = {"continued_by_other": True} if error.continued_by_other else {}
            return {"outcome": "open", "pause_id": str(error.pause_id), "open": list(error.open), **more}
        case RecoveryError():
            held = {"until": rfc3339(error.until), "fence": error.fence} if isinstance(error, LeaseHeld) else {}
            return {"outcome": "not_recoverable", "reason": _word(error), "pause_id": str(error.pause_id), **held}
        case PauseRejected():
            return {"outcome": "rejected", "name": error.name, "says": str(error).removeprefix(f"{error.name}: ")}
        case PauseConflict():
            return {"outcome": "conflict", "pause_id": str(error.pause_id), "differs": error.differs}
        case PauseClosed():
            again = error.next_occurrence
            return {
                "outcome": "closed",
                "pause_id": str(error.pause_id),
                "state": error.state,
                "next_occurrence": again,
            }
        case WindowOpen():
            return {
                "outcome": "window_open",
                "pause_id": str(error.pause_id),
                "closes_at": rfc3339(error.closes_at),
            }
        case ErasureHeld():
            return {"outcome": "held", "pause_id": str(error.pause_id), "says": error.says}
        case NotErasable():
            return {"outcome": "not_erasable", "pause_id": str(error.pause_id), "says": str(error)}
        case NotRedeemable():
            return {"outcome": "not_redeemable", "reason": error.reason}
        case StoreUnavailable():
            return {"outcome": "unavailable", "store_outcome": error.outcome, "says": str(error)}
        case LedgerTooNew():
            return {"outcome": "too_new", "topic": error.topic, "stream": _text(error.stream), "says": str(error)}
        case LedgerCorrupt():
            where = {"stream": str(error.stream), "version": error.version, "position": error.position}
            return {"outcome": "corrupt", **where, "says": str(error)}
        case SettingsCorrupt():
            return {"outcome": "corrupt", "setting": error.setting, "says": str(error)}
        case InteractionConfigurationError():
            return {"outcome": "misconfigured", "says": str(error)}
        case _:
            return {"outcome": "fault", "error": type(error).__name__, "says": str(error)}


def _refusal(error: Refusal) -> dict[str, Any]:
    told = {name: value for name, value in error.details().items() if value}
    return {
        "outcome": "refused",
        "reason": error.reason,
        "axis": error.axis,
        "step": error.step,
        "pause_id": _text(error.pause_id),
        "recorded": error.recorded,
        "retryable": error.retryable,
        **told,
    }


def misused(says: str) -> Outcome:
    """Tell of a command line that cannot be read. What looks like a token is not repeated, nor are words left over."""
    said = _TOKEN.sub("plp...", says).removesuffix(".")
    if "unexpected extra argument" in said:
        said = "there are more arguments than the command takes; put what holds blanks in quotes"
    return Outcome({"outcome": "usage", "says": said}, [f"{said}; see --help"])


def interrupted() -> Outcome:
    """Tell of Ctrl-C. A redemption that was under way ran to its end, and what it won has stalled."""
    says = "interrupted; `show` tells what was done"
    return Outcome({"outcome": "interrupted", "says": says}, [says])


def broken(error: BaseException) -> Outcome:
    """Tell of a fault of our own: its kind and its place. Its message and its variables may hold anything."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "nowhere"
    says = "this is a fault of pauseledger or of the host's own code; please report these two"
    lines = [f"unexpected {type(error).__name__} at {where}; {says}"]
    return Outcome({"outcome": "fault", "error": type(error).__name__, "where": where, "says": says}, lines)


def moment(at: datetime | None) -> str | None:
    """Spell a moment, or its absence."""
    return None if at is None else rfc3339(at)


def _word(error: RecoveryError) -> str:
    return _CAPITAL.sub("_", type(error).__name__).lower()


def _text(value: UUID | None) -> str | None:
    return None if value is None else str(value)
