"""Conversations of ten turns with tools, in chat templates of several kinds: the engine and the trainer see the same
tokens in every turn, and the tokens spell what the template writes."""

import asyncio
import copy
import random
from collections.abc import Sequence

import pytest
from transformers import PreTrainedTokenizerBase

from dojang.environments.base import Environment, Messages, Reply, StepResult
from dojang.environments.multi_turn import EpisodeLimits, MultiTurn
from dojang.types import Completion, Group, Message, Outcome, Problem, Sampling, Verdict
from dojang.workflows.chat_renderer import ChatRenderer
from dojang.workflows.section import RolloutPolicy

PLAIN = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
LINES = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
TRIMMED = "{% for m in messages %}<|{{ m.role }}|>\n\n{{ m.content | trim }}<|end|>{% endfor %}"
TOOLS_AS_USER = (
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|user|>{% endif %}\n"
    "<result>\n{{ m.content }}\n</result>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|end|>\n{% endif %}"
    "{% else %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endif %}{% endfor %}"
)
DROPS_THINKING = (
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}<|{{ m.role }}|>\n"
    "{% if m.role == 'assistant' and '</think>' in m.content and loop.index0 < ns.last %}"
    "{{ m.content.split('</think>')[-1].lstrip('\n') }}{% else %}{{ m.content }}{% endif %}<|end|>\n{% endfor %}"
)
END = "{% if add_generation_prompt %}<|assistant|>GENERATE{% endif %}"
TEMPLATES = {
    "plain": PLAIN + END.replace("GENERATE", ""),
    "lines": LINES + END.replace("GENERATE", "\n"),
    "trimmed": TRIMMED + END.replace("GENERATE", "\n\n"),
    "tools as user": TOOLS_AS_USER + END.replace("GENERATE", "\n"),
    "drops thinking": DROPS_THINKING + END.replace("GENERATE", "\n"),
}
PIECES = ["the answer is ", "7", " ", "\n", "é", "日本", "<think>", "</think>", '{"x": 1}', "\t", "what is "]


