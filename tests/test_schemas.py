"""Schemas made ready: validation, digests, and values and schemas that would blow them up."""

import contextlib
import hashlib
import json
import uuid
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Annotated, Literal

import pytest
from pauseledger.domain.answers import APPROVAL_RESPONSE
from pauseledger.domain.errors import InteractionConfigurationError
from pauseledger.domain.interactions import Objection, SchemaMismatch
from pauseledger.domain.strict_json import canonical
from pauseledger.infrastructure import schema_work
from pauseledger.infrastructure.schemas import compile_schema
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, model_validator


def pointer_of(schema, value):
    compiled = compile_schema(schema)
    with pytest.raises(SchemaMismatch) as caught:
        compiled.validate(value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    return caught.value.pointer


def refused(schema):
    with pytest.raises(InteractionConfigurationError) as caught:
        compile_schema(schema)
    return str(caught.value)


# --- JSON Schema ---


def test_the_digest_is_over_canonical_json_and_later_changes_do_not_reach_in():
    schema = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}
    compiled = compile_schema(schema)
    assert compiled.digest == hashlib.sha256(canonical(schema, limit=1000)).hexdigest()
    assert (
        compile_schema({"properties": {"a": {}, "b": {"type": "integer"}}, "type": "object"}).digest == compiled.digest
    )
    schema["properties"]["b"]["type"] = "string"
    assert compiled.validate({"b": 1}) == {"b": 1}
    assert compile_schema(schema).digest != compiled.digest


@pytest.mark.parametrize(
    ("schema", "value", "pointer"),
    [
        ({"type": "integer"}, "secret", "/type"),
        ({"properties": {"a/b~c": {"type": "string"}}}, {"a/b~c": 1}, "/properties/a~1b~0c/type"),
        ({"additionalProperties": False}, {"secret": 1}, "/additionalProperties"),
        ({"propertyNames": {"maxLength": 3}}, {"secret": 1}, "/propertyNames/maxLength"),
        ({"$ref": "#/$defs/y", "$defs": {"y": {"items": {"maximum": 1}}}}, [0, 5], "/$defs/y/items/maximum"),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, 5, "/anyOf"),
        ({"const": 2**53 + 1}, 2**53, "/const"),
        ({"not": {}}, 1, "/not"),
    ],
)
def test_the_pointer_names_the_keyword_and_nothing_of_the_value(schema, value, pointer):
    assert pointer_of(schema, value) == pointer


def test_big_numbers_are_compared_exactly():
    assert compile_schema({"const": 10**399}).validate(10**399) == 10**399
    assert pointer_of({"maximum": 10**399 - 1}, 10**399) == "/maximum"


def test_the_draft_is_the_newest_unless_the_schema_says_otherwise():
    tuple_of_two = {"items": [{"type": "integer"}, {"type": "string"}]}
    refused(tuple_of_two)
    older = {"$schema": "http://json-schema.org/draft-07/schema#", **tuple_of_two}
    assert pointer_of(older, [1, 2]) == "/items/1/type"
    assert pointer_of({"prefixItems": [{}, {"type": "string"}]}, [1, 2]) == "/prefixItems/1/type"


def test_format_is_a_note():
    assert compile_schema({"format": "email"}).validate("no address") == "no address"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nope"},
        {"properties": []},
        {"pattern": "("},
        {"pattern": "(?=a)"},
        {"pattern": "(a{1000}){1000}"},
        {"$schema": "http://example.com/meta"},
        {"$ref": "http://example.com/a"},
        {"$ref": "https://json-schema.org/draft/2020-12/schema"},
        {"$ref": "file:///etc/hostname"},
        {"$ref": "other.json"},
        {"$ref": "#anchor", "$defs": {"a": {"$anchor": "anchor"}}},
        {"$ref": "#/$defs/none"},
        {"$ref": "#/$defs/a", "$defs": {"a": 5}},
        {"$ref": 5},
        {"$id": "http://example.com/a", "properties": {"a": {"$ref": "b"}}},
        {"$defs": {"a": {"$id": "http://example.com/a"}}},
        {"$defs": {"unused": {"$ref": "http://example.com/a"}}},
        {"default": {"$ref": "x"}, "items": {"allOf": [{"$ref": "http://example.com/a"}]}},
        {"allOf": [{"$dynamicRef": "#n"}], "$dynamicAnchor": "n"},
        {"const": float("nan")},
        {"const": b"bytes"},
        {"const": "x" * 256 * 1024},
        {"allOf": [{}] * 5000},
        [],
        True,
        int,
        None,
    ],
)
def test_what_is_no_schema_or_refers_elsewhere_is_a_configuration_error(schema):
    refused(schema)


@pytest.mark.parametrize("schema", [{"contentSchema": {"$ref": "HERE"}}, {"$schema": "HERE"}, {"$ref": "HERE"}])
def test_not_even_a_file_that_is_there_is_read(schema, tmp_path):
    (tmp_path / "a.json").write_text("{}")
    here = (tmp_path / "a.json").as_uri()
    refused(json.loads(json.dumps(schema).replace("HERE", here)))


