"""Interfaces between packages. Callers never depend on where an object lives: in this process, on Ray, behind HTTP.

Shape suffixes in tensor code: B sequences, T tokens of the longest one, V vocabulary.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from dojang.programs import CallTest, IoTest, Judgement, Submission
from dojang.tool_calls.calls import ParsedReply
from dojang.types import Completion, Group, Message, Metrics, Problem, Sample, Sampling, Verdict

if TYPE_CHECKING:  # the protocols are read by code that must not load torch
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

__all__ = [
    "Algorithm",
    "Changes",
    "EngineState",
    "Factors",
    "Judge",
    "LimitsRatios",
    "LossAggregation",
    "MultiNodeJudge",
    "Patch",
    "ProgramTask",
    "Renderer",
    "Requirements",
    "RolloutEngine",
    "ServingEngine",
    "Task",
    "TokenBatch",
    "TokenLoss",
    "TokenValues",
    "Tracker",
    "Trainer",
    "TrainsCritic",
    "WeightStore",
    "WeightUpdate",
    "Workflow",
]


class Task(Protocol):
    """Supplies problems and grades completions."""

    def problems(self, split: str) -> Sequence[Problem]:
        """All problems of the `train` or `test` split, in a fixed order."""

    async def grade(self, problem: Problem, text: str) -> Verdict:
        """Grade a completion. An infrastructure failure is a JUDGE_ERROR verdict, not an exception."""


@runtime_checkable
class ProgramTask(Task, Protocol):
    """A Task whose completions are programs. It can also run them on tests that are not the problem's."""

    def function(self, problem: Problem) -> str | None:
        """Name of the function that the problem's tests call; "" for stdin/stdout tests, None without tests."""

    async def trial(self, problem: Problem, text: str, tests: Sequence[IoTest | CallTest]) -> Judgement:
        """Run the program in a completion on all of these tests; NO_ANSWER if it contains no program."""


class Judge(Protocol):
    """Runs programs against tests."""

    async def judge(self, submission: Submission) -> Judgement:
        """Judge a program. An infrastructure failure is a JUDGE_ERROR judgement, not an exception."""

    async def close(self) -> None:
        """Stop all processes. Pending submissions end as JUDGE_ERROR."""


@runtime_checkable
class MultiNodeJudge(Judge, Protocol):
    """A Judge that runs on several nodes."""

    async def judge_on_every_node(self, submission: Submission) -> Sequence[tuple[str, Judgement]]:
        """Judge one program on every node, to check each; returns (address, judgement) pairs."""


