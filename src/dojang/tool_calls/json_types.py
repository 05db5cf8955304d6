"""Types of JSON values, by their names in JSON schemas."""

import math
from collections.abc import Mapping

__all__ = ["JSON_TYPES", "is_of_type"]

JSON_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
"""Python's types of each."""


def is_of_type(value: object, name: str) -> bool:
    """Returns whether a value is of the type; of none that JSON does not have."""
    if isinstance(value, bool):  # Python's are integers, too
        return name == "boolean"
    if isinstance(value, float) and not math.isfinite(value):  # NaN, which is no JSON
        return False
    return isinstance(value, JSON_TYPES.get(name, ()))
