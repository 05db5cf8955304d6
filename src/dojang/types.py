"""The nouns. Everything that travels between rooms is one of these, frozen and self-checking.

Problem ──► Completion ──► Verdict ──► Sample ──► Group
(posed)     (attempted)    (judged)    (credited)
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

__all__ = [
    "Completion",
    "Finish",
    "Group",
    "Message",
    "Metrics",
    "Outcome",
    "Problem",
    "Sample",
    "Sampling",
    "Span",
    "Verdict",
    "plain_prompt",
]

Metrics = Mapping[str, float]
Finish = Literal["stop", "length", "abort"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation, or a piece of a plain-text prompt."""

    role: Literal["system", "user", "assistant", "text"]
    """`text` is for prompts without a chat template: the model continues the pieces, joined as they are. All messages
    of such a prompt are text; the last one is the question."""
    content: str


def plain_prompt(messages: Sequence[Message]) -> str | None:
    """Text of a plain-text prompt; None if the messages are a conversation. ValueError if they are both."""
    kinds = {message.role == "text" for message in messages}
    if len(kinds) > 1:
        raise ValueError("a plain-text prompt (role text) cannot be mixed with the turns of a conversation")
    return "".join(message.content for message in messages) if True in kinds else None


@dataclass(frozen=True, slots=True)
class Problem:
    """A task to attempt, and what its judge needs to know."""

    id: str
    source: str
    """The dataset it came from; evaluation scores are reported per source."""
    messages: tuple[Message, ...]
    reference: object
    """What the answer is checked against. Only the problem's own task looks inside."""
    tier: str = ""
    """The part of the dataset it belongs to, if that has parts (easy, hard)."""
    columns: Mapping[str, object] = field(default_factory=dict, compare=False)
    """Columns of the row it was read from, for reward functions that name them; never part of a prompt."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw completions. `seed` and `ordinal` name the random stream, so a draw can be repeated."""

    temperature: float
    """0 takes the most likely token."""
    max_tokens: int
    seed: int = 0
    ordinal: int = 0
    """Which draw of the run this is; sample i of it uses the stream (seed, ordinal, i)."""
    stop: tuple[str, ...] = ()
    """Generation ends when one of these appears; the text is cut in front of it, the tokens are kept."""
    stop_tokens: tuple[int, ...] = ()
    """Generation also ends with one of these, which is kept."""
    top_k: int = 0
    """Only so many of the likeliest tokens may be drawn; 0 for all."""
    top_p: float = 1.0
    """Only the likeliest tokens that make up this much probability may be drawn."""
    min_p: float = 0.0
    """Only tokens at least this many times as likely as the likeliest may be drawn; 0 for all."""
    bias: tuple[tuple[int, float], ...] = ()
    """(token, what is added to its score)."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ValueError(f"temperature={self.temperature} must be 0 or more")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens={self.max_tokens} must be at least 1")
        if not all(self.stop):
            raise ValueError("a stop string must not be empty")
        if not 0 < self.top_p <= 1 or self.top_k < 0:
            raise ValueError(f"top_p={self.top_p} must be above 0 and at most 1, and top_k={self.top_k} not negative")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p={self.min_p} must be between 0 and 1")

    @property
    def truncated(self) -> bool:
        """Whether top-k, top-p or min-p takes tokens out of the distribution."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens from `start` up to `end` were drawn with these weights."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Completion:
    """What the model wrote: the sampled tokens with the log-probs they were sampled at."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of the distribution the tokens were drawn from: after temperature, limits and bias."""
    text: str
    finish: Finish
    version: int
    """The weights that drew the first token."""
    plain_logprobs: tuple[float, ...] = ()
    """Of the model's own distribution, at temperature 1; empty if the engine does not tell."""
    spans: tuple[Span, ...] = ()
    """Which weights drew which tokens; empty if all are of `version`."""

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.logprobs):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.logprobs)} log-probs")
        if len(self.plain_logprobs) not in (0, len(self.tokens)):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.plain_logprobs)} plain log-probs")


class Outcome(StrEnum):
    """What became of an attempt. JUDGE_ERROR is a failure of the machinery, never of the attempt."""

    ACCEPTED = "accepted"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    JUDGE_ERROR = "judge_error"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's word on one attempt."""

    outcome: Outcome
    reward: float | None
    """None exactly when the outcome is JUDGE_ERROR."""
    passed: int = 0
    total: int = 1
    parts: Mapping[str, float] = field(default_factory=dict)
    """Each named reward before weighting."""
    detail: str = ""
    seconds: float = 0.0
    isolation: str = ""
    """What a judged program was kept in by; empty where no program was run."""
    terms: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """(weight, value) of each term of the reward, by name: what GDPO normalises. Empty: `parts`, each with weight 1."""

    def __post_init__(self) -> None:
        if (self.reward is None) != (self.outcome is Outcome.JUDGE_ERROR):
            raise ValueError(f"outcome {self.outcome} cannot carry reward {self.reward}")
        if self.reward is not None and not math.isfinite(self.reward):
            raise ValueError(f"reward {self.reward} is not a finite number")
        numbers = [(name, (value,)) for name, value in self.parts.items()] + list(self.terms.items())
        if bad := [f"{name} {value}" for name, values in numbers for value in values if not math.isfinite(value)]:
            raise ValueError(f"a part of the reward is not a finite number: {', '.join(bad)}")


