"""The command line's questions: open, history, refusals, times, stranded; and lag, rebuild, follow."""

import asyncio
import dataclasses
import json
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from io import StringIO
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

import typer

from ..domain.axes import Axes, Scope
from ..domain.errors import LedgerError
from ..domain.facts import rfc3339
from ..domain.sentences import harmless
from ..projections.open_pauses import Inbox, OpenPause
from ..projections.projection import SetAside, View
from ..projections.stranded import Stranded
from .cli_inputs import Where, grouped, in_ledger
from .cli_shapes import Outcome
from .following import Following
from .store import RightMissing
from .wiring import Ledger

T = TypeVar("T")
Progress = Callable[[int, int], None]

#: How long a command folds what the log holds before it answers with what is known (seconds).
CATCH_UP = 10.0
#: Where nobody looks at a terminal, tables are this wide.
WIDE = 240

views = typer.Typer()


@dataclass(frozen=True, slots=True)
class Reach:
    """Options that say whose pauses are meant: one scope, or an operator's all."""

    tenant: Annotated[str | None, typer.Option(help="The tenant.")] = None
    sub_tenant: Annotated[str | None, typer.Option(help="Left out differs from empty.")] = None
    namespace: Annotated[str | None, typer.Option(help="Left out differs from empty.")] = None
    all_tenants: Annotated[bool, typer.Option("--all-tenants", help="Whoever's they are; for who runs the ledger.")] = (
        False
    )

    @property
    def scope(self) -> Scope | None:
        """The scope; None for all tenants.

        Raises:
            BadParameter: neither was given, or both.
        """
        stated = [one for one in (self.tenant, self.sub_tenant, self.namespace) if one is not None]
        if self.all_tenants == bool(stated) or (stated and self.tenant is None):
            raise typer.BadParameter(
                "give --tenant (with --sub-tenant and --namespace where there are) or --all-tenants"
            )
        if self.tenant is None:
            return None
        return Scope(tenant_id=self.tenant, sub_tenant_id=self.sub_tenant, namespace=self.namespace)


Limit = Annotated[int, typer.Option(min=1, max=10_000, help="At most so many rows.")]


def _asking(where: Where, view: str, ask: Callable[[Ledger, Sequence[str]], Awaitable[Outcome]]) -> Outcome:
    """Catch up with the log for a bounded time, ask, and say so where the answer is of the past."""
    where.must_be_there()

    async def inside() -> Outcome:
        async with where.ledger() as ledger:
            behind: list[str] = []
            try:
                if not await ledger.views.catch_up(CATCH_UP, [view]):
                    behind = ["behind  the view has not caught up with the log; see `pauseledger lag`"]
            except RightMissing:
                behind = [
                    "behind  this role may read views and not keep them: `pauseledger follow` as the runtime role does"
                ]
            outcome = await ask(ledger, behind)
            return Outcome({**outcome.shape, "behind": bool(behind)}, outcome.lines)

    return asyncio.run(inside())


async def _set_aside(view: View[Any], scope: Scope | None) -> tuple[list[dict[str, Any]], list[str]]:
    """Tell what could not be folded; it is shown first."""
    found: list[SetAside] = await (view.unreadable_of_all_tenants() if scope is None else view.unreadable(scope))
    lines = [
        f"unread  {one.topic or 'a fact'} of pause {one.pause} at position {one.position} is {one.why}; not folded in"
        for one in found
    ]
    return [_shape(one) for one in found], lines