def nested(levels):
    schema = {}
    for _ in range(levels):
        schema = {"not": schema}
    return schema


def test_a_schema_ends_at_the_depth():
    compile_schema(nested(63))
    assert "too_deep" in refused(nested(64))


def test_a_bad_schema_is_not_quoted():
    assert "secret" not in refused({"type": "secret"})
    assert "secret" not in refused({"$ref": "http://secret.example"})


# --- what would blow up ---


def test_a_hostile_pattern_ends():
    assert pointer_of({"pattern": "^(a+)+$"}, "a" * 100_000 + "!") == "/pattern"
    assert pointer_of({"pattern": "^(0|1|01|10|001)*1(0|1){200}[a-z]"}, "01" * 50_000) == "/pattern"


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}},
        {"not": {"$ref": "#"}},
    ],
)
def test_a_schema_that_names_itself_ends(schema):
    with contextlib.suppress(SchemaMismatch, InteractionConfigurationError):
        compile_schema(schema).validate([1])


def doubling(levels, **last):
    definitions = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/a0", "$defs": {**definitions, f"a{levels}": last}}


def test_references_that_multiply_are_refused_when_compiled():
    assert pointer_of(doubling(8, type="integer"), "x") == "/$defs/a8/type"
    assert "multiply" in refused(doubling(50, type="integer"))


@pytest.mark.parametrize("keyword", ["items", "additionalProperties"])
def test_a_schema_that_doubles_with_every_level_of_the_value_is_stopped(keyword):
    schema = compile_schema({"allOf": [{keyword: {"$ref": "#"}}, {keyword: {"$ref": "#"}}]})
    value, deep = 1, 1
    for level in range(60):
        value = [value] if keyword == "items" else {"a": value}
        deep = value if level == 5 else deep
    assert schema.validate(deep) == deep
    with pytest.raises(SchemaMismatch):
        schema.validate(value)


def branches(*types):
    return {"anyOf": [{"type": "array", "items": {"type": kind}} for kind in types]}


def test_a_value_that_fails_everywhere_in_every_branch_makes_no_error_of_each(monkeypatch):
    schema, wrong = compile_schema(branches("integer", "boolean", "null")), ["x"] * 60_000
    # The validator keeps an error for each keyword that failed, and shows it to Python: 15 s, 2 GB, for ten branches.
    validator = schema._validator
    monkeypatch.setattr(schema, "_validator", SimpleNamespace(is_valid=validator.is_valid))
    with pytest.raises(SchemaMismatch) as caught:
        schema.validate(wrong)
    assert caught.value.pointer == ""
    assert schema.validate([1] * 60_000) == [1] * 60_000


@pytest.mark.parametrize(
    ("value", "pointer"),
    [
        ({"decision": "edit", "arguments": 1}, "/oneOf/1/properties/arguments/type"),
        ({"decision": "reject"}, "/oneOf/2/required"),
        ({"decision": "approve", "arguments": {}}, "/oneOf/0/additionalProperties"),
        ({"decision": "perhaps"}, "/oneOf"),
        ({}, "/oneOf"),
        ("approve", "/oneOf"),
    ],
)
def test_the_branch_that_was_meant_is_told(value, pointer):
    assert pointer_of(APPROVAL_RESPONSE, value) == pointer


def test_a_branch_of_another_type_was_not_meant():
    either = {
        "anyOf": [
            {"type": "null"},
            {"type": "object", "properties": {"a": {"anyOf": [{"type": "null"}, {"minimum": 5}]}}},
        ]
    }
    assert pointer_of(either, {"a": 1}) == "/anyOf/1/properties/a/anyOf/1/minimum"
    assert pointer_of(either, 1) == "/anyOf"
    assert pointer_of({"anyOf": [{"minLength": 3}, {"maxLength": 1}]}, "ab") == "/anyOf"


def test_a_tree_of_any_depth_is_no_hostile_schema():
    tree = {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}]}
    value, wrong = 1, "x"
    for _ in range(60):
        value, wrong = [value], [wrong]
    assert compile_schema(tree).validate(value) == value
    assert pointer_of(tree, [["x"]]) == "/anyOf"
    # So deep a value may fail in too many branches of branches to be told in which.
    assert pointer_of(tree, wrong) == ""


def test_the_bound_counts_levels_and_widths():
    assert schema_work.bound({"type": "integer"}) == (2, 2)
    counts = schema_work.bound({"properties": {"a": {"type": "integer"}, "b": {}}})
    assert counts == (2, 4, 4)
    assert schema_work.affordable((schema_work.KEYWORDS,), 1)
    assert not schema_work.affordable((schema_work.KEYWORDS,), [1])
    assert not schema_work.affordable((schema_work.KEYWORDS,), "x" * 64)


def test_unique_items_of_a_big_array_end():
    schema = {"uniqueItems": True}
    assert compile_schema(schema).validate(list(range(60_000)))
    assert pointer_of(schema, [{"a": n} for n in range(20_000)] + [{"a": 5.0}]) == "/uniqueItems"


