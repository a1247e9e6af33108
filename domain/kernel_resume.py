"""THE SEVEN STEPS: redeem a token, rebuild the turn it paused, and go on with the answer in its history.

1. The token authenticates, decodes and is inside its window.
2. It binds all four axes: scope, session, run, call; each that differs refuses by its own name.
3. The paused request is read back and hashed against the digest the token carries.
4. The answer validates against the interaction's response schema and cross-check.
5. The paused turn is rebuilt from the durable checkpoint, never from process memory.
6. Only then is the pause consumed, exactly once, by one atomic append.
7. The rehydrated messages become the turn's history before the kernel is entered.

Steps 1 to 5 can each fail, and each leaves the pause unconsumed. The order is in the types: whatever continues a turn
takes a `ResumedTurn`, and only `prepare` and `recover` make one.
"""

import asyncio
import contextlib
import inspect
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, Never, Self
from uuid import UUID

from . import strict_json
from .axes import Scope, as_stated, require_stated
from .commands import Actor, Dispatch, PauseReceipt, ResumeCommand, ResumeOutcome
from .envelope import Envelope
from .errors import InteractionConfigurationError
from .interactions import ASK_USER, AskUserAnsweredEvent
from .rehydration import fold, rehydrate
from .services import RENEWALS
from .settlement import End
from .turn import Entry, Result
from .words import is_word

#: No user message is added: the answer is the observation.
RESUME_PROMPT = ""


async def prepare(
    capability: Any,
    *,
    envelope: Envelope,
    response: Any,
    scope: Scope,
    session_id: str,
    run_id: str,
    call_id: str,
    answered_by: Actor | None = None,
    attempt_key: str | None = None,
    cites: Sequence[UUID] = (),
) -> "ResumedTurn":
    """Redeem one token and rebuild the turn it paused: the seven steps, in order.

    All four axes are stated, never defaulted: an axis left out is not judged, and nothing would fail.

    Raises:
        InteractionConfigurationError: an axis is not stated; nothing was read or redeemed.
        Refusal: one of the steps objected; the pause stands.
        RoundOpen: the answer is kept, and other calls of the round still wait.
        StoreUnavailable: the store could not speak; `outcome` says what is known.
    """
    require_stated(as_stated(scope, session_id, run_id, call_id))
    outcome = await capability.resume(
        ResumeCommand(
            envelope=envelope,
            response=response,
            scope=scope,
            session_id=session_id,
            run_id=run_id,
            call_id=call_id,
            answered_by=answered_by,
            attempt_key=attempt_key,
            cites=cites,
        ),
        require_turn=True,
    )
    return resumed(capability, outcome)


class _Claim:
    """The one claim behind every copy of a turn: settled once, renewed while it runs."""

    def __init__(self, capability: Any, outcome: ResumeOutcome) -> None:
        self.capability = capability
        self.pause_id = outcome.pause_id
        self.lead_id = UUID(outcome.idempotency_key)
        self.fence = outcome.fence
        self.position = outcome.position
        self.since = time.monotonic()
        self.entered = False
        self.settled = False

    async def enter(self) -> None:
        await self.capability.confirm_claim(self.lead_id, self.position)
        if self.entered:
            raise InteractionConfigurationError(
                "this turn was entered already; a turn goes on once, recover it to try again"
            )
        self.entered = True

    async def settle(self, end: End, **said: Any) -> None:
        """Say how the claim ended. One that fails is logged and changes nothing for the caller: the lease will end."""
        self.settled = await self.capability.settle_claim(self.pause_id, self.fence, end, **said)

    async def renew(self) -> bool:
        return bool(await self.capability.renew(self.lead_id, self.fence))


