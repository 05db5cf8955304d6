"""On-policy distillation: the per-token reverse KL to a teacher as an advantage.

    r_t = log student(y_t) - log teacher(y_t)                       for the tokens that the student sampled
    A_t = reward_coef * A - coef * sum_{k >= t} discount^(k - t) r_k

With discount 0 each token gets its own reverse KL (Thinking Machines' on-policy distillation); with 1 the advantage
is the whole remaining reverse KL. The student's log-probs are the behaviour log-probs. A is the sample's advantage from
its reward. The surrogate of the chosen algorithm (algo.name) turns A_t into a loss.
"""

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from dojang.core.errors import TrainingError
from dojang.core.section import Section
from dojang.types import Group, Metrics, Sample

__all__ = [
    "SELF_TEACHERS",
    "AskTeacher",
    "Compare",
    "Distillation",
    "DistillationConfig",
    "Reprompt",
    "token_advantages",
]

SELF_TEACHERS = ("policy", "reference")
"""Self-distillation: the teacher is the student itself, and only a hint gives it more information."""

AskTeacher = Callable[[Sequence[Sample]], Awaitable[Sequence[tuple[float, ...] | None]]]
"""Log-probs of each sample's tokens under the teacher, 0 where the mask is False; None where the teacher failed."""
Reprompt = Callable[[Group], Sequence[Sample | None]]
"""The samples of a group as the teacher reads them, with its prompt and in its tokens; None where it has no hint."""
Compare = Callable[[Sample, Sample, Sequence[float]], Sequence[float | None]]
"""log student - log teacher of each token that the student sampled, out of its sample, the one that the teacher read,
and the teacher's log-probs; None for tokens without a signal."""


class DistillationConfig(Section):
    """On-policy distillation from a teacher, alone or added to the reward."""

    teacher: str = ""
    """Local teacher model: a name, directory or hub id as in model.name. Its tokenizer may differ from the student's.
    `policy` (the current weights) and `reference` (the frozen reference model) are self-distillation, and need
    `hint`."""
    url: list[str] = Field(default_factory=list)
    """Addresses of servers with the teacher, instead of `teacher`: `vllm serve`, or another OpenAI-compatible API with
    prompt_logprobs. Several share the work."""
    model: str = ""
    """Name of the teacher on the servers; without it the first model they list."""
    token_env: str = "DOJANG_TEACHER_TOKEN"
    """Environment variable with the API key of the servers, if they require one."""
    coef: float = Field(default=1.0, gt=0)
    """Weight of the reverse KL to the teacher in each token's advantage."""
    reward_coef: float = Field(default=0.0, ge=0)
    """Weight of the reward's advantage, added to it; 0 trains on the teacher alone."""
    discount: float = Field(default=0.0, ge=0, le=1)
    """Discount of the reverse KL of later tokens in a token's advantage; 0 counts each token's own alone."""
    clip: float | None = Field(default=None, gt=0)
    """Clip of |log student - log teacher| per token, in nats; unset disables it."""
    hint: tuple[str, ...] = ()
    """Templates of privileged context that only the teacher reads, at the end of the prompt (self-distillation), with
    fields in braces: {reference}, {feedback} (the judge's detail), {solution} (an accepted sample of the group) or
    columns of the data row. The first one whose fields all have a value is used (docs/distillation.md)."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Timeout of one request to a server, in seconds."""
    attempts: int = Field(default=4, ge=1)
    """Requests per sample before it is dropped from the step for lack of teacher log-probs."""
    concurrency: int = Field(default=64, ge=1)
    """Maximum number of requests in flight, over all servers."""
    max_errors: float = Field(default=0.5, ge=0, lt=1)
    """Largest fraction of a step's samples without teacher log-probs; above it the run stops."""

    @field_validator("hint", mode="before")
    @classmethod
    def _one_hint(cls, hint: Any) -> Any:
        if isinstance(hint, dict):
            raise ValueError(f"{hint} is a mapping, as YAML reads a colon; put the template into quotes")
        return (hint,) if isinstance(hint, str) and hint else hint or ()

    @model_validator(mode="after")
    def _one_teacher(self) -> Self:
        if bool(self.teacher) == bool(self.url):
            raise ValueError(
                f"teacher={self.teacher!r} and url={self.url} name {'two teachers' if self.url else 'no teacher'}; set "
                "one of them: a local model, or addresses of servers"
            )
        if self.model and not self.url:
            raise ValueError(f"model={self.model!r} is a name on servers (url); name a local model by teacher")
        if self.teacher in SELF_TEACHERS and not self.hint:
            raise ValueError(
                f"teacher={self.teacher} is the student itself and gives no signal without privileged context; set "
                "hint, such as 'The answer is {reference}.', or name another model"
            )
        return self

    @property
    def local_model(self) -> str:
        """Name of a model to load beside the student; empty if the teacher is the student itself or on servers."""
        return "" if self.teacher in SELF_TEACHERS else self.teacher


