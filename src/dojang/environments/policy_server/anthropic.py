"""Anthropic's messages: POST /v1/messages and /v1/messages/count_tokens."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dojang.environments.policy_server.fields import (
    Body,
    check_flags,
    invalid,
    read_list,
    read_number,
    read_stop,
    read_text,
    read_whole,
    refuse_unsupported,
)
from dojang.environments.policy_server.openai_chat import pieces
from dojang.environments.policy_server.requests import Choice, PolicyReply, PolicyRequest
from dojang.types import Message

__all__ = ["count_request", "message_events", "message_reply", "message_request"]

_NEUTRAL = {"thinking": ({"type": "disabled"},), "mcp_servers": ([],), "container": ("",)}


def message_request(body: Body) -> PolicyRequest:
    """Reads a request."""
    if read_whole(body, "max_tokens") is None:
        raise invalid("max_tokens is missing", "max_tokens", "missing_field")
    return count_request(body)


def count_request(body: Body) -> PolicyRequest:
    """Reads a request whose prompt is counted: as one for a reply, but max_tokens may be missing."""
    refuse_unsupported(body, _NEUTRAL)
    check_flags(body, "stream")
    given = {
        "temperature": read_number(body, "temperature", 0, 100),
        "top_p": read_number(body, "top_p", 1e-9, 1),
        "top_k": read_whole(body, "top_k", 0),
    }
    return PolicyRequest(
        messages=_messages(body),
        tools=_tools(body),
        max_tokens=read_whole(body, "max_tokens"),
        stop=read_stop(body, "stop_sequences"),
        sampling={key: value for key, value in given.items() if value is not None},
    )


def _messages(body: Body) -> tuple[Message, ...]:
    system = _text(body.get("system") or "", "system")
    found = [Message("system", system)] if system else []
    names: dict[str, str] = {}
    for place, each in enumerate(read_list(body, "messages")):
        where = f"messages[{place}]"
        if not isinstance(each, Mapping) or each.get("role") not in ("user", "assistant"):
            raise invalid(f"{where} needs the role user or assistant", where)
        read = _assistant if each["role"] == "assistant" else _user
        found += read(_blocks(each.get("content"), where), where, names)
    if not found or found[-1].role in ("system", "assistant"):
        raise invalid("the last message must be the user's: prefilled replies are not supported", "messages")
    return tuple(found)


def _blocks(content: object, where: str) -> list[Mapping[str, Any]]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(each, Mapping) for each in content):
        raise invalid(f"{where}.content must be text or a list of blocks", where)
    return content


def _assistant(blocks: list[Mapping[str, Any]], where: str, names: dict[str, str]) -> list[Message]:
    texts, calls = [], []
    for each in blocks:
        if each.get("type") == "text":
            texts.append(read_text(each, "text"))
        elif each.get("type") == "tool_use" and isinstance(each.get("input"), Mapping):
            names[str(each.get("id"))] = name = read_text(each, "name")
            calls.append((name, json.dumps(each["input"], ensure_ascii=False)))
        else:
            raise _unsupported(each, where)
    return [Message("assistant", "".join(texts), tool_calls=tuple(calls))]


def _user(blocks: list[Mapping[str, Any]], where: str, names: dict[str, str]) -> list[Message]:
    """Results of tools become separate messages, before the rest of the text."""
    results, texts = [], []
    for each in blocks:
        if each.get("type") == "text":
            texts.append(read_text(each, "text"))
        elif each.get("type") == "tool_result":
            result = _text(each.get("content") or "", f"{where}.content")
            results.append(Message("tool", result, names.get(str(each.get("tool_use_id")), "")))
        else:
            raise _unsupported(each, where)
    return [*results, Message("user", "".join(texts))] if texts or not results else [*results]


def _text(content: object, where: str) -> str:
    """Returns text, or that of a list of text blocks."""
    blocks = _blocks(content, where)
    if wrong := next((each for each in blocks if each.get("type") != "text"), None):
        raise _unsupported(wrong, where)
    return "".join(read_text(each, "text") for each in blocks)


def _unsupported(block: Mapping[str, Any], where: str) -> Exception:
    kind = block.get("type")
    return invalid(f"{where}: a block of type {kind!r:.40} is not supported here", where, "unsupported_value")


def _tools(body: Body) -> tuple[Mapping[str, Any], ...]:
    """Returns the tools as OpenAI's schemas, which chat templates read."""
    choice = body.get("tool_choice") or {"type": "auto"}
    if not isinstance(choice, Mapping) or choice.get("type") not in ("auto", "none"):
        raise invalid("tool_choice must be auto or none: what is sampled is not constrained", "tool_choice")
    found = []
    for place, each in enumerate(read_list(body, "tools", ()) if body.get("tools") is not None else ()):
        if not isinstance(each, Mapping) or not isinstance(each.get("input_schema"), Mapping):
            raise invalid(f"tools[{place}] needs a name and an input_schema", f"tools[{place}]")
        function = {
            "name": read_text(each, "name"),
            "description": read_text(each, "description", ""),
            "parameters": each["input_schema"],
        }
        found.append({"type": "function", "function": function})
    return () if choice["type"] == "none" else tuple(found)


def message_reply(body: Body, reply: PolicyReply, model: str) -> dict[str, Any]:
    """Returns the response."""
    (choice,) = reply.choices
    return {
        **_head(reply, model),
        "content": _content(choice),
        **_stopped(choice),
        "usage": {"input_tokens": reply.prompt_tokens, "output_tokens": len(choice.completion.tokens)},
    }


def _head(reply: PolicyReply, model: str) -> dict[str, Any]:
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": model,
    }


def _content(choice: Choice) -> list[dict[str, Any]]:
    text = [{"type": "text", "text": choice.content}] if choice.content or not choice.calls else []
    return text + [
        {"type": "tool_use", "id": each.id, "name": each.name, "input": json.loads(each.arguments)}
        for each in choice.calls
    ]


def _stopped(choice: Choice) -> dict[str, str | None]:
    """Returns the reason why the reply ended, and the stop sequence if that was it."""
    if choice.completion.finish == "length":
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if choice.calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    return {"stop_reason": "end_turn" if choice.stop is None else "stop_sequence", "stop_sequence": choice.stop}


def message_events(body: Body, reply: PolicyReply, model: str) -> Iterator[dict[str, Any]]:
    """Yields the events of a streamed response."""
    (choice,) = reply.choices
    sizes = {"input_tokens": reply.prompt_tokens, "output_tokens": 0}
    start = {**_head(reply, model), "content": [], "stop_reason": None, "stop_sequence": None, "usage": sizes}
    yield {"type": "message_start", "message": start}
    for at, block in enumerate(_content(choice)):
        empty = {**block, "text": ""} if block["type"] == "text" else {**block, "input": {}}
        yield {"type": "content_block_start", "index": at, "content_block": empty}
        for delta in _deltas(block):
            yield {"type": "content_block_delta", "index": at, "delta": delta}
        yield {"type": "content_block_stop", "index": at}
    yield {
        "type": "message_delta",
        "delta": _stopped(choice),
        "usage": {"output_tokens": len(choice.completion.tokens)},
    }
    yield {"type": "message_stop"}


def _deltas(block: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    if block["type"] == "text":
        yield from ({"type": "text_delta", "text": each} for each in pieces(block["text"]))
    else:
        yield {"type": "input_json_delta", "partial_json": json.dumps(block["input"], ensure_ascii=False)}
