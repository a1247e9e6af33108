"""JSON as the ledger takes it: round trips, and every rejection by its name, at parse and at write."""

import datetime as dt
import decimal
import enum
import json
import math
import sys
import unicodedata
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pauseledger.domain.strict_json import (
    DEPTH,
    NUMBER_DIGITS,
    Unfit,
    canonical,
    copied,
    parse,
    reread,
    write,
    write_and_parse,
)

LIMIT = 4 * 1024 * 1024

text = st.text(st.characters(exclude_categories=["Cs"]))
json_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner) | st.dictionaries(text, inner),
    max_leaves=30,
)


def shuffled(value, rng):
    if isinstance(value, dict):
        items = [(key, shuffled(inner, rng)) for key, inner in value.items()]
        rng.shuffle(items)
        return dict(items)
    if isinstance(value, list):
        return [shuffled(inner, rng) for inner in value]
    return value


def spelled(value):
    """Tell 1 from 1.0 and True, 0.0 from -0.0, and one key order from another."""
    return repr(value)


def nested(levels, opening="[", inner="0", closing="]"):
    return opening * levels + inner + closing * levels


def name_of(call, *args, **options):
    with pytest.raises(Unfit) as caught:
        call(*args, **options)
    return caught.value.name


@given(json_data)
def test_what_came_in_is_read_back_the_fast_way_as_the_careful_one_reads_it(value):
    for raw in (write(value, limit=LIMIT), canonical(value, limit=LIMIT), json.dumps(value, indent=1).encode()):
        assert spelled(reread(raw)) == spelled(parse(raw, limit=LIMIT))
    assert spelled(copied(value)) == spelled(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_no_number_changes_on_the_way(number):
    assert spelled(reread(write(number, limit=LIMIT))) == spelled(number)
    assert spelled(reread(repr(number).encode())) == spelled(number)


@given(json_data)
def test_what_is_written_reads_back_with_its_key_order(value):
    raw = write(value, limit=LIMIT)
    assert spelled(parse(raw, limit=LIMIT)) == spelled(value)
    assert spelled(parse(raw.decode(), limit=LIMIT)) == spelled(value)
    assert spelled(write_and_parse(value, limit=LIMIT)) == spelled((raw, value))


@given(json_data)
def test_json_written_by_others_reads_the_same(value):
    assert spelled(parse(json.dumps(value), limit=LIMIT)) == spelled(value)
    assert spelled(parse(json.dumps(value, indent=3, ensure_ascii=False), limit=LIMIT)) == spelled(value)


@given(json_data, st.randoms(use_true_random=False))
def test_key_order_never_matters_to_the_canonical_bytes(value, rng):
    raw = canonical(value, limit=LIMIT)
    assert canonical(shuffled(value, rng), limit=LIMIT) == raw
    assert parse(raw, limit=LIMIT) == value
    assert canonical(parse(raw, limit=LIMIT), limit=LIMIT) == raw


@given(json_data, json_data)
def test_other_data_gives_other_canonical_bytes(one, other):
    if one != other:
        assert canonical(one, limit=LIMIT) != canonical(other, limit=LIMIT)


@given(st.binary(max_size=60) | st.text(max_size=60) | st.text('[]{}",:\\ud8eE+-0123456789.NaIfinty \n', max_size=60))
def test_whatever_comes_in_is_read_or_rejected_by_name(data):
    try:
        value = parse(data, limit=LIMIT)
    except Unfit:
        return
    assert spelled(parse(write(value, limit=LIMIT), limit=LIMIT)) == spelled(value)


def test_keys_are_sorted_by_code_point_and_numbers_stay_as_they_are():
    value = {"\U0001f600": 1, "\uffff": 2**53 + 1, "a": {"z": 1.0, "B": -0.0}, "": None}
    assert canonical(value, limit=LIMIT) == (
        '{"":null,"a":{"B":-0.0,"z":1.0},"\uffff":9007199254740993,"\U0001f600":1}'.encode()
    )


def test_null_and_absent_differ():
    assert canonical({"a": None}, limit=LIMIT) != canonical({}, limit=LIMIT)


@pytest.mark.parametrize(
    "carried",
    ["\x00", "a\u202eb\u2066", unicodedata.normalize("NFD", "é"), "é", "\U0010ffff", "\ufeff", "\u2028", "\x7f"],
)
def test_text_that_stores_choke_on_is_carried_unchanged(carried):
    value = {carried: [carried]}
    assert parse(write(value, limit=LIMIT), limit=LIMIT) == value
    assert parse(json.dumps(value), limit=LIMIT) == value


def test_composed_and_decomposed_are_two_keys():
    composed, decomposed = "\u00e9", "e\u0301"
    value = {composed: 1, decomposed: 2}
    assert parse(canonical(value, limit=LIMIT), limit=LIMIT) == value


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("", "not_json"),
        ("{", "not_json"),
        ("[1,]", "not_json"),
        ("'a'", "not_json"),
        ("01", "not_json"),
        ("1 2", "not_json"),
        ('"\x00"', "not_json"),
        ("nan", "not_json"),
        ("]" * 70 + "[" * 70, "not_json"),
        ("[" * 64, "not_json"),
        (b"\xff\xfe[\x00]\x00", "not_utf8"),
        ("[1]".encode("utf-16-be"), "not_json"),
        (b'"\xed\xa0\x80"', "not_utf8"),
        (b'"\xc0\x80"', "not_utf8"),
        (b"\xef\xbb\xbf[]", "byte_order_mark"),
        ("\ufeff[]", "byte_order_mark"),
        ("NaN", "nan"),
        ('{"a":[NaN]}', "nan"),
        ("[Infinity]", "infinity"),
        ("[-Infinity]", "infinity"),
        ("1e999", "infinity"),
        ("-1E+0999", "infinity"),
        ("9" * 310 + ".5", "infinity"),
        ("9" * 250 + "e99", "infinity"),
        ('"\\ud800"', "lone_surrogate"),
        ('{"\\uDFFF":1}', "lone_surrogate"),
        ('"\\ude00\\ud83d"', "lone_surrogate"),
        ('"\ud800"', "lone_surrogate"),
        ('{"a":1,"a":1}', "duplicate_key"),
        ('[{"b":{"a":1,"\\u0061":2}}]', "duplicate_key"),
    ],
)
def test_rejected_by_name_when_read(data, name):
    assert name_of(parse, data, limit=LIMIT) == name


