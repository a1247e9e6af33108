"""The command line's `erase`, `hold`, `retention` and `subject`: what is destroyed, what is kept, and what is told."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar
from uuid import UUID

import typer

from ..domain.axes import Scope
from ..domain.capability import Operator
from ..domain.commands import Actor
from ..domain.content import ContentKind
from ..domain.erasing import KINDS, Erased
from ..domain.errors import (
    ErasureHeld,
    InteractionConfigurationError,
    LedgerCorrupt,
    LedgerError,
    LedgerTooNew,
    NotErasable,
    RequestMissing,
    StoreUnavailable,
)
from ..domain.facts import rfc3339
from ..domain.sentences import tell_all
from .cli_inputs import Where, grouped, in_ledger
from .cli_shapes import EXITS, Outcome, fact_shape, failed
from .subjects import Named
from .wiring import Ledger

T = TypeVar("T")

erasure = typer.Typer()
hold = typer.Typer(help="Legal holds: what stands under one is not erased.", rich_markup_mode=None)
erasure.add_typer(hold, name="hold")

Who = Annotated[str, typer.Option("--operator", metavar="NAME", help="Who does it; recorded.")]
Reason = Annotated[str, typer.Option(metavar="WORD", help="On what ground, such as gdpr-17 or case-118; recorded.")]
Tenant = Annotated[str, typer.Option(help="The tenant.")]
SubTenant = Annotated[str | None, typer.Option(help="Left out, all of the tenant's.")]
Namespace = Annotated[str | None, typer.Option(help="Left out, all of them.")]


@erasure.command()
@grouped
def erase(
    where: Where,
    *,
    operator: Who,
    reason: Reason,
    pause: Annotated[UUID | None, typer.Argument(metavar="[PAUSE]", help="A pause; its whole round is erased.")] = None,
    content: Annotated[bool, typer.Option("--content", help="Erase what was said.")] = False,
    person: Annotated[bool, typer.Option("--person", help="Erase who said it and whom it was for.")] = False,
    of_person: Annotated[
        str | None, typer.Option(metavar="ID", help="In place of a pause: every round of --tenant that names them.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="With --of-person: whose pauses.")] = None,
) -> Outcome:
    """Destroy the keys of what was said, or of who said it, for good; recorded before and after.

    What is still open is taken back first, and an owed turn is given up. Rows, digests, views and proofs stand. A legal
    hold or a retention floor refuses (exit 3). Cut off in between, the same command again goes on.

    `subject ID` tells first which pauses --of-person would erase, others' words in them as well. What somebody only
    handled as an operator is not theirs: --of-person leaves what was said there, and tells it.
    """
    kinds = [kind for kind, chosen in zip(KINDS, (content, person), strict=True) if chosen]
    if not kinds or (pause is None) == (of_person is None) or (of_person is None) != (tenant is None):
        raise typer.BadParameter("give --content, --person or both, and either PAUSE or --of-person with --tenant")

    async def work(ledger: Ledger) -> Outcome:
        acting = ledger.operator(Actor(operator))
        if pause is not None:
            erasing = _Each(ledger, acting, reason)
            await erasing.erase({pause: kinds})
            return await erasing.told(alone=True)
        named = await ledger.named(str(of_person), Scope(tenant_id=str(tenant)))
        spared = [one for one in named.pauses if one in named.handled and "content" in kinds]
        erasing = _Each(ledger, acting, reason, named.unreadable, spared)
        await erasing.erase(_of_person(named, kinds))
        return await erasing.told()

    return in_ledger(where, work)


@dataclass(slots=True)
class _Each:
    """Erases pause by pause. What was destroyed cannot be undone, so it is told whatever comes after it."""

    ledger: Ledger
    acting: Operator
    reason: str
    unreadable: Sequence[int] = ()
    spared: Sequence[UUID] = ()
    done: list[Erased] = field(default_factory=list)
    kept: list[tuple[UUID, LedgerError]] = field(default_factory=list)

    async def erase(self, pauses: Mapping[UUID, Iterable[ContentKind]]) -> None:
        """Erase them, and go on behind those that are kept; where nothing works, none of the others would."""
        for pause, kinds in pauses.items():
            for kind in kinds:
                try:
                    self.done.append(await self.acting.erase(pause, kind, self.reason, scrub=False))
                except (ErasureHeld, NotErasable, LedgerCorrupt, LedgerTooNew, RequestMissing) as kept:
                    self.kept.append((pause, kept))
                except LedgerError as gone:
                    if isinstance(gone, InteractionConfigurationError) and not self.done:
                        raise
                    self.kept.append((pause, gone))
                    return

    async def told(self, *, alone: bool = False) -> Outcome:
        """Tell what was erased and what was not; a pause `alone` of which nothing was is told by its error."""
        if not alone:
            # Streams of those who run the ledger: what they did stays on record.
            self.kept = [(pause, why) for pause, why in self.kept if not isinstance(why, RequestMissing)]
        scrubbed = await self._scrubbed()
        if alone and not self.done:
            raise self.kept[0][1]
        words = [str(failed(why).shape["outcome"]) for _, why in self.kept]
        clear = sorted({str(pause) for one in self.done for pause in one.in_clear})
        words += ["not_erasable"] if clear else []
        shape = {
            "outcome": max(words, key=lambda word: EXITS.get(word, 0), default="erased"),
            "erased": [
                {
                    "pauses": [str(pause) for pause in one.pauses],
                    "kind": one.kind,
                    "existing": one.existing,
                    "in_clear": [str(pause) for pause in one.in_clear],
                }
                for one in self.done
            ],
            "kept": [{"pause_id": str(pause), "says": str(why)} for pause, why in self.kept],
            "unreadable": list(self.unreadable),
            "handled": [str(pause) for pause in self.spared],
            "scrubbed": scrubbed,
        }
        lines = [f"erased  {one.kind} of {', '.join(map(str, one.pauses))}" for one in self.done]
        lines += [f"clear   {pause}: what was written before the ledger had a vault key stays" for pause in clear]
        lines += [f"kept    {pause}: {why}" for pause, why in self.kept]
        lines += [
            f"spared  {pause}: they handled it as an operator, and nothing said there is theirs"
            for pause in self.spared
        ]
        lines = [*(lines or ["nothing names them"]), *_unread(self.unreadable)]
        if self.done and not scrubbed:
            lines.append("scrub   traces of the keys may be in the store's own files; run `pauseledger keys scrub`")
        return Outcome(shape, lines)

    async def _scrubbed(self) -> bool:
        """Scrub, whatever was found: an earlier erasure may have been unable to. False: that has to be done later."""
        try:
            return await self.ledger.scrub()
        except StoreUnavailable:
            return False


def _of_person(named: Named, kinds: Iterable[ContentKind]) -> dict[UUID, list[ContentKind]]:
    """Choose what is erased of a person: what was said where they had a part, and their name where a key seals it."""
    of: dict[ContentKind, frozenset[UUID]] = {"content": named.part, "person": named.part | named.handled}
    return {pause: [kind for kind in kinds if pause in of[kind]] for pause in named.pauses}


def _unread(positions: Sequence[int]) -> list[str]:
    if not positions:
        return []
    first = ", ".join(map(str, positions[:8])) + (", ..." if len(positions) > 8 else "")  # noqa: PLR2004 - a line's worth
    return [f"unread  {len(positions)} rows cannot be read, and may name them: {first}; `pauseledger check` says more"]


@hold.command()
@grouped
def place(
    where: Where,
    *,
    operator: Who,
    reason: Reason,
    tenant: Tenant,
    sub_tenant: SubTenant = None,
    namespace: Namespace = None,
    pause: Annotated[UUID | None, typer.Option(help="One pause; left out, all of the scope.")] = None,
) -> Outcome:
    """Place a hold, and print the number it is lifted by."""
    scope = Scope(tenant_id=tenant, sub_tenant_id=sub_tenant, namespace=namespace)

    async def work(ledger: Ledger) -> Outcome:
        number = await ledger.operator(Actor(operator)).place_hold(scope, reason, pause)
        return Outcome({"outcome": "hold_placed", "hold": number}, [f"hold    {number} stands"])

    return in_ledger(where, work)


@hold.command()
@grouped
def lift(
    where: Where,
    number: Annotated[int, typer.Argument(metavar="HOLD", help="The hold's number.")],
    *,
    operator: Who,
    reason: Reason,
    tenant: Tenant,
    sub_tenant: SubTenant = None,
    namespace: Namespace = None,
) -> Outcome:
    """Lift a hold."""
    scope = Scope(tenant_id=tenant, sub_tenant_id=sub_tenant, namespace=namespace)

    async def work(ledger: Ledger) -> Outcome:
        await ledger.operator(Actor(operator)).lift_hold(scope, number, reason)
        return Outcome({"outcome": "hold_lifted", "hold": number}, [f"hold    {number} is lifted"])

    return in_ledger(where, work)


@hold.command(name="list")
@grouped
def list_holds(where: Where, *, operator: Who, tenant: Tenant) -> Outcome:
    """Tell which holds and retention floors stand in a tenant."""
    where.must_be_there()

    async def work(ledger: Ledger) -> Outcome:
        custody = await ledger.operator(Actor(operator)).custody(Scope(tenant_id=tenant))
        holds = [
            {
                "hold": one.number,
                "scope": one.scope.model_dump(),
                "pause": None if one.pause is None else str(one.pause),
                "reason": one.reason,
                "since": rfc3339(one.since),
            }
            for one in custody.holds
        ]
        floors = [{"scope": scope.model_dump(), "days": days} for scope, days in custody.floors]
        lines = [f"hold    {one['hold']} since {one['since']} ({one['reason']})" for one in holds]
        lines += [f"floor   {one['days']} days" for one in floors]
        return Outcome({"outcome": "custody", "holds": holds, "floors": floors}, lines or ["nothing is held"])

    return in_ledger(where, work)


@erasure.command()
@grouped
def retention(
    where: Where,
    days: Annotated[int, typer.Argument(metavar="DAYS", help="Whole days after a round's newest fact; 0 sets none.")],
    *,
    operator: Who,
    reason: Reason,
    tenant: Tenant,
    sub_tenant: SubTenant = None,
    namespace: Namespace = None,
) -> Outcome:
    """Set how long a scope's rounds may not be erased."""
    scope = Scope(tenant_id=tenant, sub_tenant_id=sub_tenant, namespace=namespace)

    async def work(ledger: Ledger) -> Outcome:
        await ledger.operator(Actor(operator)).keep(scope, days, reason)
        return Outcome({"outcome": "retention_set", "days": days}, [f"floor   {days} days"])

    return in_ledger(where, work)


