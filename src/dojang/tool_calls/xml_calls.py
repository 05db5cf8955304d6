"""Tool calls in tags, with the arguments as plain text.

    Qwen3-Coder, Qwen3.5, Nemotron 3   <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>
    GLM-4.5                            <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>

A value may contain tags: it ends at the closing tag that is followed by another argument or the end of the call.
"""

import re
from collections.abc import Iterable, Sequence

from dojang.tool_calls.argument_values import value_of
from dojang.tool_calls.calls import Call, CallBlock, CallFormat, MalformedCall, ToolCall, ToolSchemas

__all__ = ["FunctionTags", "KeyValueTags"]

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class _Tags(CallFormat):
    """Calls between <tool_call> tags."""

    _begin: re.Pattern[str]
    _argument: re.Pattern[str]
    _end: re.Pattern[str]
    _form: str

    def blocks(self, text: str, tools: ToolSchemas) -> Sequence[CallBlock]:
        found, place = list[CallBlock](), self._next(text, 0)
        while place >= 0:
            found.append(self._block(text, place, tools))
            place = self._next(text, found[-1].end)
        return found

    def _next(self, text: str, start: int) -> int:
        return text.find(_OPEN, start)

    def _block(self, text: str, start: int, tools: ToolSchemas) -> CallBlock:
        begin = self._begin.match(text, start)
        arguments, place = list[tuple[str, str]](), start if begin is None else begin.end()
        if begin is not None:
            while argument := self._argument.match(text, place):
                arguments.append((argument["key"], argument["value"]))
                place = argument.end()
            if end := self._end.match(text, place):
                return CallBlock(start, end.end(), (_call(begin["name"], arguments, tools),))
        close = text.find(_CLOSE, place)
        stop = len(text) if close < 0 else close + len(_CLOSE)
        return CallBlock(start, stop, (MalformedCall(f"must have the form {self._form}"),))


class FunctionTags(_Tags):
    """Function and parameter tags; a value stands on lines between its tags."""

    name = "<function=...> tags"
    _begin = re.compile(r"<tool_call>\s*<function=(?P<name>[^>\n]+)>\s*")
    _argument = re.compile(
        r"<parameter=(?P<key>[^>\n]+)>\n?(?P<value>.*?)\n?</parameter>\s*(?=<parameter=|</function>\s*(?:</tool_call>|\Z))",
        re.DOTALL,
    )
    _end = re.compile(r"</function>\s*(?:</tool_call>|\Z)")
    _form = (
        "<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>; write it again "
        "like that"
    )

    def _next(self, text: str, start: int) -> int:
        """Returns where the next call begins, also one that lacks its first tag."""
        places = [place for place in (text.find(_OPEN, start), text.find("<function=", start)) if place >= 0]
        return min(places, default=-1)


class KeyValueTags(_Tags):
    """Tags of keys and values, after the name."""

    name = "<arg_key> and <arg_value> tags"
    _begin = re.compile(r"<tool_call>\s*(?P<name>[^\s<{]+)\s*")
    _argument = re.compile(
        r"<arg_key>(?P<key>[^<\n]+)</arg_key>\s*<arg_value>(?P<value>.*?)</arg_value>\s*(?=<arg_key>|</tool_call>|\Z)",
        re.DOTALL,
    )
    _end = re.compile(r"</tool_call>|\Z")
    _form = (
        "<tool_call>NAME\n<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n</tool_call>; write it again like that"
    )


def _call(name: str, arguments: Iterable[tuple[str, str]], tools: ToolSchemas) -> Call:
    schemas, found = tools.get(name, {}), {}
    for key, value in arguments:
        if key in found:
            return MalformedCall(f"has the parameter {key} twice")
        try:
            found[key] = value_of(value, schemas.get(key))
        except ValueError as error:
            return MalformedCall(f"has no valid value of the parameter {key}: {value[:80]!r} is not of type {error}")
    return ToolCall(name, found)
