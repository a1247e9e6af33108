"""JSON as the ledger takes it: what cannot be carried is rejected by name, when it comes in."""

import hashlib
import json
import math
from itertools import accumulate
from typing import Any

from pydantic_core import from_json, to_json

#: Arrays and objects may stand this many levels inside each other.
DEPTH = 64
#: A number may have this many digits as written, exponent included.
NUMBER_DIGITS = 400
#: The largest text the ledger takes at all, in bytes: a turn's.
LARGEST = 4 * 1024 * 1024

_SAYS = {
    "not_json": "pass JSON text (RFC 8259), or Python data made of dict, list, tuple, str, int, float, bool and None; "
    "convert anything else first, a client's objects by their `model_dump()`",
    "not_utf8": "encode the text as UTF-8",
    "byte_order_mark": "pass the text without a byte order mark",
    "nan": "NaN is not JSON; pass null or text",
    "infinity": "infinities, and numbers that overflow to one, are not JSON; pass a smaller number, or text",
    "lone_surrogate": "half of a surrogate pair is not text; pass whole characters",
    "duplicate_key": "two keys of one object are the same text; keep one",
    "too_deep": f"nest arrays and objects at most {DEPTH} levels deep",
    "number_too_long": f"write numbers with at most {NUMBER_DIGITS} digits, or pass them as text",
    "too_large": "pass less, or a reference to it",
}
_TOO_LONG = 10**NUMBER_DIGITS


class Unfit(ValueError):
    """What was given is not JSON that the ledger can carry. The message never quotes it.

    Attributes:
        name: Which way it does not fit: not_json, not_utf8, byte_order_mark, nan, infinity, lone_surrogate,
            duplicate_key, too_deep, number_too_long or too_large.
        says: What to do instead.
    """

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}: {_SAYS[name]}")
        self.name, self.says = name, _SAYS[name]


def parse(data: bytes | str, *, limit: int) -> Any:
    """Read JSON text of at most `limit` bytes (UTF-8).

    Text is carried as it is written: U+0000, bidi controls, composed and decomposed characters (which are different
    texts, also as keys). Why duplicate keys are rejected and not resolved: RFC 8259 section 4 leaves their meaning
    to each reader, so two readers of one answer could see two answers.

    Raises:
        Unfit: by name.
    """
    raw = _encoded(data, limit)
    if raw.startswith(b"\xef\xbb\xbf"):
        raise Unfit("byte_order_mark")
    if raw.count(b"[") + raw.count(b"{") > DEPTH and _nesting(raw) > DEPTH:
        raise Unfit("too_deep")
    value = _decoded(raw)
    if b"\\" in raw and (b"\\ud" in raw or b"\\uD" in raw):
        _encoded(_dumped(_AS_GIVEN, value), limit=len(raw))
    return value


def reread(raw: bytes) -> Any:
    """Read back what `parse`, `write` or `canonical` let through, in an eighth of the time of `parse`.

    For bytes that a digest proves to be those that came in: nothing is judged again.

    Raises:
        Unfit: not_json.
    """
    try:
        return from_json(raw, allow_inf_nan=False)
    except ValueError:
        pass
    raise Unfit("not_json")


def copied(parsed: Any) -> Any:
    """Copy what `parse` gave, to hand it to a stranger."""
    return from_json(to_json(parsed))


def write(value: Any, *, limit: int) -> bytes:
    """Write Python data as compact UTF-8 JSON of at most `limit` bytes, keys in the order they have.

    Keys that are not text become text as JSON spells them; keys that then collide are `duplicate_key`.

    Raises:
        Unfit: by name.
    """
    return write_and_parse(value, limit=limit)[0]


def write_and_parse(value: Any, *, limit: int) -> tuple[bytes, Any]:
    """Write Python data as `write` does, and give beside it what a reader of these bytes will see.

    Nothing is written that does not read back; whoever needs both has them for the price of one.

    Raises:
        Unfit: by name.
    """
    raw, read = _quickly(value) or (b"", None)
    if raw and len(raw) <= limit:
        return raw, read
    raw = _encoded(_dumped(_AS_GIVEN, value), limit)
    return raw, parse(raw, limit=limit)


def canonical(value: Any, *, limit: int) -> bytes:
    """Write Python data so that equal data gives equal bytes: compact UTF-8, keys sorted by code point at every level.

    Deliberately not RFC 8785 (JCS): that one turns every number into a double, so that 2**53 + 1 would become 2**53
    and 1.0 become 1, and the bytes hashed would not say what was given. Here a number stays as it is: 1 and 1.0
    differ, as do 0.0 and -0.0.

    Raises:
        Unfit: by name.
    """
    return canonical_of(write_and_parse(value, limit=limit)[1], limit=limit)


def canonical_of(parsed: Any, *, limit: int) -> bytes:
    """Write what `parse` or `write_and_parse` gave, as `canonical` does; it is known to be carried, and costs half.

    Raises:
        Unfit: too_large.
    """
    return _encoded(_dumped(_SORTED, parsed), limit)


def digest(value: Any) -> str:
    """Digest Python data of at most `LARGEST` bytes: SHA-256 over its canonical JSON, lower-case hex.

    Raises:
        Unfit: by name.
    """
    return hashlib.sha256(canonical(value, limit=LARGEST)).hexdigest()


