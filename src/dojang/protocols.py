"""The verbs. A room implements one of these; nobody asks where the object lives.

Shape suffixes in tensor code: B sequences, T tokens of the longest one, V vocabulary.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from dojang.core.errors import ConfigError
from dojang.programs import CallTest, IoTest, Judgement, Submission
from dojang.types import Completion, Group, Message, Metrics, Problem, Sample, Sampling, Verdict

if TYPE_CHECKING:  # the protocols are read by code that must not load torch
    from torch import Tensor

__all__ = [
    "Abilities",
    "Algorithm",
    "Average",
    "Changes",
    "ChecksRewards",
    "Distiller",
    "EngineState",
    "Factors",
    "Judge",
    "Patch",
    "Pause",
    "ProgramTask",
    "Renderer",
    "RolloutEngine",
    "ServingEngine",
    "SpreadJudge",
    "Task",
    "TokenBatch",
    "TokenLoss",
    "TooLong",
    "Tracker",
    "Trainer",
    "WeightStore",
    "WeightUpdate",
    "Workflow",
]


class Task(Protocol):
    """Poses problems and grades attempts at them."""

    def problems(self, split: str) -> Sequence[Problem]:
        """All problems of the `train` or `test` split, in a fixed order."""

    async def grade(self, problem: Problem, text: str) -> Verdict:
        """Judge an attempt. A failure of the machinery is a JUDGE_ERROR verdict, not an exception."""


@runtime_checkable
class ChecksRewards(Protocol):
    """A Task with reward functions that can be tried before a run."""

    async def check_rewards(self, problem: Problem) -> None:
        """Try the reward functions on sample completions of a problem; ConfigError if one cannot be called."""


class ProgramTask(Task, Protocol):
    """A Task whose answers are programs. They can be run on other tests than the problem's own, too."""

    def function(self, problem: Problem) -> str | None:
        """The function that a problem's tests call; "" if they are text in and text out, None if they are neither."""

    async def trial(self, problem: Problem, text: str, tests: Sequence[IoTest | CallTest]) -> Judgement:
        """Run the program of an attempt on these tests, all of them; NO_ANSWER if there is no program."""


class Judge(Protocol):
    """Runs programs against tests."""

    async def judge(self, submission: Submission) -> Judgement:
        """Judge a program. A failure of the machinery is a JUDGE_ERROR judgement, not an exception."""

    async def close(self) -> None:
        """Stop; nothing is left running. Pending submissions end as JUDGE_ERROR."""


@runtime_checkable
class SpreadJudge(Judge, Protocol):
    """A Judge of several machines."""

    async def everywhere(self, submission: Submission) -> Sequence[tuple[str, Judgement]]:
        """Have each machine judge a program it must accept; with the machines' addresses."""


class TooLong(ConfigError):
    """A prompt that leaves no room for an answer."""