def test_a_lone_surrogate_is_refused_and_nothing_is_raised_that_quotes_it():
    assert pointer_of({"type": "string"}, "\ud800") == ""


# --- models ---


def test_a_model_of_which_everything_fails_is_told_without_a_place():
    class Numbers(BaseModel):
        all: list[int]

    assert pointer_of(Numbers, {"all": ["x"]}) == "/properties/all/items"
    assert pointer_of(Numbers, {"all": ["x"] * 1001}) == ""


class Line(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sku: str
    count: int = Field(gt=0)
    note: str | None = None


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: uuid.UUID
    lines: list[Line] = []
    kind: Literal["new", "old"] = "new"
    by_person: Annotated[int | None, Field(alias="byPerson")] = None
    tags: dict[str, int] = {}


def test_null_and_absent_stay_apart_and_aliases_stay():
    order = compile_schema(Order)
    identity = "12345678-1234-5678-1234-567812345678"
    for value in (
        {"id": identity},
        {"id": identity, "byPerson": None},
        {"id": identity, "lines": [{"sku": "a", "count": 1, "note": None}]},
    ):
        assert order.validate(value) == value


def test_a_model_spells_a_value_its_own_way():
    assert compile_schema(Order).validate({"id": "12345678123456781234567812345678"}) == {
        "id": "12345678-1234-5678-1234-567812345678"
    }


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"id": "secret"}, "/properties/id"),
        ({"lines": [{"sku": "a", "count": 0}]}, "/$defs/Line/properties/count"),
        ({"lines": [{"sku": "a"}]}, "/$defs/Line/properties/count"),
        ({"lines": [{"sku": "a", "count": 1, "secret": 1}]}, "/$defs/Line/additionalProperties"),
        ({"lines": 3}, "/properties/lines"),
        ({"secret": 3}, "/additionalProperties"),
        ({"tags": {"secret": "x"}}, "/properties/tags/additionalProperties"),
        ({"byPerson": "x"}, "/properties/byPerson"),
    ],
)
def test_a_models_pointer_names_the_schema_and_nothing_of_the_value(change, pointer):
    assert pointer_of(Order, {"id": str(uuid.uuid4()), **change}) == pointer


def test_the_digest_of_a_model_is_over_its_json_schema():
    class Other(Order):
        more: int

    described = Order.model_json_schema(mode="validation", by_alias=True)
    assert compile_schema(Order).digest == hashlib.sha256(canonical(described, limit=10_000)).hexdigest()
    assert compile_schema(Other).digest != compile_schema(Order).digest


def test_a_root_model_is_its_root():
    class Labels(RootModel[list[str]]):
        pass

    assert compile_schema(Labels).validate(["a"]) == ["a"]
    assert pointer_of(Labels, ["a", 1]) == "/items"


def test_a_validator_that_fails_lets_nothing_through():
    def broken(value):
        raise KeyError(value)

    class Broken(BaseModel):
        a: Annotated[int, AfterValidator(broken)]

    class Endless(BaseModel):
        a: Annotated[float, AfterValidator(lambda value: value * float("inf"))]

    assert pointer_of(Broken, {"a": 1}) == ""
    with pytest.raises(Objection, match="^infinity$"):
        compile_schema(Endless).validate({"a": 1})


def test_a_model_that_json_cannot_describe_is_a_configuration_error():
    class Odd(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        a: memoryview

    assert "Odd" in refused(Odd)


@pytest.mark.parametrize("value", ["\x00", "a\u202eb", "e\u0301", "\u00e9"])
def test_text_that_stores_choke_on_is_carried_by_both(value):
    class Said(BaseModel):
        said: str

    assert compile_schema(Said).validate({"said": value}) == {"said": value}
    assert compile_schema({"const": value}).validate(value) == value


def test_threads_share_a_schema():
    schemas = [compile_schema(Order), compile_schema({"required": ["id"]})]
    values = [{"id": str(uuid.UUID(int=n)), "tags": {"a": n}} for n in range(200)]
    with ThreadPoolExecutor(8) as pool:
        for schema in schemas:
            assert list(pool.map(schema.validate, values)) == values


def called(value):
    return value


class Plain(BaseModel):
    note: str = Field(max_length=9, pattern="^a*$")
    many: list[int] = []


class Calling(BaseModel):
    inner: list[Annotated[str, AfterValidator(called)]]


class Made(BaseModel):
    when: list[int] = Field(default_factory=list)


class Checked(BaseModel):
    note: str

    @model_validator(mode="after")
    def fits(self):
        return self


@pytest.mark.parametrize(
    ("schema", "prompt"),
    [
        (Plain, True),
        (Calling, False),
        (Made, False),
        (Checked, False),
        ({"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}}, True),
        ({"type": "object", "properties": {"a": {"pattern": "^a*$"}}}, False),
        ({"patternProperties": {"^a": {"type": "string"}}}, False),
        ({"allOf": [{"type": "object", "title": str(place)} for place in range(200)]}, False),
    ],
)
def test_a_schema_is_prompt_where_it_runs_no_code_of_the_hosts_and_costs_little(schema, prompt):
    assert compile_schema(schema).prompt is prompt