@views.command(name="open")
@grouped
def open_pauses(
    where: Where,
    reach: Reach,
    *,
    session: Annotated[str | None, typer.Option(help="Of this session.")] = None,
    interaction: Annotated[str | None, typer.Option(help="Of this kind.")] = None,
    assignee: Annotated[str | None, typer.Option(help="For this person.")] = None,
    group: Annotated[str | None, typer.Option(help="For this group.")] = None,
    queue: Annotated[str | None, typer.Option(help="In this queue.")] = None,
    closes_before: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339.")] = None,
    newest: Annotated[bool, typer.Option("--newest", help="Newest first, in place of what closes first.")] = False,
    content: Annotated[bool, typer.Option("--content", help="Show what is asked, and whom by name.")] = False,
    limit: Limit = 50,
    page: Annotated[str | None, typer.Option(help="The `next` of the page before.")] = None,
) -> Outcome:
    """List the pauses that wait for a person: what is asked, of whom, since when, until when."""
    scope = reach.scope
    chosen = Inbox(session, interaction, assignee, group, queue, moment_of(closes_before))

    async def ask(ledger: Ledger, lines: Sequence[str]) -> Outcome:
        view = ledger.views.open_pauses
        if scope is None:
            listing = view.newest_of_all_tenants if newest else view.most_urgent_of_all_tenants
            found, counts = await listing(chosen, limit=limit, page=page), await view.count_of_all_tenants(chosen)
        else:
            listed = view.newest if newest else view.most_urgent
            found, counts = await listed(scope, chosen, limit=limit, page=page), await view.count(scope, chosen)
        aside, first = await _set_aside(view, scope)
        rows = [_shape(row) for row in found.rows]
        head = _INBOX
        if content:
            asked = [await ledger.views.question(row) for row in found.rows]
            whom = [await ledger.views.whom(row) for row in found.rows]
            rows = [row | {"request": said} for row, said in zip(rows, asked, strict=True)]
            cells = [
                (*_inbox_cells(row, names), json.dumps(said, ensure_ascii=False))
                for row, names, said in zip(found.rows, whom, asked, strict=True)
            ]
            head += ("request",)
        else:
            cells = [_inbox_cells(row, [*row.assignees, *row.groups]) for row in found.rows]
        more = [f"more    --page '{found.next}'"] if found.next else []
        shape = {
            "outcome": "open_pauses",
            "open": counts.open,
            "by_interaction": dict(counts.by_interaction),
            "unreadable": aside,
            "rows": rows,
            "next": found.next,
        }
        total = [f"open    {counts.open}" + (f", and {counts.unreadable} unreadable" if counts.unreadable else "")]
        return Outcome(shape, [*lines, *first, *table(head, cells), *total, *more])

    return _asking(where, "open_pauses", ask)


_INBOX: tuple[str, ...] = (
    "pause", "asks", "tenant", "session", "run", "call", "for", "since", "until", "round", "agree",
)  # fmt: skip


def _inbox_cells(row: OpenPause, names: Sequence[str]) -> tuple[str, ...]:
    whom = [*([f"queue {row.queue}"] if row.queue else []), *names]
    return (
        str(row.pause),
        "UNREADABLE" if row.unreadable else str(row.interaction),
        _tenant(row.scope),
        str(row.session_id or ""),
        str(row.run_id or ""),
        str(row.call_id or ""),
        " ".join(whom),
        _when(row.since),
        _when(row.closes_at),
        f"{row.round_answered}/{row.round_calls}",
        f"{row.answers_agreeing}/{row.answers_needed}",
    )


@views.command()
@grouped
def history(
    where: Where,
    reach: Reach,
    *,
    pause: Annotated[UUID | None, typer.Option(help="One pause.")] = None,
    round: Annotated[UUID | None, typer.Option(help="One round, by its lead's pause id.")] = None,  # noqa: A002
    run: Annotated[str | None, typer.Option(help="One run.")] = None,
    session: Annotated[str | None, typer.Option(help="One session.")] = None,
    content: Annotated[bool, typer.Option("--content", help="Show names and what people wrote as well.")] = False,
    limit: Limit = 500,
    from_position: Annotated[int, typer.Option(help="Go on after this position.")] = 0,
) -> Outcome:
    """Tell a pause's, a round's, a run's or a session's history, refused attempts included."""
    scope = reach.scope
    given = [one for one in (pause, round, run, session) if one is not None]
    if len(given) != 1 or (scope is None and pause is None):
        raise typer.BadParameter("give one of --pause, --round, --run, --session; with --all-tenants it is --pause")

    async def ask(ledger: Ledger, lines: Sequence[str]) -> Outcome:
        view, page = ledger.views.history, {"limit": limit, "from_position": from_position}
        if scope is None:
            assert pause is not None  # noqa: S101 - judged above
            told = await view.of_pause_of_all_tenants(pause, **page)
        elif pause is not None:
            told = await view.of_pause(scope, pause, **page)
        elif round is not None:
            told = await view.of_round(scope, round, **page)
        elif run is not None:
            told = await view.of_run(scope, run, **page)
        else:
            told = await view.of_session(scope, str(session), **page)
        sentences = await ledger.views.sentences(told, content=content)
        rows = [_shape(row) | {"sentence": said} for row, said in zip(told, sentences, strict=True)]
        return Outcome({"outcome": "history", "rows": rows}, [*lines, *(sentences or ["there is no such history"])])

    return _asking(where, "history", ask)


