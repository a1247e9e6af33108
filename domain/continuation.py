"""The door: is a string one of our tokens, and if so, which body opens it; every knock is counted.

Per surface, in this order: the switch is read, the string is recognised, and then the kernel goes on with the turn, or
the older engine is handed the untouched token. Once a token is recognised, whatever fails is raised: a door that fell
back on failure could never show that nothing needs the older engine any more.
"""

import inspect
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol
from uuid import UUID

from .axes import Axes, Scope
from .commands import Actor
from .envelope import Envelope
from .errors import InteractionConfigurationError, NotRedeemable, Refusal
from .kernel_resume import ResumedTurn, prepare, resume_run, resume_stream, resume_stream_typed
from .switches import SURFACES, Surface, Switches

NO_PAUSE_CAPABILITY = "no_pause_capability"
NO_DECODE_TRANSPORT = "no_decode_transport"
NOT_A_CAPABILITY_TOKEN = "not_a_capability_token"  # noqa: S105 - a reason, no secret
#: The surface is rolled back; nobody looked at the string.
SWITCHED_OFF = "switched_off"


class Recognition:
    """What the door found: an envelope to continue with, or why it cannot; exactly one of the two."""

    __slots__ = ("envelope", "refusal")

    def __init__(self, *, envelope: Envelope | None = None, refusal: str | None = None) -> None:
        if (envelope is None) == (refusal is None):
            raise InteractionConfigurationError("a recognition is an envelope or a refusal, exactly one of the two")
        self.envelope = envelope
        self.refusal = refusal

    def __repr__(self) -> str:
        return f"<Recognition {self.refusal or 'of an envelope'}>"


def recognise(capability: Any, pause_token: str) -> Recognition:
    """Ask the three questions of the door, all before anything is redeemed.

    Raises:
        TokenForged: it has our prefix, and is not ours. What else `decode_token` raises propagates as well.
    """
    if capability is None:
        return Recognition(refusal=NO_PAUSE_CAPABILITY)
    decode = getattr(capability, "decode_token", None)
    if decode is None:
        return Recognition(refusal=NO_DECODE_TRANSPORT)
    envelope = decode(pause_token)
    if envelope is None:
        return Recognition(refusal=NOT_A_CAPABILITY_TOKEN)
    return Recognition(envelope=envelope)


async def redeem(
    capability: Any,
    token: str,
    response: Any,
    *,
    axes: Axes,
    by: Actor | None = None,
    attempt_key: str | None = None,
    cites: Sequence[UUID] = (),
) -> ResumedTurn:
    """Recognise a token and redeem it: `recognise` and `prepare` in one.

    Raises:
        NotRedeemable: the string is not one of our tokens.
        What `prepare` raises.
    """
    recognition = recognise(capability, token)
    if recognition.envelope is None:
        raise NotRedeemable(str(recognition.refusal))
    return await prepare(
        capability,
        envelope=recognition.envelope,
        response=response,
        scope=axes.scope,  # type: ignore[arg-type]  # prepare says what is not stated
        session_id=axes.session_id,  # type: ignore[arg-type]
        run_id=axes.run_id,  # type: ignore[arg-type]
        call_id=axes.call_id,  # type: ignore[arg-type]
        answered_by=by,
        attempt_key=attempt_key,
        cites=cites,
    )


class LegacyBodies(Protocol):
    """An older engine beside ours: it gets the token as it came, and the same arguments that the door was given.

    `answered_by`, `attempt_key` and `cites` are among them only where they were given. What a stream's body opens is
    closed.
    """

    async def resume_run(self, delegate: Any, pause_token: str, response: Any, **said: Any) -> Any:
        """Redeem and continue in the older engine's own way."""
        ...

    def resume_stream(self, delegate: Any, pause_token: str, response: Any, **said: Any) -> AsyncIterator[Any]:
        """Do the same as a stream."""
        ...

    def resume_stream_typed(self, delegate: Any, pause_token: str, response: Any, **said: Any) -> AsyncIterator[Any]:
        """Do the same as a typed stream."""
        ...