class ResumedTurn:
    """A redeemed token and the turn it continues, rehydrated and ready. Frozen; made by `prepare` and `recover` alone.

    Attributes:
        outcome: What the redemption handed back.
        history: The turn's entries with the answers folded in, in its own wire format.
        prompt: What the kernel is entered with; empty, for the answer is the observation.
        dispatch: The calls a person let through that the host has still to run; `with_results` folds them in.
    """

    __slots__ = ("_claim", "_results", "dispatch", "history", "outcome", "prompt")
    _claim: _Claim
    _results: dict[str, Result]
    outcome: ResumeOutcome
    history: tuple[Entry, ...]
    prompt: str
    dispatch: tuple[Dispatch, ...]

    def __init__(self, *, made_by_prepare_or_recover_alone: Never) -> None:  # noqa: ARG002 - nobody can pass it
        raise InteractionConfigurationError("a ResumedTurn comes from prepare or recover; it cannot be made by hand")

    def __init_subclass__(cls) -> None:
        raise InteractionConfigurationError("a ResumedTurn cannot be subclassed")

    def __setattr__(self, name: str, value: Any) -> Never:
        raise AttributeError("a ResumedTurn is frozen; with_prompt and with_results make another")

    def __reduce__(self) -> Never:
        raise TypeError("a ResumedTurn cannot be pickled or copied; recover the pause in the other process")

    def __repr__(self) -> str:
        return f"<ResumedTurn of pause {self.outcome.pause_id}, fence {self.fence}>"

    @property
    def run_id(self) -> str:
        """The run that stopped."""
        return self.outcome.run_id

    @property
    def session_id(self) -> str:
        """The conversation it stopped in."""
        return self.outcome.session_id

    @property
    def fence(self) -> int:
        """The claim's fence, for the host's side effects: a higher one ends a lower one."""
        return self.outcome.fence

    @property
    def idempotency_key(self) -> str:
        """The same in every recovery, for the host's side effects."""
        return self.outcome.idempotency_key

    @property
    def settled(self) -> bool:
        """Whether this claim was settled, by this turn or a copy of it."""
        return self._claim.settled

    def with_prompt(self, text: str) -> "ResumedTurn":
        """Give the same turn, entered with a user's message."""
        return _made(self.outcome, self._claim, prompt=text, results=self._results)

    def with_results(self, results: Mapping[str, Result]) -> "ResumedTurn":
        """Give the same turn with the results of dispatched calls folded in, by call id (the call axis).

        Raises:
            InteractionConfigurationError: a call is not one of those left open, or a result cannot be carried as JSON;
                the call is named.
        """
        still_open = {call.interrupt_id for call in self.dispatch}
        strangers = [call_id for call_id in results if call_id not in still_open]
        if strangers:
            raise InteractionConfigurationError(
                f"results are for calls in `dispatch` alone; leave out {', '.join(map(repr, strangers))}"
            )
        for call_id, result in results.items():
            _require_carried(call_id, result)
        return _made(self.outcome, self._claim, prompt=self.prompt, results={**self._results, **results})

    async def renew(self) -> bool:
        """Hold the claim for another lease; False where a newer claim has taken over. For hosts with long steps."""
        return await self._claim.renew()


def _require_carried(call_id: str, result: Result) -> None:
    """A history that cannot be written as JSON could neither be sent nor be paused again."""
    try:
        strict_json.write(result, limit=strict_json.LARGEST)
    except strict_json.Unfit as unfit:
        name, says = unfit.name, unfit.says
    else:
        return
    # Raised out here, so that no traceback drags along an error that holds the result.
    raise InteractionConfigurationError(f"the result of call {call_id!r} cannot be carried: {name}: {says}")


def _made(outcome: ResumeOutcome, claim: _Claim, *, prompt: str, results: Mapping[str, Result]) -> ResumedTurn:
    turn = object.__new__(ResumedTurn)
    values = {
        "outcome": outcome,
        "history": fold(outcome, results) if results else rehydrate(outcome),
        "prompt": prompt,
        "dispatch": tuple(call for call in outcome.dispatch if call.interrupt_id not in results),
        "_claim": claim,
        "_results": dict(results),
    }
    for name, value in values.items():
        object.__setattr__(turn, name, value)
    return turn


def resumed(capability: Any, outcome: ResumeOutcome) -> ResumedTurn:
    """Step 7. Only `prepare` and `recover` call this, with what they have just consumed or taken up."""
    return _made(outcome, _Claim(capability, outcome), prompt=RESUME_PROMPT, results={})