@views.command()
@grouped
def refusals(
    where: Where,
    reach: Reach,
    *,
    by: Annotated[Literal["hour", "day"], typer.Option(help="Count by.")] = "day",
    since: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339; whole hours.")] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="RFC 3339; whole hours.")] = None,
    pause: Annotated[UUID | None, typer.Option(help="List the last attempts on this pause.")] = None,
    limit: Limit = 20,
) -> Outcome:
    """Count refused attempts by axis and reason, and tell who keeps trying."""
    scope, bounds = reach.scope, (moment_of(since), moment_of(until))

    async def ask(ledger: Ledger, lines: Sequence[str]) -> Outcome:
        view = ledger.views.refusals
        if scope is None:
            counts = await view.counts_of_all_tenants(by=by, since=bounds[0], until=bounds[1])
            who = await view.insistent_of_all_tenants(limit=limit)
            last = await view.last_attempts_of_all_tenants(pause, limit=limit)
        else:
            counts = await view.counts(scope, by=by, since=bounds[0], until=bounds[1])
            who = await view.insistent(scope, limit=limit)
            last = [] if pause is None else await view.last_attempts(scope, pause, limit=limit)
        aside, first = await _set_aside(view, scope)
        shape = {
            "outcome": "refusals",
            "unreadable": aside,
            "counts": [_shape(one) for one in counts],
            "insistent": [_shape(one) for one in who],
            "attempts": [_shape(one) for one in last],
        }
        counted = [(one.period, _tenant(one.scope), one.axis, one.reason, str(one.count)) for one in counts]
        tried = [(one.by or "nobody named", _tenant(one.scope), str(one.count), _when(one.last_at)) for one in who]
        attempts = [(_when(one.at), str(one.pause), one.axis, one.reason, one.by or "") for one in last]
        return Outcome(
            shape,
            [
                *lines,
                *first,
                *table((by, "tenant", "axis", "reason", "count"), counted),
                *table(("who", "tenant", "refused", "last"), tried),
                *(table(("at", "pause", "axis", "reason", "who"), attempts) if last else []),
            ],
        )

    return _asking(where, "refusals", ask)


@views.command()
@grouped
def times(
    where: Where,
    reach: Reach,
    *,
    assignee: Annotated[str | None, typer.Option(help="For this person.")] = None,
    threshold: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Report the answers that came sooner than this.")
    ] = None,
    limit: Limit = 50,
) -> Outcome:
    """Tell how long people take to answer, how often nobody does, and who answers too fast to have read."""
    scope = reach.scope

    async def ask(ledger: Ledger, lines: Sequence[str]) -> Outcome:
        view = ledger.views.response_times
        if scope is None:
            report = await view.report_of_all_tenants(assignee=assignee)
            stamps = None if threshold is None else await view.rubber_stamps_of_all_tenants(threshold, limit=limit)
        else:
            report = await view.report(scope, assignee=assignee)
            stamps = None if threshold is None else await view.rubber_stamps(scope, threshold, limit=limit)
        aside, first = await _set_aside(view, scope)
        shape: dict[str, Any] = {
            "outcome": "times",
            "unreadable": aside,
            "rows": [_shape(one) for one in report],
            "rubber_stamps": None if stamps is None else _shape(stamps),
        }
        cells = [
            (
                one.interaction,
                _tenant(one.scope),
                one.assignee or "everybody",
                str(one.answered),
                *(f"{time:.1f} s" if time is not None else "-" for time in (one.p50, one.p90, one.p99)),
                str(one.open),
                _when(one.oldest_open),
                f"{one.lapsed_share:.0%}",
            )
            for one in report
        ]
        head = ("asks", "tenant", "assignee", "answered", "p50", "p90", "p99", "open", "oldest open", "lapsed")
        fast = [] if stamps is None else [f"hasty   {stamps.hasty} of {stamps.answered} answers"]
        if stamps is not None:
            people = [(who or "nobody named", f"{count} of {of}") for who, (count, of) in stamps.by_answerer.items()]
            fast += table(("who", "hasty answers"), people)
            fast += table(("pause", "who", "after"), [
                (str(one.pause), one.by or "", f"{one.seconds:.1f} s") for one in stamps.fastest
            ])  # fmt: skip
        return Outcome(shape, [*lines, *first, *table(head, cells), *fast])

    return _asking(where, "response_times", ask)


