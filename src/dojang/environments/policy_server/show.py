"""Shows a sampled reply to clients: text, and the tool calls in it."""

import json
from collections.abc import Sequence

from dojang.environments.policy_server.requests import Choice, ShownCall
from dojang.tool_calls.calls import ParsedReply, ToolCall
from dojang.types import Completion

__all__ = ["show"]


def show(completion: Completion, token_texts: Sequence[str], parsed: ParsedReply | None, name: str) -> Choice:
    """Returns a reply with its tool calls, whose ids begin with `name`. Calls that are malformed, or of a client that
    named no tools, stay text."""
    calls = tuple(
        ShownCall(f"call_{name}_{at}", each.name, json.dumps(each.arguments, ensure_ascii=False))
        for at, each in enumerate(parsed.calls if parsed else ())
        if isinstance(each, ToolCall)
    )
    return Choice(completion, parsed.content if parsed and calls else completion.text, calls, tuple(token_texts))
