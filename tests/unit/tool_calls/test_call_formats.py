"""Formats of tool calls: calls are parsed exactly, text that was meant as one is told apart, and a chat template is
recognized by the calls that it writes."""

import asyncio
import copy

import pytest
from transformers import PreTrainedTokenizerBase

from dojang.core.errors import ConfigError
from dojang.environments.calculator import CalculatorConfig
from dojang.tool_calls.calls import Call, CallFormat, MalformedCall, ToolCall
from dojang.tool_calls.formats import schemas_by_name
from dojang.tool_calls.json_calls import BareJson, TaggedJson
from dojang.tool_calls.python_calls import PythonCalls
from dojang.tool_calls.xml_calls import FunctionTags, KeyValueTags
from dojang.types import Message, Problem
from dojang.workflows.chat_renderer import ChatRenderer
from scripted_episodes import LastWordTask

ARGUMENTS = {
    "x": {"type": "string"},
    "n": {"type": "integer"},
    "share": {"type": "number"},
    "on": {"type": "boolean"},
    "rows": {"type": "array"},
    "any": {},
    "maybe": {"type": "string", "nullable": True},
    "either": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
}
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": ARGUMENTS}}
TOOLS = [{"type": "function", "function": FUNCTION}]
SCHEMAS = schemas_by_name(TOOLS)


def function(*parameters: tuple[str, str], name: str = "f") -> str:
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def pairs(*parameters: tuple[str, str]) -> str:
    inside = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in parameters)
    return f"<tool_call>f\n{inside}</tool_call>"