@views.command()
@grouped
def stranded(where: Where, reach: Reach, *, limit: Limit = 100) -> Outcome:
    """List the turns that nobody goes on with, and the windows that closed unmarked; `recover` takes the turns up."""
    scope = reach.scope

    async def ask(ledger: Ledger, behind: Sequence[str]) -> Outcome:
        view = ledger.views.stranded
        found = await (
            view.stranded_of_all_tenants(limit=limit) if scope is None else view.stranded(scope, limit=limit)
        )
        aside, first = await _set_aside(view, scope)
        now = ledger.pauses.now()
        rows = [_shape(item) | {"age_seconds": _seconds(item, now)} for item in found]
        cells = [
            (
                item.state,
                str(item.pause_id),
                _tenant(item.axes.scope if item.axes else None),
                _when(item.since),
                "-" if item.since is None else f"{_seconds(item, now):.0f} s",
                str(item.fence or ""),
                item.holder or "",
                _when(item.lease_until),
                item.cause or "",
                str(item.recoveries or ""),
            )
            for item in found
        ]
        head = ("state", "pause", "tenant", "since", "age", "claim", "holder", "leased until", "cause", "recoveries")
        shape = {"outcome": "stranded", "unreadable": aside, "rows": rows}
        lines = [*behind, *first, *(table(head, cells) if found else ["nothing is stranded"])]
        return Outcome(shape, [*lines, *_next_of({item.state for item in found})])

    return _asking(where, "stranded", ask)


def _next_of(states: set[str]) -> list[str]:
    """Say what to do about turns and windows that are stranded."""
    lines = []
    if states & {"ready", "stalled", "lease_ended"}:
        lines.append("next    pauseledger recover PAUSE --operator NAME, go on with the turn, and settle it")
    if "closed" in states:
        lines.append("next    pauseledger lapse PAUSE --operator NAME, or let `pauseledger follow` mark what is closed")
    if "unreadable" in states:
        lines.append("next    pauseledger check, which says what is wrong with what is unreadable")
    return lines


@views.command()
@grouped
def lag(where: Where) -> Outcome:
    """Tell how far each view is behind the log, and how many facts it could not fold."""
    where.must_be_there()

    async def work(ledger: Ledger) -> Outcome:
        found = await ledger.views.lag()
        cells = [
            (one.view, str(one.position), str(one.newest), str(one.behind), f"{one.seconds:.1f} s", str(one.set_aside))
            for one in found
        ]
        head = ("view", "position", "newest", "behind", "for", "set aside")
        lines = table(head, cells)
        if any(one.learnt for one in found):
            lines.append(
                "this version can read facts that an earlier one set aside: `pauseledger follow` or `rebuild all`"
            )
        return Outcome({"outcome": "lag", "rows": [_shape(one) for one in found]}, lines)

    return in_ledger(where, work)


