"""Base class of environments: conversations of several turns between the policy and code.

    reset(problem) ──► messages ──► reply ──► step(reply) ──┬──► messages ──► reply ──► ...
                                                            └──► reward: the episode ends

A new object plays each episode, so its attributes are the state of that episode. `reset` and `step` may be plain or
async; plain ones run in a thread, so they may block. An exception, or a call that exceeds the time limit, is a failure
of the environment: the sample is recorded and counted as a judge error, and never trained on.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from dojang.protocols import Task
from dojang.tool_calls.calls import Call
from dojang.types import Message, Problem, Verdict

__all__ = ["Environment", "Messages", "Reply", "Step", "StepResult"]

Messages: TypeAlias = str | Message | Sequence[Message]
"""Messages of the environment; text alone is a message of the user."""


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply of the policy."""

    text: str
    turn: int
    """Number of replies before this one."""
    turns_left: int
    """Number of replies that may follow."""
    cut: bool = False
    """Whether it was cut at max_tokens. The episode ends after it, whatever `step` returns."""
    calls: Sequence[Call] | None = None
    """Its tool calls, in the format of the model's chat template; None if the environment has no tools."""


@dataclass(frozen=True, slots=True)
class Step:
    """Result of a step, if messages or a reward alone do not say all."""

    messages: Messages = ()
    reward: float = 0.0
    """Reward of this turn, added to those of the other turns."""
    done: bool = False
    solved: bool | None = None
    """Whether the episode counts as accepted; by default if its rewards sum up to 1 or more."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Terms of the reward, for the metrics `critic/rewards/NAME/mean`."""
    detail: str = ""
    """Explanation of the result, shown with the sample."""
    verdict: Verdict | None = None
    """Verdict of `grade`, if it decides: its reward is added, and its outcome is that of the episode."""
    if_last: Verdict | Callable[[], Awaitable[Verdict]] | None = None
    """Verdict that decides if no reply can follow: after max_turns, a reply that was cut, or with a full context. A
    function that is only called then, for verdicts that take long."""
    training_trace: Any = None
    """OpenEnv's TrainingTrace of an agent's episode: only tokens that it trains have a loss."""


StepResult: TypeAlias = Messages | float | bool | Verdict | Step
"""Messages: the episode goes on. A number, or the verdict of `grade`: it ends with this reward."""


class Environment:
    """An episode. Subclass it and override `step`, and `reset` if the first messages are not the problem's prompt."""

    grade: Callable[[str], Awaitable[Verdict]]
    """Grades an answer with the task of the run: `return await self.grade(reply.text)`. Set before `reset`."""
    task: Task
    """Task of the run, for environments that need more than `grade`. Set before `reset`."""

    def reset(self, problem: Problem) -> Messages | Awaitable[Messages]:
        """Starts the episode; returns the first messages."""
        return problem.messages

    def step(self, reply: Reply) -> StepResult | Awaitable[StepResult]:
        """Handles a reply; returns messages, or the reward that ends the episode."""
        raise NotImplementedError(f"{type(self).__name__} needs a method `step`")

    def tools(self) -> Sequence[Callable[..., Any]]:
        """Functions that the chat template tells the model of; their type hints and docstrings are the schema."""
        return ()

    def close(self) -> None:
        """Frees what the episode holds; called once, also after a failure."""
