"""Shows a sampled reply to clients: text, and the tool calls in it."""

import json
from collections.abc import Sequence

from dojang.environments.policy_server.requests import Choice, ShownCall
from dojang.tool_calls.calls import MalformedCall, ParsedReply, ToolCall
from dojang.types import Completion

__all__ = ["find_stop", "show"]


def show(
    completion: Completion, token_texts: Sequence[str], parsed: ParsedReply | None, name: str, stop: str | None = None
) -> Choice:
    """Returns a reply with its tool calls, whose ids begin with `name`. Calls that are malformed, or of a client that
    named no tools, stay text; beside valid calls, they follow the text. `stop` is the stop string that ended it."""
    calls = tuple(
        ShownCall(f"call_{name}_{at}", each.name, json.dumps(each.arguments, ensure_ascii=False))
        for at, each in enumerate(parsed.calls if parsed else ())
        if isinstance(each, ToolCall)
    )
    text = _text_beside_calls(parsed) if parsed and calls else completion.text
    return Choice(completion, text, calls, tuple(token_texts), stop)


def _text_beside_calls(parsed: ParsedReply) -> str:
    malformed = dict.fromkeys(each.text.strip() for each in parsed.calls if isinstance(each, MalformedCall))
    return "\n".join(filter(None, [parsed.content, *malformed]))


def find_stop(completion: Completion, whole: str, stops: Sequence[str]) -> str | None:
    """Returns the stop string that ended a reply: the first one in `whole`, its text before it was cut."""
    found = [each for each in stops if each in whole and each not in completion.text]
    return min(found, key=lambda each: whole.find(each) + len(each), default=None)
