"""What the command line is given: options in groups, files, tokens and axes."""

import asyncio
import dataclasses
import functools
import importlib
import inspect
import json
import os
import re
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar
from uuid import UUID

import typer

from ..domain import strict_json
from ..domain.axes import Axes, Scope
from ..domain.commands import Actor
from ..domain.errors import InteractionConfigurationError, PauseRejected
from ..domain.interactions import VALUE_BYTES, Interaction
from ..domain.turn import TURN_BYTES, Turn
from .settings import STORE_VARIABLE, LedgerSettings, store_url
from .store import LedgerRecorder
from .transcripts import known
from .wiring import Ledger, open_recorder, sqlite_path

T = TypeVar("T")

STDIN = "-"
#: By whichever of these names a file calls its list of entries.
ENTRIES = ("messages", "items", "contents")
_BETWEEN = re.compile(r"[\s,]*")


@dataclass(frozen=True, slots=True)
class Where:
    """Options of every command: which ledger, how it behaves, and how its answers are printed."""

    store: Annotated[
        str | None,
        typer.Option(
            envvar="PAUSELEDGER_STORE",
            help="memory:, sqlite:///path or postgresql://... [default: a SQLite file in the user's data directory]",
            show_default=False,
        ),
    ] = None
    keys_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="PAUSELEDGER_KEYS_DIR",
            help="The directory of keys.json. PAUSELEDGER_KEYS, holding the keys themselves, comes first.",
        ),
    ] = None
    views: Annotated[
        str | None,
        typer.Option(help="Where the views are kept, as the URL of a store. [default: beside the ledger]"),
    ] = None
    audience: Annotated[str, typer.Option(help="Tokens are bound to it.")] = ""
    leeway: Annotated[int, typer.Option(min=0, help="Seconds by which clocks may differ.")] = 0
    lease: Annotated[int, typer.Option(min=1, help="Seconds a claim holds before the turn may be recovered.")] = 60
    interactions: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE:NAME", help="The host's own interactions: one, or a list. May be repeated."),
    ] = None
    pooled: Annotated[
        bool,
        typer.Option(
            "--pooled",
            envvar="PAUSELEDGER_POOLED",
            help="PostgreSQL is reached through a pooler in transaction mode.",
            show_default=False,
        ),
    ] = False
    # Read from the arguments themselves, so that a fault in the other options is told as JSON as well.
    json: Annotated[bool, typer.Option("--json", help="Print exactly one JSON object, whatever the outcome.")] = False

    def settings(self) -> LedgerSettings:
        """Say how the ledger behaves.

        Raises:
            InteractionConfigurationError: the host's interactions cannot be loaded.
        """
        return LedgerSettings(
            keys_directory=self.keys_dir,
            views=self.views,
            audience=self.audience,
            leeway=self.leeway,
            lease=self.lease,
            pooled=self.pooled,
            interactions=tuple(one for named in self.interactions or () for one in loaded(named)),
        )

    def ledger(self, settings: LedgerSettings | None = None, *, make: bool = False) -> Ledger:
        """Name the ledger, to be entered; one that is not there is made with `make` alone.

        Raises:
            InteractionConfigurationError: there is none, or the host's interactions cannot be loaded.
        """
        if not make:
            self.must_be_there(views=False)
        return Ledger(store_url(self.store), settings or self.settings(), make=make)

    def recorder(self) -> LedgerRecorder:
        """Open the store of a ledger that is there.

        Raises:
            InteractionConfigurationError: there is none, or no store has such a URL.
        """
        self.must_be_there(views=False)
        return open_recorder(store_url(self.store), self.settings(), make=False)

    def must_be_there(self, *, views: bool = True) -> None:
        """Let a first pause and `migrate` alone make a ledger: that of a mistyped path would be empty, and whole.

        Raises:
            InteractionConfigurationError: there is no file where a SQLite ledger is said to be, or (with `views`)
                where its views are.
        """
        path = _missing(store_url(self.store))
        if path is not None:
            raise InteractionConfigurationError(
                f"there is no ledger at {path}; name the one you mean by --store or {STORE_VARIABLE}"
            )
        path = _missing(self.views) if views and self.views else None
        if path is not None:
            raise InteractionConfigurationError(
                f"there are no views at {path}; name the file you mean by --views, or make it by `rebuild all`"
            )


