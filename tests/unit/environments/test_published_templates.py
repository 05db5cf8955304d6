"""Random conversations of ten turns in the published chat templates of Qwen2.5, Qwen3, Llama 3, SmolLM2 and Gemma: the
engine and the trainer see the same tokens in every turn, with tools where the template has them.

The templates come with TRL's package (`make chat-templates`), that of SmolLM2 with the fetched model.
"""

import asyncio
import copy
import os
import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from dojang.core.errors import ConfigError
from dojang.core.paths import cache_root
from dojang.environments.base import Environment, Messages, Reply, StepResult
from dojang.environments.multi_turn import EpisodeLimits, MultiTurn
from dojang.models.packages import MODELS
from dojang.types import Completion, Group, Message, Problem, Sampling
from dojang.workflows.chat_renderer import ChatRenderer
from dojang.workflows.section import RolloutPolicy
from policy_clients import WEATHER, RandomEngine, check, policy_of, served, talk_openai
from scripted_episodes import LastWordTask

ROOT = Path(__file__).resolve().parents[3]
FOLDER = Path(os.environ.get("DOJANG_CHAT_TEMPLATES", ROOT / ".venv" / "chat-templates" / "trl" / "chat_templates"))
CHATML, LLAMA, GEMMA = "<|im_end|>", "<|eot_id|>", "<end_of_turn>"
WITH_TOOLS = {"qwen2_5": CHATML, "qwen3": CHATML, "qwen3_instruct_2507": CHATML, "llama3_1": LLAMA, "llama3_2": LLAMA}
WITHOUT_TOOLS = {"llama3": LLAMA, "gemma": GEMMA, "gemma3": GEMMA, "smollm2": CHATML}
SPECIAL = [CHATML, LLAMA, GEMMA, "<|im_start|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"]
SPECIAL += ["<|python_tag|>", "<|eom_id|>", "<start_of_turn>", "<tool_call>", "</tool_call>", "<think>", "</think>"]
PIECES = ["the answer is ", "7", " ", "\n", "é", "日本", '{"x": 1}', "\t", "what is ", "<", "|im", "[]"]
CALLS = [
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>',
    '{"name": "weather", "parameters": {"city": "Ulm"}}',
    "<think>\nhm\n</think>\n\nso ",
    "",
    "",
]


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
    own.eos_token = {**WITH_TOOLS, **WITHOUT_TOOLS}[name]
    return own


class Sampled:
    """An engine that samples random text, as the tokenizer would split it or not; remembers prompts and replies."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        self._tokenizer, self._random = tokenizer, random.Random(seed)
        self.prompts: list[tuple[int, ...]] = []

    async def generate(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        assert n == 1
        self.prompts.append(tuple(prompt))
        chance = self._random
        text = "".join(chance.choices(PIECES, k=chance.randrange(1, 9))) + chance.choice(CALLS)
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


def play(tokenizer: PreTrainedTokenizerBase, seed: int, *, tools: bool) -> tuple[Sampled, Group]:
    engine = Sampled(tokenizer, seed)
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
        engine, group = play(own, seed, tools=name in WITH_TOOLS)
        assert not group.unjudged, group.unjudged[0].verdict
        assert len(engine.prompts) == 10
        streams = [tuple(sample.tokens.tolist()) for sample in group.samples]
        for prompt in engine.prompts:
            assert any(stream[: len(prompt)] == prompt for stream in streams)
        replies = [turn for sample in group.samples for turn in sample.turns if turn.role == "assistant"]
        assert len(replies) == 10, "every reply is trained once"
        assert sum(int(sample.mask.sum()) for sample in group.samples) == sum(turn.end - turn.start for turn in replies)
        parts += len(streams)
    assert (parts > 3) == (name == "qwen3"), "only Qwen3 drops the thinking of earlier turns, and splits episodes"


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
        reply = (*own.encode(f"the answer is é{turn}", add_special_tokens=False), own.eos_token_id)
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
    engine = RandomEngine(own, 3)

    async def run() -> None:
        async with served(policy_of(engine, own)) as at:
            await talk_openai(at, 3)
            check(engine, at.session, streams=None if name == "qwen3" else 1)

    asyncio.run(run())
    assert len(engine.prompts) == 10


@pytest.mark.parametrize("name", WITHOUT_TOOLS)
def test_a_template_without_tools_is_refused(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    renderer = ChatRenderer(tokenizer_of(tokenizer, name), context=None, max_tokens=100)
    with pytest.raises(ConfigError, match="does not write tools"):
        renderer.with_tools([WEATHER])
