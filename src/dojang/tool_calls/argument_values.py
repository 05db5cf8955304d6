"""Values of arguments that a format writes as plain text: strings as they are, other values in JSON.

The text 7 is a number for an integer argument and a string for a string one: only the JSON schema of the tool tells.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dojang.tool_calls.json_types import JSON_TYPES, is_of_type

__all__ = ["value_of"]

_PYTHON = {"True": "true", "False": "false", "None": "null"}
"""Some templates write constants as Python does."""


def value_of(text: str, schema: object) -> Any:
    """Returns the value of an argument. Raises ValueError if the text is no value of the schema's types, with these
    types; without a schema, which an argument that the tool does not have lacks, it is a string. The schema may be a
    client's: one that cannot be read allows any value."""
    if schema is None:
        return text
    try:
        allowed = _types(schema)
    except RecursionError:
        allowed = set()
    try:
        found = json.loads(_PYTHON.get(text.strip(), text))
    except (ValueError, RecursionError):
        found, known = None, False
    else:  # a string in JSON is one as it is, with its quotes, unless any value will do
        known = not allowed or any(is_of_type(found, each) for each in allowed - {"string"})
    if known:
        return found
    if not allowed or "string" in allowed:
        return text
    raise ValueError(" or ".join(sorted(allowed)))


def _types(schema: object) -> set[str]:
    """Returns the JSON types that a schema allows; none if it does not say, such as the schema `true`."""
    if not isinstance(schema, Mapping):
        return set()
    names = _listed(schema.get("type") or [])
    if not all(isinstance(each, str) and each in JSON_TYPES for each in names):
        return set()
    found = set[str](names)
    for key in ("anyOf", "oneOf"):
        parts = [_types(each) for each in _listed(schema.get(key) or [])]
        if parts and not all(parts):
            return set()
        found = found.union(*parts)
    if not found and "enum" in schema:
        found = {"string"}
    return found | {"null"} if found and schema.get("nullable") else found


def _listed(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]