class Renderer(Protocol):
    """Turns messages into the tokens a model reads."""

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The prompt, up to where the model begins to write. TooLong if the answer would not fit behind it."""


class RolloutEngine(Protocol):
    """Samples from the policy."""

    async def generate(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        """Draw n completions; they depend on nothing but the weights, the prompt and `sampling`."""

    async def load(self, version: int) -> Metrics | None:
        """Switch to the weights published under `version`. Returns figures of their way, if it had any."""

    async def close(self) -> None:
        """Stop working; pending requests fail."""


Pause = Literal["abort", "wait", "keep", "recompute"]
"""What becomes of sequences under way: they end and are delivered as they are, they end in their own time, they go on
afterwards with the keys and values they have, or with ones computed anew."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """What an engine can do beyond answering; what it cannot raises NotImplementedError."""

    pauses: frozenset[Pause]
    resumes: bool
    """Whether aborted completions can be handed back to go on where they were."""
    patches: bool
    """Whether an update may change single numbers of a weight."""
    repeats: bool
    """Whether the same sampling gives the same tokens whatever else is being decoded."""
    frees_memory: bool
    """Whether `sleep` gives memory back."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """How an engine is."""

    version: int
    running: int
    """Samples being written."""
    waiting: int
    paused: bool
    dirty: str = ""
    """Why nothing can be drawn until whole weights have come: an update that broke off. Empty if all is well."""


@dataclass(frozen=True, slots=True)
class Patch:
    """Some numbers of one weight: where they are, counted along the flattened tensor, and what they become."""

    name: str
    index_N: "Tensor"
    value_N: "Tensor"


@dataclass(frozen=True, slots=True)
class Changes:
    """What makes one version of the weights out of another."""

    tensors: "Mapping[str, Tensor]"
    """Weights that come whole."""
    patches: Sequence[Patch]
    checksum: str
    """Of all weights afterwards."""


class WeightUpdate(Protocol):
    """New weights on their way into an engine. Until `commit` it draws with the old ones.

    Names and shapes are those of a Hugging Face checkpoint. What is sent must not be changed until the update is over;
    one that is not committed must be given up.
    """

    async def send(self, tensors: "Mapping[str, Tensor]") -> None:
        """Some weights, whole."""

    async def patch(self, patches: Sequence[Patch]) -> None:
        """Some numbers of some weights, on top of the version the update began from."""

    async def commit(self, checksum: str | None = None) -> None:
        """Take all of it over between two tokens. ValueError, and a dirty engine, if the sum is not the one given."""

    async def give_up(self) -> None:
        """Forget what was sent. An engine that has begun to take it over is dirty afterwards."""


class ServingEngine(RolloutEngine, Protocol):
    """An engine that can be managed while it works: what asynchronous training needs beyond sampling."""

    @property
    def abilities(self) -> Abilities:
        """What it can do."""

    async def abort(self) -> None:
        """End all requests where they are; those who wait get what there is, with the finish `abort`."""

    async def pause(self, mode: Pause) -> None:
        """Stop, and say so when nothing runs any more. Requests that come meanwhile wait."""

    async def resume(self) -> None:
        """Go on."""

    async def begin(self, version: int, *, base: int | None = None) -> WeightUpdate:
        """Begin an update to `version`. With `base`, only what has changed since that version will be sent.

        ValueError if the engine does not hold `base`, or an update is under way already.
        """

    async def checksum(self) -> str:
        """Of all weights there are (checksum.py)."""

    async def sleep(self) -> None:
        """Pause, and give memory back to others; what is under way goes on after `wake`."""

    async def wake(self) -> None:
        """Take the memory back, and go on."""

    async def state(self) -> EngineState:
        """How it is. Raises if it cannot be reached."""


class Workflow(Protocol):
    """Plays one problem through to a graded group."""

    async def run(self, problem: Problem, ordinal: int) -> Group:
        """Attempt and judge the problem; `ordinal` numbers the draw within the run."""


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """What a loss sees: one row per sample, one column per predicted token."""

    logp_BT: "Tensor"
    """Log-probs under the weights being trained; carries the gradient."""
    old_logp_BT: "Tensor"
    """Log-probs that ratios are taken to: at which the tokens were sampled, or the trainer's own where it needs_old."""
    behaviour_logp_BT: "Tensor"
    """Log-probs at which the tokens were sampled."""
    ref_logp_BT: "Tensor | None"
    """Log-probs under the frozen reference, when there is a KL term."""
    advantage_BT: "Tensor"
    mask_BT: "Tensor"
    limit: float = math.inf
    """What Algorithm.limit said of this optimizer step."""


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Per-token loss (zero outside the mask) and per-token figures to be averaged over the mask."""

    loss_BT: "Tensor"
    figures: Mapping[str, "Tensor"]


Average = Literal["tokens", "sequences", "constant"]


class Algorithm(Protocol):
    """Credits samples and turns token probabilities into a loss."""

    @property
    def loss_aggregation(self) -> Average:
        """Over what the trainer averages losses, in the whole optimizer step: tokens; each sample's tokens, then
        samples; or samples, with the sum of each divided by the longest answer allowed."""

    @property
    def max_resample_rounds(self) -> int:
        """How often, at most, a step poses more problems in the place of those that cannot teach."""

    @property
    def needs_reference(self) -> bool:
        """Whether a reference model is needed: for `loss`, or for a KL penalty in the reward."""

    @property
    def needs_old(self) -> bool:
        """Whether ratios are to be taken to what the trainer itself thought before the first update."""

    @property
    def needs_limit(self) -> bool:
        """Whether `limit` is to be asked before each optimizer step."""

    @property
    def trains_zero_advantage(self) -> bool:
        """Whether a sample whose advantage is 0 still has a gradient: a KL term, an entropy bonus, distillation, a
        critic. If not, groups of zero advantages are not trained on."""

    @property
    def needs_critic(self) -> bool:
        """Whether `trace` and `value_loss` are to be asked. One that never needs it may lack all three."""

    def advantages(self, groups: Sequence[Group]) -> list[tuple[float, ...]]:
        """One number per sample of each group of the step: how much better than expected it did."""

    def limit(self, delta_N: "Tensor", advantage_N: "Tensor") -> tuple[float, Metrics]:
        """The furthest log-ratio that may learn, and figures; given those of all tokens of the optimizer step."""

    def loss(self, batch: TokenBatch) -> TokenLoss:
        """The loss of each token; averaging is the trainer's job, over the whole optimizer step."""

    def trace(self, groups: Sequence[Group]) -> list[Group]:
        """The same groups, all that are learned from in a step, with the advantages and returns of every token made
        from its `values`."""

    def value_loss(
        self, value_BT: "Tensor", old_value_BT: "Tensor", return_BT: "Tensor", mask_BT: "Tensor"
    ) -> TokenLoss:
        """The critic's loss at each token; averaged over the tokens of the optimizer step."""


