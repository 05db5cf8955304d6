"""Recognizes the format of a chat template's tool calls.

A conversation with calls is rendered with the template, and the text of the calls is parsed again. A format fits if it
recovers exactly the calls, and if the conversation with this text, as a model samples it, reads like the one with the
calls. So a template is either parsed exactly or refused, also one that is not known here.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dojang.tool_calls.calls import CallFormat, ToolCall, ToolSchemas
from dojang.tool_calls.json_calls import BareJson, TaggedJson
from dojang.tool_calls.python_calls import PythonCalls
from dojang.tool_calls.xml_calls import FunctionTags, KeyValueTags
from dojang.types import Message

__all__ = ["FORMATS", "PROBE_TOOLS", "UnknownCallFormat", "recognize", "schemas_by_name"]

FORMATS: tuple[CallFormat, ...] = (TaggedJson(), BareJson(), FunctionTags(), KeyValueTags(), PythonCalls())
_PARAMETERS = {
    "text": {"type": "string", "description": "A text."},
    "count": {"type": "integer", "description": "A number."},
    "exact": {"type": "boolean", "description": "A truth value."},
    "options": {"type": "object", "description": "Other values."},
}
PROBE_TOOLS: Sequence[Mapping[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Looks something up.",
            "parameters": {"type": "object", "properties": _PARAMETERS, "required": ["text"]},
        },
    }
    for name in ("look_up", "find")
]
"""Tools that the template is tried with."""
_CALLS = (
    ToolCall(
        "look_up", {"text": "naïve 日本 1 < 2", "count": 7, "exact": True, "options": {"a": [1, None, {"b": "é"}]}}
    ),
    ToolCall("find", {"text": "7", "options": {}}),
    ToolCall("look_up", {"text": "it's a \"b\" \\ <b>c</b>\n\n  def f(x):\n    return {'x': [x]}"}),
    ToolCall("find", {"text": "<x>\n</x></tool_call></parameter>"}),
)
"""Calls that the template is tried with: nested values, text that looks like other values, tags in strings."""
_RESULTS = ("Result one.", "Result two.")

Render = Callable[[Sequence[Message], bool], str]
"""Renders a conversation with the template and PROBE_TOOLS; whether with the generation prompt at its end."""


class UnknownCallFormat(Exception):
    """No format parses the calls of a template."""


def recognize(render: Render, reply_text: Callable[[str, str], str]) -> CallFormat:
    """Returns the format of a template's calls. `reply_text` gets a prompt, and the prompt with the turn of the
    assistant, and returns the text of the reply. Raises UnknownCallFormat, with the reason, if none fits."""
    question = [Message("user", "Look something up.")]
    try:
        prompt = render(question, True)
        replies = [(calls, reply_text(prompt, render([*question, _said(calls)], False))) for calls in _tried(render)]
    except Exception as error:  # a template may raise anything
        raise UnknownCallFormat(f"it cannot write the calls of an assistant ({error})") from error
    tools = schemas_by_name(PROBE_TOOLS)
    wrong = [[text for calls, text in replies if each.parse(text, tools).calls != calls] for each in FORMATS]
    fitting = [each for each, texts in zip(FORMATS, wrong, strict=True) if not texts]
    if not fitting:
        raise UnknownCallFormat(f"it writes a call as {min(wrong, key=len)[0].strip()[:200]!r}")
    for calls, text in replies:
        results = [Message("tool", _RESULTS[at % 2], call.name) for at, call in enumerate(calls)]
        try:
            sampled = render([*question, Message("assistant", text), *results], True)
        except Exception as error:
            raise UnknownCallFormat(f"it rejects the text of a call as a model writes it ({error})") from error
        if not _same(sampled, render([*question, _said(calls), *results], True)):
            raise UnknownCallFormat("it writes other text where a call stands as a model wrote it")
    return fitting[0]


def schemas_by_name(tools: Sequence[Mapping[str, Any]]) -> ToolSchemas:
    """Returns the schemas of arguments from tools in the form of OpenAI's API. Tools may be a client's: parameters that
    are no objects of JSON Schema name no arguments."""
    functions = [each.get("function", each) for each in tools]
    return {str(each.get("name")): _mapping(_mapping(each.get("parameters")).get("properties")) for each in functions}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _tried(render: Render) -> list[tuple[ToolCall, ...]]:
    """Returns the calls of each reply to try; several in a reply if the template can write them."""
    several = _CALLS[:2]
    try:
        render([Message("user", "Look something up."), _said(several)], False)
    except Exception:
        return [(each,) for each in _CALLS]
    return [*((each,) for each in _CALLS), several, _CALLS]


def _said(calls: Sequence[ToolCall]) -> Message:
    written = tuple((each.name, json.dumps(each.arguments)) for each in calls)
    return Message("assistant", "", tool_calls=written)


def _same(first: str, second: str) -> bool:
    """Whether two texts differ in white space alone."""
    return "".join(first.split()) == "".join(second.split())
