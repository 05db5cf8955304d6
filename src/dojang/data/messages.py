"""Prompts of rows: text, or messages in the conversational format of TRL, veRL and OpenAI."""

from collections.abc import Mapping
from typing import Any, Literal

from dojang.types import Message

__all__ = ["to_messages", "with_system"]

_ROLES = ("system", "user", "assistant")


def to_messages(value: Any, role: Literal["user", "assistant"] = "user") -> tuple[Message, ...]:
    """Returns the messages that a column lists, or one of this role with its text. Raises ValueError for others."""
    if isinstance(value, str):
        return (Message(role, value),)
    if not isinstance(value, list | tuple):
        raise ValueError(f"{str(value)[:60]!r} is neither text nor a list of messages {{role, content}}")
    return tuple(_message(each) for each in value)


def with_system(system: str | None, messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Returns the messages after a system prompt, unless they have their own."""
    if not system or any(each.role == "system" for each in messages):
        return messages
    return (Message("system", system), *messages)


def _message(each: Any) -> Message:
    role, content = (each.get("role"), each.get("content")) if isinstance(each, Mapping) else (None, None)
    if isinstance(content, list | tuple) and all(isinstance(part, Mapping) for part in content):
        kinds = {part.get("type") for part in content}
        if kinds == {"text"}:  # content in parts, as in OpenAI's API
            content = "".join(str(part.get("text")) for part in content)
    if role not in _ROLES or not isinstance(content, str):
        raise ValueError(f"a message needs a role ({', '.join(_ROLES)}) and text as content, not {str(each)[:80]}")
    return Message(role, content)