@erasure.command()
@grouped
def subject(
    where: Where,
    person: Annotated[str, typer.Argument(metavar="ID", help="The person, as the host names them.")],
    *,
    tenant: Tenant,
    sub_tenant: SubTenant = None,
    namespace: Namespace = None,
) -> Outcome:
    """Tell what the ledger holds about a person: every pause of a tenant that names them, in clear where keys stand.

    Facts of no tenant that name somebody with that id (policies, switches, readings) are listed by their positions.
    Rows that cannot be read are set aside, and counted.
    """
    where.must_be_there()
    scope = Scope(tenant_id=tenant, sub_tenant_id=sub_tenant, namespace=namespace)

    async def work(ledger: Ledger) -> Outcome:
        named = await ledger.named(person, scope)
        told = [await _story(ledger, pause, shown) for pause, shown in named.pauses.items()]
        lines = [line for one in told for line in (f"pause   {one['pause_id']}", *one["sentences"])]
        lines += [f"beside  {name} at position {position} is of no tenant" for position, name in named.elsewhere]
        shape = {
            "outcome": "subject",
            "pauses": told,
            "elsewhere": [{"position": position, "fact": name} for position, name in named.elsewhere],
            "unreadable": list(named.unreadable),
        }
        return Outcome(shape, [*(lines or ["nothing names them"]), *_unread(named.unreadable)])

    return in_ledger(where, work)


async def _story(ledger: Ledger, pause: UUID, shown: Sequence[UUID]) -> dict[str, Any]:
    try:
        facts = await ledger.story(pause, shown=shown)
    except (LedgerCorrupt, LedgerTooNew) as unreadable:
        return {"pause_id": str(pause), "facts": [], "sentences": [str(unreadable)], "unreadable": str(unreadable)}
    return {
        "pause_id": str(pause),
        "facts": [fact_shape(fact, content=True) for fact in facts],
        "sentences": tell_all(facts, content=True),
        "unreadable": None,
    }