@dataclass(frozen=True, slots=True)
class SurfaceCounts:
    """What became of the tokens presented on one surface.

    Attributes:
        kernel: Redeemed here, and handed to the kernel.
        legacy: Handed to the older engine, by the reason.
        unserved: Neither, for there is no older engine, by the reason; `NotRedeemable` was raised.
        refused: Turned down by a `Refusal`, by its reason; forged tokens are among them.
        failed: Whatever else was raised, by the error's type: `RoundOpen` too, whose answer is kept. A kernel that
            raised is counted in `kernel` as well; what the older engine raises is its own business.
    """

    kernel: int
    legacy: dict[str, int]
    unserved: dict[str, int]
    refused: dict[str, int]
    failed: dict[str, int]


@dataclass(frozen=True, slots=True)
class DoorReport:
    """What became of every token at one process's door since a moment (UTC, the host's clock)."""

    since: datetime
    surfaces: dict[Surface, SurfaceCounts]

    @property
    def certified(self) -> bool:
        """Whether nothing has been handed to the older engine since then, on any surface."""
        return not any(counts.legacy for counts in self.surfaces.values())


@dataclass(frozen=True, slots=True, repr=False)
class _Knock:
    """What was presented at the door, and where."""

    surface: Surface
    delegate: Any
    pause_token: str
    response: Any
    stated: dict[str, Any]
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Body:
    """What opens the token, not yet entered, and who counts what it raises."""

    enter: Callable[[], Any]
    counted: AbstractContextManager[None]


class ContinuationDoor:
    """The public entrance: it decides which body opens a token. Safe for any number of tasks and threads.

    It redeems nothing itself; `prepare` does, and nothing else on this route.

    Args:
        capability: Ours; None where none is wired.
        switches: Which surfaces the kernel serves: `ledger.switches`, or `MemorySwitches`.
        legacy: The older engine. Without one, what the kernel does not serve raises `NotRedeemable`.
    """

    def __init__(self, capability: Any, switches: Switches, legacy: LegacyBodies | None = None) -> None:
        self._capability = capability
        self._switches = switches
        self._legacy = legacy
        self._tally = _Tally()

    async def resume_run(
        self,
        delegate: Any,
        pause_token: str,
        response: Any,
        *,
        scope: Scope,
        session_id: str,
        run_id: str,
        call_id: str,
        answered_by: Actor | None = None,
        attempt_key: str | None = None,
        cites: Sequence[UUID] = (),
        **options: Any,
    ) -> Any:
        """Redeem a token, continue its turn, and give what the kernel returns.

        `delegate` is the agent kernel, and `options` go to it as they are; everything else is as `prepare` takes it.
        A kernel behind the door runs what a person lets through (`dispatches = True`); hosts that run it themselves
        redeem by `ledger.redeem` and go on in `continuing`.

        Raises:
            NotRedeemable: nobody here redeems this string; `reason` says why.
            What `decode_token`, `prepare` and the kernel raise: a token of ours never goes to the older engine.
        """
        stated = _stated(
            answered_by, attempt_key, cites, scope=scope, session_id=session_id, run_id=run_id, call_id=call_id
        )
        body = await self._body(_Knock("run", delegate, pause_token, response, stated, options))
        with body.counted:
            return await body.enter()

    def resume_stream(
        self,
        delegate: Any,
        pause_token: str,
        response: Any,
        *,
        scope: Scope,
        session_id: str,
        run_id: str,
        call_id: str,
        answered_by: Actor | None = None,
        attempt_key: str | None = None,
        cites: Sequence[UUID] = (),
        **options: Any,
    ) -> AsyncIterator[Any]:
        """Do what `resume_run` does as a stream. It returns at once; everything is decided at the first item."""
        stated = _stated(
            answered_by, attempt_key, cites, scope=scope, session_id=session_id, run_id=run_id, call_id=call_id
        )
        return self._streamed(_Knock("stream", delegate, pause_token, response, stated, options))

    def resume_stream_typed(
        self,
        delegate: Any,
        pause_token: str,
        response: Any,
        *,
        scope: Scope,
        session_id: str,
        run_id: str,
        call_id: str,
        answered_by: Actor | None = None,
        attempt_key: str | None = None,
        cites: Sequence[UUID] = (),
        **options: Any,
    ) -> AsyncIterator[Any]:
        """Do what `resume_run` does as a typed stream. It returns at once; everything is decided at the first item."""
        stated = _stated(
            answered_by, attempt_key, cites, scope=scope, session_id=session_id, run_id=run_id, call_id=call_id
        )
        return self._streamed(_Knock("stream_typed", delegate, pause_token, response, stated, options))

    def report(self) -> DoorReport:
        """Tell what became of every token since the door was made, or since `reset`."""
        return self._tally.report()

    def reset(self) -> DoorReport:
        """Begin to count anew, and give the report up to here; nothing falls between the two."""
        return self._tally.report(reset=True)

    async def _streamed(self, knock: _Knock) -> AsyncIterator[Any]:
        body = await self._body(knock)
        with body.counted:
            stream = body.enter()
            if inspect.isawaitable(stream):
                stream = await stream
            try:
                async for item in stream:
                    yield item
            finally:
                close = getattr(stream, "aclose", None)
                if close is not None:
                    await close()

    async def _body(self, knock: _Knock) -> _Body:
        """Decide who opens the token. One of ours is redeemed here, by `prepare`; any other stays as it came."""
        with self._tally.failures(knock.surface, judging=True):
            found = await self._recognise(knock)
            if found.envelope is not None:
                turn = await prepare(self._capability, envelope=found.envelope, response=knock.response, **knock.stated)
                self._tally.count(knock.surface, "kernel")
                enter = partial(_ON_KERNEL[knock.surface], knock.delegate, turn, **knock.options)
                return _Body(enter, self._tally.failures(knock.surface))
        return self._legacy_body(knock, str(found.refusal))

    async def _recognise(self, knock: _Knock) -> Recognition:
        if not await self._switches.is_on(knock.surface):
            return Recognition(refusal=SWITCHED_OFF)
        return recognise(self._capability, knock.pause_token)

    def _legacy_body(self, knock: _Knock, reason: str) -> _Body:
        if self._legacy is None:
            self._tally.count(knock.surface, "unserved", reason)
            raise NotRedeemable(reason)
        self._tally.count(knock.surface, "legacy", reason)
        body = getattr(self._legacy, f"resume_{knock.surface}")
        given = {**knock.stated, **knock.options}
        return _Body(partial(body, knock.delegate, knock.pause_token, knock.response, **given), nullcontext())


