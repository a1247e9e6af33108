"""The command line: every operation of the ledger, `--json` everywhere, and an exit code for each kind of end."""

import os
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, TypeVar
from uuid import UUID

import typer

from ..domain.closing import ReissueReason, WithdrawReason
from ..domain.commands import (
    DEFAULT_WINDOW,
    STORED,
    Actor,
    AnswerCommand,
    LapseAnswer,
    LapseCommand,
    PauseCommand,
    RecoverCommand,
    ReissueCommand,
    Routing,
    SettleCommand,
    WithdrawCommand,
)
from ..domain.continuation import recognise
from ..domain.errors import InteractionConfigurationError, LedgerError, NotRedeemable, RequestMissing
from ..domain.facts import Agent
from ..domain.pause import Pause, replay
from ..domain.sentences import tell_all
from ..domain.settlement import End
from .cli_authority import Answering, authority
from .cli_erasure import erasure
from .cli_events import events
from .cli_evidence import evidence
from .cli_export import exports
from .cli_inputs import Inputs, Named, Place, TokenArgument, Where, grouped, in_ledger, the_open_call
from .cli_keys import keys
from .cli_shapes import (
    DONE,
    FAULT,
    INTERRUPTED,
    Outcome,
    broken,
    failed,
    interrupted,
    misused,
    paused,
    receipt,
    reissued,
    resumed,
    show,
    shown,
)
from .cli_switches import levers
from .cli_views import views
from .keys import KeyFile
from .settings import KEYS_VARIABLE, keys_directory, store_url
from .version import __version__
from .wiring import Ledger, embedded, open_recorder

T = TypeVar("T")

JSON = "--json"
#: Whatever typer raises over a command line it cannot read, wherever its version keeps that class.
Misuse: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="pauseledger",
    help="Pause an agent's turn for a person, redeem the answer exactly once, and prove it years later.\n\n"
    "Exit codes: 0 done (a round still open too: the answer is kept), 1 internal fault, 2 usage, configuration or "
    "rejected input, 3 refused or not recoverable, 4 store unavailable, 5 a check found faults.",
    add_completion=False,
    context_settings={"help_option_names": ["--help", "-h"]},
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(keys, name="keys")
app.add_typer(erasure)
app.add_typer(views)
app.add_typer(levers)
app.add_typer(authority)
app.add_typer(events)
app.add_typer(evidence)
app.add_typer(exports)

Response = Annotated[str | None, typer.Option(metavar="FILE", help="The answer as JSON; - is standard input.")]
Call = Annotated[str | None, typer.Option(help="Axis call: the call id, or @n for one without.")]
Seconds = Annotated[int, typer.Option(metavar="SECONDS")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave with its exit code."""
    try:
        code = run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        # The second, while what was done after the first was being told.
        code = INTERRUPTED
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command, print what it came to, and return its exit code."""
    outcome = _outcome(list(arguments))
    if outcome is None:
        return DONE
    try:
        show(outcome, as_json=JSON in arguments)
    except (BrokenPipeError, SystemExit):
        # Whoever read has gone, which rich takes for the end of the program; what was done is done. The interpreter
        # would complain once more on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, AttributeError):
        # A full disk, or no output at all: what was done is done, and nobody was told.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.write(2, b"what this came to could not be written to the output; repeat the command to be told\n")
        return FAULT
    return outcome.exit_code


def _tell_version(asked: bool) -> None:
    if asked:
        typer.echo(f"pauseledger {__version__}")
        raise typer.Exit


@app.callback()
def _before(
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_tell_version, help="Tell the version, and end.")
    ] = False,
) -> None:
    assert not version  # noqa: S101 - told, and ended


def _outcome(arguments: list[str]) -> Outcome | None:
    try:
        for argument in arguments:
            argument.encode()
        done = app(arguments or ["--help"], prog_name="pauseledger", standalone_mode=False)
    except UnicodeEncodeError:
        return misused("arguments have to be valid UTF-8")
    except LedgerError as error:
        return failed(error)
    except Misuse as error:
        return misused(error.format_message())  # type: ignore[attr-defined]  # it is a ClickException
    except KeyboardInterrupt:
        return interrupted()
    except Exception as error:  # noqa: BLE001 - told by kind and place, never by its text
        return broken(error)
    if isinstance(done, Outcome):
        return done
    # Typer has printed its help, or was interrupted and gives the exit code.
    return interrupted() if done else None


# The life of a pause


