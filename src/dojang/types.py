"""Records that pass between packages, frozen and validated on construction.

Problem ──► Completion ──► Verdict ──► Sample ──► Group
(prompt)    (rollout)      (reward)    (advantage)
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from dojang.core.arrays import float_array, read_only
from dojang.core.outcomes import Outcome, TestResult

if TYPE_CHECKING:  # numpy is imported late: the records are read by code that starts fast
    import numpy as np
    from numpy.typing import NDArray

    Ints = NDArray[np.int32]
    Bools = NDArray[np.bool_]
    Floats = NDArray[np.float32] | NDArray[np.float64]

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
    "StopLine",
    "TestResult",
    "Turn",
    "Verdict",
    "plain_prompt",
]

Metrics = Mapping[str, float]
Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation, or a piece of a plain-text prompt."""

    role: Literal["system", "user", "assistant", "tool", "text"]
    """`text` is for prompts without a chat template: the model continues the pieces, joined as they are. All messages
    of such a prompt are text; the last one is the question. `tool` is the result of a tool call."""
    content: str
    name: str = ""
    """Name of the tool, for the role `tool`."""
    tool_calls: tuple[tuple[str, str], ...] = ()
    """(name, JSON arguments) of tool calls that are not part of `content`, for the role `assistant`."""


def plain_prompt(messages: Sequence[Message]) -> str | None:
    """Text of a plain-text prompt; None if the messages are a conversation. ValueError if they are both."""
    kinds = {message.role == "text" for message in messages}
    if len(kinds) > 1:
        raise ValueError("a plain-text prompt (role text) cannot be mixed with the turns of a conversation")
    return "".join(message.content for message in messages) if True in kinds else None


@dataclass(frozen=True, slots=True)
class Problem:
    """A prompt, and the reference its completions are graded against."""

    id: str
    source: str
    """Name of its dataset; evaluation scores are reported per source."""
    messages: tuple[Message, ...]
    reference: object
    """Reference answer or tests, in a format that only its task reads."""
    tier: str = ""
    """Difficulty tier within the dataset, if any (easy, hard)."""
    columns: Mapping[str, object] = field(default_factory=dict, compare=False)
    """Columns of its data row, for reward functions that take them by name; never part of a prompt."""


@dataclass(frozen=True, slots=True)
class StopLine:
    """Stop condition of a task: a completion ends at the line that completes its answer. The text is cut at `end`; the
    tokens are kept, also the rest of a token that goes on after it."""

    begins: tuple[str, ...]
    """Strings of which one is in such a line; `end` is only called when one has been sampled."""
    end: Callable[[str], int | None]
    """Position at which a text ends; None if it goes on. A function of a module: other processes need to find it."""
    whole_line: bool = False
    """Whether the line must be complete: sampling goes on up to its line break."""

    def awaited(self, text: str) -> tuple[str, ...]:
        """Strings of which one must follow `text` before it can end, for engines that only know stop strings."""
        line = text.rpartition("\n")[2]
        return ("\n",) if self.whole_line and any(each in line for each in self.begins) else self.begins


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters. `seed` and `prompt_index` select the random stream, so sampling is reproducible."""

    temperature: float
    """0 is greedy decoding."""
    max_tokens: int
    seed: int = 0
    prompt_index: int = 0
    """Index of the prompt within the run; sample i uses the random stream (seed, prompt_index, i)."""
    stop: tuple[str, ...] = ()
    """Stop strings: generation ends when one appears. The text is cut before it; the tokens are kept."""
    stop_tokens: tuple[int, ...] = ()
    """Stop tokens: generation ends with one of these, which is kept."""
    top_k: int = 0
    """Top-k: number of likeliest tokens to sample from; 0 for all."""
    top_p: float = 1.0
    """Top-p (nucleus): sample from the likeliest tokens that make up this probability."""
    min_p: float = 0.0
    """Min-p: sample from tokens at least this many times as likely as the likeliest; 0 for all."""
    bias: tuple[tuple[int, float], ...] = ()
    """Logit bias: (token, value added to its logit)."""
    stop_line: StopLine | None = None
    """Stop condition of the task."""
    conversation: str = ""
    """Unique id of the episode or session, for prefix caching over its turns; empty: no turn follows."""

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
    """Version of the weights that sampled the tokens from `start` up to `end`."""

    version: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of a conversation: tokens from `start` up to `end`, either sampled or written by the environment."""

    role: str
    """assistant for sampled tokens; otherwise the role of the environment's message, such as user or tool."""
    start: int
    end: int
    reward: float = 0.0
    """Reward that the environment gave for a sampled turn, in addition to those of other turns."""


