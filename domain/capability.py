"""The capability: pause, answer, resume, recover, and what else is done to a pause; its public operations."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar
from uuid import UUID

from .authority import Policy, PolicyChanged
from .axes import Scope, require_stated
from .commands import (
    Actor,
    AnswerCommand,
    LapseCommand,
    PauseCommand,
    PauseReceipt,
    Presentation,
    PresentCommand,
    Receipt,
    RecoverCommand,
    ReissueCommand,
    ResumeCommand,
    ResumeOutcome,
    SettleCommand,
    WithdrawCommand,
)
from .content import ContentKind
from .custody import Custody, Keeping, custody_read
from .envelope import Envelope, enclose
from .erasing import Erased, Erasing
from .errors import InteractionConfigurationError, TokenForged
from .governing import Governed, Governing
from .interactions import Interaction
from .kernel_resume import ResumedTurn, resumed
from .managing import Managing
from .pausing import Pausing
from .presenting import Presenting
from .redeeming import Redemption
from .services import Services
from .settlement import End, Settlement

T = TypeVar("T")


class HumanInteractionCapability:
    """What a host works with. Every operation is safe to call from any number of tasks and processes.

    A ledger belongs to the event loop that opened it.

    Attributes:
        decode_token: Recognises a token: its envelope, or None where it is not one of ours; forged ones raise.
    """

    decode_token: Callable[[str], Envelope | None] | None

    def __init__(self, services: Services) -> None:
        self._services = services
        self.decode_token = self._decode

    @property
    def lease_seconds(self) -> int:
        """How long a claim holds before somebody else may take it up."""
        return self._services.lease_seconds

    def register(self, interaction: Interaction) -> None:
        """Add an interaction.

        Raises:
            InteractionConfigurationError: its name is taken at that revision, or a schema is none.
        """
        self._services.interactions.register(interaction)

    async def pause(self, command: PauseCommand) -> PauseReceipt:
        """Stop a turn at one call: the round of one. See `pause_round`."""
        return (await self.pause_round([command]))[0]

    async def pause_round(self, commands: Sequence[PauseCommand]) -> tuple[PauseReceipt, ...]:
        """Stop a turn at the gated calls of one assistant message, in one append; receipts as the commands.

        The same round again while it is open is found again: its receipts say `existing`.

        Raises:
            InteractionConfigurationError: an axis is not stated, or the commands are not of one round.
            PauseRejected: something cannot be carried; nothing was stored.
            PauseConflict: the round stands already with other contents.
            PauseClosed: it stood before and is over; the error names the next occurrence.
            StoreUnavailable: the store could not speak; the same commands again tell.
        """
        return await Pausing(self._services).pause(commands)

    async def answer(self, command: AnswerCommand) -> Receipt:
        """Keep an answer, and consume nothing. The same answer again changes nothing.

        Raises:
            InteractionConfigurationError: an axis is not stated.
            Refusal: one of the steps objected.
            StoreUnavailable: the store could not speak; the same answer again tells.
        """
        return await self._answer(command, frozenset())

    async def resume(self, command: ResumeCommand, *, require_turn: bool = False) -> ResumeOutcome:
        """Redeem a token: steps 1 to 6. `prepare` is the way to go on with the turn afterwards.

        Without `require_turn` the turn is not read and nothing is owed afterwards. A call that is cancelled runs to
        its end, and what it won stalls at once.

        Raises:
            InteractionConfigurationError: an axis is not stated; nothing was read.
            Refusal: one of the steps objected; the pause stands.
            RoundOpen: the answer is kept, and other calls of the round still wait.
            StoreUnavailable: the store could not speak; `outcome` says what is known.
        """
        axes = command.axes
        unstated = require_stated(axes, frozenset() if require_turn else self._services.optional_axes)
        redemption = Redemption(self._services, command, axes, unstated, consumes=True, require_turn=require_turn)
        return await self._shielded(redemption.redeem())

    async def recover(self, command: RecoverCommand) -> ResumedTurn:
        """Take up a turn that is stalled, left by a dead worker, or ready and never handed out. Nobody is asked again.

        Raises:
            InteractionConfigurationError: the axes are not stated.
            Refusal: the axes, the request or the turn do not hold.
            AlreadyContinued, TurnAbandoned, NothingOwed, NotConsumed, LeaseHeld: there is nothing to take up, and why.
            RoundOpen: calls of the round still wait.
        """
        return await self._recover(command, trusted=False)

    async def reissue(self, command: ReissueCommand) -> PauseReceipt:
        """Mint a token again.

        Raises:
            PauseClosed: nothing is left to answer or to redeem.
            Refusal: the axes do not hold.
        """
        return await Managing(self._services, command).reissue()

    async def withdraw(self, command: WithdrawCommand) -> Receipt:
        """Take a question back.

        Raises:
            PauseClosed: the pause is over, and how.
            Refusal: the axes do not hold.
        """
        return await Managing(self._services, command).withdraw()

    async def lapse(self, command: LapseCommand) -> Receipt:
        """Write down that a window closed without an answer.

        Raises:
            WindowOpen: it may still be answered.
            PauseClosed: it holds its answer, or is over.
            Refusal: the axes do not hold.
        """
        return await Managing(self._services, command).lapse()

    async def settle(self, command: SettleCommand) -> Receipt:
        """Say how an owed turn ended, under which fence. What changes nothing writes nothing.

        Raises:
            NotConsumed, NothingOwed: there is nothing to settle.
            Refusal: the axes do not hold.
        """
        return await Managing(self._services, command).settle()

    async def presented(self, command: PresentCommand) -> Presentation:
        """Write down that somebody was shown a rendering of the question; an answer cites it by its id.

        The same rendering shown to the same person again within a few seconds is no news; later it is a further fact.

        Raises:
            InteractionConfigurationError: the axes are not stated.
            Refusal: the axes, the request or the turn do not hold.
            StoreUnavailable: the store could not speak; the same command again tells.
        """
        return await Presenting(self._services, command).present()

    async def govern(
        self, interaction: str, policy: Policy | None, *, by: Actor, ends_earlier: bool = True
    ) -> Governed:
        """Put a policy in force for every pause of an interaction that is made from now on, in every process; or none.

        Other processes learn of it within a second. What stands so already is not written again. Unless `ends_earlier`
        is False, pauses made under an earlier policy cannot be answered any more: `policy_mismatch`. Pauses made under
        no policy at all stay as they are.

        Raises:
            InteractionConfigurationError: there is no such policy, or nobody is named.
            StoreUnavailable: the store could not speak; the same call again tells.
            LedgerCorrupt, LedgerTooNew: the policies on record cannot be read.
        """
        return await Governing(self._services).govern(interaction, policy, by, ends_earlier=ends_earlier)

    async def policies(self) -> tuple[PolicyChanged, ...]:
        """Read every change of a policy on record, oldest first.

        Raises:
            StoreUnavailable: the store could not speak.
            LedgerCorrupt, LedgerTooNew: they cannot be read.
        """
        return await self._services.policies.read()

    def operator(self, actor: Actor) -> "Operator":
        """Act as an operator, who states no axes; who and why stand in the facts."""
        return Operator(self, actor)

    # For a claim's own holder: it was handed the turn, and states no axes.

    async def confirm_claim(self, lead_id: UUID, position: int | None) -> None:
        """Make sure that a claim stands before its turn is entered: one that was handed out here does."""

    async def settle_claim(self, pause_id: UUID, fence: int, end: End, **said: Any) -> bool:
        """Settle the claim a `ResumedTurn` carries; a failure is logged, and told by False."""
        command = SettleCommand(pause_id, None, fence, end)
        try:
            await Managing(self._services, command, trusted=True).settle_as(Settlement(fence, end, **said))
        except Exception as failed:  # noqa: BLE001 - whatever fails here, the kernel's own result stands
            self._services.journal.note("settlement_failed", pause=pause_id, fence=fence, error=type(failed).__name__)
            return False
        return True

    async def renew(self, lead_id: UUID, fence: int) -> bool:
        """Renew the lease of a claim; False where a newer claim has taken over. A store that fails is logged."""
        try:
            return await self._services.pauses.renew(lead_id, fence, self._services.lease_seconds)
        except Exception as failed:  # noqa: BLE001 - the next renewal is tried all the same
            self._services.journal.note("renewal_failed", pause=lead_id, fence=fence, error=type(failed).__name__)
            return True

    async def _recover(self, command: RecoverCommand, *, trusted: bool) -> ResumedTurn:
        outcome = await self._shielded(Managing(self._services, command, trusted=trusted).recover())
        return resumed(self, outcome)

    async def _answer(self, command: AnswerCommand, optional: frozenset[str]) -> Receipt:
        axes = command.axes
        unstated = require_stated(axes, optional)
        redemption = Redemption(self._services, command, axes, unstated, consumes=False, require_turn=False)
        return await redemption.answer()

    async def _shielded(self, redeeming: Coroutine[Any, Any, ResumeOutcome]) -> ResumeOutcome:
        """Run a redemption to its end though its caller is cancelled; then what it won stalls at once."""
        task = asyncio.ensure_future(redeeming)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            outcome = await self._outlive(task)
            if outcome is not None and outcome.fence:
                await self._outlive(asyncio.ensure_future(self._stall(outcome)))
            raise

    async def _stall(self, outcome: ResumeOutcome) -> None:
        await self.settle_claim(outcome.pause_id, outcome.fence, "stalled", cause="cancelled", entered=False)

    async def _outlive(self, task: "asyncio.Future[T]") -> T | None:
        """Wait for a task though the waiting is cancelled again and again; None where it came to nothing."""
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError:
                continue
            except Exception:  # noqa: BLE001 - the caller is gone; what was refused stands on record
                return None
        return None if task.cancelled() or task.exception() is not None else task.result()

    def _decode(self, token: str) -> Envelope | None:
        try:
            opened = self._services.seal.open(token)
        except TokenForged as forged:
            self._services.refused(forged)
            raise
        return None if opened is None else enclose(token)


class Operator:
    """The capability for whoever runs the ledger: a pause is named by its id alone, who and why are recorded."""

    def __init__(self, capability: HumanInteractionCapability, actor: Actor) -> None:
        if not isinstance(actor, Actor):
            raise InteractionConfigurationError("an operator is somebody: pass an Actor")
        self._capability = capability
        self._services = capability._services  # noqa: SLF001 - the same module
        self._actor = actor

    async def answer(self, command: AnswerCommand) -> Receipt:
        """Keep an answer; axes left out are not judged."""
        return await self._capability._answer(self._by(command), frozenset({"scope", "session", "run", "call"}))  # noqa: SLF001

    async def withdraw(self, command: WithdrawCommand) -> Receipt:
        """Take a question back."""
        return await Managing(self._services, self._by(command), trusted=True).withdraw()

    async def lapse(self, command: LapseCommand) -> Receipt:
        """Write down that a window closed without an answer."""
        return await Managing(self._services, self._by(command), trusted=True).lapse()

    async def presented(self, command: PresentCommand) -> Presentation:
        """Write down that somebody was shown a rendering of the question."""
        return await Presenting(self._services, self._by(command), trusted=True).present()

    async def reissue(self, command: ReissueCommand) -> PauseReceipt:
        """Mint a token again."""
        return await Managing(self._services, self._by(command), trusted=True).reissue()

    async def settle(self, command: SettleCommand) -> Receipt:
        """Say how an owed turn ended."""
        return await Managing(self._services, self._by(command), trusted=True).settle()

    async def recover(self, command: RecoverCommand) -> ResumedTurn:
        """Take up a turn; `reason="forced"` ends a lease that still runs."""
        return await self._capability._recover(self._by(command), trusted=True)  # noqa: SLF001 - the same module

    async def erase(self, pause_id: UUID, kind: ContentKind, reason: str, *, scrub: bool = True) -> Erased:
        """Erase a round: what was said (`content`), or who said it and whom it was for (`person`). For good.

        What is open is taken back first, and an owed turn given up. Rows, chain and views stand. Cut off in between,
        the same call again goes on. `reason` is a word, such as `gdpr-17`. What the key left in the store's files is
        scrubbed, and `scrubbed` tells whether that worked; who erases many scrubs once, by `Ledger.scrub` at the end.

        Raises:
            ErasureHeld: a legal hold or a retention floor stands; nothing was destroyed.
            NotErasable: all of it was stored before the ledger had a vault key. Where some was, the rest is erased, and
                `in_clear` says so.
            RequestMissing: the pause is not in this store.
            InteractionConfigurationError: the words are none, or the database role may not destroy keys.
            StoreUnavailable: the store could not speak; the same erasure again goes on.
        """
        return await Erasing(self._services, pause_id, kind, reason, self._actor).erase(scrub=scrub)

    async def place_hold(self, scope: Scope, reason: str, pause_id: UUID | None = None) -> int:
        """Keep a scope, or one pause in it, from being erased; gives the hold's number. `reason` is a word."""
        return await Keeping(self._services, self._actor).place(scope, reason, pause_id)

    async def lift_hold(self, scope: Scope, number: int, reason: str) -> None:
        """Lift a hold.

        Raises:
            InteractionConfigurationError: no such hold stands in that scope.
        """
        await Keeping(self._services, self._actor).lift(scope, number, reason)

    async def keep(self, scope: Scope, days: int, reason: str) -> None:
        """Set a retention floor: so many whole days after its newest fact a round may not be erased; 0 sets none."""
        await Keeping(self._services, self._actor).keep(scope, days, reason)

    async def custody(self, scope: Scope) -> Custody:
        """Tell which holds and floors stand in a tenant."""
        return await custody_read(self._services, scope)

    def _by(self, command: Any) -> Any:
        name = "submitted_by" if isinstance(command, AnswerCommand) else "by"
        if getattr(command, name) not in (None, self._actor):
            raise InteractionConfigurationError(f"an operator acts in their own name; leave `{name}` out")
        return replace(command, **{name: self._actor})