@app.command()
@grouped
def pause(
    where: Where,
    place: Place,
    *,
    interaction: Annotated[str, typer.Option(help="ask_user, approval, or one of the host's own.")],
    request: Annotated[list[str], typer.Option(metavar="FILE", help="What is asked, as JSON; - is standard input.")],
    turn: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="The turn: a list of entries as JSON, kept as it is written, or an object with `format` and that list "
            "under messages, items or contents.",
        ),
    ],
    format: Annotated[str | None, typer.Option(help="The turn's wire format, for a bare list.")] = None,  # noqa: A002
    call: Annotated[
        list[str] | None,
        typer.Option(
            help="Axis call: the call id, or @n for one without. Left out, the turn's only open call. Given several "
            "times, with as many --request, it pauses a whole round."
        ),
    ] = None,
    opens_in: Annotated[int, typer.Option(help="Seconds until it may be answered.")] = 0,
    closes_in: Annotated[int, typer.Option(help="Seconds until it may not be answered any more.")] = DEFAULT_WINDOW,
    on_lapse: Annotated[
        str | None, typer.Option(metavar="FILE", help="The answer that stands when the window closes without one.")
    ] = None,
    supersedes: Annotated[UUID | None, typer.Option(help="An earlier pause whose round this one takes back.")] = None,
    occurrence: Annotated[int, typer.Option(help="Counts up to ask again what was asked before.")] = 0,
    idempotency_key: Annotated[str | None, typer.Option(help="Stands in the turn's place in the pause's id.")] = None,
    run_started: Annotated[
        str | None, typer.Option(metavar="TIME", help="RFC 3339; fixes the month in the id, so that a repeat finds it.")
    ] = None,
    queue: Annotated[str | None, typer.Option(help="Whom it is for: a queue.")] = None,
    priority: Annotated[int, typer.Option(help="Whom it is for: how soon.")] = 0,
    assignee: Annotated[list[str] | None, typer.Option(help="Whom it is for. May be repeated.")] = None,
    group: Annotated[list[str] | None, typer.Option(help="Whom it is for. May be repeated.")] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="WORD=WORD", help="May be repeated.")] = None,
    agent: Annotated[str | None, typer.Option(help="Which agent asks.")] = None,
    asked_by: Annotated[str | None, typer.Option(metavar="NAME", help="Who asks; a policy may need it.")] = None,
) -> Outcome:
    """Stop a turn at a call, and print the token for whoever answers. Repeated while it is open, it is found again."""
    inputs = Inputs(turn, on_lapse, *request)
    given = inputs.turn(turn, format)
    calls = call or [the_open_call(given, turn)]
    if len(request) != len(calls):
        raise typer.BadParameter(f"give one --request for each call; there are {len(request)} for {len(calls)}")
    lapse = None if on_lapse is None else LapseAnswer(inputs.value("lapse answer", on_lapse))
    commands = [
        PauseCommand(
            interaction=interaction,
            request=inputs.value("request", asked),
            turn=given,
            axes=place.axes(one),
            opens_in=opens_in,
            closes_in=closes_in,
            on_lapse=lapse,
            routing=Routing(queue=queue, priority=priority, groups=group or (), assignees=assignee or ()),
            asked_by=None if asked_by is None else Actor(asked_by),
            agent=None if agent is None else Agent(name=agent),
            labels=_labels(label or ()),
            supersedes=supersedes,
            occurrence=occurrence,
            idempotency_key=idempotency_key,
            run_started=_moment(run_started),
        )
        for one, asked in zip(calls, request, strict=True)
    ]
    receipts = in_ledger(where, lambda ledger: ledger.capability.pause_round(commands), make=True)
    return paused(receipts, calls, as_round=len(calls) > 1)


@app.command()
@grouped
def answer(
    where: Where,
    place: Place,
    answering: Answering,
    *,
    response: Annotated[str, typer.Option(metavar="FILE", help="The answer as JSON; - is standard input.")],
    token: TokenArgument = None,
    call: Call = None,
) -> Outcome:
    """Keep an answer, and consume nothing: `redeem --stored` or `recover` goes on later, also after the window."""
    inputs = Inputs(token, response)
    said, axes, text = inputs.value("response", response), place.axes(call), inputs.token(token)
    by = answering.actor

    async def work(ledger: Ledger) -> Outcome:
        recognition = recognise(ledger.capability, text)
        if recognition.envelope is None:
            raise NotRedeemable(str(recognition.refusal))
        command = AnswerCommand(
            envelope=recognition.envelope,
            response=said,
            scope=axes.scope,
            session_id=axes.session_id,
            run_id=axes.run_id,
            call_id=axes.call_id,
            answered_by=by,
            cites=answering.cites,
        )
        return receipt("answered", await ledger.capability.answer(command))

    return in_ledger(where, work)


