"""Settings of rollouts, and the union of engines."""

from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from dojang.core.section import Section
from dojang.engine.config import TorchEngineConfig
from dojang.inference.config import RemoteEngineConfig, VllmEngineConfig

__all__ = ["Engine", "RolloutConfig"]

Engine = Annotated[TorchEngineConfig | VllmEngineConfig | RemoteEngineConfig, Field(discriminator="name")]


class RolloutConfig(Section):
    """Rollouts of each step: prompts, group size, sampling and the engine."""

    prompts_per_step: int = Field(default=32, ge=1)
    """Number of prompts per step."""
    group_size: int = Field(default=8, ge=1)
    """Group size: completions sampled per prompt. At least 2 for advantages that compare the samples of a group; 1
    works with algo.name=ppo, algo.advantage=reinforce++, and distillation without a reward (reward_coef=0)."""
    curriculum_keep: float = Field(default=1.0, ge=0.01, le=1)
    """Curriculum by pass rate: a problem is drawn with the share of its visits so far whose rewards differed within the
    group as probability, but at least this. So problems that are never or always solved are drawn rarely. 1 draws all
    problems alike."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature while training."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Top-p (nucleus) sampling while training: draw from the fewest tokens that make up this probability; 1 disables
    it. Importance ratios then need the trainer's own log-probs, algo.old_logprobs=trainer (docs/algorithms.md)."""
    top_k: int = Field(default=0, ge=0)
    """Top-k sampling while training: draw from this number of the likeliest tokens; 0 disables it."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Min-p sampling while training: draw from tokens at least this many times as likely as the likeliest; 0 disables
    it."""
    max_tokens: int = Field(default=256, ge=1)
    """Maximum number of tokens of a completion."""
    max_model_len: int | None = Field(default=None, ge=2)
    """Context length: maximum number of tokens of a prompt and its completion. Defaults to the model's own context,
    which it may not exceed."""
    engine: Engine = TorchEngineConfig()
    """Engine that samples completions: torch (dojang's own), vllm on this machine, or remote: servers started with
    `vllm serve` (docs/engines.md). `engine: vllm` is short for {name: vllm}."""

    @field_validator("engine", mode="before")
    @classmethod
    def _default_engine(cls, engine: Any) -> Any:
        """Expands the short form, and fills in the default name: `engine: {max_num_seqs: 64}` is the engine torch."""
        if isinstance(engine, str):
            return {"name": engine}
        return {"name": "torch", **engine} if isinstance(engine, dict) else engine

    @model_validator(mode="after")
    def _curriculum_has_groups(self) -> Self:
        if self.curriculum_keep < 1 and self.group_size == 1:
            raise ValueError(
                f"rollout.curriculum_keep={self.curriculum_keep:g} compares the rewards of a group, but "
                "rollout.group_size=1; raise rollout.group_size, or set rollout.curriculum_keep=1"
            )
        return self
