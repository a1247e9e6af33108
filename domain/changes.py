"""Frozen dataclasses, changed: a copy with some fields other than they were."""

from typing import Any, TypeVar

T = TypeVar("T")


def changed(instance: T, changes: dict[str, Any]) -> T:
    """Copy a frozen dataclass that has no slots and no `__post_init__`, with these fields changed.

    As `dataclasses.replace`, in a tenth of its time: replaying a stream makes a copy for every fact.
    """
    fresh = object.__new__(type(instance))
    fresh.__dict__.update(instance.__dict__)
    fresh.__dict__.update(changes)
    return fresh