@dataclass(frozen=True, slots=True)
class Completion:
    """Sampled tokens with their behaviour log-probs."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log-probs under the distribution sampled from: after temperature, top-k/top-p/min-p and logit bias."""
    text: str
    finish: Finish
    version: int
    """Version of the weights that sampled the first token."""
    plain_logprobs: tuple[float, ...] = ()
    """Log-probs under the model's own distribution, at temperature 1; empty if the engine does not report them."""
    spans: tuple[Span, ...] = ()
    """Weight versions by token range; empty if all tokens are of `version`."""

    def __post_init__(self) -> None:
        if len(self.tokens) != len(self.logprobs):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.logprobs)} log-probs")
        if len(self.plain_logprobs) not in (0, len(self.tokens)):
            raise ValueError(f"{len(self.tokens)} tokens but {len(self.plain_logprobs)} plain log-probs")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Graded result of one completion."""

    outcome: Outcome
    reward: float | None
    """None exactly when the outcome is JUDGE_ERROR."""
    passed: int = 0
    total: int = 1
    parts: Mapping[str, float] = field(default_factory=dict)
    """Each reward function's value before weighting."""
    detail: str = ""
    seconds: float = 0.0
    isolation: str = ""
    """Sandbox isolation of the judged program; empty if no program ran."""
    terms: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """(weight, value) of each reward term, which GDPO normalises. If empty: `parts`, each with weight 1."""
    tests: tuple[TestResult, ...] = ()
    """Results of the tests of a judged program, in their order; fewer if judging stopped early."""

    def __post_init__(self) -> None:
        if (self.reward is None) != (self.outcome is Outcome.JUDGE_ERROR):
            raise ValueError(f"outcome {self.outcome} cannot carry reward {self.reward}")
        if self.reward is not None and not math.isfinite(self.reward):
            raise ValueError(f"reward {self.reward} is not a finite number")
        numbers = [(name, (value,)) for name, value in self.parts.items()] + list(self.terms.items())
        if bad := [f"{name} {value}" for name, values in numbers for value in values if not math.isfinite(value)]:
            raise ValueError(f"a part of the reward is not a finite number: {', '.join(bad)}")


