"""Reads fields of a JSON request; every mistake is a RequestRefused that names the field."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from dojang.environments.policy_server.requests import RequestRefused

__all__ = [
    "Body",
    "check_flags",
    "invalid",
    "read_flag",
    "read_list",
    "read_number",
    "read_stop",
    "read_text",
    "read_whole",
    "refuse_unsupported",
]

Body = Mapping[str, Any]


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> RequestRefused:
    """Returns the error of a request that cannot be served."""
    return RequestRefused(400, message, code, param)


def read_text(body: Body, key: str, default: str | None = None) -> str:
    value = body.get(key, default)
    if not isinstance(value, str):
        raise invalid(f"{key} must be text, not {value!r:.80}", key)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise invalid(f"{key} has an unpaired surrogate, which is no Unicode text", key) from None
    return value


def read_list(body: Body, key: str, default: Sequence[Any] | None = None) -> Sequence[Any]:
    value = body.get(key, default)
    if not isinstance(value, list | tuple):
        raise invalid(f"{key} must be a list, not {value!r:.80}", key)
    return value


def read_whole(body: Body, key: str, least: int = 1, most: int = 2**31) -> int | None:
    """Returns a whole number, or None if the field is missing or null."""
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise invalid(f"{key}={value!r:.80} must be a whole number from {least} to {most}", key)
    return value


def read_number(body: Body, key: str, least: float, most: float) -> float | None:
    """Returns a number, or None if the field is missing or null."""
    value = body.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not (isinstance(value, int) or isfinite(value)):
        raise invalid(f"{key}={value!r:.80} must be a number", key)
    if not least <= value <= most:
        raise invalid(f"{key}={value!r:.80} must be between {least:g} and {most:g}", key)
    return float(value)


def read_flag(body: Body, key: str) -> bool:
    value = body.get(key)
    if value is not None and not isinstance(value, bool):
        raise invalid(f"{key}={value!r:.80} must be true or false", key)
    return bool(value)


def check_flags(body: Body, *keys: str) -> None:
    """Raises RequestRefused for flags that are neither true nor false, before anything is sampled."""
    for key in keys:
        read_flag(body, key)
    options = body.get("stream_options")
    if options is not None and not isinstance(options, Mapping):
        raise invalid(f"stream_options={options!r:.80} must be an object", "stream_options")


def read_stop(body: Body, key: str) -> tuple[str, ...]:
    """Returns stop strings: one text, or a list of them."""
    value = body.get(key)
    listed = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or not all(isinstance(each, str) and each for each in listed):
        raise invalid(f"{key} must be a text or a list of texts, none of them empty", key)
    return tuple(listed)


def refuse_unsupported(body: Body, neutral: Mapping[str, Sequence[Any]]) -> None:
    """Raises RequestRefused for fields that change what is sampled and that no engine here supports; `neutral` has the
    values of each that change nothing."""
    for key, values in neutral.items():
        if body.get(key) is not None and body[key] not in values:
            raise invalid(f"{key}={body[key]!r:.80} is not supported; leave {key} out", key, "unsupported_value")
