"""One error that several are told: each raises its own."""

from typing import TypeVar

E = TypeVar("E", bound=BaseException)


def anew(error: E) -> E:
    """Give an error again, with what it says and without where it was raised.

    Raised in several tasks, one and the same would collect the frames of all, and show one caller what another holds.
    """
    fresh = type(error).__new__(type(error), *error.args)
    fresh.__dict__.update(error.__dict__)
    fresh.__suppress_context__ = True
    return fresh
