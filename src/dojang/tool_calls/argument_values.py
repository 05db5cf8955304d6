"""Values of arguments that a format writes as plain text: strings as they are, other values in JSON.

The text 7 is a number for an integer argument and a string for a string one: only the JSON schema of the tool tells.
"""

import json
from collections.abc import Mapping
from typing import Any

from dojang.tool_calls.json_types import is_of_type

__all__ = ["value_of"]

_PYTHON = {"True": "true", "False": "false", "None": "null"}
"""Some templates write constants as Python does."""


def value_of(text: str, schema: Mapping[str, Any] | None) -> Any:
    """Returns the value of an argument. Raises ValueError if the text is no value of the schema's types, with these
    types; without a schema, which an argument that the tool does not have lacks, it is a string."""
    if schema is None:
        return text
    allowed = _types(schema)
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


def _types(schema: Mapping[str, Any]) -> set[str]:
    """Returns the JSON types that a schema allows; none if it does not say."""
    stated = schema.get("type")
    found = {stated} if isinstance(stated, str) else {str(each) for each in stated or ()}
    for key in ("anyOf", "oneOf"):
        parts = [_types(each) for each in schema.get(key, ())]
        if parts and not all(parts):
            return set()
        found = found.union(*parts)
    if not found and "enum" in schema:
        found = {"string"}
    return found | {"null"} if found and schema.get("nullable") else found