@views.command()
@grouped
def rebuild(where: Where, view: Annotated[str, typer.Argument(metavar="VIEW", help="Its name, or all.")]) -> Outcome:
    """Build a view anew beside the live one, and put it in its place; writers write on, and the old one answers."""
    where.must_be_there(views=False)

    async def work(ledger: Ledger) -> Outcome:
        named = () if view == "all" else (view,)
        with bar(f"rebuilding {view}") as progress:
            positions = await ledger.views.rebuild(*named, progress=progress)
        lines = [f"rebuilt {name} up to position {position}" for name, position in positions.items()]
        return Outcome({"outcome": "rebuilt", "positions": positions}, lines)

    return in_ledger(where, work)


@views.command()
@grouped
def follow(
    where: Where,
    *,
    sweep: Annotated[bool, typer.Option("--sweep/--no-sweep", help="Mark windows that have closed.")] = True,
) -> Outcome:
    """Keep the views a moment behind the log until SIGINT or SIGTERM; any number may follow at once."""

    async def work(ledger: Ledger) -> Outcome:
        with bar("catching up") as progress:
            await _until_told(ledger.follow(sweep=sweep, progress=progress))
        positions = {one.view: one.position for one in await ledger.views.lag()}
        return Outcome(
            {"outcome": "followed", "positions": positions},
            [f"followed {view} up to position {position}" for view, position in positions.items()],
        )

    return in_ledger(where, work)


async def _until_told(following: Following) -> None:
    running, loop = asyncio.ensure_future(following.run()), asyncio.get_running_loop()
    for told in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(told, running.cancel)
    typer.echo("follow  keeps the views, until SIGINT (ctrl-C) or SIGTERM", err=True)
    try:
        await running
    except asyncio.CancelledError:
        if not running.cancelled():
            raise
    except ExceptionGroup as several:
        # Of what ended it, one is told; a ledger's own error says what to do.
        raise next((one for one in several.exceptions if isinstance(one, LedgerError)), several) from None
    finally:
        for told in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(told)


# What they have in common


@contextmanager
def bar(says: str) -> Iterator[Progress | None]:
    """Show a progress bar on a terminal, as long as there is a way to go; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich import progress as bars  # noqa: PLC0415 - as above
    from rich.console import Console  # noqa: PLC0415 - scripts need not wait for it

    columns = (*bars.Progress.get_default_columns(), bars.MofNCompleteColumn())
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(says, total=None)

        def progress(position: int, newest: int) -> None:
            shown.update(task, completed=position, total=newest, visible=position < newest)

        yield progress


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay out a table by rich, as lines; nothing in a cell is interpreted, nor obeyed by a terminal."""
    from rich.console import Console  # noqa: PLC0415 - scripts need not wait for it
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDE
    laid = Table(*head, box=None, pad_edge=False)
    for row in rows:
        laid.add_row(*(Text(harmless(cell)) for cell in row))
    console = Console(file=StringIO(), width=width)
    with console.capture() as captured:
        console.print(laid)
    return [line.rstrip() for line in captured.get().splitlines()]


def _shape(row: Any) -> dict[str, Any]:
    return {field.name: _json(getattr(row, field.name)) for field in dataclasses.fields(row)}


def _json(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, datetime):
        return rfc3339(value)
    if isinstance(value, Scope | Axes):
        return value.model_dump()
    if dataclasses.is_dataclass(value):
        return _shape(value)
    if isinstance(value, Mapping):
        return {"" if key is None else str(key): _json(one) for key, one in value.items()}
    if isinstance(value, (tuple, list)):
        return [_json(one) for one in value]
    return value


def _seconds(item: Stranded, now: datetime) -> float | None:
    age = item.age(now)
    return None if age is None else age.total_seconds()


def _when(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}Z"


def _tenant(scope: Scope | None) -> str:
    return (
        "" if scope is None else "/".join("-" if part is None else part for part in scope.parts()).removesuffix("/-/-")
    )


def moment_of(given: str | None) -> datetime | None:
    """Read a time.

    Raises:
        BadParameter: it is none, or has no zone.
    """
    if given is None:
        return None
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise typer.BadParameter("a time is RFC 3339 with its zone, such as 2026-11-30T09:00:00Z")
    return moment