@dataclass(frozen=True, slots=True)
class Place:
    """Options that state scope, session and run."""

    tenant: Annotated[str | None, typer.Option(help="Axis scope: the tenant.")] = None
    sub_tenant: Annotated[str | None, typer.Option(help="Axis scope: left out differs from empty.")] = None
    namespace: Annotated[str | None, typer.Option(help="Axis scope: left out differs from empty.")] = None
    session: Annotated[str | None, typer.Option(help="Axis session: the conversation.")] = None
    run: Annotated[str | None, typer.Option(help="Axis run: the turn that stopped.")] = None

    def said(self, call: str | None) -> str:
        """Spell the axes as they were given, for a shell."""
        named = {f"--{field.name.replace('_', '-')}": getattr(self, field.name) for field in dataclasses.fields(self)}
        given = {**named, "--call": call}
        return shlex.join(part for name, value in given.items() if value is not None for part in (name, value))

    @property
    def stated(self) -> bool:
        """Whether any part of it was given."""
        return any(getattr(self, field.name) is not None for field in dataclasses.fields(self))

    def axes(self, call: str | None) -> Axes:
        """Put the four axes together.

        Raises:
            BadParameter: one is not given.
        """
        given = {"--tenant": self.tenant, "--session": self.session, "--run": self.run, "--call": call}
        missing = [name for name, value in given.items() if value is None]
        if self.tenant is None or missing:
            raise typer.BadParameter(f"state all four axes; missing: {', '.join(missing)}")
        scope = Scope(tenant_id=self.tenant, sub_tenant_id=self.sub_tenant, namespace=self.namespace)
        return Axes(scope=scope, session_id=self.session, run_id=self.run, call_id=call)


@dataclass(frozen=True, slots=True)
class Named:
    """A pause named by its id, with its axes stated or an operator's name."""

    pause: Annotated[UUID, typer.Argument(metavar="PAUSE", help="The pause's id.")]
    call: Annotated[str | None, typer.Option(help="Axis call: the call id, or @n for one without.")] = None
    operator: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Act as whoever runs the ledger, in place of the axes; recorded."),
    ] = None

    def axes(self, place: Place) -> Axes | None:
        """Put the axes together; None for an operator.

        Raises:
            BadParameter: an axis is missing, or they are given beside an operator.
        """
        if self.operator is None:
            return place.axes(self.call)
        if place.stated or self.call is not None:
            raise typer.BadParameter("give the axes or --operator, not both: an operator's axes are not judged")
        return None

    def said(self, place: Place) -> str:
        """Spell the axes, or the operator, as they were given, for a shell."""
        return place.said(self.call) if self.operator is None else shlex.join(("--operator", self.operator))

    @property
    def by(self) -> Actor | None:
        """The operator."""
        return None if self.operator is None else Actor(self.operator)


TokenArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="TOKEN",
        envvar="PAUSELEDGER_TOKEN",
        show_envvar=False,
        help="The token: - reads it from standard input; left out, PAUSELEDGER_TOKEN is taken. "
        "As an argument other users of this machine can see it.",
    ),
]


