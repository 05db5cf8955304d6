"""Any text is parsed in every format, with any schemas: models and clients write them, and must not end the run."""

import json
import random
import subprocess
import sys
import time

import pytest

from dojang.tool_calls.calls import CallFormat, MalformedCall, ToolCall
from dojang.tool_calls.formats import FORMATS, schemas_by_name
from dojang.tool_calls.json_calls import BareJson, TaggedJson
from dojang.tool_calls.python_calls import PythonCalls
from dojang.tool_calls.xml_calls import FunctionTags, KeyValueTags

TYPES: list[object] = ["string", "integer", "number", "boolean", "array", "object", "null", ["integer", "null"]]
ARGUMENTS = {f"x{place}": {"type": each} for place, each in enumerate(TYPES)} | {"any": {}}
SCHEMAS = schemas_by_name([{"type": "function", "function": {"name": "f", "parameters": {"properties": ARGUMENTS}}}])
KEYS = ['"k"', "'k'", "1", "{}", "**"]
LITERALS = [
    "1", "-7", "1e999", "0x1f", "1_000", "9" * 5000, "9" * 400 + "+1j", "1j", "NaN", "Infinity", "true", "None", "...",
    '""', '"a"', r"'it\'s'", r'"\ud800"', r'"\ud83d\ude00"', r"'\d'", "b'a'", "f'{1}'", "'''a'''", "é", "\0", "x",
    "print(1)", "lambda: 1", "{[1]}", "{1: 2}", "{**x}", "[*x]", "()", "(1,)", "set()", "-True", "--1", "1 + 2j", "a.b",
    "1if 2else 3", "-" * 5000 + "1", "1" + "+1" * 5000, "[" * 150 + "]" * 150, "[" * 5000, '{"a": ' * 150 + "}" * 150,
]  # fmt: skip
TAGS = [
    "<tool_call>", "</tool_call>", "<function=f>", "<function=", "</function>", "<parameter=x1>", "</parameter>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<think>", "</think>", "<|python_tag|>", "```json\n",
    "<|tool_call_start|>", "<|tool_call_end|>", '{"name": "f", "parameters": ', '"name"', "```", "\n", " ",
    *r"""{}[]()'"\,;:=""",
]  # fmt: skip


def literal(chance: random.Random, depth: int = 0) -> str:
    """Returns a value as JSON or Python writes it, or one that is of neither."""
    kind = chance.randrange(4) if depth < 4 else 0
    if kind < 2:
        return chance.choice(LITERALS)
    inside = [literal(chance, depth + 1) for _ in range(chance.randrange(3))]
    if kind == 2:
        return "[" + ", ".join(inside) + "]"
    return "{" + ", ".join(f"{chance.choice(KEYS)}: {each}" for each in inside) + "}"


def call(chance: random.Random) -> str:
    """Returns a call in one of the formats, with any values."""
    name = chance.choice(["f", "g", "a.b", "f(x=1)", "1", ""])
    given = [(chance.choice([*ARGUMENTS, "other"]), literal(chance)) for _ in range(chance.randrange(4))]
    in_json = "{" + ", ".join(f'"{key}": {value}' for key, value in given) + "}"
    in_tags = "".join(f"<parameter={key}>\n{value}\n</parameter>" for key, value in given)
    in_pairs = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in given)
    in_python = ", ".join(f"{key}={value}" for key, value in given)
    forms = [
        f'<tool_call>{{"name": "{name}", "arguments": {in_json}}}</tool_call>',
        f'<tool_call>[{{"name": "{name}", "arguments": {in_json}}}, {literal(chance)}]</tool_call>',
        f'{{"name": "{name}", "parameters": {in_json}}}',
        f"<tool_call><function={name}>{in_tags}</function></tool_call>",
        f"<tool_call>{name}\n{in_pairs}</tool_call>",
        f"<|tool_call_start|>[{name}({in_python})]<|tool_call_end|>",
    ]
    return chance.choice(forms)


def mutated(text: str, chance: random.Random) -> str:
    """Returns a text in which a part is left out, repeated or replaced."""
    start, end = sorted(chance.choices(range(len(text) + 1), k=2))
    middle = chance.choice(["", text[start:end] * 2, chance.choice(TAGS), literal(chance)])
    return text[:start] + middle + text[chance.choice([start, end]) :]


@pytest.mark.parametrize("form", FORMATS, ids=lambda each: type(each).__name__)
def test_no_reply_makes_a_format_fail(form: CallFormat) -> None:
    chance = random.Random(type(form).__name__)
    kinds = set[type]()
    for _ in range(1500):
        reply = chance.choice(["", "I look. ", "<think>"])
        reply += "".join(call(chance) for _ in range(chance.randrange(1, 4)))
        for _ in range(chance.randrange(4)):
            reply = mutated(reply, chance)
        calls = form.parse(reply, SCHEMAS).calls
        kinds.update(map(type, calls))
        for each in calls:
            if isinstance(each, MalformedCall):
                assert each.reason.encode()
            else:
                json.dumps([each.name, each.arguments], allow_nan=False, ensure_ascii=False).encode()
    assert len(kinds) == 2, "some were calls, and some were malformed"


def deep(depth: int) -> object:
    """Returns a schema of options inside of options."""
    return {"anyOf": [deep(depth - 1)]} if depth else {"type": "integer"}