class Going:
    """A turn under way, for hosts with their own loop.

    Attributes:
        history: The entries to go on with; results folded in by `with_results` are in it.
        turn: The turn itself.
        next: The pauses it stopped at again; fill it where it did.
        handed_over: Set it where somebody else goes on with the turn and settles it.
        entered: Whether the kernel was entered; a turn that breaks off before says so.
    """

    def __init__(self, turn: ResumedTurn) -> None:
        self.turn = turn
        self.next: list[UUID] = []
        self.handed_over = False
        self.entered = True

    @property
    def history(self) -> tuple[Entry, ...]:
        """The entries to go on with."""
        return self.turn.history

    def with_results(self, results: Mapping[str, Result]) -> Self:
        """Fold the results of dispatched calls in, by call id."""
        self.turn = self.turn.with_results(results)
        return self

    def saw(self, result: Any) -> None:
        """Take note of a kernel's result or item whose `paused` holds the receipts of where it stopped again."""
        paused = getattr(result, "paused", None)
        if isinstance(paused, (list, tuple)):
            self.next += [receipt.pause_id for receipt in paused if isinstance(receipt, PauseReceipt)]

    @property
    def end(self) -> End:
        """How the claim is settled when the block is left without an error."""
        if self.handed_over:
            return "handed_over"
        return "paused_again" if self.next else "finished"


@contextlib.asynccontextmanager
async def continuing(turn: ResumedTurn) -> AsyncIterator[Going]:
    """Go on with a turn in one's own loop: its lease is renewed from entry on, and it is settled on exit.

    `Continued` where the block ends, `Stalled` where it raises or is cancelled. A dispatch may be open on entry;
    whether its calls have run by the end the ledger cannot see.

    Raises:
        InteractionConfigurationError: the turn was entered before, or was redeemed in a transaction of the host's that
            has not committed.
    """
    claim = turn._claim  # noqa: SLF001 - the claim is this module's
    await claim.enter()
    going = Going(turn)
    over = asyncio.Event()
    renewing = asyncio.ensure_future(_renew(claim, over))
    try:
        yield going
    except BaseException as broke:
        name = type(broke).__name__
        said = {"cause": _cause(broke), "error_type": name if is_word(name) else None, "entered": going.entered}
        await _unhurried(claim.settle("stalled", **said))
        raise
    else:
        await _unhurried(claim.settle(going.end, next=tuple(going.next)))
    finally:
        # Told and not awaited: a cancellation can be swallowed by what a renewal waits for.
        over.set()
        renewing.cancel()


def answered_event(outcome: ResumeOutcome) -> AskUserAnsweredEvent | None:
    """Tell that a person answered `ask_user`; None for every other interaction, and nothing is invented for it."""
    answers = outcome.response.get("answers") if isinstance(outcome.response, dict) else None
    if outcome.name != ASK_USER or not answers:
        return None
    return AskUserAnsweredEvent(
        run_id=outcome.run_id,
        session_id=outcome.session_id,
        tool_call_id=outcome.tool_call_id,
        selected_labels=[label for answer in answers for label in answer.get("selections", ())],
        has_other=any(answer.get("other") is not None for answer in answers),
        time_to_answer_seconds=outcome.time_to_resolve_seconds,
    )


async def resume_run(delegate: Any, turn: ResumedTurn, **options: Any) -> Any:
    """Continue a paused turn, and give what the kernel returns. No answered event: a run has no one to tell.

    Raises:
        InteractionConfigurationError: the turn was entered before, holds a dispatch that nobody ran, or is another
            tenant's than the delegate's `scope`, where it has one, or of another format than its `turn_format`.
        What the kernel raises; the turn is stalled then, and still owed.
    """
    async with _entering(delegate, turn) as going:
        result = await delegate.run(turn.prompt, **_arguments(delegate, turn), **options)
        going.saw(result)
    return result


def resume_stream(delegate: Any, turn: ResumedTurn, **options: Any) -> AsyncIterator[Any]:
    """Continue a paused turn, and give the kernel's stream. The kernel is entered at the first item.

    Whoever takes an item and walks away closes it by `aclose`, or leaves that to the event loop; the turn is stalled
    then. Raises, at the first item, as `resume_run` does.
    """
    return _streamed(delegate, turn, delegate.stream, options)


