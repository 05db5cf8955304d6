"""Messages and tools of OpenAI's API -> messages of a conversation."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dojang.environments.policy_server.fields import Body, invalid, read_list, read_text
from dojang.types import Message

__all__ = ["read_messages", "read_tools"]

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def read_messages(body: Body) -> tuple[Message, ...]:
    """Returns the messages of a request. Results of tools get the name of the tool that was called."""
    listed = read_list(body, "messages")
    if not listed:
        raise invalid("messages is empty", "messages")
    names: dict[str, str] = {}
    found = tuple(_message(each, f"messages[{place}]", names) for place, each in enumerate(listed))
    if found[-1].role == "assistant":
        raise invalid("the last message is the assistant's; end with one of the user or of a tool", "messages")
    return found


def _message(message: object, where: str, names: dict[str, str]) -> Message:
    if not isinstance(message, Mapping) or not isinstance(role := message.get("role"), str) or role not in _ROLES:
        raise invalid(f"{where} needs a role: {', '.join(_ROLES)}", where)
    content = read_content(message.get("content"), f"{where}.content")
    if role == "tool":
        return Message("tool", content, names.get(str(message.get("tool_call_id")), str(message.get("name") or "")))
    if role != "assistant":
        return Message(_ROLES[role], content)  # type: ignore[arg-type]  # one of the roles
    listed = read_list({"tool_calls": message.get("tool_calls") or []}, "tool_calls")
    calls = [_call(each, f"{where}.tool_calls", names) for each in listed]
    return Message("assistant", content, tool_calls=tuple(calls))


def _call(call: object, where: str, names: dict[str, str]) -> tuple[str, str]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(call, Mapping):
        raise invalid(f"{where}: a call needs id, type and function", where)
    name, arguments = read_text(function, "name"), read_text(function, "arguments", "{}")
    try:
        if not isinstance(json.loads(arguments or "{}"), dict):
            raise ValueError("not an object")
    except (ValueError, RecursionError) as error:
        raise invalid(f"{where}: arguments of {name} are no JSON object: {error}", where) from None
    names[str(call.get("id"))] = name
    return name, arguments or "{}"


def read_content(content: object, where: str) -> str:
    """Returns the text of a message: text, or a list of text parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return read_text({where: content}, where)
    if not isinstance(content, list):
        raise invalid(f"{where} must be text or a list of parts", where)
    return "".join(_part(each, where) for each in content)


def _part(part: object, where: str) -> str:
    if not isinstance(part, Mapping) or part.get("type") not in ("text", "refusal"):
        kind = part.get("type") if isinstance(part, Mapping) else part
        raise invalid(f"{where}: a part of type {kind!r:.40} is not supported, only text", where, "unsupported_value")
    return read_text(part, str(part["type"]))


def read_tools(body: Body) -> tuple[Mapping[str, Any], ...]:
    """Returns the schemas of the tools that the model may call."""
    choice = body.get("tool_choice")
    if choice not in (None, "auto", "none"):
        raise invalid(
            f"tool_choice={choice!r:.80} is not supported: what is sampled is not constrained; use auto or none",
            "tool_choice",
            "unsupported_value",
        )
    tools: Sequence[Any] = read_list(body, "tools", ()) if body.get("tools") is not None else ()
    for place, each in enumerate(tools):
        function = each.get("function") if isinstance(each, Mapping) and each.get("type") == "function" else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise invalid(f'tools[{place}] needs "type": "function" and a function with a name', f"tools[{place}]")
    return () if choice == "none" else tuple(tools)
