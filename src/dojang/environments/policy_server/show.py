"""Shows a sampled reply to clients: text, and the tool calls in it."""

import json
from collections.abc import Sequence

from dojang.environments.policy_server.requests import Choice, ShownCall
from dojang.environments.tool_calls import ToolCall, parse_calls
from dojang.types import Completion

__all__ = ["show"]

_TAG, _END_OF_THINKING = "<tool_call>", "</think>"


def show(completion: Completion, token_texts: Sequence[str], tools: bool, name: str) -> Choice:
    """Returns a reply with its tool calls, whose ids begin with `name`. Calls that are malformed, or of a client that
    named no tools, stay text."""
    texts = tuple(token_texts)
    found = parse_calls(completion.text) if tools else []
    calls = tuple(
        ShownCall(f"call_{name}_{at}", each.name, json.dumps(each.arguments, ensure_ascii=False))
        for at, each in enumerate(found)
        if isinstance(each, ToolCall)
    )
    return Choice(completion, _text_before(completion.text) if calls else completion.text, calls, texts)


def _text_before(text: str) -> str:
    """Returns the text before the first tool call."""
    thinking = text.find(_END_OF_THINKING)
    start = 0 if thinking < 0 else thinking + len(_END_OF_THINKING)
    place = text.find(_TAG, start)
    return text[: start if place < 0 else place].strip()
