"""Tool calls in tags, with the arguments as plain text.

    Qwen3-Coder, Qwen3.5, Nemotron 3   <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>
    GLM-4.5                            <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>

A value may contain tags: it ends at the closing tag that is followed by another argument or the end of the call.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from dojang.tool_calls.argument_values import value_of
from dojang.tool_calls.calls import Call, CallBlock, CallFormat, MalformedCall, ToolCall, ToolSchemas

__all__ = ["FunctionTags", "KeyValueTags"]

_CLOSE = "</tool_call>"


class _Tags(CallFormat):
    """Calls between <tool_call> tags."""

    _start: re.Pattern[str]
    _begin: re.Pattern[str]
    _key: re.Pattern[str]
    _stop: re.Pattern[str]
    """Closing tag of a value, where an argument or the end of the call follows."""
    _before_stop = ""
    """Text between a value and its closing tag."""
    _end: re.Pattern[str]
    _form: str

    def blocks(self, text: str, tools: ToolSchemas) -> Sequence[CallBlock]:
        # The closing tags are looked for once: each argument without one would search the whole rest of the text.
        stops = [each.span() for each in self._stop.finditer(text)]
        found, place = list[CallBlock](), 0
        while start := self._start.search(text, place):
            found.append(self._block(text, start.start(), stops, tools))
            place = found[-1].end
        return found

    def _block(self, text: str, start: int, stops: Sequence[tuple[int, int]], tools: ToolSchemas) -> CallBlock:
        begin = self._begin.match(text, start)
        arguments, place = list[tuple[str, str]](), start if begin is None else begin.end()
        if begin is not None:
            while key := self._key.match(text, place):
                at = bisect_left(stops, (key.end(), 0))
                if at == len(stops):
                    break
                stop, place = stops[at]
                arguments.append((key["key"], text[key.end() : stop].removesuffix(self._before_stop)))
            if end := self._end.match(text, place):
                return CallBlock(start, end.end(), (_call(begin["name"], arguments, tools),))
        close = text.find(_CLOSE, place)
        end_of_call = len(text) if close < 0 else close + len(_CLOSE)
        return CallBlock(start, end_of_call, (MalformedCall(f"must have the form {self._form}"),))


class FunctionTags(_Tags):
    """Function and parameter tags; a value stands on lines between its tags."""

    name = "<function=...> tags"
    _start = re.compile(r"<tool_call>|<function=")  # also one that lacks its first tag
    _begin = re.compile(r"<tool_call>\s*<function=(?P<name>[^>\n]+)>\s*")
    _key = re.compile(r"<parameter=(?P<key>[^>\n]+)>\n?")
    _stop = re.compile(r"</parameter>\s*(?=<parameter=|</function>\s*(?:</tool_call>|\Z))")
    _before_stop = "\n"
    _end = re.compile(r"</function>\s*(?:</tool_call>|\Z)")
    _form = (
        "<tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n</function>\n</tool_call>; write it again "
        "like that"
    )


class KeyValueTags(_Tags):
    """Tags of keys and values, after the name."""

    name = "<arg_key> and <arg_value> tags"
    _start = re.compile(r"<tool_call>")
    _begin = re.compile(r"<tool_call>\s*(?P<name>[^\s<{]+)\s*")
    _key = re.compile(r"<arg_key>(?P<key>[^<\n]+)</arg_key>\s*<arg_value>")
    _stop = re.compile(r"</arg_value>\s*(?=<arg_key>|</tool_call>|\Z)")
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