def _quickly(value: Any) -> tuple[bytes, Any] | None:
    """Write and read back what is plain JSON data already; None where there is anything to object to, or to convert.

    What reads back equal to what was given was nothing else: pydantic writes sets, models or times too, and none of
    them equals its JSON; keys that are no text differ as well, and so no two can have collided.
    """
    try:
        raw = to_json(value)
        read = from_json(raw, allow_inf_nan=False)
        same = bool(read == value)
    except Exception:  # noqa: BLE001 - whatever a stranger's object raises here, the careful way names it
        return None
    # A float that is finite is written so that it stays so; whole numbers alone can have too many digits: then three
    # of every 128th byte in a row are digits.
    plain = same and (b"000" not in raw[::128].translate(_SHAPE) or _LONG_RUN not in raw.translate(_SHAPE))
    return (raw, read) if plain and (raw.count(b"[") + raw.count(b"{") <= DEPTH or _levels(read) <= DEPTH) else None


def _levels(read: Any) -> int:
    """Count how many arrays and objects stand inside each other."""
    levels, level = 0, [read] if type(read) in _NESTS else []
    while level:
        levels += 1
        inner = (item for part in level for item in (part.values() if type(part) is dict else part))
        level = [item for item in inner if type(item) in _NESTS]
    return levels


def _encoded(data: bytes | str, limit: int) -> bytes:
    """Give the bytes of a text that is not too large; a character has at least one."""
    if len(data) > limit:
        raise Unfit("too_large")
    if isinstance(data, bytes):
        return data
    try:
        raw = data.encode()
    except UnicodeEncodeError:
        raw = None
    if raw is None:
        # Raised out here, so that no traceback drags along an error that holds the text.
        raise Unfit("lone_surrogate")
    if len(raw) > limit:
        raise Unfit("too_large")
    return raw


def _nesting(raw: bytes) -> int:
    """Measure the deepest nesting without recursion; exact for JSON, and for what comes before the fault in others."""
    if b"\\" in raw:
        raw = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = b"".join(raw.translate(None, _NO_STRUCTURE).split(b'"')[::2])
    if outside.startswith(b"[" * (DEPTH + 1)):
        return DEPTH + 1
    return max(accumulate(map(_STEP.__getitem__, outside)), default=0)


def _decoded(raw: bytes) -> Any:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = None
    if text is None:
        raise Unfit("not_utf8")
    try:
        return (_CAREFUL if _has_wild_numbers(raw) else _PLAIN).decode(text)
    except Unfit:
        raise
    except RecursionError:
        # At most 64 levels are left by now: the caller's own stack is all but used up.
        name = "too_deep"
    except ValueError:
        name = "not_json"
    raise Unfit(name)


def _dumped(encoder: json.JSONEncoder, value: Any) -> str:
    try:
        return encoder.encode(value)
    except RecursionError:
        name = "too_deep"
    except TypeError:
        name = "not_json"
    except ValueError:
        name = _fault(value)
    raise Unfit(name)


def _fault(value: Any) -> str:
    """Name what the encoder would not write; without recursion, for there may be a cycle."""
    left, seen = [value], set()
    while left:
        item = left.pop()
        if isinstance(item, float):
            if not math.isfinite(item):
                return "nan" if math.isnan(item) else "infinity"
        elif isinstance(item, int):
            if abs(item) >= _TOO_LONG:
                return "number_too_long"
        elif isinstance(item, dict | list | tuple) and id(item) not in seen:
            seen.add(id(item))
            left += [*item, *item.values()] if isinstance(item, dict) else item
    return "not_json"


def _has_wild_numbers(raw: bytes) -> bool:
    """Tell whether a number may be too long or overflow; text that looks like one costs time and nothing else.

    A double overflows past 10**308: that takes an exponent of three digits, or some two hundred digits in one run.
    """
    shape = raw.translate(_SHAPE)
    return b"e000" in shape or b"e-000" in shape or _LONG_RUN in shape


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise Unfit("duplicate_key")
    return made


def _constant(token: str) -> Any:
    raise Unfit("nan" if token == "NaN" else "infinity")  # noqa: S105 - a JSON token


def _whole(literal: str) -> int:
    _require_short(literal)
    return int(literal)


def _fraction(literal: str) -> float:
    _require_short(literal)
    number = float(literal)
    if math.isinf(number):
        raise Unfit("infinity")
    return number


def _require_short(literal: str) -> None:
    if len(literal) > NUMBER_DIGITS and sum(map(str.isdigit, literal)) > NUMBER_DIGITS:
        raise Unfit("number_too_long")


_NESTS = (dict, list)
#: Every digit as 0, either e as e, either sign as -: enough to spot an unusual number.
_SHAPE = bytes.maketrans(b"123456789E+", b"000000000e-")
_LONG_RUN = b"0" * 150
_NO_STRUCTURE = bytes(sorted(set(range(256)) - set(b'[]{}"')))
_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_PLAIN = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_constant)
_CAREFUL = json.JSONDecoder(
    object_pairs_hook=_unique, parse_constant=_constant, parse_int=_whole, parse_float=_fraction
)
_AS_GIVEN = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_SORTED = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True)
