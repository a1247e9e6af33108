"""One error that several are told, or another process: each raises its own."""

from typing import Any, TypeVar

E = TypeVar("E", bound=BaseException)

#: What an error is made of, where it can be sent: its class, its arguments as it keeps them, and what stands in it.
Parts = tuple[type[E], tuple[Any, ...], dict[str, Any]]


def parts(error: E) -> Parts[E]:
    """Take an error apart."""
    return type(error), error.args, error.__dict__


def whole(kind: type[E], args: tuple[Any, ...], state: dict[str, Any]) -> E:
    """Put an error together, past its constructor, whose arguments may be others."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    error.__suppress_context__ = True
    return error


def anew(error: E) -> E:
    """Give an error again, with what it says and without where it was raised.

    Raised in several tasks, one and the same would collect the frames of all, and show one caller what another holds.
    """
    return whole(*parts(error))