class Renderer(Protocol):
    """Turns messages into prompt tokens."""

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Prompt tokens, up to the generation prompt. TooLong if a completion would not fit after them."""

    def continue_chat(
        self, messages: Sequence[Message], reply: Sequence[int], said: str, more: Sequence[Message]
    ) -> tuple[int, ...] | None:
        """Tokens between a sampled reply to `messages` and the next reply: the end of the turn, the messages `more` and
        the generation prompt. `said` is the reply's text (`text_of`). None if the chat template rewrites what came
        before."""

    def text_of(self, messages: Sequence[Message], reply: Sequence[int]) -> str:
        """Text of a sampled reply, without the token that ends a turn."""

    def parse_reply(self, messages: Sequence[Message], reply: Sequence[int]) -> ParsedReply | None:
        """A sampled reply with its tool calls, in the chat template's format; None if it was not told of tools."""

    def token_texts(self, tokens: Sequence[int]) -> list[str]:
        """Text of each token."""

    def prompt_tokens(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Prompt tokens, as by `render`, whatever their number."""

    def fits(self, length: int) -> bool:
        """Whether a completion fits after `length` tokens."""

    def room(self, length: int) -> int | None:
        """Number of tokens that the context has left after `length` tokens; None without a limit."""

    def with_tools(self, schemas: Sequence[Mapping[str, object]]) -> "Renderer":
        """Copy that tells the chat template of these tools (JSON schemas, as in OpenAI's API)."""


class RolloutEngine(Protocol):
    """Samples completions from the policy."""

    async def generate(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        """Sample n completions. They depend only on the weights, the prompt and `sampling`."""

    async def load(self, version: int) -> Metrics | None:
        """Switch to the weights published under `version`. Returns metrics of the transfer, if any."""

    async def close(self) -> None:
        """Stop. Pending requests fail."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """Status of an engine."""

    version: int
    running: int
    """Number of sequences being decoded."""
    waiting: int
    dirty: str = ""
    """Reason why the engine needs a full weight update before it can sample: an interrupted update. Empty if usable."""


@dataclass(frozen=True, slots=True)
class Patch:
    """Changed elements of one weight: flat indices and new values."""

    name: str
    index_N: "Tensor"
    value_N: "Tensor"


@dataclass(frozen=True, slots=True)
class Changes:
    """Difference between two versions of the weights."""

    tensors: "Mapping[str, Tensor]"
    """Weights that are sent in full."""
    patches: Sequence[Patch]
    checksum: str
    """Checksum of all weights after the update."""


class WeightUpdate(Protocol):
    """A weight update of an engine. Until `commit` the engine samples with the old weights.

    Names and shapes are those of a Hugging Face checkpoint. The caller must not change sent tensors before the update
    ends, and must end each update with `commit` or `give_up`.
    """

    async def send(self, tensors: "Mapping[str, Tensor]") -> None:
        """Send full tensors."""

    async def patch(self, patches: Sequence[Patch]) -> None:
        """Send changed elements, relative to the base version."""

    async def commit(self, checksum: str | None = None) -> None:
        """Apply the update between two decode steps. ValueError, and a dirty engine, if the checksum differs."""

    async def give_up(self) -> None:
        """Discard the update. An engine that has begun to apply it is dirty afterwards."""


@runtime_checkable
class ServingEngine(RolloutEngine, Protocol):
    """An engine whose weights can be sent to it, in full or as changed elements, also while it decodes."""

    async def begin(self, version: int, *, base: int | None = None) -> WeightUpdate:
        """Begin an update to `version`. With `base`, only the changes since that version will be sent.

        ValueError if the engine does not hold `base`, or another update has begun.
        """

    async def checksum(self) -> str:
        """Checksum of all weights (core/checksum.py)."""

    async def state(self) -> EngineState:
        """Status of the engine. Raises if the engine cannot be reached."""


class Workflow(Protocol):
    """Runs one problem: samples completions and grades them."""

    async def run(self, problem: Problem, prompt_index: int) -> Group:
        """Sample and grade one group. `prompt_index` is the index of the prompt within the run."""


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Input of a loss: one row per sample, one column per predicted token."""

    logp_BT: "Tensor"
    """Log-probs under the weights being trained; carries the gradient."""
    old_logp_BT: "Tensor"
    """Old log-probs, the denominator of importance ratios: those of sampling, or the trainer's own with
    Requirements.old_logprobs."""
    behaviour_logp_BT: "Tensor"
    """Log-probs at which the tokens were sampled."""
    ref_logp_BT: "Tensor | None"
    """Log-probs under the frozen reference, when there is a KL term."""
    advantage_BT: "Tensor"
    mask_BT: "Tensor"
    limit: float = math.inf
    """Result of LimitsRatios.limit for this optimizer step."""


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Per-token loss (zero outside the mask) and per-token metrics to average over the mask."""

    loss_BT: "Tensor"
    figures: Mapping[str, "Tensor"]


LossAggregation = Literal["tokens", "sequences", "constant"]


@dataclass(frozen=True, slots=True)
class Requirements:
    """Needs of an algorithm, besides samples and their rewards."""

    ref_logprobs: bool = False
    """The reference model's log-probs, for `loss` (a KL term)."""
    kl_in_reward: float = 0.0
    """KL coefficient in the reward; above 0 the algorithm has `penalise` (loop/kl_in_reward.py)."""
    old_logprobs: bool = False
    """The trainer's own log-probs from before the first update, for importance ratios; else those of sampling."""
    limit: bool = False
    """A limit over all tokens before each optimizer step: the algorithm is a LimitsRatios."""
    critic: bool = False
    """A critic: the algorithm is a TrainsCritic."""
    zero_advantage: bool = False
    """Groups in which all advantages are 0: they still have a gradient, from a KL term, an entropy bonus, distillation
    or a critic. If False, they are not trained on."""

    @property
    def reference(self) -> bool:
        """Whether a reference model is needed: for `loss`, or for a KL penalty in the reward."""
        return self.ref_logprobs or self.kl_in_reward > 0


class Algorithm(Protocol):
    """Computes advantages of samples and the loss of their tokens."""

    @property
    def requirements(self) -> Requirements:
        """Needs of the algorithm: log-probs, a critic, and others."""

    @property
    def loss_aggregation(self) -> LossAggregation:
        """Loss aggregation over the step. tokens: mean over tokens. sequences: mean over each sample's tokens,
        then over samples. constant: sum over each sample's tokens / max_tokens, then mean over samples."""

    @property
    def max_resample_rounds(self) -> int:
        """Dynamic sampling: most rounds in which a step samples more prompts to replace groups without signal."""

    def advantages(self, groups: Sequence[Group]) -> list[tuple[float, ...]]:
        """Advantage of each sample, for all groups of the step."""

    def loss(self, batch: TokenBatch) -> TokenLoss:
        """Loss of each token. The trainer aggregates it over the whole optimizer step."""


class LimitsRatios(Algorithm, Protocol):
    """An algorithm whose loss needs a limit computed from all tokens of the optimizer step."""

    def limit(self, delta_N: "Tensor", advantage_N: "Tensor") -> tuple[float, Metrics]:
        """Largest log-ratio that keeps a gradient, and metrics, from all tokens of the optimizer step."""


class TrainsCritic(Algorithm, Protocol):
    """An algorithm with a critic."""

    def compute_gae(self, groups: Sequence[Group]) -> list[Group]:
        """Generalized advantage estimation (GAE): all groups of a step with per-token advantages and returns, computed
        from their `values`."""

    def value_loss(
        self, value_BT: "Tensor", old_value_BT: "Tensor", return_BT: "Tensor", mask_BT: "Tensor"
    ) -> TokenLoss:
        """Value loss of each token; the trainer averages it over the tokens of the optimizer step."""


@dataclass(frozen=True, slots=True)
class TokenValues:
    """The trainer's view of a sample: values per sampled token, from the forward pass of its first update."""

    prompt_index: int
    index: int
    role: str
    turn: int
    logprobs: "NDArray[np.float32]"
    entropies: "NDArray[np.float32]"


class Trainer(Protocol):
    """Owns the trained weights and the optimizer."""

    async def forward_backward(self, groups: Sequence[Group]) -> Metrics:
        """Accumulate the gradient of these groups' loss, normalised over all of them. Groups without a gradient
        (Requirements.zero_advantage) count only in metrics and in the divisor of the aggregation `constant`."""

    async def optim_step(self) -> Metrics:
        """Clip, step, clear. Returns the gradient norm and the learning rate used."""

    async def skip_steps(self, count: int) -> None:
        """Advance the learning-rate schedule by `count` optimizer steps that had no gradient."""

    async def take_token_values(self) -> Sequence[TokenValues]:
        """Per-token log-probs and entropies that the forward passes of updates gave since the last call, a record per
        sample; empty if they are not recorded (track.token_values)."""

    async def score(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        """Log-probs of each sample's tokens under the current weights; 0 where the sample's mask is False."""

    async def compute_values(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        """Critic's value before each token of each sample; 0 where the mask is False. Needs a critic."""

    async def ref_logprobs(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        """Log-probs of each sample's tokens under the reference model; 0 where the mask is False. Needs a reference."""

    async def teacher_logprobs(self, samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        """Log-probs of each sample's tokens under the frozen teacher model; 0 where the mask is False. Needs a local
        teacher (distillation.teacher)."""

    async def publish(self, version: int) -> None:
        """Hand the current weights to the weight store under `version`: the number of steps trained."""

    async def save(self, path: Path) -> None:
        """Write weights, optimizer and schedule position into the directory `path`."""

    async def restore(self, path: Path) -> None:
        """Continue from what `save` wrote."""

    async def close(self) -> None:
        """Stop worker processes."""


Factors = Mapping[str, tuple["Tensor", "Tensor"]]
"""LoRA factors by weight name: each pair's product is added to the weight."""


class WeightStore(Protocol):
    """Carries weights from the trainer to engines."""

    def publish(self, version: int, tensors: "Mapping[str, Tensor]", factors: Factors = ...) -> None:
        """Publish these weights under `version`. With LoRA factors, weights that are not given stay as published
        before. LazyWeights (core/lazy_weights.py) are not copied: they must never change."""

    def fetch(self, version: int) -> "Mapping[str, Tensor]":
        """The weights published under `version`. Read them one at a time: with LoRA each is merged when it is read."""

    def changes(self, base: int, version: int) -> Changes | None:
        """Difference from `base` to `version`; None if it is not known and all weights must be fetched."""


class Tracker(Protocol):
    """Records metrics and samples."""

    def metrics(self, step: int, values: Metrics) -> None:
        """Record the metrics of one step."""

    def groups(self, step: int, split: str, groups: Sequence[Group]) -> None:
        """Record every sample of one step (`train`) or one evaluation (`test`)."""

    def token_values(self, step: int, values: Sequence[TokenValues]) -> None:
        """Record the trainer's log-probs and entropies of the samples of one step."""

    def close(self) -> None:
        """Flush and close files."""