TAGS = "</parameter></function>. </tool_call></think>"
CASES: list[tuple[CallFormat, str, list[Call]]] = [
    (
        TaggedJson(),
        '<tool_call>{"name": "f", "arguments": {"x": "</tool_call>"}}</tool_call>',
        [ToolCall("f", {"x": "</tool_call>"})],
    ),
    (
        TaggedJson(),
        '<tool_call>{"name": "f", "arguments": {"x": "<tool_call>"}}',
        [ToolCall("f", {"x": "<tool_call>"})],
    ),
    (
        TaggedJson(),
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>',
        [ToolCall("add", {"a": 1, "b": 2})],
    ),
    (
        TaggedJson(),
        'I add.\n<tool_call>{"name": "f"}</tool_call>\n<tool_call>{"name": "g", "arguments": {}}</tool_call>',
        [ToolCall("f"), ToolCall("g")],
    ),
    (
        TaggedJson(),
        '<tool_call>[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"x": [1]}}]</tool_call>',
        [ToolCall("f"), ToolCall("g", {"x": [1]})],
    ),
    (
        TaggedJson(),
        '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>',
        [ToolCall("f", {"x": 1})],
    ),
    (
        TaggedJson(),
        '<tool_call>{"name": "f", "arguments": {"x": "</think>"}}</tool_call>',
        [ToolCall("f", {"x": "</think>"})],
    ),
    (
        TaggedJson(),
        '<tool_call>{"name": "f", "arguments": {"x": "<think>"}}</tool_call>',
        [ToolCall("f", {"x": "<think>"})],
    ),
    (
        TaggedJson(),
        '<tool_call>{"name": "f", "arguments": {"code": "</div>"}}</tool_call>',
        [ToolCall("f", {"code": "</div>"})],
    ),
    (TaggedJson(), '<think>so</think><tool_call>{"name": "f"}</tool_call>', [ToolCall("f")]),
    (TaggedJson(), '<think>I could <tool_call>{"name": "f"}</tool_call></think>No need: 4', []),
    (TaggedJson(), '<think>I could <tool_call>{"name": "f"}</tool_call>', []),
    (TaggedJson(), 'I could <tool_call>{"name": "f"}</tool_call></think>No need: 4', []),
    (
        BareJson(),
        '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"x": 1}}',
        [ToolCall("f"), ToolCall("g", {"x": 1})],
    ),
    (BareJson(), '{"name": "add", "parameters": {"a": 1}}', [ToolCall("add", {"a": 1})]),
    (BareJson(), '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', [ToolCall("f", {"a": 1})]),
    (BareJson(), 'The schema is {"name": "other", "parameters": {}}.', []),
    *(
        (form, answer, list[Call]())
        for form in (TaggedJson(), BareJson())
        for answer in (
            "The answer is 4.",
            '{"answer": 4}',
            '{"name": "Ada", "age": 36}',
            '```json\n{"name": "Ada", "age": 36}\n```',
            '```json\n{"name": "f", "arguments": {}}\n```\n#### The final answer is 4',
        )
    ),
    (FunctionTags(), function(("x", "7")), [ToolCall("f", {"x": "7"})]),
    (FunctionTags(), function(("n", "7"), ("on", "True")), [ToolCall("f", {"n": 7, "on": True})]),
    (
        FunctionTags(),
        function(("rows", '[1, {"a": null}]'), ("share", "2")),
        [ToolCall("f", {"rows": [1, {"a": None}], "share": 2})],
    ),
    (FunctionTags(), function(("x", "\n a\n\n")), [ToolCall("f", {"x": "\n a\n\n"})]),
    (FunctionTags(), function(("x", "")), [ToolCall("f", {"x": ""})]),
    (FunctionTags(), function(("x", TAGS)), [ToolCall("f", {"x": TAGS})]),
    (
        FunctionTags(),
        "I look.\n" + function() + "\n" + function(("any", "ab"), name="g"),
        [ToolCall("f"), ToolCall("g", {"any": "ab"})],
    ),
    (
        FunctionTags(),
        function(("any", "[1]"), ("maybe", "null"), ("either", "3")),
        [ToolCall("f", {"any": [1], "maybe": None, "either": 3})],
    ),
    (
        FunctionTags(),
        "<tool_call><function=f><parameter=n>7</parameter></function></tool_call>",
        [ToolCall("f", {"n": 7})],
    ),
    (FunctionTags(), "<think>" + function() + "</think>4", []),
    (KeyValueTags(), pairs(("x", "7"), ("n", "7")), [ToolCall("f", {"x": "7", "n": 7})]),
    (
        KeyValueTags(),
        pairs(("x", " </tool_call>\n")) + pairs(),
        [ToolCall("f", {"x": " </tool_call>\n"}), ToolCall("f")],
    ),
    (KeyValueTags(), "\n<think>hm</think>\n<tool_call>f</tool_call>", [ToolCall("f")]),
    (
        PythonCalls(),
        "<|tool_call_start|>[f(x='it\\'s', n=-7), a.g()]<|tool_call_end|>",
        [ToolCall("f", {"x": "it's", "n": -7}), ToolCall("a.g")],
    ),
    (
        PythonCalls(),
        '<|tool_call_start|>[f(any={"a": [true, null, None]})]<|tool_call_end|>',
        [ToolCall("f", {"any": {"a": [True, None, None]}})],
    ),
    (
        PythonCalls(),
        "<|tool_call_start|>[f(x='<|tool_call_end|>')]<|tool_call_end|>",
        [ToolCall("f", {"x": "<|tool_call_end|>"})],
    ),
]
MALFORMED: list[tuple[CallFormat, str, str]] = [
    (TaggedJson(), "<tool_call>{name: f}</tool_call>", "is no valid JSON"),
    (TaggedJson(), '<tool_call>{"name": "f", "arguments": {}', "is no valid JSON"),
    (TaggedJson(), "<tool_call></tool_call>", "is no valid JSON"),
    (TaggedJson(), "<tool_call>" + "[" * 100_000 + "</tool_call>", "is no valid JSON"),
    (TaggedJson(), '<tool_call>"f"</tool_call>', '"name"'),
    (TaggedJson(), "<tool_call>[]</tool_call>", '"name"'),
    (TaggedJson(), '<tool_call>{"arguments": {}}</tool_call>', '"name"'),
    (TaggedJson(), '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', "must be an object"),
    (TaggedJson(), '<tool_call>{"name": "f", "arguments": "{"}</tool_call>', "no valid JSON"),
    (TaggedJson(), '{"name": "f", "arguments": {}}', "between <tool_call> and </tool_call>"),
    (TaggedJson(), '{"name": "f", "parameters": {}}', "between <tool_call> and </tool_call>"),
    (TaggedJson(), '```json\n{"name": "f", "arguments": {"x": 1}}\n```', "between <tool_call> and </tool_call>"),
    (BareJson(), "<|python_tag|>print(1)", "is no valid JSON"),
    (BareJson(), 'I call it:\n```json\n{"name": "f", "parameters": {}}\n```\n', "not in a code block"),
    (TaggedJson(), function(), "is no valid JSON"),
    (TaggedJson(), r'<tool_call>{"name": "f", "arguments": {"x": ["\ud800"]}}</tool_call>', "is no JSON"),
    (TaggedJson(), r'<tool_call>{"name": "f", "arguments": {"\udfff": 1}}</tool_call>', "is no JSON"),
    (TaggedJson(), r'<tool_call>{"name": "\ud800", "arguments": {}}</tool_call>', "is no JSON"),
    (TaggedJson(), '<tool_call>{"name": "f", "arguments": {"x": 1e999}}</tool_call>', "is no JSON"),
    (BareJson(), f'{{"name": "f", "parameters": {{"x": {"[" * 100}{"]" * 100}}}}}', "nested too deeply"),
    (BareJson(), 'I look.\n{"name": "f", "parameters": {}}', "alone, without text before or after"),
    (BareJson(), '{"name": "f", "parameters": {}}\nNow I wait.', "alone, without text before or after"),
    (BareJson(), '{"name": "f", "parameters": {"x": ', "is no valid JSON"),
    (
        FunctionTags(),
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
        "must have the form <tool_call>\n<function=NAME>",
    ),
    (FunctionTags(), "<function=f>\n</function>", "must have the form"),
    (FunctionTags(), "<tool_call>\n<function=f>\n<parameter=x>\n1", "must have the form"),
    (FunctionTags(), function(("n", "seven")), "the parameter n: 'seven' is not of type integer"),
    (FunctionTags(), function(("n", "true")), "is not of type integer"),
    (FunctionTags(), function(("share", "NaN")), "'NaN' is not of type number"),
    (FunctionTags(), function(("x", "1"), ("x", "2")), "the parameter x twice"),
    (FunctionTags(), function(("any", r'"\ud800"')), "is no JSON"),
    (KeyValueTags(), '<tool_call>{"name": "f"}</tool_call>', "must have the form <tool_call>NAME"),
    (KeyValueTags(), "<tool_call>f\n<arg_key>x</arg_key>\n</tool_call>", "must have the form"),
    (PythonCalls(), "<|tool_call_start|>[f(1)]<|tool_call_end|>", "not a call with keyword arguments"),
    (
        PythonCalls(),
        "<|tool_call_start|>[f(x=open('y'))]<|tool_call_end|>",
        "the argument x has a value that is no JSON",
    ),
    (PythonCalls(), "<|tool_call_start|>[f(x='it's')]<|tool_call_end|>", "is no list of Python calls"),
    (PythonCalls(), "<|tool_call_start|>[f(x={1})]<|tool_call_end|>", "the argument x has a value that is no JSON"),
    (PythonCalls(), "<|tool_call_start|>[f(x={[1]})]<|tool_call_end|>", "the argument x has a value that is no JSON"),
    (PythonCalls(), f"<|tool_call_start|>[f(x={'9' * 400}+1j)]<|tool_call_end|>", "a value that is no JSON"),
    (PythonCalls(), "<|tool_call_start|>[f(x=[-True])]<|tool_call_end|>", "a value that is no JSON"),
    (PythonCalls(), r"<|tool_call_start|>[f(x='\ud800')]<|tool_call_end|>", "is no JSON"),
    (PythonCalls(), "<|tool_call_start|>[f(x={1: 2})]<|tool_call_end|>", "the argument x has a key that is no string"),
    (PythonCalls(), f"<|tool_call_start|>[f(x={'-' * 10_000}1)]<|tool_call_end|>", "(nested too deeply)"),
    (PythonCalls(), f"<|tool_call_start|>[f(x=1{' + 1' * 10_000})]<|tool_call_end|>", "(nested too deeply)"),
    (PythonCalls(), f"<|tool_call_start|>[f(x={'[' * 1000}{']' * 1000})]<|tool_call_end|>", "too many nested"),
]


