"""The command line's lever of the door: flip a surface, and tell how the switches stand and who flipped them."""

import asyncio
from typing import Annotated

import typer

from ..domain.commands import Actor
from ..domain.sentences import tell_all
from ..domain.switches import Surface, SwitchFlipped, as_flipped
from .cli_inputs import Where, grouped
from .cli_shapes import Outcome, fact_shape

levers = typer.Typer()


@levers.command()
@grouped
def switch(
    where: Where,
    surface: Annotated[Surface, typer.Argument(metavar="SURFACE", help="run, stream or stream_typed.")],
    on: Annotated[
        bool, typer.Option("--on/--off", help="Hand the surface to the kernel, or roll it back to the older engine.")
    ],
    operator: Annotated[str, typer.Option(metavar="NAME", help="Who flips it; recorded.")],
) -> Outcome:
    """Flip a surface of the door, for every process on this ledger within a second; recorded with who did it."""

    async def inside() -> bool:
        async with where.ledger() as ledger:
            return await ledger.flip(surface, on, Actor(operator))

    changed = asyncio.run(inside())
    says = f"surface {surface} {'now is' if changed else 'was already'} {_state(on=on)}"
    return Outcome({"outcome": "switched", "surface": surface, "on": on, "changed": changed}, [says])


@levers.command()
@grouped
def switches(where: Where) -> Outcome:
    """Tell which surfaces of the door the kernel serves, and every flip with who made it."""
    where.must_be_there()

    async def inside() -> list[SwitchFlipped]:
        async with where.ledger() as ledger:
            facts = await ledger.story(ledger.switches.stream)
            return [fact for fact in facts if isinstance(fact, SwitchFlipped)]

    flips = asyncio.run(inside())
    now, sentences = as_flipped(flips), tell_all(flips)
    shape = {
        "outcome": "switches",
        "surfaces": now,
        "flips": [fact_shape(flip, content=False) for flip in flips],
        "sentences": sentences,
    }
    flipped = {flip.surface for flip in flips}
    lines = [
        f"surface {name} is {_state(on=on) if name in flipped else 'off; nobody flipped it yet'}"
        for name, on in now.items()
    ]
    return Outcome(shape, [*lines, *sentences])


def _state(*, on: bool) -> str:
    return "on" if on else "rolled back"
