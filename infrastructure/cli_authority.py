"""The command line's authority: policies put in force and told, what was shown to whom, and whose answer it is."""

import asyncio
import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

import typer

from ..domain import strict_json
from ..domain.authority import POLICY_BYTES, Policy, PolicyChanged
from ..domain.commands import Actor, PresentCommand
from ..domain.errors import InteractionConfigurationError
from ..domain.facts import rfc3339
from ..domain.governing import Governed
from ..domain.interactions import APPROVAL, ASK_USER
from ..domain.sentences import tell_all
from ..domain.turn import TURN_BYTES
from .cli_inputs import Inputs, Named, Place, Where, grouped, unfit_in
from .cli_shapes import Outcome, fact_shape

authority = typer.Typer()

_FIELDS = {field.name for field in dataclasses.fields(Policy)}


@dataclass(frozen=True, slots=True)
class Answering:
    """Options that say whose answer it is, and what they were shown. Who they are is claimed, never authenticated."""

    by: Annotated[str | None, typer.Option(metavar="NAME", help="Whose answer it is.")] = None
    in_group: Annotated[
        list[str] | None, typer.Option(metavar="GROUP", help="A group they are in, for policies. May be repeated.")
    ] = None
    cite: Annotated[
        list[UUID] | None, typer.Option(metavar="ID", help="What they were shown, by `present`. May be repeated.")
    ] = None

    @property
    def actor(self) -> Actor | None:
        """Whoever answers.

        Raises:
            BadParameter: groups are given and nobody is.
        """
        if self.by is None and self.in_group:
            raise typer.BadParameter("--in-group says of which groups somebody is; give --by as well")
        return None if self.by is None else Actor(self.by, groups=tuple(self.in_group or ()))

    @property
    def cites(self) -> Sequence[UUID]:
        """The presentations cited."""
        return tuple(self.cite or ())


@authority.command()
@grouped
def present(
    where: Where,
    place: Place,
    named: Named,
    *,
    to: Annotated[str, typer.Option(metavar="NAME", help="Who was shown it.")],
    rendering: Annotated[str, typer.Option(metavar="FILE", help="The bytes they were shown; - is standard input.")],
) -> Outcome:
    """Write down that somebody was shown a rendering of a question, and print the id by which an answer cites it."""
    shown = Inputs().raw("rendering", rendering, TURN_BYTES)
    command = PresentCommand(named.pause, axes=named.axes(place), to=Actor(to), rendering=shown)

    async def inside() -> Outcome:
        async with where.ledger() as ledger:
            by = ledger.capability if named.by is None else ledger.operator(named.by)
            seen = await by.presented(command)
        shape = {
            "outcome": "presented",
            "pause_id": str(seen.pause_id),
            "id": str(seen.id),
            "at": rfc3339(seen.at),
            "digest": seen.digest,
            "existing": seen.existing,
            "position": seen.position,
        }
        return Outcome(shape, [f"shown   {seen.id} at {rfc3339(seen.at)}", f"digest  {seen.digest}"])

    return asyncio.run(inside())


@authority.command()
@grouped
def policy(
    where: Where,
    interaction: Annotated[str, typer.Argument(metavar="INTERACTION", help="ask_user, approval, or the host's own.")],
    *,
    operator: Annotated[str, typer.Option(metavar="NAME", help="Who changes it; recorded.")],
    rules: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help=f"The policy as a JSON object of {', '.join(sorted(_FIELDS))}; - is standard input.",
        ),
    ] = None,
    none: Annotated[bool, typer.Option("--none", help="No policy from here on.")] = False,
    spare_earlier: Annotated[
        bool, typer.Option("--spare-earlier", help="What was asked under an earlier policy stays answerable under it.")
    ] = False,
) -> Outcome:
    """Put a policy in force for an interaction, for every process on this ledger within a second; recorded."""
    if (rules is None) != none:
        raise typer.BadParameter("give either --rules FILE or --none")
    chosen = None if rules is None else _policy(rules, Inputs().raw("policy", rules, POLICY_BYTES))

    async def inside() -> Governed:
        async with where.ledger() as ledger:
            return await ledger.capability.govern(
                interaction, chosen, by=Actor(operator), ends_earlier=not spare_earlier
            )

    done = asyncio.run(inside())
    standing = None if done.policy is None else done.policy.model_dump(mode="json")
    known = sorted({ASK_USER, APPROVAL, *(one.name for one in where.settings().interactions)})
    shape = {"outcome": "governed", "interaction": interaction, "policy": standing, "changed": not done.existing}
    says = "no policy" if done.policy is None else f"policy {done.policy.name} revision {done.policy.revision}"
    lines = [f"{interaction} {'was already' if done.existing else 'is now'} under {says}"]
    if interaction not in known:
        # A policy may come before the process that knows its interaction; a mistyped one would be in force for nothing.
        lines.append(
            f"note    no interaction {interaction} is known here ({', '.join(known)}); --interactions names more"
        )
    return Outcome({**shape, "known": interaction in known}, lines)


@authority.command()
@grouped
def policies(
    where: Where,
    content: Annotated[bool, typer.Option("--content", help="Show whom they name as well.")] = False,
) -> Outcome:
    """Tell the policies in force, and every change with who made it."""
    where.must_be_there()

    async def inside() -> tuple[PolicyChanged, ...]:
        async with where.ledger() as ledger:
            return await ledger.capability.policies()

    changes = asyncio.run(inside())
    now = {change.interaction: change for change in changes}
    in_force = {name: _in_force(change) for name, change in sorted(now.items()) if change.policy is not None}
    sentences = tell_all(changes)
    shape = {
        "outcome": "policies",
        "in_force": in_force,
        "changes": [fact_shape(change, content=content) for change in changes],
        "sentences": sentences,
    }
    lines = [f"{name}: {json.dumps(rules)}" for name, rules in in_force.items()] or ["no policy is in force"]
    return Outcome(shape, [*lines, *sentences])


def _in_force(change: PolicyChanged) -> dict[str, Any]:
    assert change.policy is not None  # noqa: S101 - the caller chose those that have one
    assert change.rules is not None  # noqa: S101 - written together with the policy
    return {**change.policy.model_dump(mode="json"), **change.rules.model_dump(mode="json")}


def _policy(path: str, text: bytes) -> Policy:
    try:
        said = strict_json.parse(text, limit=POLICY_BYTES)
    except strict_json.Unfit as unfit:
        raise InteractionConfigurationError(f"{unfit.name}: {unfit_in('policy', path, text, unfit)}") from None
    if not isinstance(said, dict) or not said.keys() <= _FIELDS or "name" not in said:
        raise InteractionConfigurationError(f"a policy is a JSON object of a name and {', '.join(sorted(_FIELDS))}")
    return Policy(**said)
