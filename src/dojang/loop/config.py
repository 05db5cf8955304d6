"""Settings of the loop, checkpoints and the health check."""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from dojang.core.run_dir import ACCURACY, EVALUATION, REWARD
from dojang.core.section import Section

__all__ = ["CheckpointConfig", "HealthConfig", "LoopConfig"]


class LoopConfig(Section):
    """Order of rollouts and updates (docs/async.md)."""

    mode: Literal["sync", "overlap"] = "sync"
    """sync: rollout and update take turns. overlap: the next batch is sampled while the trainer works; the same tokens
    in every repetition on a CPU."""
    lag: int | None = Field(default=None, ge=0)
    """Largest staleness: published versions of the weights between the one that samples a batch and the one that is
    trained on it. Defaults to 1 in overlap; 0 in sync."""

    @property
    def staleness(self) -> int:
        """`lag`, or its default."""
        if self.lag is None:
            return 0 if self.mode == "sync" else 1
        return self.lag

    @model_validator(mode="after")
    def _modes_agree(self) -> Self:
        if self.mode == "sync" and self.lag:
            raise ValueError(
                f"lag={self.lag} needs mode=overlap: in sync every batch is sampled with the newest weights"
            )
        return self


class CheckpointConfig(Section):
    """When to save checkpoints, and which to keep."""

    every: int = Field(default=10, ge=1)
    """Steps between checkpoints. The last step and every evaluation among the best are saved too."""
    keep: int = Field(default=1, ge=1)
    """Number of best checkpoints to keep, besides the last."""
    metric: str = Field(default=ACCURACY, min_length=1)
    """Metric that ranks checkpoints: any name in metrics.jsonl, of an evaluation (val/accuracy/gsm8k) or of a training
    step (critic/rewards/mean). A training metric ranks only the checkpoints saved anyway."""
    mode: Literal["max", "min"] = "max"
    """Whether a higher (max) or a lower (min) metric is better."""

    @field_validator("metric")
    @classmethod
    def _renamed(cls, metric: str) -> str:
        if metric == f"{EVALUATION}score":
            raise ValueError(f"{metric} was renamed to {ACCURACY}; the mean held-out reward is {REWARD}")
        return metric


class HealthConfig(Section):
    """When to stop a run whose rewards carry no signal."""

    patience_steps: int = Field(default=10, ge=1)
    """Consecutive steps without a reward signal before the run stops."""
    max_judge_errors: float = Field(default=0.5, gt=0, le=1)
    """Largest allowed fraction of samples without a verdict, over the last patience_steps steps."""