class Colour(enum.StrEnum):
    RED = "red"


class Oddly(str):
    __slots__ = ()
    __hash__ = object.__hash__


CYCLE: list = []
CYCLE.append({"a": CYCLE})


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (math.nan, "nan"),
        ({"a": [1, math.nan]}, "nan"),
        ({math.nan: 1}, "nan"),
        (math.inf, "infinity"),
        ([-math.inf], "infinity"),
        (("a", "\ud800"), "lone_surrogate"),
        ({"\udfff": 1}, "lone_surrogate"),
        ({1: "a", "1": "b"}, "duplicate_key"),
        ([{True: 0, "true": 0}], "duplicate_key"),
        ({None: 0, "null": 0}, "duplicate_key"),
        ({Oddly("a"): 0, "a": 0}, "duplicate_key"),
        (10**400, "number_too_long"),
        ([-(10**400)], "number_too_long"),
        ({"a": 10**4300}, "number_too_long"),
        ({10**5000: 1}, "number_too_long"),
        (CYCLE, "not_json"),
        (b"bytes", "not_json"),
        ({"a": decimal.Decimal(1)}, "not_json"),
        (dt.datetime(2030, 1, 1, tzinfo=dt.UTC), "not_json"),
        ({1, 2}, "not_json"),
        (object(), "not_json"),
        ({(1, 2): 3}, "not_json"),
    ],
)
@pytest.mark.parametrize("writer", [write, canonical])
def test_rejected_by_name_when_written(writer, value, name):
    assert name_of(writer, value, limit=LIMIT) == name


def test_what_json_can_carry_is_written_whatever_class_it_has():
    class Many(int):
        def __repr__(self):
            return "many"

    value = OrderedDict(a=(1, Colour.RED), b=Many(3), c=[True])
    assert write(value, limit=LIMIT) == b'{"a":[1,"red"],"b":3,"c":[true]}'
    assert canonical({10: 1, 9: 2, 1.5: 3, None: 4}, limit=LIMIT) == b'{"1.5":3,"10":1,"9":2,"null":4}'


@pytest.mark.parametrize(
    ("opening", "closing"), [("[", "]"), ('{"a":', "}"), ('{"]\\"}\\\\":', "}"), ('["[[[\\"",', "]")]
)
def test_nesting_ends_at_the_depth(opening, closing):
    deepest = nested(DEPTH, opening, "0", closing)
    value = parse(deepest, limit=LIMIT)
    assert parse(canonical(value, limit=LIMIT), limit=LIMIT) == value
    assert name_of(parse, nested(DEPTH + 1, opening, "0", closing), limit=LIMIT) == "too_deep"
    for deeper in ([value], {"a": value}, (value,)):
        assert name_of(write, deeper, limit=LIMIT) == "too_deep"
        assert name_of(canonical, deeper, limit=LIMIT) == "too_deep"