class Distiller(Protocol):
    """Adds a teacher's per-token signal to advantages (on-policy distillation)."""

    async def advantages(self, groups: Sequence[Group]) -> tuple[list[Group], Metrics]:
        """The groups with the advantage of every token set, and figures; without samples that were not scored."""

    async def close(self) -> None:
        """Close connections to the teacher."""


class Trainer(Protocol):
    """Owns the weights being learned."""

    async def forward_backward(self, groups: Sequence[Group]) -> Metrics:
        """Accumulate the gradient of these groups' loss, normalised over all of them. Groups without a gradient
        (Algorithm.trains_zero_advantage) only count in figures, and in the divisor of the average `constant`."""

    async def optim_step(self) -> Metrics:
        """Clip, step, clear. Returns the gradient norm and the learning rate used."""

    async def skip_steps(self, count: int) -> None:
        """Advance the learning-rate schedule by `count` optimizer steps that had no gradient."""

    async def score(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        """Log-probs of each sample's tokens under the current weights; 0 where the sample's mask is False."""

    async def appraise(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        """What the critic expects before each of a sample's tokens; 0 where the mask is False. Needs a critic."""

    async def ref_logprobs(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        """Log-probs of each sample's tokens under the reference model; 0 where the mask is False. Needs a reference."""

    async def teacher_logprobs(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        """Log-probs of each sample's tokens under the frozen teacher model; 0 where the mask is False. Needs a local
        teacher (distillation.teacher)."""

    async def publish(self) -> int:
        """Hand the current weights to the weight store; returns their version."""

    async def save(self, path: Path) -> None:
        """Write weights, optimizer and schedule position into the directory `path`."""

    async def restore(self, path: Path) -> None:
        """Continue from what `save` wrote."""

    async def close(self) -> None:
        """Stop; processes that helped may end."""


Factors = Mapping[str, tuple["Tensor", "Tensor"]]
"""Of some weights the two factors of a product to be added to each."""


class WeightStore(Protocol):
    """Carries weights from the trainer to engines."""

    def publish(self, version: int, tensors: "Mapping[str, Tensor]", factors: Factors = ...) -> None:
        """Make these weights available under `version`. Factors are added to weights; with them, weights that are not
        given are as they were published before."""

    def fetch(self, version: int) -> "Mapping[str, Tensor]":
        """The weights published under `version`."""

    def changes(self, base: int, version: int) -> Changes | None:
        """What has changed from `base` to `version`; None if that is not known, and all must be fetched."""


class Tracker(Protocol):
    """Records what happened in a step."""

    def metrics(self, step: int, values: Metrics) -> None:
        """Record figures of one step."""

    def groups(self, step: int, split: str, groups: Sequence[Group]) -> None:
        """Record every sample of one step (`train`) or one evaluation (`test`)."""

    def close(self) -> None:
        """Flush and let go of files."""
