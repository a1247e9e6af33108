"""Registered kinds of pause: what is asked, what may be answered, and how the answer reads."""

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar, get_args

from pydantic import BaseModel, ConfigDict

from .errors import InteractionConfigurationError
from .facts import Decision
from .strict_json import LARGEST, Unfit, copied, write_and_parse

ASK_USER = "ask_user"
APPROVAL = "approval"

#: A request, and a response, may have this many bytes as canonical JSON.
VALUE_BYTES = 256 * 1024

_NAME = re.compile(r"[a-z0-9_.-]{1,64}")
_POINTER = re.compile(r"(/[A-Za-z0-9_.$-]{1,64}){1,16}")

_DECISIONS = get_args(Decision)

#: A pydantic model, or a JSON Schema (Draft 2020-12 unless its `$schema` says otherwise).
SchemaSource = type[BaseModel] | dict[str, Any]


class Objection(ValueError):
    """A request or a response that does not fit its interaction. The message never quotes it.

    Attributes:
        rule: What objected, a fixed word.
        pointer: Where, as a JSON pointer of schema keywords; None where a schema has no part in it.
        cause: What the host's own function raised, for the log; None where nothing was.
    """

    def __init__(self, rule: str, *, pointer: str | None = None, cause: Exception | None = None) -> None:
        super().__init__(rule if pointer is None else f"{rule} at {pointer or 'the root'} of the schema")
        self.rule, self.pointer, self.cause = rule, pointer, cause


class SchemaMismatch(Objection):
    """A value does not validate against a schema.

    Attributes:
        pointer: The keyword that objected, as a JSON pointer into the schema; nothing of the value.
    """

    pointer: str

    def __init__(self, pointer: str) -> None:
        super().__init__("schema", pointer=pointer)


class Schema(Protocol):
    """A schema made ready. Safe to use from several threads."""

    @property
    def prompt(self) -> bool:
        """Whether it validates any value the ledger takes within milliseconds, and runs no code of the host's."""
        ...

    @property
    def digest(self) -> str:
        """SHA-256 over the canonical JSON of the JSON Schema, lower-case hex."""
        ...

    def validate(self, value: Any) -> Any:
        """Return a value that was parsed as plain JSON data once validated; a model may have changed its spelling.

        Raises:
            SchemaMismatch: it does not validate.
            Objection: a model made of it what JSON cannot carry; the rule says what, such as `nan`.
        """
        ...


#: The port that makes schemas ready; it raises InteractionConfigurationError for a bad one.
CompileSchema = Callable[[SchemaSource], Schema]


F = TypeVar("F", bound=Callable[..., Any])
#: By identity: a host may pass what cannot be hashed. Functions of a module are never gone.
_PROMPT: Final[set[int]] = set()


def prompt(function: F) -> F:
    """Mark a function of the ledger's own that takes microseconds: it runs on the event loop."""
    _PROMPT.add(id(function))
    return function


def _answered(response: Any) -> Decision:  # noqa: ARG001 - the signature of `decision`
    return "answer"


def _nothing(request: Any, response: Any) -> Any:  # noqa: ARG001 - the signature of `effective`
    return None


@prompt
def _as_given(request: Any) -> Any:
    return request