@dataclass(frozen=True, slots=True)
class Sample:
    """One attempt as it is trained on: three streams of equal length, prompt included."""

    tokens: tuple[int, ...]
    mask: tuple[bool, ...]
    """True where the model chose the token; only those are learned from."""
    logprobs: tuple[float, ...]
    """Behaviour log-probs where the mask is True, 0 elsewhere."""
    text: str
    finish: Finish
    version: int
    verdict: Verdict
    index: int = 0
    """Position in its group as drawn; dropped neighbours leave gaps."""
    role: str = "policy"
    """Which of the models of a run wrote it, where there are several: coder or tester."""
    turn: int = 0
    """Turn of its role within the conversation; samples are compared with those of the same role and turn."""
    advantage: float = 0.0
    token_rewards: tuple[float, ...] = ()
    """Rewards of single tokens beside the verdict's, such as a KL penalty, 0 where the mask is False; empty if there
    are none."""
    old_logprobs: tuple[float, ...] = ()
    """The trainer's own before the first update on it, 0 where the mask is False; empty if they are not needed."""
    values: tuple[float, ...] = ()
    """What the critic expected before each token, before the first update on it; 0 where the mask is False, and empty
    without a critic, as are the next two."""
    advantages: tuple[float, ...] = ()
    """Of each token; where it is empty all have `advantage`."""
    returns: tuple[float, ...] = ()
    """What the critic should have expected."""

    def __post_init__(self) -> None:
        told = {
            "token rewards": self.token_rewards,
            "old log-probs": self.old_logprobs,
            "values": self.values,
            "advantages": self.advantages,
            "returns": self.returns,
        }
        for name, stream in told.items():
            if len(stream) not in (0, len(self.tokens)):
                raise ValueError(f"{len(self.tokens)} tokens but {len(stream)} {name}")
        if not len(self.tokens) == len(self.mask) == len(self.logprobs):
            raise ValueError(
                f"streams differ in length: {len(self.tokens)} tokens, {len(self.mask)} mask, "
                f"{len(self.logprobs)} log-probs"
            )

    @classmethod
    def of(
        cls,
        prompt: tuple[int, ...],
        completion: Completion,
        verdict: Verdict,
        index: int = 0,
        role: str = "policy",
        turn: int = 0,
    ) -> "Sample":
        """The tokens that were sampled are the tokens that are trained: joined here, never made from text again."""
        return cls(
            tokens=prompt + completion.tokens,
            mask=(False,) * len(prompt) + (True,) * len(completion.tokens),
            logprobs=(0.0,) * len(prompt) + completion.logprobs,
            text=completion.text,
            finish=completion.finish,
            version=completion.version,
            verdict=verdict,
            index=index,
            role=role,
            turn=turn,
        )

    @property
    def reward(self) -> float:
        """The verdict's reward; a sample without one must never get this far."""
        if self.verdict.reward is None:
            raise ValueError("a JUDGE_ERROR sample has no reward and must not be trained on")
        return self.verdict.reward

    @property
    def response_length(self) -> int:
        """How many tokens the model chose."""
        return sum(self.mask)


@dataclass(frozen=True, slots=True)
class Group:
    """One problem and its graded samples."""

    problem: Problem
    ordinal: int
    samples: tuple[Sample, ...]
    unjudged: tuple[Sample, ...] = ()
    """Samples without a verdict: on record, but never trained on."""

    @property
    def has_advantage(self) -> bool:
        """Whether any sample, or any of its tokens where each has its own, has an advantage other than 0."""
        return any(any(sample.advantages) if sample.advantages else sample.advantage for sample in self.samples)

    @property
    def judge_errors(self) -> tuple[str, ...]:
        """What went wrong, for each sample that could not be judged."""
        return tuple(sample.verdict.detail for sample in self.unjudged)

    def of(self, role: str) -> "Group":
        """The same with the samples of one role alone."""
        samples, unjudged = (
            tuple(each for each in some if each.role == role) for some in (self.samples, self.unjudged)
        )
        return replace(self, samples=samples, unjudged=unjudged)
