"""Checks arguments of tool calls against the JSON schema of the tool: a model writes any JSON."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dojang.tool_calls.json_types import JSON_TYPES, is_of_type

__all__ = ["wrong_argument"]

_WORDS = {"string": "text (a JSON string)", "integer": "an integer", "array": "a list", "object": "a JSON object"}
_SHOWN = 80


def wrong_argument(arguments: Mapping[str, object], schema: Mapping[str, Any]) -> str:
    """Returns why an argument does not match the schema of its tool, by name; empty if all match. Missing and unknown
    arguments are left to the tool's signature."""
    properties = schema.get("properties", {})
    wrong = (_wrong(value, properties[name], name) for name, value in arguments.items() if name in properties)
    return next(filter(None, wrong), "")


def _wrong(value: object, schema: Mapping[str, Any], name: str) -> str:
    """Returns why a value does not match a schema as transformers writes it from type hints; empty if it does."""
    if not schema or (value is None and schema.get("nullable")):
        return ""
    if options := schema.get("anyOf"):
        found = [_wrong(value, each, name) for each in options]
        return "" if "" in found else " or ".join(found)
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    known = [each for each in kinds if each in JSON_TYPES]
    if known and not any(is_of_type(value, each) for each in known):
        return _must(name, " or ".join(_WORDS.get(each, f"a {each}") for each in known), value)
    if "enum" in schema and not any(value == each and type(value) is type(each) for each in schema["enum"]):
        return _must(name, "one of " + ", ".join(map(_shown, schema["enum"])), value)
    if isinstance(value, list) and len(value) != len(schema.get("prefixItems", value)):  # a tuple of fixed length
        return _must(name, f"a list of {len(schema['prefixItems'])}", value)
    return next(filter(None, (_wrong(*each) for each in _inside(value, schema, name))), "")


def _inside(value: object, schema: Mapping[str, Any], name: str) -> Sequence[tuple[object, Mapping[str, Any], str]]:
    """Returns the values inside a list or an object, with their schemas and names."""
    if isinstance(value, list):
        each = schema.get("prefixItems") or [schema.get("items", {})] * len(value)
        return [(one, of, f"{name}[{at}]") for at, (one, of) in enumerate(zip(value, each, strict=False))]
    if isinstance(value, dict):
        return [(one, schema.get("additionalProperties", {}), f"{name}.{key}") for key, one in value.items()]
    return []


def _must(name: str, expected: str, value: object) -> str:
    return f"`{name}` must be {expected}, not {_shown(value)}"


def _shown(value: object) -> str:
    try:
        text = json.dumps(value)
    except (ValueError, RecursionError):  # nested too deeply
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