@app.command()
@grouped
def redeem(
    where: Where,
    place: Place,
    answering: Answering,
    *,
    token: TokenArgument = None,
    response: Response = None,
    stored: Annotated[bool, typer.Option("--stored", help="Redeem the answer given earlier by `answer`.")] = False,
    call: Call = None,
) -> Outcome:
    """Redeem a token exactly once, and print the turn with the answer in its history.

    The turn is then owed under a claim that stays leased when this command exits: go on with it, and settle it with
    `settle PAUSE --fence N --end finished`. Without that `recover` hands it out again once the lease has ended.
    """
    if (response is None) != stored:
        raise typer.BadParameter("give either --response FILE or --stored")
    inputs = Inputs(token, response)
    said: Any = STORED if response is None else inputs.value("response", response)
    axes, text, by = place.axes(call), inputs.token(token), answering.actor

    async def work(ledger: Ledger) -> Outcome:
        turn = await ledger.redeem(text, said, axes=axes, by=by, cites=answering.cites)
        return resumed("resumed", turn, place.said(call))

    return in_ledger(where, work)


@app.command()
@grouped
def recover(
    where: Where,
    place: Place,
    named: Named,
    *,
    force: Annotated[bool, typer.Option("--force", help="End a lease that still runs; an operator's alone.")] = False,
) -> Outcome:
    """Take up a turn that is stalled, left by a dead worker, or ready and never handed out. Nobody is asked again.

    The claim stays leased when this command exits: go on with the turn, and settle it under the new fence.
    """
    if force and named.operator is None:
        raise typer.BadParameter("--force needs --operator NAME: who ends another's lease is recorded")
    command = RecoverCommand(named.pause, axes=named.axes(place), reason="forced" if force else None)

    async def work(ledger: Ledger) -> Outcome:
        return resumed("recovered", await _acting(ledger, named).recover(command), named.said(place))

    return in_ledger(where, work)


@app.command()
@grouped
def settle(
    where: Where,
    place: Place,
    named: Named,
    *,
    fence: Annotated[int, typer.Option(help="The claim's fence, as `redeem` or `recover` printed it.")],
    end: Annotated[End, typer.Option(help="How it ended; stalled and released leave it owed.")],
    next: Annotated[list[UUID] | None, typer.Option(help="A pause it stopped at again. May be repeated.")] = None,  # noqa: A002
    error_type: Annotated[str | None, typer.Option(help="With stalled: the kind of error, a word.")] = None,
) -> Outcome:
    """Say how a turn that was handed out has ended."""
    command = SettleCommand(named.pause, named.axes(place), fence, end, tuple(next or ()), error_type)

    async def work(ledger: Ledger) -> Outcome:
        return receipt("settled", await _acting(ledger, named).settle(command))

    return in_ledger(where, work)


@app.command()
@grouped
def withdraw(
    where: Where,
    place: Place,
    named: Named,
    *,
    reason: Annotated[WithdrawReason, typer.Option(help="Why.")] = "host",
    note: Annotated[str | None, typer.Option(help="Kept beside the fact.")] = None,
) -> Outcome:
    """Take a question back."""
    command = WithdrawCommand(named.pause, axes=named.axes(place), reason=reason, note=note)

    async def work(ledger: Ledger) -> Outcome:
        return receipt("withdrawn", await _acting(ledger, named).withdraw(command))

    return in_ledger(where, work)


@app.command()
@grouped
def reissue(
    where: Where,
    place: Place,
    named: Named,
    *,
    reason: Annotated[ReissueReason, typer.Option(help="Why.")] = "lost",
    ends_earlier: Annotated[bool, typer.Option("--ends-earlier", help="Earlier tokens end.")] = False,
    closes_in: Annotated[
        int | None, typer.Option(help="Seconds until this token ends; never beyond the pause's window.")
    ] = None,
) -> Outcome:
    """Mint a pause's token again."""
    command = ReissueCommand(
        named.pause, axes=named.axes(place), reason=reason, ends_earlier=ends_earlier, closes_in=closes_in
    )

    async def work(ledger: Ledger) -> Outcome:
        return reissued(await _acting(ledger, named).reissue(command))

    return in_ledger(where, work)