SCHEMAS_OF_CLIENTS: list[tuple[object, object]] = [
    (True, 7), (False, 7), ({}, 7), ([], 7), ("integer", 7), (None, "7"), ({"type": "integer"}, 7),
    ({"type": None}, 7), ({"type": 5}, 7), ({"type": "str"}, 7), ({"type": [["string"]]}, 7), ({"type": {}}, 7),
    ({"type": ["string", "null"]}, "7"), ({"anyOf": None}, 7), ({"anyOf": 5}, 7), ({"anyOf": True}, 7),
    ({"anyOf": [{"type": "string"}, True]}, 7), ({"oneOf": {"type": "string"}}, "7"), ({"enum": None}, "7"),
    (deep(10), 7), (deep(900), 7),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "value"), SCHEMAS_OF_CLIENTS)
def test_any_schema_of_an_argument_is_read(schema: object, value: object) -> None:
    tools = schemas_by_name([{"function": {"name": "f", "parameters": {"properties": {"x": schema}}}}])
    calls = (ToolCall("f", {"x": value}),)
    assert FunctionTags().parse("<tool_call><function=f><parameter=x>7</parameter></function>", tools).calls == calls
    assert KeyValueTags().parse("<tool_call>f<arg_key>x</arg_key><arg_value>7</arg_value>", tools).calls == calls


@pytest.mark.parametrize(
    "parameters",
    [None, True, [], "x", {"properties": ["x"]}, {"properties": None}, {"properties": True}, [{"properties": {}}]],
)
def test_parameters_that_are_no_schema_name_no_arguments(parameters: object) -> None:
    assert schemas_by_name([{"function": {"name": "f", "parameters": parameters}}]) == {"f": {}}


def seconds(form: CallFormat, reply: str) -> float:
    """Returns the processor time of parsing."""
    found = []
    for _ in range(3):
        begun = time.process_time()
        form.parse(reply, SCHEMAS)
        found.append(time.process_time() - begun)
    return min(found)


@pytest.mark.parametrize(
    ("form", "repeated"),
    [
        (TaggedJson(), "<tool_call></tool_call>"),
        (TaggedJson(), '<tool_call>{"name": "f</tool_call>'),
        (TaggedJson(), '<tool_call>"\\"</tool_call>'),
        (BareJson(), '{"name": "f", "parameters": {}};'),
        (BareJson(), '{"name": "f", "parameters": {'),
        (BareJson(), "```json\n{"),
        (FunctionTags(), "<tool_call></tool_call>"),
        (FunctionTags(), "<tool_call><function=f><parameter=x1>x</tool_call>"),
        (FunctionTags(), "<tool_call><function=f><parameter=x1>x</parameter>y</tool_call>"),
        (FunctionTags(), "<tool_call><function=f><parameter=x1>x</parameter><parameter=x2></tool_call>"),
        (KeyValueTags(), "<tool_call>f<arg_key>x1</arg_key><arg_value>x</tool_call>"),
        (KeyValueTags(), "<tool_call>f<arg_key>x1</arg_key><arg_value>x</arg_value>y</tool_call>"),
        (PythonCalls(), "<|tool_call_start|>[f(x='1)]<|tool_call_end|>"),
        (PythonCalls(), '<|tool_call_start|>"\\"<|tool_call_end|>'),
        (PythonCalls(), "<|tool_call_start|>[f()]<|tool_call_end|>"),
    ],
)
@pytest.mark.parametrize("end", ["", "</think>4", "</parameter></function></tool_call>", "'"])
def test_time_grows_with_the_length_of_a_reply(form: CallFormat, repeated: str, end: str) -> None:
    """Not with its square, which would hold up all other episodes: 8 times the length is not 64 times the time."""
    short, long = (seconds(form, repeated * count + end) for count in (200, 1600))
    assert long < 24 * short


def test_errors_in_calls_do_not_count_the_lines_before_them() -> None:
    calls = "<tool_call>[</tool_call>" * 1000
    assert seconds(TaggedJson(), "\n" * 4_000_000 + calls) < 3 * seconds(TaggedJson(), calls)


def test_a_call_behind_a_string_that_does_not_end_is_parsed() -> None:
    calls = "<|tool_call_start|>[f(x='it's')]<|tool_call_end|><|tool_call_start|>[f(x='2')]<|tool_call_end|>"
    malformed, call = PythonCalls().parse(calls, SCHEMAS).calls
    assert isinstance(malformed, MalformedCall)
    assert call == ToolCall("f", {"x": "2"})


def test_python_does_not_warn_of_what_a_model_wrote() -> None:
    """In a process of its own: pytest sets other filters."""
    program = """if True:
        from dojang.tool_calls.python_calls import PythonCalls
        for each in ("'a\\\\d'", "1if 2else 3", "0x1for x in y"):
            (found,) = PythonCalls().parse(f"<|tool_call_start|>[f(x={each})]<|tool_call_end|>", {}).calls
            print(type(found).__name__)
    """
    ended = subprocess.run([sys.executable, "-W", "always", "-c", program], capture_output=True, text=True, check=True)
    assert (ended.stdout.split(), ended.stderr) == (["ToolCall", "MalformedCall", "MalformedCall"], "")