@pytest.mark.parametrize(("form", "reply", "calls"), CASES)
def test_calls_are_parsed_exactly(form: CallFormat, reply: str, calls: list[Call]) -> None:
    assert form.parse(reply, SCHEMAS).calls == tuple(calls)


@pytest.mark.parametrize(("form", "reply", "reason"), MALFORMED)
def test_a_malformed_call_is_told_in_the_terms_of_the_format(form: CallFormat, reply: str, reason: str) -> None:
    (call,) = form.parse(reply, SCHEMAS).calls
    assert isinstance(call, MalformedCall)
    assert reason in call.reason


def test_the_text_before_the_calls_is_the_content() -> None:
    parsed = FunctionTags().parse("<think>hm</think>\n\nI look.\n" + function() + function(), SCHEMAS)
    assert parsed.content == "<think>hm</think>\n\nI look."
    assert len(parsed.calls) == 2


TALK = (
    "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}CALLS<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
LOOP = "{% for c in m.tool_calls or [] %}BODY{% endfor %}"
ITEMS = "{% for k, v in c.function.arguments.items() %}BODY{% endfor %}"
PLAIN = "{{ v if v is string else v | tojson }}"
WRITTEN = {
    "tags": '<tool_call>{"name": "{{ c.function.name }}", '
    '"arguments": {{ c.function.arguments | tojson }}}</tool_call>',
    "functions": "<tool_call><function={{ c.function.name }}>"
    + ITEMS.replace("BODY", "<parameter={{ k }}>\n" + PLAIN + "\n</parameter>")
    + "</function></tool_call>",
    "keys": "<tool_call>{{ c.function.name }}\n"
    + ITEMS.replace("BODY", "<arg_key>{{ k }}</arg_key><arg_value>" + PLAIN + "</arg_value>")
    + "</tool_call>",
}
UNKNOWN = {
    "nothing": "",
    "other": "[TOOL_CALLS]" + WRITTEN["tags"].replace("tool_call", "call"),
    "unquoted": WRITTEN["functions"].replace("tojson", "string"),
    "stripped": WRITTEN["keys"].replace("v if v is string", "v | trim | replace('\n', ' ') if v is string"),
    "fails": "{{ raise_exception('no calls') }}",
}


def renderer_of(tokenizer: PreTrainedTokenizerBase, call: str) -> ChatRenderer:
    own = copy.deepcopy(tokenizer)
    own.chat_template = TALK.replace("CALLS", LOOP.replace("BODY", call))
    return ChatRenderer(own, context=None, max_tokens=10)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_template_is_recognized_by_the_calls_that_it_writes(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    told = renderer_of(tokenizer, WRITTEN[name]).with_tools(TOOLS)
    call = Message("assistant", "", tool_calls=(("f", '{"x": "7", "n": 7}'),))
    question = [Message("user", "what?")]
    tokens = told.render([*question, call])[len(told.render(question)) :]
    text = str(tokenizer.decode(list(tokens))).removesuffix("<|assistant|>")
    parsed = told.parse_reply(question, tokenizer.encode(text, add_special_tokens=False))
    assert parsed is not None
    assert parsed.calls == (ToolCall("f", {"x": "7", "n": 7}),)
    assert renderer_of(tokenizer, WRITTEN[name]).parse_reply(question, tokens) is None, "it was not told of tools"


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_template_that_no_format_parses_is_refused(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    with pytest.raises(ConfigError, match=r"tool calls of the chat template .* cannot be parsed"):
        renderer_of(tokenizer, UNKNOWN[name]).with_tools(TOOLS)


def test_a_template_that_drops_results_of_a_call_as_it_was_sampled_is_refused(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    own = copy.deepcopy(tokenizer)
    ignores = "{% if m.role != 'tool' or messages[loop.index0 - 1].tool_calls %}<|{{ m.role }}|>{{ m.content }}"
    own.chat_template = (
        TALK.replace("<|{{ m.role }}|>{{ m.content }}", ignores)
        .replace("CALLS", LOOP.replace("BODY", WRITTEN["tags"]))
        .replace("<|end|>{% endfor %}", "<|end|>{% endif %}{% endfor %}")
    )
    with pytest.raises(ConfigError, match="writes other text where a call stands as a model wrote it"):
        ChatRenderer(own, context=None, max_tokens=10).with_tools(TOOLS)


def test_a_dry_run_refuses_a_model_whose_calls_cannot_be_parsed(tokenizer: PreTrainedTokenizerBase) -> None:
    problem = Problem("p", "tests", (Message("user", "what is 3 + 4?"),), "7")
    with pytest.raises(ConfigError, match=r"cannot be parsed.*workflow\.call_format=code_block"):
        asyncio.run(CalculatorConfig().check_start(LastWordTask(), [problem], renderer_of(tokenizer, UNKNOWN["other"])))
    asyncio.run(CalculatorConfig().check_start(LastWordTask(), [problem], renderer_of(tokenizer, WRITTEN["functions"])))
