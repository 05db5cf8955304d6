"""Do the engine and the trainer hold the same policy?

Everything after this rests on it: a loss that compares what the trainer thinks of a token with what the engine thought
of it learns from the difference. So before anything runs, the engine draws a few words and the trainer scores them.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dojang.core.errors import TrainingError
from dojang.protocols import Renderer, RolloutEngine, Trainer
from dojang.types import Outcome, Problem, Sample, Sampling, Verdict

__all__ = ["Agreement"]

_PROBLEMS, _TOKENS = 4, 16


@dataclass(frozen=True, slots=True)
class Agreement:
    """What must hold when a run starts."""

    engine: RolloutEngine
    trainer: Trainer
    renderer: Renderer
    problems: Sequence[Problem]
    sampling: Sampling
    tolerance: float
    """The mean difference of log-probs that is rounding."""
    role: str = "policy"
    """Of the model, where there are several."""

    async def check(self) -> None:
        """TrainingError if the two do not agree."""
        most = min(_TOKENS, self.sampling.max_tokens)
        # The trainer knows no truncated distribution, and this compares weights.
        sampling = replace(self.sampling, max_tokens=most, top_k=0, top_p=1.0, min_p=0.0)
        prompts = [self.renderer.render(problem.messages) for problem in self.problems[:_PROBLEMS]]
        drawn = await asyncio.gather(
            *(self.engine.generate(each, 1, replace(sampling, ordinal=at)) for at, each in enumerate(prompts))
        )
        told = Verdict(Outcome.JUDGE_ERROR, None)
        samples = [
            Sample.of(prompt, each, told, role=self.role) for prompt, (each,) in zip(prompts, drawn, strict=True)
        ]
        scores = await self.trainer.score(samples)
        gaps = [
            abs(mine - theirs)
            for sample, scored in zip(samples, scores, strict=True)
            for mine, theirs, chosen in zip(scored, sample.logprobs, sample.mask, strict=True)
            if chosen
        ]
        mean = sum(gaps) / len(gaps)
        if not mean <= self.tolerance:
            raise TrainingError(
                f"the engine and the trainer do not hold the same {self.role}: over {len(gaps)} tokens their log-probs "
                f"differ by {mean:.3g} on average and {max(gaps):.3g} at most, where {self.tolerance:g} is allowed. "
                "Check that both read the same weights and the same tokenizer"
            )