class Distillation:
    """Scores the samples of a step under the teacher and adds the reverse KL to their advantages."""

    def __init__(
        self,
        config: DistillationConfig,
        ask: AskTeacher,
        reprompt: Reprompt | None = None,
        close: Callable[[], Awaitable[None]] | None = None,
        compare: Compare | None = None,
    ) -> None:
        """`reprompt` gives the teacher other prompts than the student's (hints) or other tokens, which `compare` aligns
        with the student's; without it both have the same tokens. `close` closes the teacher's connections."""
        self._config, self._ask, self._reprompt, self._close = config, ask, reprompt, close
        self._compare = compare

    async def advantages(self, groups: Sequence[Group]) -> tuple[list[Group], Metrics]:
        """Returns the groups with token advantages, and metrics. Drops samples that the teacher failed to score; raises
        TrainingError if more than max_errors failed."""
        reprompt = self._reprompt or (lambda group: group.samples)
        shown = [reprompt(group) for group in groups]
        asked = [sample for group in shown for sample in group if sample is not None]
        scored = iter(await self._ask(asked) if asked else ())
        compare = self._compare or _gaps
        found, gaps, failed, unaligned = list[Group](), list[float](), 0, 0
        for group, prompts in zip(groups, shown, strict=True):
            kept = list[Sample]()
            for sample, prompted in zip(group.samples, prompts, strict=True):
                if prompted is None:
                    kept += [self._by_reward(sample)] if self._config.reward_coef else []
                    continue
                logprobs = next(scored)
                if logprobs is None or not all(map(math.isfinite, logprobs)):
                    failed += 1
                    continue
                gap = compare(sample, prompted, logprobs)
                signal = [each for each in gap if each is not None]
                if gap and not signal:
                    failed += 1
                    continue
                gaps += signal
                unaligned += len(gap) - len(signal)
                known = [0.0 if each is None else each for each in gap]
                advantages = token_advantages(known, sample.advantage, self._config)
                kept.append(replace(sample, advantages=sample.at_mask(advantages)))
            found.append(replace(group, samples=tuple(kept)))
        self._check(failed, len(asked))
        total = sum(len(group.samples) for group in groups)
        figures = {"distillation/teacher_errors": float(failed)}
        if gaps:
            figures["distillation/reverse_kl"] = math.fsum(gaps) / len(gaps)
        if self._compare is not None:
            figures["distillation/unaligned"] = unaligned / max(1, unaligned + len(gaps))
        if self._config.hint:
            figures["distillation/hinted"] = len(asked) / max(1, total)
        return [group for group in found if group.samples], figures

    async def close(self) -> None:
        """Closes the connections to the teacher, if any."""
        if self._close is not None:
            await self._close()

    def _by_reward(self, sample: Sample) -> Sample:
        own = [self._config.reward_coef * sample.advantage] * sample.response_length
        return replace(sample, advantages=sample.at_mask(own))

    def _check(self, failed: int, asked: int) -> None:
        if failed > self._config.max_errors * asked:
            raise TrainingError(
                f"the teacher gave no log-probs for {failed} of {asked} samples, more than "
                f"distillation.max_errors={self._config.max_errors:g} allows, so this step was skipped; check the "
                "teacher, then resume the run"
            )


def token_advantages(gaps: Sequence[float], advantage: float, config: DistillationConfig) -> list[float]:
    """Token advantages of a sample from log student - log teacher of each token and the sample's advantage."""
    found, later = [0.0] * len(gaps), 0.0
    for place in reversed(range(len(gaps))):
        gap = gaps[place]
        if config.clip is not None:
            gap = max(-config.clip, min(config.clip, gap))
        later = gap + config.discount * later
        found[place] = config.reward_coef * advantage - config.coef * later
    return found


def _gaps(sample: Sample, read: Sample, logprobs: Sequence[float]) -> list[float]:
    """log student - log teacher of each sampled token, if both have the same tokens; 0, which gives no signal, where
    the engine's log-prob is not finite."""
    student = sample.sampled(sample.logprobs)
    gaps = (mine - theirs for mine, theirs in zip(student, read.sampled(logprobs), strict=True))
    return [gap if math.isfinite(gap) else 0.0 for gap in gaps]
