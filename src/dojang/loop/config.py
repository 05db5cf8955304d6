"""Settings of the loop: how much is attempted, and when it is evaluated, saved and stopped."""

from typing import Literal

from pydantic import Field, field_validator

from dojang.core.run_dir import ACCURACY, EVALUATION, REWARD
from dojang.core.section import Section

__all__ = ["CheckpointConfig", "HealthConfig", "LoopConfig", "RolloutConfig"]


class RolloutConfig(Section):
    """What is attempted in each step."""

    prompts_per_step: int = Field(default=32, ge=1)
    """Problems posed per step."""
    group_size: int = Field(default=8, ge=1)
    """Answers drawn per problem (group size). Two is the least where they are compared with each other; 1 works with
    algo.name=ppo, algo.advantage=reinforce++, and distillation without a reward (distillation.reward_coef=0)."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature while training."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Top-p (nucleus) sampling while training: draw from the fewest tokens that make up this probability; 1 disables
    it. Ratios must then be taken to the trainer's own log-probs (docs/algorithms.md)."""
    top_k: int = Field(default=0, ge=0)
    """Top-k sampling while training: draw from this number of the likeliest tokens; 0 disables it."""
    min_p: float = Field(default=0.0, ge=0, le=1)
    """Min-p sampling while training: draw from tokens at least this many times as likely as the likeliest; 0 disables
    it."""
    max_tokens: int = Field(default=256, ge=1)
    """Longest answer, in tokens."""
    max_model_len: int | None = Field(default=None, ge=2)
    """Context length: most tokens of a prompt and its answer together. Without it the model's own context, which it may
    not exceed."""
    engine: Literal["torch", "vllm", "remote"] = "torch"
    """What generates: dojang's own engine, vLLM on this machine, or `vllm serve` at `url` (docs/engines.md)."""
    url: list[str] = Field(default_factory=list)
    """Addresses of servers for the engine `remote`; several share the work."""
    token_env: str = "DOJANG_ROLLOUT_TOKEN"
    """The environment variable that holds the servers' API key, if they want one."""
    handover: str = ""
    """A folder that this machine and the servers see under the same name, for new weights; without one, the servers
    must be on this machine."""
    transfer: Literal["full", "delta"] = "full"
    """What the engines vllm and remote are sent after each step: all weights, or the numbers that have changed, with a
    sum of all. Where that does not agree, and at first, all are sent."""
    slots: int = Field(default=256, ge=1)
    """Sequences decoded at the same time, if their keys and values fit into `kv_gb`."""
    kv_gb: float | None = Field(default=None, gt=0)
    """KV cache size in GiB. Without it 4 on a CPU. On a GPU that an engine has to itself (on Ray, unless runtime.gpus
    is less than 1) most of what its weights leave free; beside a trainer a third of what is free. Prompts that wait for
    a place come on top."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """Number of GPUs of each vLLM engine (tensor parallelism), for models too large for one. rollout.engine=vllm only;
    servers of the engine remote are started with their own."""
    chunk: int | None = Field(default=None, ge=1)
    """Prompt tokens read between two decoding steps by the engine torch: fewer let answers under way wait less. Without
    it 512, or on a GPU 8192."""
    threads: int | None = Field(default=None, ge=1)
    """Processor threads of the engine torch, where there is no GPU. Without it one per core, less one where programs
    are judged on the same machine: threads that wait for each other lose more by a missing core than by one less."""


class LoopConfig(Section):
    """In which order things are done."""

    stale_updates: int = Field(default=0, ge=0)
    """Learn from rollouts that are so many updates old, a multiple of train.minibatches * train.ppo_epochs, to see what
    staleness does. The first steps only attempt, until there are rollouts so old."""


class CheckpointConfig(Section):
    """When the run is saved, and which checkpoints are kept."""

    every: int = Field(default=10, ge=1)
    """Steps between checkpoints. There is also one of the end, and of every evaluation that is among the best."""
    keep: int = Field(default=1, ge=1)
    """How many of the best checkpoints are kept, besides the last."""
    metric: str = Field(default=ACCURACY, min_length=1)
    """What the best are the best by: any figure of metrics.jsonl, of an evaluation (val/accuracy/gsm8k) or of a
    training step (critic/rewards/mean), which chooses among the checkpoints that there are anyway."""
    mode: Literal["max", "min"] = "max"
    """Whether more of it is better, or less."""

    @field_validator("metric")
    @classmethod
    def _renamed(cls, metric: str) -> str:
        if metric == f"{EVALUATION}score":
            raise ValueError(f"{metric} was renamed to {ACCURACY}; the mean held-out reward is {REWARD}")
        return metric


class HealthConfig(Section):
    """When rewards count as unable to teach."""

    patience_steps: int = Field(default=10, ge=1)
    """Steps in a row that must look hopeless before the run is stopped."""
    max_judge_errors: float = Field(default=0.5, gt=0, le=1)
    """Share of samples that may go unjudged, over the window."""