async def resume_stream_typed(delegate: Any, turn: ResumedTurn, **options: Any) -> AsyncIterator[Any]:
    """Continue a paused turn, and give the kernel's typed stream, behind the answered event where there is one.

    Closed and failing as `resume_stream` is.
    """
    stream = _streamed(delegate, turn, delegate.stream_typed, options, first=answered_event(turn.outcome))
    try:
        async for event in stream:
            yield event
    finally:
        await stream.aclose()


async def _streamed(
    delegate: Any, turn: ResumedTurn, opening: Any, options: Mapping[str, Any], first: Any = None
) -> AsyncGenerator[Any, None]:
    async with _entering(delegate, turn) as going:
        if first is not None:
            going.entered = False
            yield first
            going.entered = True
        stream = opening(turn.prompt, **_arguments(delegate, turn), **options)
        if inspect.isawaitable(stream):
            stream = await stream
        try:
            async for item in stream:
                going.saw(item)
                yield item
        finally:
            await _close(stream)


@contextlib.asynccontextmanager
async def _entering(delegate: Any, turn: ResumedTurn) -> AsyncIterator[Going]:
    if turn.dispatch and not _dispatches(delegate):
        raise InteractionConfigurationError(
            "a person let calls of this turn through that nobody has run; run turn.dispatch and fold the results in by "
            "with_results, or pass a delegate with dispatches = True"
        )
    _require_same_tenant(delegate, turn)
    _require_same_format(delegate, turn)
    async with continuing(turn) as going:
        yield going


def _require_same_tenant(delegate: Any, turn: ResumedTurn) -> None:
    """A kernel pauses in its own scope: another tenant's would take this turn's next stop, history and all."""
    scope, own = getattr(delegate, "scope", None), turn.outcome.scope
    if own is not None and isinstance(scope, Scope) and scope != own:
        raise InteractionConfigurationError(
            "this kernel runs another tenant's turns, and would pause this one there; continue it by a kernel of the "
            "scope it was paused in (turn.outcome.scope)"
        )


def _require_same_format(delegate: Any, turn: ResumedTurn) -> None:
    """A kernel that takes another's entries for messages of its own shows the model what it cannot read."""
    held, own = turn.outcome.turn, getattr(delegate, "turn_format", None)
    if held is not None and isinstance(own, str) and held.format != own:
        raise InteractionConfigurationError(
            f"this kernel goes on with turns of the format {own!r}, and this one is {held.format!r}; continue it by "
            "the kernel that paused it"
        )


def _dispatches(delegate: Any) -> bool:
    return getattr(delegate, "dispatches", False) is True


def _arguments(delegate: Any, turn: ResumedTurn) -> dict[str, Any]:
    given: dict[str, Any] = {"run_id": turn.run_id, "session_id": turn.session_id, "history": turn.history}
    if _dispatches(delegate):
        given |= {"dispatch": turn.dispatch, "fence": turn.fence, "idempotency_key": turn.idempotency_key}
    return given


async def _close(stream: Any) -> None:
    """Whoever opens a stream closes it; one without `aclose` has nothing to close."""
    aclose = getattr(stream, "aclose", None)
    if aclose is not None:
        await aclose()


def _cause(broke: BaseException) -> str:
    if isinstance(broke, asyncio.CancelledError):
        return "cancelled"
    if isinstance(broke, GeneratorExit):
        return "consumer_gone"
    return "shutdown" if isinstance(broke, (KeyboardInterrupt, SystemExit)) else "error"


async def _renew(claim: _Claim, over: asyncio.Event) -> None:
    """Renew until it is over, or until a newer claim has taken over; at once where the turn was entered late."""
    every = claim.capability.lease_seconds / RENEWALS
    due = claim.since + every
    while not over.is_set():
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        due = time.monotonic() + every
        if over.is_set() or not await claim.renew():
            return


async def _unhurried(settling: Any) -> None:
    """Settle to the end though the caller is being cancelled, and let the cancellation go on after."""
    task = asyncio.ensure_future(settling)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as again:
            cancelled = again
    task.result()
    if cancelled is not None:
        raise cancelled
