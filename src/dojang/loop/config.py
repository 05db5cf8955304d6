"""Settings of the loop, checkpoints and the health check."""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from dojang.core.errors import ConfigError
from dojang.core.run_dir import ACCURACY, EVALUATION, REWARD
from dojang.core.section import Section

__all__ = ["CheckpointConfig", "HealthConfig", "LoopConfig"]


class LoopConfig(Section):
    """Order of rollouts and updates (docs/async.md)."""

    mode: Literal["sync", "overlap", "stream"] | None = None
    """sync: rollout and update take turns. overlap: the next batch is sampled while the trainer works; the same tokens
    in every repetition on a CPU. stream: groups are sampled one by one, by several workers if wanted, and get new
    weights between two tokens. Defaults to overlap if the loss takes ratios to the log-probs of sampling or has
    algo.corrections; else, with algo.name=sft and with a custom algorithm to sync."""
    lag: int | None = Field(default=None, ge=0)
    """Largest staleness: published versions of the weights between the one that samples a token and the one that is
    trained on it. Defaults to 1 in overlap and stream; 0 in sync."""
    workers: int = Field(default=0, ge=0)
    """Rollout workers to start, for mode=stream: processes on this machine, or actors on a Ray cluster, each with the
    CPUs and GPUs of an engine. Actors without room start when a node has it, also one that joins later."""
    listen: str = ""
    """Address HOST:PORT at which rollout workers of other machines join, for mode=stream; port 0 takes a free one."""
    sample_here: bool = True
    """Whether the engine in the trainer's process (on Ray, runtime.engines) samples too, for mode=stream; if not, it
    only evaluates."""
    worker_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds without a sign of life after which the prompts of a rollout worker go to others."""

    stall_s: float = Field(default=600.0, gt=0)
    """Seconds without progress after which the stacks of all threads and tasks are written to stall.txt in the run
    directory, at least twice the longest pause so far. The run goes on waiting."""

    @property
    def other_workers(self) -> bool:
        """Whether other processes sample rollouts."""
        return bool(self.workers or self.listen)

    def address(self, default: str = "127.0.0.1") -> tuple[str, int]:
        """Host and port of `listen`; without it, the default host and any free port."""
        host, _, port = (self.listen or f"{default}:0").rpartition(":")
        return host.strip("[]"), int(port)

    def check_address(self) -> None:
        """Raises ConfigError if the run cannot listen for rollout workers, by listening for a moment."""
        if self.listen:
            from dojang.core.http_service import open_listener

            try:
                open_listener(*self.address()).close()
            except ConfigError as error:
                raise ConfigError(f"loop.listen={self.listen}: {error}") from error

    @field_validator("listen")
    @classmethod
    def _is_address(cls, listen: str) -> str:
        host, _, port = listen.rpartition(":")
        if listen and not (host and port.isdecimal() and int(port) < 2**16):
            raise ValueError(f"{listen!r} must have the form HOST:PORT, such as 0.0.0.0:8643")
        return listen

    @property
    def staleness(self) -> int:
        """`lag`, or its default."""
        if self.lag is None:
            return 1 if self.mode in ("overlap", "stream") else 0
        return self.lag

    @property
    def kept_versions(self) -> int:
        """Versions of the weights to keep. overlap samples with one that is `lag` steps old; stream with the newest,
        and keeps the one before for workers that are fetching it."""
        return 2 if self.mode == "stream" else self.staleness + 1

    @model_validator(mode="after")
    def _modes_agree(self) -> Self:
        if self.mode == "sync" and self.lag:
            raise ValueError(
                f"lag={self.lag} needs mode=overlap or stream: sync samples every batch with the newest weights"
            )
        for key in ("workers", "listen", "sample_here"):
            if self.mode != "stream" and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key}={getattr(self, key)} needs mode=stream")
        if not (self.sample_here or self.workers or self.listen):
            raise ValueError("sample_here=false needs rollout workers: set workers or listen")
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