class RandomEngine:
    """Samples random tokens, a few of them special, and mostly ends with the end of the turn; remembers its prompts."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        self._tokenizer, self._random = tokenizer, random.Random(seed)
        self.prompts: list[tuple[int, ...]] = []

    async def generate(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        assert n == 1
        self.prompts.append(tuple(prompt))
        text = "".join(self._random.choices(PIECES, k=self._random.randrange(1, 12)))
        tokens = self._tokenizer.encode(text, add_special_tokens=False)
        if self._random.random() < 0.5:  # another tokenization of the same text
            tokens = [each for letter in text for each in self._tokenizer.encode(letter, add_special_tokens=False)]
        if self._random.random() < 0.9:  # otherwise as if a stop string had ended it
            tokens.append(self._tokenizer.eos_token_id)
        logprobs = tuple(-self._random.random() for _ in tokens)
        return [Completion(tuple(tokens), logprobs, text, "stop", len(self.prompts))]

    async def load(self, version: int) -> None: ...

    async def close(self) -> None: ...


class Talk(Environment):
    """Ten turns; answers with one or two tool results, or a message of the user."""

    def reset(self, problem: Problem) -> Messages:
        self.random = random.Random(str(problem.reference))
        return problem.messages

    def step(self, reply: Reply) -> StepResult:
        if reply.turn == 9:
            return 1.0
        kinds = [["user"], ["tool"], ["tool", "tool"]][self.random.randrange(3)]
        return [Message(kind, self.random.choice(["ok ", " 12\n", "é日", ""]) + "next") for kind in kinds]  # type: ignore[arg-type]


class NoTask:
    def problems(self, split: str) -> Sequence[Problem]:
        return []

    async def grade(self, problem: Problem, text: str) -> Verdict:
        return Verdict(Outcome.WRONG, 0.0)


def play(tokenizer: PreTrainedTokenizerBase, seed: int) -> tuple[RandomEngine, Group]:
    engine = RandomEngine(tokenizer, seed)
    policy = RolloutPolicy(
        engine, ChatRenderer(tokenizer, context=None, max_tokens=100), Sampling(temperature=1.0, max_tokens=100)
    )
    workflow = MultiTurn(Talk, NoTask(), policy, EpisodeLimits(10, 5.0), group_size=1, lockstep=True)
    messages = (Message("system", "Be brief."), Message("user", "what is 3 + 4?"))
    return engine, asyncio.run(workflow.run(Problem("p", "tests", messages, str(seed)), 0))


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("seed", range(8))
def test_the_engine_and_the_trainer_see_the_same_tokens(
    tokenizer: PreTrainedTokenizerBase, name: str, seed: int
) -> None:
    own = copy.deepcopy(tokenizer)
    own.chat_template = TEMPLATES[name]
    engine, group = play(own, seed)
    assert len(engine.prompts) == 10
    streams = [tuple(sample.tokens.tolist()) for sample in group.samples]
    for prompt in engine.prompts:
        assert any(stream[: len(prompt)] == prompt for stream in streams)
    assert sum(sample.mask.sum() for sample in group.samples) == sum(sample.response_length for sample in group.samples)
    replies = [turn for sample in group.samples for turn in sample.turns if turn.role == "assistant"]
    assert len(replies) == 10, "every reply is trained once"
    if name != "drops thinking":
        assert len(group.samples) == 1
    for sample in group.samples:
        for span in sample.spans:
            assert sample.mask[span.start : span.end].all()
            assert (sample.logprobs[span.start : span.end] < 0).all()


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_tokens_spell_what_the_template_writes(tokenizer: PreTrainedTokenizerBase, name: str) -> None:
    own = copy.deepcopy(tokenizer)
    own.chat_template = TEMPLATES[name]
    renderer = ChatRenderer(own, context=None, max_tokens=1)
    messages, stream = [Message("user", "what is 3 + 4?")], list(renderer.render([Message("user", "what is 3 + 4?")]))
    for turn, more in enumerate([[Message("tool", "a"), Message("tool", "b")], [Message("tool", "c")]]):
        reply = (*own.encode(f" the answer is {turn}\n", add_special_tokens=False), own.eos_token_id)
        said = renderer.text_of(messages, reply)
        between = renderer.continue_chat(messages, reply, said, more)
        assert between is not None
        stream += [*reply, *between]
        messages += [Message("assistant", said), *more]
    written = own.decode(list(renderer.render(messages)))
    assert "".join(own.decode(stream).split()) == "".join(written.split())
    assert own.decode(stream).count("<|end|>") == written.count("<|end|>")


def test_dropped_thinking_splits_the_episode(tokenizer: PreTrainedTokenizerBase) -> None:
    own = copy.deepcopy(tokenizer)
    own.chat_template = TEMPLATES["drops thinking"]
    renderer = ChatRenderer(own, context=None, max_tokens=1)
    question = [Message("user", "what is 3 + 4?")]
    thinking = (*own.encode("<think>so</think>\n7", add_special_tokens=False), own.eos_token_id)
    said = renderer.text_of(question, thinking)
    assert renderer.continue_chat(question, thinking, said, [Message("tool", "go on")]) is not None
    assert renderer.continue_chat(question, thinking, said, [Message("user", "go on")]) is None
    counts = [len(play(own, seed)[1].samples) for seed in range(20)]
    assert max(counts) > 1


def test_a_reply_without_the_end_of_its_turn_gets_one(tokenizer: PreTrainedTokenizerBase) -> None:
    renderer = ChatRenderer(tokenizer, context=None, max_tokens=1)
    question = [Message("user", "what is 3 + 4?")]
    cut = tuple(tokenizer.encode("7", add_special_tokens=False))
    more = [Message("user", "go on")]
    ended = renderer.continue_chat(question, (*cut, tokenizer.eos_token_id), "7", more)
    assert renderer.continue_chat(question, cut, "7", more) == (tokenizer.eos_token_id, *(ended or ()))