def grouped(command: Callable[..., T]) -> Callable[..., T]:
    """Let a command take its options in groups: a parameter that is a dataclass is given as one option a field."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[type[Any], list[str]]] = {}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        group: type[Any] = parameter.annotation
        members = {name: parameter}
        if dataclasses.is_dataclass(group):
            members = dict(inspect.signature(group).parameters)
            groups[name] = (group, list(members))
        parameters += [member.replace(kind=inspect.Parameter.KEYWORD_ONLY) for member in members.values()]
    # A command's own options are told first: where the ledger is kept is the same for all of them.
    everywhere = {field.name for field in dataclasses.fields(Where)}
    parameters.sort(key=lambda parameter: parameter.name in everywhere)

    @functools.wraps(command)
    def flat(**given: Any) -> T:
        for name, (group, members) in groups.items():
            given[name] = group(**{member: given.pop(member) for member in members})
        return command(**given)

    # All by keyword: then one without a default may follow one that has it.
    flat.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    flat.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return flat


def in_ledger(
    where: Where,
    work: Callable[[Ledger], Awaitable[T]],
    settings: LedgerSettings | None = None,
    *,
    make: bool = False,
) -> T:
    """Do something in an opened ledger, which is made only with `make`."""

    async def inside() -> T:
        async with where.ledger(settings, make=make) as ledger:
            return await work(ledger)

    return asyncio.run(inside())


def _missing(url: str) -> Path | None:
    """Give the path of a SQLite file that is not there."""
    path = sqlite_path(url) if url.startswith("sqlite:") else None
    return None if path is None or os.path.exists(path) else path  # noqa: PTH110 - unlike Path, it is silent of what it may not see


def loaded(named: str) -> Sequence[Interaction]:
    """Import a host's interactions from `module:name`; modules beside the caller are found.

    Raises:
        InteractionConfigurationError: there is no such thing, or it is something else.
    """
    module, _, name = named.partition(":")
    if os.getcwd() not in sys.path:  # noqa: PTH109 - sys.path holds text
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - as above
    if not module or not name:
        raise InteractionConfigurationError(f"interactions {named!r} name nothing; give module:name")
    try:
        held = importlib.import_module(module)
    except Exception as failed:
        raise InteractionConfigurationError(
            f"module {module!r} of the interactions cannot be imported ({type(failed).__name__}); run the command"
            " beside it, or name its directory in PYTHONPATH"
        ) from failed
    if not hasattr(held, name):
        raise InteractionConfigurationError(
            f"module {module!r} has no {name!r}; name an Interaction in it, or a list of them"
        )
    found = getattr(held, name)
    listed = [found] if isinstance(found, Interaction) or not isinstance(found, Iterable) else list(found)
    chosen = [one for one in listed if isinstance(one, Interaction)]
    if len(chosen) != len(listed):
        raise InteractionConfigurationError(f"{named!r} is neither an Interaction nor a list of them")
    return chosen


class Inputs:
    """Reads what a command was given as files, or as standard input.

    Args:
        given: All of it: paths, and the token.

    Raises:
        BadParameter: more than one of them is standard input, which can be read once.
    """

    def __init__(self, *given: str | None) -> None:
        if given.count(STDIN) > 1:
            raise typer.BadParameter(
                f"{given.count(STDIN)} inputs are standard input (-), which can be read once; give the others as files,"
                " or the token by PAUSELEDGER_TOKEN"
            )

    def token(self, given: str | None) -> str:
        """Take the token from where it was put.

        Raises:
            BadParameter: there is none.
        """
        if given is None:
            raise typer.BadParameter("give the token: by standard input (-), by PAUSELEDGER_TOKEN, or as an argument")
        return sys.stdin.buffer.read(4097).decode("ascii", "replace") if given == STDIN else given

    def value(self, what: str, path: str) -> Any:
        """Read a request or an answer as JSON.

        Raises:
            PauseRejected: it is not JSON that the ledger can carry, by name.
            BadParameter: the file cannot be read.
        """
        raw = self._bytes(what, path, VALUE_BYTES)
        try:
            return strict_json.parse(raw, limit=VALUE_BYTES)
        except strict_json.Unfit as unfit:
            name = f"{what.replace(' ', '_')}_too_large" if unfit.name == "too_large" else unfit.name
            raise PauseRejected(name, unfit_in(what, path, raw, unfit)) from None

    def turn(self, path: str, wire_format: str | None) -> Turn:
        """Read a turn: a list of entries, or an object that holds one; its text stays as it is.

        Raises:
            PauseRejected: the file is not JSON that the ledger can carry, or holds no list of entries.
            BadParameter: the file cannot be read, or nobody says which format it is.
        """
        raw = self._bytes("turn", path, TURN_BYTES)
        if not raw.strip():
            raise PauseRejected("not_json", unfit_in("turn", path, raw, strict_json.Unfit("not_json")))
        if raw.lstrip()[:1] == b"{":
            raw, within = _cut(raw, path)
            if wire_format is not None and within is not None and within != wire_format:
                raise typer.BadParameter("--format differs from the format the turn's file names; leave it out")
            wire_format = wire_format or within
        if wire_format is None:
            raise typer.BadParameter(f"a bare list needs --format: {', '.join(known().names())}")
        return Turn(wire_format, raw)

    def raw(self, what: str, path: str, limit: int) -> bytes:
        """Read a file as it is.

        Raises:
            BadParameter: it cannot be read, or has more bytes than `limit`.
        """
        found = self._bytes(what, path, limit)
        if len(found) > limit:
            raise typer.BadParameter(f"the {what} has more than {limit} bytes")
        return found

    def _bytes(self, what: str, path: str, limit: int) -> bytes:
        if path == STDIN:
            return sys.stdin.buffer.read(limit + 1)
        try:
            with Path(path).open("rb") as file:
                return file.read(limit + 1)
        except OSError as failed:
            raise typer.BadParameter(f"the {what} cannot be read from {path}: {failed.strerror}") from None


def unfit_in(what: str, path: str, raw: bytes, unfit: strict_json.Unfit) -> str:
    """Say where that is which is not JSON, and what to do."""
    where = "standard input" if path == STDIN else path
    if not raw.strip():
        return f"the {what} ({where}) is empty; put JSON text into it"
    return f"in the {what} ({where}): {'write JSON text (RFC 8259)' if unfit.name == 'not_json' else unfit.says}"


def the_open_call(turn: Turn, path: str) -> str:
    """Find the call a turn stopped at, where it has one open call; it was read from `path`.

    Raises:
        PauseRejected: the turn is broken.
        BadParameter: it has several.
    """
    assert isinstance(turn.messages, bytes)  # noqa: S101 - read from a file
    try:
        entries = strict_json.parse(turn.messages, limit=TURN_BYTES)
    except strict_json.Unfit as unfit:
        raise PauseRejected(unfit.name, unfit_in("turn", path, turn.messages, unfit)) from None
    if not isinstance(entries, list):
        raise PauseRejected("turn_broken", "the turn is not a list of entries; pass the conversation itself")
    calls = [call.address for call in known().read(turn.format, turn.messages, entries).calls if not call.done]
    if len(calls) != 1:
        raise typer.BadParameter(f"the turn has {len(calls)} open calls; name one by --call: {', '.join(calls)}")
    return calls[0]


def _cut(raw: bytes, path: str) -> tuple[bytes, str | None]:
    """Cut the list of entries out of an object, as the very text it is, and tell the format it names."""
    try:
        whole = strict_json.parse(raw, limit=TURN_BYTES)
    except strict_json.Unfit as unfit:
        name = "turn_too_large" if unfit.name == "too_large" else unfit.name
        raise PauseRejected(name, unfit_in("turn", path, raw, unfit)) from None
    named = [name for name in ENTRIES if isinstance(whole.get(name), list)]
    if len(named) != 1:
        raise PauseRejected("turn_broken", f"the file is no list and holds none under one of: {', '.join(ENTRIES)}")
    wire_format = whole.get("format")
    return _text_of(raw.decode(), named[0]).encode(), wire_format if isinstance(wire_format, str) else None


def _text_of(text: str, name: str) -> str:
    """Find the text of one member of an object; the text was parsed before, so it is sound."""
    decoder = json.JSONDecoder()
    at = text.index("{") + 1
    while True:
        key, colon = decoder.raw_decode(text, _past(text, at))
        start = _past(text, text.index(":", colon) + 1)
        _, at = decoder.raw_decode(text, start)
        if key == name:
            return text[start:at]


def _past(text: str, at: int) -> int:
    found = _BETWEEN.match(text, at)
    return at if found is None else found.end()
