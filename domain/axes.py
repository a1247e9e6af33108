"""The binding axes: what a redemption is measured on, in the order in which it is asked."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from .envelope import Opened
from .errors import CallMismatch, InteractionConfigurationError, Refusal, RunMismatch, ScopeMismatch, SessionMismatch

#: The most bytes (UTF-8) that one part of an axis may have.
AXIS_BYTES = 255

Part = Annotated[str, StringConstraints(strict=True)]


class Scope(BaseModel):
    """The tenant. Compared part by part; a part left out differs from an empty one."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    tenant_id: Part
    sub_tenant_id: Part | None = None
    namespace: Part | None = None

    def parts(self) -> tuple[str | None, ...]:
        """List the parts in their fixed order."""
        return (self.tenant_id, self.sub_tenant_id, self.namespace)


class Axes(BaseModel):
    """The four binding axes as somebody states them. None is an axis left unstated."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    scope: Scope | None
    session_id: Part | None
    run_id: Part | None
    call_id: Part | None


def as_stated(scope: Any, session_id: Any, run_id: Any, call_id: Any) -> Axes:
    """Put axes together as a caller states them.

    Raises:
        InteractionConfigurationError: one is not of the kind it should be, and is named.
    """
    try:
        return Axes(scope=scope, session_id=session_id, run_id=run_id, call_id=call_id)
    except ValidationError as error:
        parameter = error.errors(include_input=False)[0]["loc"][0]
    raise InteractionConfigurationError(
        f"{parameter} must be stated as {'a Scope' if parameter == 'scope' else 'text'}; pass what was paused with"
    )


def _scope(opened: Opened, stated: Axes) -> bool:
    """Another tenant's pause is nobody's business."""
    return stated.scope is not None and opened.binds("scope", *stated.scope.parts())


def _session(opened: Opened, stated: Axes) -> bool:
    """An answer belongs to the conversation that asked."""
    return opened.binds("session", stated.session_id)


def _run(opened: Opened, stated: Axes) -> bool:
    """An answer belongs to the turn that stopped."""
    return opened.binds("run", stated.run_id)


def _call(opened: Opened, stated: Axes) -> bool:
    """An answer belongs to the call that waits for it."""
    return opened.binds("call", stated.call_id)


#: In this order. The first that does not hold names the refusal, however many would.
BINDING: tuple[tuple[str, Callable[[Opened, Axes], bool], type[Refusal]], ...] = (
    ("scope", _scope, ScopeMismatch),
    ("session", _session, SessionMismatch),
    ("run", _run, RunMismatch),
    ("call", _call, CallMismatch),
)

AXES = tuple(name for name, _, _ in BINDING)


def judge(opened: Opened, stated: Axes, unstated: frozenset[str] = frozenset()) -> None:
    """Hold the stated axes against what a token binds.

    All are compared, whichever fails first, so that timing tells nothing. Axes in `unstated` are not judged.

    Raises:
        ScopeMismatch, SessionMismatch, RunMismatch, CallMismatch: the first that differs.
    """
    held = [holds(opened, stated) for _, holds, _ in BINDING]
    for ok, (name, _, refusal) in zip(held, BINDING, strict=True):
        if not ok and name not in unstated:
            raise refusal(opened.pause_id)


def require_stated(axes: Axes, optional: frozenset[str] = frozenset()) -> frozenset[str]:
    """Check that every axis is stated, and return the names of those that may be left out and are.

    Raises:
        InteractionConfigurationError: an axis is None, empty, white space or longer than `AXIS_BYTES`; it is named.
    """
    values: dict[str, tuple[str, Any]] = {
        "scope": ("scope", axes.scope),
        "session": ("session_id", axes.session_id),
        "run": ("run_id", axes.run_id),
        "call": ("call_id", axes.call_id),
    }
    unstated = set()
    for axis, (parameter, value) in values.items():
        if value is None and axis in optional:
            unstated.add(axis)
        elif isinstance(value, Scope):
            _require("scope.tenant_id", value.tenant_id)
            for part in ("sub_tenant_id", "namespace"):
                _bounded(f"scope.{part}", getattr(value, part) or "")
        else:
            _require(parameter, value)
    return frozenset(unstated)


def _require(parameter: str, value: str | None) -> None:
    if value is None or not value.strip():
        raise InteractionConfigurationError(
            f"{parameter} must be stated; an axis left unstated is not judged, and three judgements of four "
            "let a token be redeemed against the wrong tenant, session, turn or question"
        )
    _bounded(parameter, value)


def require_text(parameter: str, value: str) -> bytes:
    """Encode what a host passes as text.

    Raises:
        InteractionConfigurationError: it is not text, and is named.
    """
    try:
        return value.encode()
    except (AttributeError, UnicodeEncodeError):
        pass
    # Raised out here, so that no traceback drags along an error that holds the text.
    raise InteractionConfigurationError(f"{parameter} is not text, or holds a lone surrogate; pass valid Unicode")


def require_name(parameter: str, value: str) -> None:
    """Check that a value can stand for somebody: text, not blank, at most `AXIS_BYTES` bytes.

    Raises:
        InteractionConfigurationError: it cannot, and is named.
    """
    size = len(require_text(parameter, value))
    if not value.strip() or size > AXIS_BYTES:
        raise InteractionConfigurationError(f"{parameter} must name somebody in 1 to {AXIS_BYTES} bytes")


def _bounded(parameter: str, value: str) -> None:
    size = len(require_text(parameter, value))
    if size > AXIS_BYTES:
        raise InteractionConfigurationError(f"{parameter} has {size} bytes; pass an id of at most {AXIS_BYTES}")