def require_interaction_name(name: object) -> None:
    """Check that an interaction can have a name.

    Raises:
        InteractionConfigurationError: it cannot.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InteractionConfigurationError(
            "an interaction's name has 1 to 64 of a-z, 0-9, '_', '.' and '-'; give it such a name"
        )


def _require_function(name: str, rule: str, function: object) -> None:
    """Rules run in threads while an answer is judged: one that has to be awaited would never be."""
    called = getattr(function, "__call__", None)  # noqa: B004 - an object with an async `__call__` is one as well
    if not callable(function):
        raise InteractionConfigurationError(f"{rule} of {name!r} is no function; pass one")
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called):
        raise InteractionConfigurationError(
            f"{rule} of {name!r} is async; pass a plain function, as answers are judged without waiting for others"
        )


@dataclass(frozen=True, kw_only=True)
class Interaction:
    """A kind of pause, as the host registers it. Requests and responses are plain JSON data once validated.

    Attributes:
        name: At most 64 of a-z, 0-9, `_`, `.` and `-`; it stands in the stored facts.
        revision: Counts up from 1 whenever a schema changes; pauses keep theirs.
        request_schema: What may be asked: a pydantic model or a JSON Schema.
        response_schema: What may be answered.
        as_text: The observation that is put on the call.
        cross_check: Holds a response against its request: None when it fits, else a fixed word or a JSON pointer of
            what is wrong (never a value: it is stored and told). One that raises objects.
        decision: What kind of answer a response is.
        effective: The arguments a response lets the call run with; asked for `approve` and `edit` alone.
        prepare_request: Fills in what the asker may leave out, when pausing. It may raise an Objection.

    Raises:
        InteractionConfigurationError: the name or the revision is not of that kind, or a rule is no plain function.
    """

    name: str
    revision: int = 1
    request_schema: SchemaSource = field(repr=False)
    response_schema: SchemaSource = field(repr=False)
    as_text: Callable[[Any], str] = field(repr=False)
    cross_check: Callable[[Any, Any], str | None] | None = field(default=None, repr=False)
    decision: Callable[[Any], Decision] = field(default=_answered, repr=False)
    effective: Callable[[Any, Any], Any] = field(default=_nothing, repr=False)
    prepare_request: Callable[[Any], Any] = field(default=_as_given, repr=False)

    def __post_init__(self) -> None:
        require_interaction_name(self.name)
        if type(self.revision) is not int or self.revision < 1:
            raise InteractionConfigurationError(f"the revision of {self.name!r} must be a whole number from 1 up")
        for rule in ("as_text", "decision", "effective", "prepare_request"):
            _require_function(self.name, rule, getattr(self, rule))
        if self.cross_check is not None:
            _require_function(self.name, "cross_check", self.cross_check)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A response that fits, and what comes of it.

    Attributes:
        response: As plain JSON data once validated.
        decision: Whether it answers, approves, edits, rejects or responds.
        effective: The arguments the call runs with, for `approve` and `edit`; None for the others.
    """

    response: Any = field(repr=False)
    decision: Decision
    effective: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Registered:
    """An interaction with its schemas made ready."""

    interaction: Interaction
    request: Schema
    response: Schema

    @property
    def prompt(self) -> bool:
        """Whether it can judge on the event loop: nothing in it takes long, and no rule of the host's is asked.

        Putting an answer into words is not such a rule: turns are rebuilt with it on the loop.
        """
        rules = (self.interaction.prepare_request, self.interaction.cross_check)
        ours = all(rule is None or id(rule) in _PROMPT for rule in rules)
        return ours and self.request.prompt and self.response.prompt

    def ask(self, request: Any) -> Any:
        """Validate a request and fill in what was left out; return it as plain JSON data.

        Raises:
            Objection: it does not fit; a `SchemaMismatch` says where.
        """
        given = self.request.validate(request)
        if self.interaction.prepare_request is _as_given:
            return given
        prepared = _called("prepare_request", self.interaction.prepare_request, copied(given))
        return self.request.validate(_carried("prepare_request", prepared))

    def judge(self, request: Any, response: Any) -> Verdict:
        """Hold a response against its schema and its request, and prove that it can be put into words.

        Whatever the host's functions raise objects here, before the answer is kept: an answer without words could
        never be redeemed. Each is given data of its own, so that what it changes changes nothing.

        Raises:
            Objection: it does not fit; a `SchemaMismatch` says where.
        """
        valid = self.response.validate(response)
        if self.interaction.cross_check is not None:
            found = _called("cross_check", self.interaction.cross_check, copied(request), copied(valid))
            if found is not None:
                raise Objection(found if _is_word(found) else "cross_check")
        decision = _called("decision", self.interaction.decision, copied(valid))
        if decision not in _DECISIONS:
            raise Objection("decision")
        if decision in ("approve", "edit"):
            if not (isinstance(request, dict) and isinstance(request.get("tool"), str)):
                raise Objection("tool")
            effective = _called("effective", self.interaction.effective, copied(request), copied(valid))
            return Verdict(valid, decision, _carried("effective", effective))
        text = _called("as_text", self.interaction.as_text, copied(valid))
        if not isinstance(text, str):
            raise Objection("as_text", cause=TypeError(type(text).__name__))
        _carried("as_text", text)
        return Verdict(valid, decision)


class Interactions:
    """The interactions known to this process, by name and revision."""

    def __init__(self, compile_schema: CompileSchema, interactions: Iterable[Interaction] = ()) -> None:
        self._compile = compile_schema
        self._known: dict[tuple[str, int], Registered] = {}
        for interaction in interactions:
            self.register(interaction)

    def register(self, interaction: Interaction) -> None:
        """Add an interaction.

        Raises:
            InteractionConfigurationError: the name is taken at that revision, or a schema is none.
        """
        key = (interaction.name, interaction.revision)
        made = Registered(
            interaction, self._compile(interaction.request_schema), self._compile(interaction.response_schema)
        )
        if self._known.setdefault(key, made) is not made:
            raise InteractionConfigurationError(
                f"{interaction.name!r} revision {interaction.revision} is taken; register another name or revision"
            )

    def newest(self, name: str) -> Registered | None:
        """Find the highest revision registered under a name: what a new pause is made with."""
        revisions = [revision for known, revision in tuple(self._known) if known == name]
        return self._known[name, max(revisions)] if revisions else None

    def names(self) -> list[str]:
        """List the names known."""
        return sorted({name for name, _ in tuple(self._known)})

    def of(self, name: str, revision: int) -> Registered | None:
        """Find the revision a pause was made with."""
        return self._known.get((name, revision))


class AskUserAnsweredEvent(BaseModel):
    """A person answered `ask_user`. The typed stream yields it before the turn goes on.

    `selected_labels` are each answer's selections, flattened in order; `has_other` tells whether any answer has text
    of its own; the time is the outcome's, in seconds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    run_id: str
    session_id: str
    tool_call_id: str | None
    selected_labels: list[str]
    has_other: bool
    time_to_answer_seconds: float


def _called(rule: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Objection:
        raise
    except Exception as raised:  # noqa: BLE001 - a rule that cannot be evaluated lets nothing through
        cause = raised
    # Raised out here, so that no traceback drags along an error that may hold the answer.
    raise Objection(rule, cause=cause)


def _is_word(found: object) -> bool:
    return isinstance(found, str) and (_NAME.fullmatch(found) is not None or _POINTER.fullmatch(found) is not None)


def _carried(rule: str, value: Any) -> Any:
    """Give what a reader will see of what a host's function made."""
    try:
        return write_and_parse(value, limit=LARGEST)[1]
    except Unfit as unfit:
        cause = unfit
    raise Objection(rule, cause=cause)
