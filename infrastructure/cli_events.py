"""The command line's way to the log as integration events."""

import asyncio
import json
from typing import Annotated, Any

import typer

from .cli_inputs import Where, grouped
from .cli_shapes import Outcome
from .cli_views import Limit, Reach, table

events = typer.Typer()


@events.command(name="events")
@grouped
def show_events(
    where: Where,
    reach: Reach,
    *,
    after: Annotated[
        str | None, typer.Option(metavar="CURSOR", help="The `next` of the page before, or an event's `sequence`.")
    ] = None,
    limit: Limit = 100,
) -> Outcome:
    """List a page of the log as CloudEvents 1.0: headers alone, in order; go on with --after and its `next`."""
    where.must_be_there()
    scope = reach.scope

    async def inside() -> Outcome:
        async with where.ledger() as ledger:
            page = await (
                ledger.events.page_of_all_tenants(after=after, limit=limit)
                if scope is None
                else ledger.events.page(scope, after=after, limit=limit)
            )
        return _shown([_as_json(event) for event in page.events], page.next, more=page.more)

    return asyncio.run(inside())


def _as_json(event: Any) -> dict[str, Any]:
    from cloudevents.core.formats.json import JSONFormat  # noqa: PLC0415 - an extra

    shape: dict[str, Any] = json.loads(JSONFormat().write(event))
    return shape


def _shown(events: list[dict[str, Any]], cursor: str, *, more: bool) -> Outcome:
    cells = [
        (one["sequence"], one.get("time", ""), one["type"], one["subject"], one.get("unreadable", "")) for one in events
    ]
    lines = table(("sequence", "time", "type", "subject", "unreadable"), cells) if events else ["nothing came after it"]
    tail = [f"more    --after {cursor}"] if more else [f"next    --after {cursor}, once there is more"]
    return Outcome({"outcome": "events", "events": events, "next": cursor, "more": more}, [*lines, *tail])
