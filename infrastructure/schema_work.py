"""How much work a schema can make of a value: an upper bound, told before a validator is let loose on it.

A validator that follows references does not remember what it did: forty definitions that each name the next one twice
are 2**40 steps, and a recursive schema doubles with every level of the value. The bound counts keywords looked at; it
never falls short, and is taken over places of the schema and levels of the value by dynamic programming.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..domain.strict_json import DEPTH

#: A schema may have this many subschemas.
SUBSCHEMAS = 4096
#: A value may make a validator look at this many keywords: about a second's work, at 4 ns each as measured.
KEYWORDS = 200_000_000
#: Where a union may fail, a value may make a validator look at this many to be told what failed: for each that does, in
#: each branch, the validator keeps an error, at 7 us and a kilobyte as measured.
UNION_KEYWORDS = 10_000

_SAME = ("not", "if", "then", "else")
UNIONS = ("anyOf", "oneOf")
_SAME_LISTS = ("allOf", *UNIONS)
_SAME_MAPS = ("dependentSchemas", "dependencies")
_EITHER = ("additionalProperties", "items", "additionalItems")
_EITHER_LISTS = ("prefixItems", "items")
_EITHER_MAPS = ("properties",)
_EACH = ("contains", "unevaluatedItems", "unevaluatedProperties", "propertyNames")
_EACH_MAPS = ("patternProperties",)
_BESIDE_MAPS = ("$defs", "definitions")
_ELSEWHERE = ("$dynamicRef", "$recursiveRef")


class Unbounded(ValueError):
    """The work of a schema has no bound that can be told, or one that is too high."""


@dataclass(slots=True)
class _Place:
    """A subschema: what else judges the same value, and what judges the values in it."""

    weight: int
    same: list[dict[str, Any]] = field(default_factory=list)
    either: list[dict[str, Any]] = field(default_factory=list)
    each: list[dict[str, Any]] = field(default_factory=list)
    beside: list[dict[str, Any]] = field(default_factory=list)


def bound(document: dict[str, Any]) -> tuple[int, ...]:
    """Count the keywords that a schema can have looked at on the way to one innermost value, by the value's levels.

    The last number holds for deeper values too.

    Raises:
        Unbounded: it refers to other places than `#/...`, has a nested `$id`, more than `SUBSCHEMAS` subschemas, or
            too much work even for a value without levels.
    """
    places = _survey(document)
    order = _innermost_first(places)
    below: dict[int, int] = dict.fromkeys(places, 0)
    counts: list[int] = []
    for _ in range(DEPTH + 1):
        here: dict[int, int] = {}
        for key in order:
            here[key] = min(KEYWORDS + 1, _work(places[key], here, below))
        counts.append(here[id(document)])
        if counts[-1] > KEYWORDS or here == below:
            break
        below = here
    if counts[0] > KEYWORDS:
        raise Unbounded("its references multiply; let each name the next one once")
    return tuple(counts)


def affordable(counts: tuple[int, ...], value: Any, keywords: int = KEYWORDS) -> bool:
    """Tell whether a value can be validated within so many keywords; 64 characters of text weigh as much as a value."""
    levels, size, inside = -1, 0, [value]
    while inside:
        levels += 1
        size += len(inside) + sum(len(item) for item in inside if isinstance(item, str)) // 64
        inside = [
            inner
            for item in inside
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
    return counts[min(levels, len(counts) - 1)] * size <= keywords


def _work(place: _Place, here: dict[int, int], below: dict[int, int]) -> int:
    beside = sum(here.get(id(schema), 0) for schema in place.same)
    inside = max((below[id(schema)] for schema in place.either), default=0)
    return place.weight + beside + inside + sum(below[id(schema)] for schema in place.each)


def _survey(document: dict[str, Any]) -> dict[int, _Place]:
    places: dict[int, _Place] = {}
    left = [document]
    while left:
        schema = left.pop()
        if id(schema) in places:
            continue
        if "$id" in schema and schema is not document:
            raise Unbounded("a nested $id moves what references mean; name definitions by #/$defs/...")
        place = places[id(schema)] = _place(document, schema)
        left += [*place.same, *place.either, *place.each, *place.beside]
        if len(places) > SUBSCHEMAS:
            raise Unbounded(f"it has more than {SUBSCHEMAS} subschemas; split it")
    return places


def _place(document: dict[str, Any], schema: dict[str, Any]) -> _Place:
    same = [*_found(schema, one=_SAME, lists=_SAME_LISTS, maps=_SAME_MAPS)]
    if any(keyword in schema for keyword in _ELSEWHERE):
        raise Unbounded("it has a dynamic reference; refer to #/$defs/...")
    if "$ref" in schema:
        same.append(_referred(document, schema["$ref"]))
    if any(keyword.startswith("unevaluated") for keyword in schema):
        # What was evaluated is found out by going through the others once more.
        same *= 2
    return _Place(
        weight=1 + len(schema) + sum(len(schema[k]) for k in ("enum", "required") if isinstance(schema.get(k), list)),
        same=same,
        either=[*_found(schema, one=_EITHER, lists=_EITHER_LISTS, maps=_EITHER_MAPS)],
        each=[*_found(schema, one=_EACH, maps=_EACH_MAPS)],
        beside=[*_found(schema, maps=_BESIDE_MAPS)],
    )


def _found(
    schema: dict[str, Any], *, one: Iterable[str] = (), lists: Iterable[str] = (), maps: Iterable[str] = ()
) -> Iterable[dict[str, Any]]:
    candidates = [schema.get(keyword) for keyword in one]
    for keyword in lists:
        candidates += schema[keyword] if isinstance(schema.get(keyword), list) else []
    for keyword in maps:
        candidates += schema[keyword].values() if isinstance(schema.get(keyword), dict) else []
    return (candidate for candidate in candidates if isinstance(candidate, dict))


def _referred(document: dict[str, Any], reference: Any) -> dict[str, Any]:
    """Follow a reference within the document. `True` and `False` are schemas without work."""
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")) or "%" in reference:
        raise Unbounded("a reference leaves the document; refer to #/$defs/...")
    found: Any = document
    for part in reference.split("/")[1:]:
        step = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and (found is document or "$id" not in found):
            found = found.get(step)
        elif isinstance(found, list) and step.isdecimal() and int(step[:9]) < len(found):
            found = found[int(step[:9])]
        else:
            found = None
    if isinstance(found, bool):
        return {}
    if not isinstance(found, dict):
        raise Unbounded("a reference leads nowhere; refer to #/$defs/...")
    return found


def _innermost_first(places: dict[int, _Place]) -> list[int]:
    """Order places so that whatever judges the same value comes first; a circle is cut, as the validator cuts it."""
    order: list[int] = []
    entered: set[int] = set()
    for start, place in places.items():
        path = [] if start in entered else [(start, iter(place.same))]
        entered.add(start)
        while path:
            key, others = path[-1]
            other = next((id(schema) for schema in others if id(schema) not in entered), None)
            if other is None:
                order.append(key)
                path.pop()
            else:
                entered.add(other)
                path.append((other, iter(places[other].same)))
    return order