_FLOATS = ("logprobs", "token_rewards", "old_logprobs", "values", "advantages", "returns")


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One completion as training data: arrays of equal length, prompt included. Lists and tuples become arrays."""

    tokens: "Ints"
    mask: "Bools"
    """True for tokens that the model sampled; only those have a loss."""
    logprobs: "Floats"
    """Behaviour log-probs where the mask is True, 0 elsewhere."""
    text: str
    finish: Finish
    version: int
    """Version of the weights that sampled the first token."""
    verdict: Verdict
    index: int = 0
    """Index in its group as sampled; dropped samples leave gaps."""
    role: str = "policy"
    """Policy that wrote it, in runs with several: coder or tester."""
    turn: int = 0
    """Turn of its role within the conversation; samples are compared with those of the same role and turn."""
    advantage: float = 0.0
    token_rewards: "Floats" = ()  # type: ignore[assignment]  # __post_init__ makes an array, here and below
    """Per-token rewards beside the verdict's, such as a KL penalty, 0 where the mask is False; may be empty."""
    old_logprobs: "Floats" = ()  # type: ignore[assignment]
    """Trainer's log-probs before the first update on it, 0 where the mask is False; empty if not needed."""
    values: "Floats" = ()  # type: ignore[assignment]
    """Critic's value before each token, 0 where the mask is False; empty without a critic, as are the next two."""
    advantages: "Floats" = ()  # type: ignore[assignment]
    """Per-token advantages; if empty, all tokens have `advantage`."""
    returns: "Floats" = ()  # type: ignore[assignment]
    """Per-token returns, the targets of the critic."""
    temperature: float = 1.0
    """Sampling temperature."""
    spans: tuple[Span, ...] = ()
    """Weight versions by range of `tokens`; the prompt is in none."""
    turns: tuple[Turn, ...] = ()
    """Turns after the prompt, in order; empty for a completion of one turn."""

    def __post_init__(self) -> None:
        import numpy as np

        object.__setattr__(self, "tokens", read_only(np.asarray(self.tokens, dtype=np.int32)))
        object.__setattr__(self, "mask", read_only(np.asarray(self.mask, dtype=np.bool_)))
        for name in _FLOATS:
            stream = float_array(getattr(self, name))
            object.__setattr__(self, name, stream)
            if name != "logprobs" and len(stream) not in (0, len(self.tokens)):
                raise ValueError(f"{len(self.tokens)} tokens but {len(stream)} {name.replace('_', ' ')}")
        if not len(self.tokens) == len(self.mask) == len(self.logprobs):
            raise ValueError(
                f"streams differ in length: {len(self.tokens)} tokens, {len(self.mask)} mask, "
                f"{len(self.logprobs)} log-probs"
            )

    def __eq__(self, other: object) -> bool:
        import numpy as np

        if not isinstance(other, Sample):
            return NotImplemented
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__slots__)
        return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)

    __hash__ = None  # type: ignore[assignment]  # verdicts hold mappings

    @classmethod
    def of(
        cls,
        prompt: Sequence[int],
        completion: Completion,
        verdict: Verdict,
        index: int = 0,
        role: str = "policy",
        turn: int = 0,
        temperature: float = 1.0,
    ) -> "Sample":
        """Joins prompt and completion tokens: the sampled tokens are trained on, text is never tokenized again."""
        import numpy as np

        before, size = len(prompt), len(prompt) + len(completion.tokens)
        spans = completion.spans or (Span(completion.version, 0, size - before),)
        return cls(
            tokens=np.array((*prompt, *completion.tokens), dtype=np.int32),
            mask=np.arange(size) >= before,
            logprobs=float_array((0.0,) * before + tuple(completion.logprobs)),
            text=completion.text,
            finish=completion.finish,
            version=completion.version,
            verdict=verdict,
            index=index,
            role=role,
            turn=turn,
            temperature=temperature,
            spans=tuple(Span(each.version, before + each.start, before + each.end) for each in spans),
        )

    def with_prompt(self, prompt: Sequence[int]) -> "Sample":
        """Copy with another prompt in front of the same sampled tokens, without the trainer's values."""
        import numpy as np

        first = int(self.mask.argmax()) if self.mask.any() else len(self.mask)
        more = len(prompt) - first
        dropped: dict[str, Any] = dict.fromkeys(_FLOATS[1:], ())
        return replace(
            self,
            tokens=np.concatenate((np.array(prompt, dtype=np.int32), self.tokens[first:])),
            mask=np.concatenate((np.zeros(len(prompt), dtype=np.bool_), self.mask[first:])),
            logprobs=np.concatenate((np.zeros(len(prompt), dtype=self.logprobs.dtype), self.logprobs[first:])),
            spans=tuple(replace(each, start=each.start + more, end=each.end + more) for each in self.spans),
            turns=tuple(replace(each, start=each.start + more, end=each.end + more) for each in self.turns),
            **dropped,
        )

    def sampled(self, stream: "Sequence[float] | Floats") -> list[float]:
        """Values of the sampled tokens, out of values of all tokens."""
        import numpy as np

        found: list[float] = np.asarray(stream, dtype=np.float64)[self.mask].tolist()
        return found

    def at_mask(self, values: "Sequence[float] | Floats") -> "Floats":
        """Values of all tokens, out of values of the sampled tokens; 0 elsewhere."""
        import numpy as np

        found = np.zeros(len(self.mask))
        found[self.mask] = values
        return float_array(found)

    def versions(self) -> "Ints":
        """Version of the weights that sampled each token; -1 for tokens that were not sampled."""
        import numpy as np

        found = np.where(self.mask, np.int32(self.version), np.int32(-1))
        for span in self.spans:
            found[span.start : span.end] = span.version
        return found

    @property
    def oldest_version(self) -> int:
        """Oldest version of the weights that sampled a token."""
        return min((span.version for span in self.spans), default=self.version)

    @property
    def reward(self) -> float:
        """Reward of the verdict. ValueError for JUDGE_ERROR samples, which must never be trained on."""
        if self.verdict.reward is None:
            raise ValueError("a JUDGE_ERROR sample has no reward and must not be trained on")
        return self.verdict.reward

    @property
    def response_length(self) -> int:
        """Number of sampled tokens."""
        return int(self.mask.sum())


@dataclass(frozen=True, slots=True)
class Group:
    """One problem and its graded samples."""

    problem: Problem
    prompt_index: int
    samples: tuple[Sample, ...]
    unjudged: tuple[Sample, ...] = ()
    """Samples that could not be judged: recorded, never trained on."""

    @property
    def has_advantage(self) -> bool:
        """Whether any sample or token has an advantage other than 0."""
        return any(each.advantages.any() if each.advantages.size else each.advantage for each in self.samples)

    @property
    def judge_errors(self) -> tuple[str, ...]:
        """Error of each sample that could not be judged."""
        return tuple(sample.verdict.detail for sample in self.unjudged)

    def of(self, role: str) -> "Group":
        """Copy with the samples of one role only."""
        samples, unjudged = (tuple(one for one in some if one.role == role) for some in (self.samples, self.unjudged))
        return replace(self, samples=samples, unjudged=unjudged)
