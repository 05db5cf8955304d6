"""Random conversations of ten turns in published chat templates: Qwen2.5 to Qwen3.6, Llama 3, GLM-4.5, Nemotron 3,
LFM2, SmolLM2 and Gemma. The engine and the trainer see the same tokens in every turn, with tools where the template has
them; its calls are parsed exactly, or it is refused.

The templates come with TRL's package (`make chat-templates`), that of SmolLM2 with the fetched model.
"""

import asyncio
import copy
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from dojang.core.errors import ConfigError
from dojang.core.paths import cache_root
from dojang.environments.base import Environment, Messages, Reply, StepResult
from dojang.environments.multi_turn import EpisodeLimits, MultiTurn
from dojang.models.packages import MODELS
from dojang.tool_calls.calls import ToolCall
from dojang.types import Completion, Group, Message, Problem, Sampling
from dojang.workflows.chat_renderer import ChatRenderer
from dojang.workflows.section import RolloutPolicy
from policy_clients import WEATHER, RandomEngine, check, policy_of, served, talk_openai
from scripted_episodes import LastWordTask

ROOT = Path(__file__).resolve().parents[3]
FOLDER = Path(os.environ.get("DOJANG_CHAT_TEMPLATES", ROOT / ".venv" / "chat-templates" / "trl" / "chat_templates"))
CHATML, LLAMA, GEMMA = "<|im_end|>", "<|eot_id|>", "<end_of_turn>"
WITH_TOOLS = {"qwen2_5": CHATML, "qwen3": CHATML, "qwen3_instruct_2507": CHATML, "llama3_1": LLAMA, "llama3_2": LLAMA}
WITH_TOOLS |= {"qwen3_5_think": CHATML, "qwen3_5_nothink": CHATML, "qwen3_6": CHATML, "nemotron_3_nano": CHATML}
WITH_TOOLS |= {"lfm2_v2": CHATML, "glm4moe": "<|observation|>"}
REFUSED = {"gemma4_v5": GEMMA, "gptoss": CHATML, "lfm2": CHATML, "lfm2_2_5": CHATML, "muse_glimmer": CHATML}
REFUSED |= {"qwen3_8": CHATML}
THINKING = {"qwen3_5_think": "hm\n</think>\n\n", "qwen3_6": "hm\n</think>\n\n", "nemotron_3_nano": "hm\n</think>\n"}
THINKING |= {"glm4moe": "\n<think>hm</think>\n"}
"""Thinking without which these models do not answer: the template writes it."""
SPLITTING = {"qwen3", "qwen3_5_nothink", *THINKING}
"""Templates that drop the thinking of earlier turns, also an empty one that the prompt has written."""
TURN = {"llama3_1": "assistant<|end_header_id|>\n\n", "llama3_2": "assistant<|end_header_id|>\n\n"}
TURN |= {"glm4moe": "<|assistant|>"}
"""The end of the generation prompt."""
WITHOUT_TOOLS = {"llama3": LLAMA, "gemma": GEMMA, "gemma3": GEMMA, "smollm2": CHATML}
SPECIAL = [CHATML, LLAMA, GEMMA, "<|im_start|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"]
SPECIAL += ["<|observation|>", "<|user|>", "<|assistant|>", "<|tool_call_start|>", "<|tool_call_end|>"]
SPECIAL += ["<|python_tag|>", "<|eom_id|>", "<start_of_turn>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
PIECES = ["the answer is ", "7", " ", "\n", "é", "日本", '{"x": 1}', "\t", "what is ", "<", "|im", "[]"]
CALLS = [
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>',
    '{"name": "weather", "parameters": {"city": "Ulm"}}',
    "<think>\nhm\n</think>\n\nso ",
    "",
    "",
]
FUNCTION_TAGS = "<tool_call>\n<function=weather>\n<parameter=city>\nUlm\n</parameter>\n</function>\n</tool_call>"
CALL_OF = {"qwen3_5_think": FUNCTION_TAGS, "qwen3_5_nothink": FUNCTION_TAGS, "qwen3_6": FUNCTION_TAGS}
CALL_OF |= {"nemotron_3_nano": FUNCTION_TAGS, "lfm2_v2": "<|tool_call_start|>[weather(city='Ulm')]<|tool_call_end|>"}
CALL_OF |= {"glm4moe": "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Ulm</arg_value>\n</tool_call>"}
STRINGS = [
    "a",
    "7",
    "true",
    "null",
    " ",
    "\n",
    "é",
    "日本",
    "<x>",
    "</x>",
    "{",
    "}",
    "[",
    '"',
    "'",
    "\\",
    "\\n",
    "=",
    ", ",
    "&",
]
STRINGS += [
    "</tool_call>",
    "<tool_call>",
    "</parameter>",
    "<parameter=city>",
    "```",
    ";",
    "<|",
    "def f():\n    return 1\n",
]
MANY = {
    "type": "function",
    "function": {
        "name": "many",
        "description": "Takes values of all types.",
        "parameters": {
            "type": "object",
            "properties": {
                "text": {"type": "string", "description": "A text."},
                "count": {"type": "integer", "description": "A number."},
                "share": {"type": "number", "description": "A number."},
                "exact": {"type": "boolean", "description": "A truth value."},
                "rows": {"type": "array", "items": {}, "description": "Values."},
                "options": {"type": "object", "description": "Values by name."},
            },
        },
    },
}


def template_of(name: str) -> str:
    if name != "smollm2":
        file = FOLDER / f"{name}.jinja"
        if not file.exists():
            pytest.skip(f"no published chat templates in {FOLDER}; make chat-templates fetches them")
        return file.read_text()
    files = sorted((cache_root() / "models").glob(f"{MODELS['smollm2-135m-instruct'].name}-*/chat_template.jinja"))
    if not files:
        pytest.skip("SmolLM2 has not been fetched; `dojang sample smollm2-135m-instruct` or make test-all does")
    return files[0].read_text()


def tokenizer_of(tokenizer: PreTrainedTokenizerBase, name: str) -> PreTrainedTokenizerBase:
    """Returns the tokenizer with the template, and the special tokens of all families."""
    own = copy.deepcopy(tokenizer)
    own.chat_template = template_of(name)
    own.add_special_tokens({"additional_special_tokens": SPECIAL, "bos_token": "<|begin_of_text|>"})
    own.eos_token = {**WITH_TOOLS, **WITHOUT_TOOLS, **REFUSED}[name]
    return own


class Sampled:
    """An engine that samples random text, as the tokenizer would split it or not; remembers prompts and replies."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int, thinking: str, call: str) -> None:
        self._tokenizer, self._random, self._thinking = tokenizer, random.Random(seed), thinking
        self._calls = [call, *CALLS[1:]]
        self.prompts: list[tuple[int, ...]] = []

    async def generate(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        assert n == 1
        self.prompts.append(tuple(prompt))
        chance = self._random
        text = self._thinking + "".join(chance.choices(PIECES, k=chance.randrange(1, 9))) + chance.choice(self._calls)
        parts = [text] if chance.random() < 0.5 else list(text)
        tokens = [each for part in parts for each in self._tokenizer.encode(part, add_special_tokens=False)]
        if chance.random() < 0.9:  # otherwise as if a stop string had ended it
            tokens.append(self._tokenizer.eos_token_id)
        return [Completion(tuple(tokens), (-1.0,) * len(tokens), text, "stop", len(self.prompts))]

    async def load(self, version: int) -> None: ...

    async def close(self) -> None: ...


def weather(city: str) -> str:
    """
    Tells the weather.

    Args:
        city: Name of the city.
    """
    return f"{city}: sunny"


class Talk(Environment):
    """Ten turns; answers with results of tools, or a message of the user."""

    def reset(self, problem: Problem) -> Messages:
        self.random, self.with_tools = random.Random(problem.id), problem.reference == "tools"
        return problem.messages

    def tools(self) -> Sequence[object]:  # type: ignore[override]
        return [weather] if self.with_tools else []

    def step(self, reply: Reply) -> StepResult:
        if reply.turn == 9:
            return 1.0
        kinds = self.random.choice([["user"], ["tool"], ["tool", "tool"]]) if self.with_tools else ["user"]
        return [Message(each, self.random.choice(["ok ", " 12\n", "é日", '{"a": 1}']) + "next") for each in kinds]  # type: ignore[arg-type]


def play(tokenizer: PreTrainedTokenizerBase, seed: int, name: str) -> tuple[Sampled, Group]:
    tools = name in WITH_TOOLS
    engine = Sampled(tokenizer, seed, THINKING.get(name, ""), CALL_OF.get(name, CALLS[0]))
    renderer = ChatRenderer(tokenizer, context=None, max_tokens=100)
    policy = RolloutPolicy(engine, renderer, Sampling(temperature=1.0, max_tokens=100))
    workflow = MultiTurn(Talk, LastWordTask(), policy, EpisodeLimits(10, 60.0), group_size=1, lockstep=True)
    messages = (Message("system", "Be brief."), Message("user", "what is 3 + 4?"))
    problem = Problem(str(seed), "tests", messages, "tools" if tools else "")
    return engine, asyncio.run(workflow.run(problem, 0))


@pytest.mark.parametrize("name", [*WITH_TOOLS, *WITHOUT_TOOLS])
def test_the_engine_and_the_trainer_see_the_same_tokens(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    own, parts = tokenizer_of(tokenizer, name), 0
    for seed in range(3):
        engine, group = play(own, seed, name)
        assert not group.unjudged, group.unjudged[0].verdict
        assert len(engine.prompts) == 10
        streams = [tuple(sample.tokens.tolist()) for sample in group.samples]
        for prompt in engine.prompts:
            assert any(stream[: len(prompt)] == prompt for stream in streams)
        replies = [turn for sample in group.samples for turn in sample.turns if turn.role == "assistant"]
        assert len(replies) == 10, "every reply is trained once"
        assert sum(int(sample.mask.sum()) for sample in group.samples) == sum(turn.end - turn.start for turn in replies)
        parts += len(streams)
    assert (parts > 3) == (name in SPLITTING), "only a dropped thinking of earlier turns splits episodes"


@pytest.mark.parametrize("name", [*WITH_TOOLS, *WITHOUT_TOOLS])
def test_the_tokens_spell_what_the_template_writes(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    own = tokenizer_of(tokenizer, name)
    renderer = ChatRenderer(own, context=None, max_tokens=100)
    role = "user"
    if name in WITH_TOOLS:
        renderer, role = renderer.with_tools([WEATHER]), "tool"
    messages = [Message("system", "Be brief."), Message("user", "what is 3 + 4?")]
    stream = list(renderer.render(messages))
    for turn in range(10):
        text = THINKING.get(name, "") + f"the answer is é{turn}"
        reply = (*own.encode(text, add_special_tokens=False), own.eos_token_id)
        more = [Message(role, f"result {turn}")]  # type: ignore[arg-type]
        said = renderer.text_of(messages, reply)
        between = renderer.continue_chat(messages, reply, said, more)
        assert between is not None
        stream += [*reply, *between]
        messages += [Message("assistant", said), *more]
        written = str(own.decode(list(renderer.render(messages))))
        assert "".join(str(own.decode(stream)).split()) == "".join(written.split())


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_calls_that_a_client_sends_back_keep_their_tokens(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    own = tokenizer_of(tokenizer, name)
    call = CALL_OF.get(name, '<tool_call>{"name": "weather", "arguments": {"city": "Ulm"}}</tool_call>')
    engine = RandomEngine(own, 3, thinking=THINKING.get(name, ""), call=call)

    async def run() -> None:
        async with served(policy_of(engine, own)) as at:
            await talk_openai(at, 3)
            check(engine, at.session, streams=None if name in SPLITTING else 1)

    asyncio.run(run())
    assert len(engine.prompts) == 10
    called = [prompt for prompt in engine.prompts if "sunny" in str(own.decode(list(prompt)))]
    assert called or name.startswith("llama"), "the client was shown calls, and sent back their results"


def value(chance: random.Random, depth: int = 0) -> Any:
    """A random value of JSON."""
    kind = chance.randrange(7 if depth < 2 else 5)
    if kind == 5:
        return [value(chance, depth + 1) for _ in range(chance.randrange(3))]
    if kind == 6:
        return {"".join(chance.choices("abc é", k=3)): value(chance, depth + 1) for _ in range(chance.randrange(3))}
    return [text(chance), chance.randrange(-99, 99), chance.random(), chance.random() < 0.5, None][kind]


def text(chance: random.Random) -> str:
    return "".join(chance.choices(STRINGS, k=chance.randrange(6)))


def random_call(chance: random.Random) -> tuple[str, str]:
    found = {
        "text": text(chance),
        "count": chance.randrange(-(10**20), 10**20),
        "share": chance.random() * 10 ** chance.randrange(-9, 20),
        "exact": chance.random() < 0.5,
        "rows": [value(chance, 1) for _ in range(chance.randrange(3))],
        "options": {"a": value(chance, 1)},
    }
    return "many", json.dumps({key: found[key] for key in chance.sample(sorted(found), chance.randrange(7))})


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_calls_that_the_template_writes_are_parsed_exactly(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    own, chance = tokenizer_of(tokenizer, name), random.Random(name)
    renderer = ChatRenderer(own, context=None, max_tokens=100).with_tools([MANY])
    question = [Message("user", "what is 3 + 4?")]
    for _ in range(40):
        calls = tuple(random_call(chance) for _ in range(1 if name.startswith("llama") else chance.randrange(1, 4)))
        sent = [
            {"role": "user", "content": "what is 3 + 4?"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {"type": "function", "function": {"name": each, "arguments": json.loads(arguments)}}
                    for each, arguments in calls
                ],
            },
        ]
        whole = str(own.apply_chat_template(sent, tools=[MANY], tokenize=False, add_generation_prompt=False))
        turn = whole.rpartition(TURN.get(name, "<|im_start|>assistant\n"))[2]
        if name in THINKING:
            turn = turn.strip().removeprefix("<think>") if name != "glm4moe" else turn
        reply = [*own.encode(turn.removesuffix("\n").removesuffix(own.eos_token), add_special_tokens=False)]
        parsed = renderer.parse_reply(question, [*reply, own.eos_token_id])
        assert parsed is not None
        assert parsed.calls == tuple(ToolCall(each, json.loads(arguments)) for each, arguments in calls), turn


@pytest.mark.parametrize("name", REFUSED)
def test_a_template_whose_calls_cannot_be_parsed_is_refused(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    renderer = ChatRenderer(tokenizer_of(tokenizer, name), context=None, max_tokens=100)
    with pytest.raises(
        ConfigError, match=r"tool calls of the chat template .* cannot be parsed.*call_format=code_block"
    ):
        renderer.with_tools([WEATHER])


@pytest.mark.parametrize("name", WITHOUT_TOOLS)
def test_a_template_without_tools_is_refused(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    renderer = ChatRenderer(tokenizer_of(tokenizer, name), context=None, max_tokens=100)
    with pytest.raises(ConfigError, match="does not write tools"):
        renderer.with_tools([WEATHER])
