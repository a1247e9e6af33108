"""Schemas made ready: JSON Schema by jsonschema-rs, models by pydantic; no value can blow them up."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import jsonschema_rs
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from ..domain.errors import InteractionConfigurationError
from ..domain.interactions import VALUE_BYTES, Objection, Schema, SchemaMismatch, SchemaSource
from ..domain.strict_json import Unfit, canonical, parse, write_and_parse
from .schema_work import KEYWORDS, UNION_KEYWORDS, UNIONS, Unbounded, affordable, bound

_Failed = jsonschema_rs.ValidationErrorKind

#: A JSON Schema may have this many bytes as canonical JSON.
SCHEMA_BYTES = 256 * 1024
#: A compiled pattern may take this many bytes. The engine is linear in the text, with a factor that grows with this:
#: measured, 256 KiB of text cost at most some seconds, where a megabyte allowed a quarter of a minute.
PATTERN_BYTES = 128 * 1024
#: What the lazily built automaton of a pattern may cache, in bytes.
PATTERN_CACHE_BYTES = 1024 * 1024
#: A schema that can have no more keywords looked at for a value than this, and has no pattern, is prompt: at 4 ns each,
#: the smallest values that fill `VALUE_BYTES` take 50 ms.
PROMPT_KEYWORDS = 100
#: Of a model's errors that are more, the first one's place is not told: pydantic makes all of them to tell one.
MODEL_ERRORS = 1000
#: What of a model's core schema calls the host's own code.
_CALLS = {"function-before", "function-after", "function-wrap", "function-plain", "custom-error"}
_CALLING = {"post_init", "custom_init", "default_factory", "serialization"}


def compile_schema(schema: SchemaSource) -> Schema:
    """Make a schema ready.

    A JSON Schema is Draft 2020-12 unless its `$schema` names another known draft. `format` is a note and asserts
    nothing. References stay within the document (`#/...`); nothing is ever fetched.

    Raises:
        InteractionConfigurationError: it is no schema, refers elsewhere, or its work has no bound.
    """
    if isinstance(schema, dict):
        return _JsonSchema(schema)
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        return _ModelSchema(schema)
    raise InteractionConfigurationError(
        "a schema is a pydantic model class or a JSON Schema as a dict; pass one of them"
    )


class _JsonSchema:
    def __init__(self, schema: dict[str, Any]) -> None:
        document, self.digest = _frozen(schema)
        problem = ""
        keywords = set[str]().union(*_objects(document))
        self.prompt = not {"pattern", "patternProperties"} & keywords
        self._unions = bool(keywords.intersection(UNIONS))
        try:
            self._counts = bound(document)
            # A value has fewer places than bytes. Most schemas are so small that none has to be measured.
            self._any_value = max(self._counts) * VALUE_BYTES <= KEYWORDS
            self.prompt = self.prompt and max(self._counts) <= PROMPT_KEYWORDS
            self._validator = jsonschema_rs.validator_for(
                document,
                validate_formats=False,
                retriever=_refuse,
                pattern_options=jsonschema_rs.RegexOptions(
                    size_limit=PATTERN_BYTES, dfa_size_limit=PATTERN_CACHE_BYTES
                ),
            )
        except Unbounded as unbounded:
            problem = str(unbounded)
        except jsonschema_rs.ValidationError as invalid:
            problem = f"it is not valid at {_pointer(invalid.instance_path) or 'its root'}"
        except (ValueError, jsonschema_rs.ReferencingError):
            problem = "it cannot be compiled; refer to #/$defs/... only"
        if problem:
            raise InteractionConfigurationError(f"the JSON Schema cannot be used: {problem}")

    def validate(self, value: Any) -> Any:
        if not self._any_value and not affordable(self._counts, value):
            raise SchemaMismatch("")
        try:
            if self._unions and not affordable(self._counts, value, UNION_KEYWORDS):
                if self._validator.is_valid(value):
                    return value
                raise SchemaMismatch("")
            self._validator.validate(value)
        except jsonschema_rs.ValidationError as invalid:
            pointer = _pointer(_meant(invalid).schema_path)
        except ValueError:
            pointer = ""
        else:
            return value
        # Raised out here: the validator's own error quotes the value.
        raise SchemaMismatch(pointer)


class _ModelSchema:
    def __init__(self, model: type[BaseModel]) -> None:
        self._model = model
        try:
            described = model.model_json_schema(mode="validation", by_alias=True)
        except Exception as failed:
            raise InteractionConfigurationError(
                f"{model.__name__} cannot be described as a JSON Schema; use field types that JSON has"
            ) from failed
        self._document, self.digest = _frozen(described)
        parts = list(_objects(model.__pydantic_core_schema__))
        self.prompt = not any(part.get("type") in _CALLS or any(map(part.get, _CALLING)) for part in parts)

    def validate(self, value: Any) -> Any:
        try:
            model = self._model.model_validate_json(to_json(value))
            plain = model.model_dump(mode="json", exclude_unset=True, by_alias=True, warnings=False)
            return write_and_parse(plain, limit=VALUE_BYTES)[1]
        except ValidationError as invalid:
            if invalid.error_count() > MODEL_ERRORS:
                objection: Objection = SchemaMismatch("")
            else:
                objection = SchemaMismatch(_keyword_path(self._document, _first_place(invalid)))
        except Unfit as unfit:
            # The model made of it what JSON cannot carry, such as a number of "NaN".
            objection = Objection(unfit.name)
        except Exception:  # noqa: BLE001 - a host's validator that fails lets nothing through
            objection = SchemaMismatch("")
        # Raised out here: pydantic's own error quotes the value.
        raise objection


def _first_place(invalid: ValidationError) -> tuple[str | int, ...]:
    return invalid.errors(include_url=False, include_context=False, include_input=False)[0]["loc"]


def _meant(failed: jsonschema_rs.ValidationError) -> jsonschema_rs.ValidationError:
    """Go into the branch of a union that was meant, where all others are of another type or kind: what failed there?"""
    while isinstance(failed.kind, _Failed.AnyOf | _Failed.OneOfNotValid):
        here = len(failed.instance_path)
        left = [errors[0] for errors in failed.kind.context if not any(_is_another(error, here) for error in errors)]
        if len(left) != 1:
            break
        failed = left[0]
    return failed


def _is_another(error: jsonschema_rs.ValidationError, level: int) -> bool:
    """Tell whether a branch is for values of another type, or of another kind by a constant in one of their fields."""
    below = len(error.instance_path) - level
    return (below == 0 and isinstance(error.kind, _Failed.Type)) or (
        below <= 1 and isinstance(error.kind, _Failed.Constant | _Failed.Enum)
    )


def _objects(document: Any) -> Iterator[Mapping[str, Any]]:
    """Walk every object in a document, however deep; one that stands in several places comes once."""
    left, seen = [document], set[int]()
    while left:
        part = left.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, Mapping):
            yield part
            left += part.values()
        elif isinstance(part, list | tuple):
            left += part


def _frozen(schema: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Copy a schema, so that nobody changes it later, and digest it."""
    try:
        text = canonical(schema, limit=SCHEMA_BYTES)
    except Unfit as unfit:
        name = unfit.name
    else:
        return parse(text, limit=SCHEMA_BYTES), hashlib.sha256(text).hexdigest()
    raise InteractionConfigurationError(f"the JSON Schema cannot be used: {name}; it has to be JSON within its limits")


def _refuse(uri: str) -> NoReturn:  # noqa: ARG001 - the retriever's signature
    raise ValueError("references stay within the document")


def _pointer(path: list[str | int]) -> str:
    """Spell a JSON pointer (RFC 6901)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def _keyword_path(document: dict[str, Any], location: tuple[str | int, ...]) -> str:
    """Find the schema's part for a place in a value, as far as it can be told without naming the value's own keys."""
    path: list[str | int] = []
    for part in location:
        path = _without_references(document, path)
        node = _at(document, path)
        if isinstance(part, int) and "items" in node:
            path += ["items"]
        elif part in node.get("properties", ()):
            path += ["properties", part]
        elif "additionalProperties" in node:
            path += ["additionalProperties"]
        else:
            break
    return _pointer(path)


def _without_references(document: dict[str, Any], path: list[str | int]) -> list[str | int]:
    while "$ref" in _at(document, path):
        path = [*_at(document, path)["$ref"].split("/")[1:]]
    return path


def _at(document: dict[str, Any], path: list[str | int]) -> dict[str, Any]:
    found: Any = document
    for part in path:
        found = found.get(part) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}
