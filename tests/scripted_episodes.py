"""Plays episodes of a shipped environment with scripted replies, through the real workflow and chat template."""

import asyncio
import copy
import json
from collections.abc import Callable, Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from dojang.protocols import Task
from dojang.types import Message, Outcome, Problem, Sample, Sampling, Verdict
from dojang.workflows.chat_renderer import ChatRenderer
from dojang.workflows.section import RolloutPolicy, WorkflowSection
from scripted_engine import ScriptedEngine

TOOL_TEMPLATE = (
    "{% if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class LastWordTask:
    """Accepts a text whose last word is the reference."""

    def problems(self, split: str) -> Sequence[Problem]:
        return []

    async def grade(self, problem: Problem, text: str) -> Verdict:
        right = text.split()[-1:] == [problem.reference]
        return Verdict(Outcome.ACCEPTED if right else Outcome.WRONG, float(right))


def tool_call(name: str, **arguments: object) -> str:
    """A tool call in the format of Qwen."""
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def play(
    tokenizer: PreTrainedTokenizerBase,
    section: WorkflowSection,
    replies: Sequence[str] | Callable[[str], str],
    *,
    task: Task | None = None,
    problem: Problem | None = None,
    max_tokens: int = 400,
) -> Sample:
    """Plays one episode. `replies`: one per turn, or a function of the conversation so far."""
    own = copy.deepcopy(tokenizer)
    own.chat_template = TOOL_TEMPLATE
    asked: list[str] = []

    def script(prompt: str, index: int, sampling: Sampling) -> str:
        asked.append(prompt)
        return replies(prompt) if callable(replies) else replies[len(asked) - 1]

    policy = RolloutPolicy(
        ScriptedEngine(own, script),
        ChatRenderer(own, context=None, max_tokens=max_tokens),
        Sampling(temperature=1.0, max_tokens=max_tokens),
    )
    problem = problem or Problem("tests/1", "tests", (Message("user", "What is it?"),), "42")
    workflow = section.make(task or LastWordTask(), {"policy": policy}, 1)
    group = asyncio.run(workflow.run(problem, 0))
    (sample,) = group.samples or group.unjudged
    return sample


def counts(sample: Sample) -> Mapping[str, int]:
    """Number of turns by role."""
    return {role: sum(each.role == role for each in sample.turns) for role in ("assistant", "tool", "user")}