_ON_KERNEL: dict[Surface, Callable[..., Any]] = {
    "run": resume_run,
    "stream": resume_stream,
    "stream_typed": resume_stream_typed,
}


def _stated(answered_by: Actor | None, attempt_key: str | None, cites: Sequence[UUID], **axes: Any) -> dict[str, Any]:
    """Put together what `prepare` takes, as far as it was given."""
    optional = {"answered_by": answered_by, "attempt_key": attempt_key, "cites": cites or None}
    return {**axes, **{name: value for name, value in optional.items() if value is not None}}


class _Tally:
    """The counts, safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._since = datetime.now(UTC)
        self._counts: Counter[tuple[Surface, str, str]] = Counter()

    def count(self, surface: Surface, column: str, word: str = "") -> None:
        with self._lock:
            self._counts[surface, column, word] += 1

    @contextmanager
    def failures(self, surface: Surface, *, judging: bool = False) -> Iterator[None]:
        """Count what is raised inside; while judging, a refusal by its reason. A consumer that leaves is no failure."""
        try:
            yield
        except GeneratorExit:
            raise
        except BaseException as broke:
            if judging and isinstance(broke, Refusal):
                self.count(surface, "refused", broke.reason)
            else:
                self.count(surface, "failed", type(broke).__name__)
            raise

    def report(self, *, reset: bool = False) -> DoorReport:
        with self._lock:
            since, counts = self._since, self._counts
            if reset:
                self._since, self._counts = datetime.now(UTC), Counter()
            return DoorReport(since, {surface: _counts_of(surface, counts) for surface in SURFACES})


def _counts_of(surface: Surface, counts: Counter[tuple[Surface, str, str]]) -> SurfaceCounts:
    def column(name: str) -> dict[str, int]:
        return {word: n for (at, kind, word), n in sorted(counts.items()) if (at, kind) == (surface, name)}

    by_word = {name: column(name) for name in ("legacy", "unserved", "refused", "failed")}
    return SurfaceCounts(kernel=counts[surface, "kernel", ""], **by_word)
