"""Parity check: do engine and trainer give the same log-probs?

Importance ratios compare the trainer's log-prob of a token with the engine's. If the two hold different weights or
tokenizers, the loss trains on that difference. So before the first step the engine samples a few tokens and the trainer
scores them.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dojang.core.errors import TrainingError
from dojang.protocols import Renderer, RolloutEngine, Trainer
from dojang.types import Outcome, Problem, Sample, Sampling, Verdict

__all__ = ["ParityCheck"]

_PROBLEMS, _TOKENS = 4, 16


@dataclass(frozen=True, slots=True)
class ParityCheck:
    """Compares the log-probs of one model's engine and trainer."""

    engine: RolloutEngine
    trainer: Trainer
    renderer: Renderer
    problems: Sequence[Problem]
    sampling: Sampling
    tolerance: float
    """Largest mean log-prob difference that counts as rounding."""
    role: str = "policy"
    """Role of the model in a multi-policy run."""

    async def check(self) -> None:
        """Raises TrainingError if the log-probs differ by more than the tolerance."""
        most = min(_TOKENS, self.sampling.max_tokens)
        # The trainer scores the full distribution, so sample without truncation.
        sampling = replace(self.sampling, max_tokens=most, top_k=0, top_p=1.0, min_p=0.0)
        prompts = [self.renderer.render(problem.messages) for problem in self.problems[:_PROBLEMS]]
        drawn = await asyncio.gather(
            *(self.engine.generate(each, 1, replace(sampling, prompt_index=at)) for at, each in enumerate(prompts))
        )
        told = Verdict(Outcome.JUDGE_ERROR, None)
        samples = [
            Sample.of(prompt, each, told, role=self.role, temperature=sampling.temperature)
            for prompt, (each,) in zip(prompts, drawn, strict=True)
        ]
        scores = await self.trainer.score(samples)
        gaps = [
            abs(mine - theirs)
            for sample, scored in zip(samples, scores, strict=True)
            for mine, theirs in zip(sample.sampled(scored), sample.sampled(sample.logprobs), strict=True)
        ]
        mean = sum(gaps) / len(gaps)
        if not mean <= self.tolerance:
            raise TrainingError(
                f"engine and trainer disagree on the {self.role}: over {len(gaps)} tokens their log-probs "
                f"differ by {mean:.3g} on average and {max(gaps):.3g} at most, where {self.tolerance:g} is allowed. "
                "Check that both read the same weights and the same tokenizer"
            )