@app.command()
@grouped
def lapse(where: Where, place: Place, named: Named) -> Outcome:
    """Write down that a window has closed without an answer."""
    command = LapseCommand(named.pause, axes=named.axes(place))

    async def work(ledger: Ledger) -> Outcome:
        return receipt("lapsed", await _acting(ledger, named).lapse(command))

    return in_ledger(where, work)


@app.command(name="show")
@grouped
def show_pause(
    where: Where,
    pause: Annotated[UUID, typer.Argument(metavar="PAUSE", help="The pause's id.")],
    content: Annotated[
        bool, typer.Option("--content", help="Show what people wrote as well; names of people are shown always.")
    ] = False,
) -> Outcome:
    """Tell a pause's story, refused attempts included, as sentences; with --json as facts too."""
    where.must_be_there()

    async def work(ledger: Ledger) -> Outcome:
        facts = await ledger.story(pause)
        if not facts:
            raise RequestMissing(pause)
        now: Pause | None = replay(fact for fact in facts if fact.originator_id == pause)  # type: ignore[misc]  # its own
        state = None if now is None else now.state
        return shown(pause, state, facts, tell_all(facts, content=content), content=content)

    return in_ledger(where, work)


# The ledger itself


@app.command()
@grouped
def migrate(
    where: Where,
    runtime_role: Annotated[
        str | None, typer.Option(help="PostgreSQL: a role that exists, to be given what it needs at run time.")
    ] = None,
    auditor_role: Annotated[
        str | None, typer.Option(help="PostgreSQL: a role that exists, to read everything and record what it reads.")
    ] = None,
    eraser_role: Annotated[
        str | None, typer.Option(help="PostgreSQL: a role that exists, to be given that and the right to destroy keys.")
    ] = None,
) -> Outcome:
    """Make or upgrade the store's tables; safe to run twice."""
    from .postgres import PostgresRecorder  # noqa: PLC0415 - no other command needs its name

    url = store_url(where.store)
    recorder = open_recorder(url, where.settings())
    try:
        if isinstance(recorder, PostgresRecorder):
            done = recorder.migrate(runtime_role, auditor_role, eraser_role)
        elif runtime_role is None and auditor_role is None and eraser_role is None:
            done = recorder.migrate()
        else:
            raise InteractionConfigurationError(
                "only PostgreSQL has roles; leave --runtime-role, --auditor-role and --eraser-role out"
            )
    finally:
        recorder.close()
    shape = {"outcome": "migrated", "store": url.partition(":")[0], "done": done}
    lines = [*(done or ["the tables are there, and as this version makes them"])]
    file = KeyFile(keys_directory(where.keys_dir))
    if not (embedded(url) or os.environ.get(KEYS_VARIABLE) or file.there):
        # A ledger on a server has no keys here yet.
        shape["next"] = str(file.none_here())
        lines.append(f"next    {shape['next']}")
    return Outcome(shape, lines)


@app.command()
@grouped
def restored(where: Where) -> Outcome:
    """Say that the store was restored, or failed over asynchronously: every older token ends until minted again."""
    recorder = where.recorder()
    try:
        epoch = recorder.draw_epoch()
    finally:
        recorder.close()
    says = "tokens minted before are superseded until they are minted again: pauseledger reissue, or pausing again"
    return Outcome({"outcome": "restored", "epoch": epoch, "says": says}, [says])


@app.command()
@grouped
def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the directory with store and keys behind.")] = False,
    store: Annotated[str | None, typer.Option(help="Run it on this store; its rows stay there.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print exactly one JSON object at the end.")] = False,
) -> Outcome:
    """Show the main job on a recorded turn: real processes, one of them killed; offline, in a directory of its own."""
    from .demo import demonstrate  # noqa: PLC0415 - it stands on its own

    return demonstrate(store=store, keep=keep, quiet=json)


# What they have in common


def _acting(ledger: Ledger, named: Named) -> Any:
    """Find who acts: the host, which states the axes, or an operator."""
    return ledger.capability if named.by is None else ledger.operator(named.by)


def _labels(given: Sequence[str]) -> dict[str, str]:
    if not all("=" in one for one in given):
        raise typer.BadParameter("a --label reads word=word")
    return {word: said for word, _, said in (one.partition("=") for one in given)}


def _moment(given: str | None) -> datetime | None:
    if given is None:
        return None
    try:
        return datetime.fromisoformat(given)
    except ValueError:
        raise typer.BadParameter("--run-started is no RFC 3339 time, such as 2026-11-30T09:00:00Z") from None


if __name__ == "__main__":
    main()