def test_many_brackets_beside_each_other_or_in_text_are_not_deep():
    value = [[[]]] * 500 + ["[" * 500, '"' * 99 + "{" * 99, "\\" * 7 + '"{["' * 99, {'\\"[' * 40: {"{" * 99: []}}]
    assert parse(write(value, limit=LIMIT), limit=LIMIT) == value


def test_numbers_end_at_their_digits():
    for longest in ("9" * NUMBER_DIGITS, "-" + "9" * NUMBER_DIGITS):
        value = parse(f"[{longest}]", limit=LIMIT)
        assert value == [int(longest)]
        assert write(value, limit=LIMIT).decode() == canonical(value, limit=LIMIT).decode() == f"[{longest}]"
        assert name_of(parse, f"[{longest}0]", limit=LIMIT) == "number_too_long"
        assert name_of(write, [int(longest) * 10], limit=LIMIT) == "number_too_long"
    assert parse("0." + "3" * (NUMBER_DIGITS - 1), limit=LIMIT) == 1 / 3
    assert name_of(parse, "0." + "3" * NUMBER_DIGITS, limit=LIMIT) == "number_too_long"
    assert name_of(parse, "1e-" + "0" * NUMBER_DIGITS, limit=LIMIT) == "number_too_long"
    assert parse("1e-999", limit=LIMIT) == 0.0
    assert parse("1e+0000005", limit=LIMIT) == 1e5


def test_text_that_looks_like_a_long_number_is_text():
    value = ["1e999", "9" * 5000, "\\ud800", "\\\\ud800", "NaN"]
    assert parse(write(value, limit=LIMIT), limit=LIMIT) == value


def test_the_size_is_counted_in_bytes_and_before_anything_else():
    assert write("é", limit=4) == b'"\xc3\xa9"'
    assert parse('"é"', limit=4) == "é"
    for call, data in ((write, "é"), (canonical, "é"), (parse, '"é"'), (parse, '"é"'.encode()), (parse, b"\xff" * 4)):
        assert name_of(call, data, limit=3) == "too_large"


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("[" * LIMIT, "too_deep"),
        ('{"a":' * (LIMIT // 5), "too_deep"),
        ('[{"":' * (LIMIT // 5), "too_deep"),
        ("[" * 65 + '"' * (LIMIT - 65), "too_deep"),
        ("[]" * (LIMIT // 2), "not_json"),
        ("[" + "{}," * (LIMIT // 3 - 2) + "1e999]", "infinity"),
        ('"' + "\\" * (LIMIT - 2) + '"', None),
    ],
)
def test_hostile_text_ends(data, name):
    if name is None:
        assert parse(data, limit=LIMIT).strip("\\") == ""
    else:
        assert name_of(parse, data, limit=LIMIT) == name


def test_a_hostile_number_ends():
    assert name_of(parse, "1" * 10_000_000, limit=10_000_000) == "number_too_long"
    assert parse('"' + "1" * 10_000_000 + '"', limit=10_000_002) == "1" * 10_000_000


def test_a_raised_recursion_limit_changes_nothing():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000_000)
    try:
        assert name_of(parse, "[" * 500_000 + "]" * 500_000, limit=LIMIT) == "too_deep"
    finally:
        sys.setrecursionlimit(before)


def test_deep_data_never_lets_a_recursion_error_out():
    value: list = []
    for _ in range(100_000):
        value = [value]
    assert name_of(write, value, limit=LIMIT) == "too_deep"


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (parse, '{"secret-word":1,"secret-word":'),
        (parse, '"secret-word\ud800"'),
        (write, {"secret-word": b"secret-word"}),
        (write, ["secret-word", "\ud800"]),
    ],
)
def test_no_error_quotes_what_was_given(call, value):
    with pytest.raises(Unfit) as caught:
        call(value, limit=LIMIT)
    assert "secret-word" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_threads_do_not_disturb_each_other():
    values = [{f"k{n}": [{f"k{n}": n}] * 50} for n in range(16)]
    with ThreadPoolExecutor(8) as pool:
        assert (
            list(pool.map(lambda value: parse(canonical(value, limit=LIMIT), limit=LIMIT), values * 20)) == values * 20
        )


@pytest.mark.parametrize("digits", [399, 400, 401, 402, 450, 4000])
def test_a_number_with_too_many_digits_is_found_wherever_it_stands(digits):
    for before in range(0, 260, 7):
        value = ["x" * before, 10 ** (digits - 1)]
        if digits <= NUMBER_DIGITS:
            assert write(value, limit=10_000)
        else:
            with pytest.raises(Unfit, match="number_too_long"):
                write(value, limit=10_000)
