"""Settings of the trainer."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from dojang.core.section import Section
from dojang.trainer.lr_schedule import Schedule

__all__ = ["CriticConfig", "LoraConfig", "TrainConfig"]


Share = Annotated[float, Field(ge=0, lt=1)]


class CriticConfig(Section):
    """How the critic is updated, where the algorithm has one; what is not here it shares with the policy."""

    lr: float = Field(default=1e-5, gt=0, le=1000)
    """Its learning rate, which stays the same."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps, the first ones, in which only the critic learns."""


class LoraConfig(Section):
    """Learn low-rank adapters instead of the weights themselves."""

    rank: int = Field(default=16, ge=1)
    """Columns of one factor and rows of the other."""
    alpha: float = Field(default=32.0, gt=0)
    """What their product is multiplied by, times the rank."""
    target_modules: tuple[str, ...] = ()
    """Names of modules that get one, such as q_proj; none named: all projections."""
    modules_to_save: tuple[str, ...] = ()
    """Names of modules trained in full beside the adapters, such as lm_head and embed_tokens. Modules that share a
    weight (tied embeddings) are trained as one. A KL penalty then needs a reference model of its own."""
    base_bits: Literal[4, 16] = 16
    """4 keeps the frozen weights as NF4 (QLoRA); 16 in the precision of the arithmetic."""
    publish: Literal["merged", "factors"] = "merged"
    """What engines are sent after each step: all weights with the adapters added, or the adapters' factors alone, to be
    added where they arrive."""

    @model_validator(mode="after")
    def _sent_whole(self) -> Self:
        if self.modules_to_save and self.publish == "factors":
            raise ValueError(
                f"publish=factors sends the adapters alone, and modules_to_save={list(self.modules_to_save)} change "
                "whole weights; use publish=merged"
            )
        return self


class TrainConfig(Section):
    """How the policy is updated."""

    lr: float = Field(default=1e-6, gt=0, le=1000)
    """Peak learning rate."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps over which the learning rate rises from zero to its peak."""
    warmup_ratio: Share = 0.0
    """Warm-up as a share of all optimizer steps, rounded up; excludes `warmup`."""
    schedule: Schedule = "constant"
    """Learning-rate schedule after the warm-up: constant, or a linear or cosine decay to min_lr_ratio of the peak."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Final learning rate of a decaying schedule, as a share of the peak; 0 decays to zero."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decoupled weight decay."""
    betas: tuple[Share, Share] = (0.9, 0.99)
    """AdamW's running-average factors."""
    eps: float = Field(default=1e-8, gt=0)
    """AdamW's epsilon: gradients much smaller than this hardly move a weight."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients longer than this are scaled down to it."""
    minibatches: int = Field(default=1, ge=1)
    """Optimizer steps per batch of rollouts; from the second on the data is off-policy and clipping matters."""
    ppo_epochs: int = Field(default=1, ge=1)
    """Number of passes over each batch of rollouts (mu; TRL's num_iterations), each of `updates` optimizer steps."""
    mask_truncated_completions: bool = False
    """Mask completions cut off at rollout.max_tokens out of the loss. They still count in rewards, metrics and the
    advantages of their group."""
    max_tokens_per_microbatch: int | None = Field(default=None, ge=1)
    """Tokens per forward pass; memory, not results, depends on it. Without it 2048, or on a GPU 16384."""
    gradient_checkpointing: bool = False
    """Make what the layers found again when its gradient is wanted, instead of keeping it: about a third more work, far
    less memory for long answers."""
    lora: LoraConfig | None = None
    """Adapters to learn, with the rest frozen; `train.lora={}` for the defaults."""
    optimizer: Literal["adamw", "adamw8bit", "muon"] = "adamw"
    """Optimizer. adamw8bit keeps what it remembers of gradients in eight bits: 2 bytes for each weight instead of 8.
    muon updates the matrices of hidden layers by Muon, and embeddings, head, norms and biases by AdamW; updates are
    scaled so that `lr` and `weight_decay` mean the same for both."""
    muon_momentum: float = Field(default=0.95, ge=0, lt=1)
    """Muon's momentum."""
    offload: tuple[Literal["optimizer", "reference", "teacher"], ...] = ()
    """What is kept in the processor's memory while a GPU does not need it: what the optimizer remembers, the reference
    model of a KL penalty, the local teacher model of distillation."""
    ref_model_sync_steps: int | None = Field(default=None, ge=1)
    """Reference model refresh (TR-DPO, TRL's sync_ref_model): number of optimizer steps after which the reference model
    is moved towards the policy; without it the reference stays the initial model."""
    ref_model_mixup_alpha: float = Field(default=0.6, gt=0, le=1)
    """Weight of the policy in the refreshed reference model, alpha * policy + (1 - alpha) * reference; 1 copies it."""
    compile: bool = False
    """Let torch.compile fuse the model's layers: a minute or more at the start, less time for each step on a GPU."""
    sequence_parallel: int = Field(default=1, ge=1)
    """Of the processes that torchrun starts, so many share each row of tokens (Ulysses), for answers too long for one
    GPU; among the others samples are divided (docs/parallel.md)."""
    critic: CriticConfig = CriticConfig()

    @property
    def one_process(self) -> str:
        """Why these settings are for one process alone; empty if they are not."""
        if self.optimizer == "adamw8bit":
            return "train.optimizer=adamw8bit is for one process; with several, what it keeps is spread anyway"
        if self.optimizer == "muon":
            return (
                "train.optimizer=muon is for one process: it needs whole matrices, and with several each has a part; "
                "use adamw"
            )
        return ""

    @property
    def steps_per_batch(self) -> int:
        """Optimizer steps on each batch of rollouts."""
        return self.minibatches * self.ppo_epochs

    @property
    def needs_reference_model(self) -> bool:
        """Whether a KL penalty needs a second model: adapters alone can be switched off instead."""
        return self.lora is None or bool(self.lora.modules_to_save)

    @model_validator(mode="after")
    def _one_warmup(self) -> Self:
        if self.warmup_steps and self.warmup_ratio:
            raise ValueError(
                f"warmup_steps={self.warmup_steps} and warmup_ratio={self.warmup_ratio:g} exclude each other; set one "
                f"of them to 0"
            )
        if self.min_lr_ratio and self.schedule == "constant":
            raise ValueError(
                f"min_lr_ratio={self.min_lr_ratio:g} has no effect with schedule=constant; set schedule to linear or "
                "cosine"
            )
        if self.optimizer == "muon" and self.lora is not None:
            raise ValueError("optimizer=muon is for matrices trained in full, and lora trains factors; use adamw")
        if self.optimizer != "muon" and self.muon_momentum != 0.95:
            raise ValueError(f"muon_momentum={self.muon_momentum:g} has no effect with optimizer={self.optimizer}")
        if self.ref_model_sync_steps is None and self.ref_model_mixup_alpha != 0.6:
            raise ValueError(
                f"ref_model_mixup_alpha={self.ref_model_mixup_alpha:g} has no effect without ref_model_sync_steps; set "
                "both, or leave it out"
            )
        if self.ref_model_sync_steps is not None and self.lora is not None:
            raise ValueError(
                f"ref_model_sync_steps={self.ref_model_sync_steps} needs a policy trained in full, and with lora the "
                "reference is the frozen model under the adapters; leave one of them out"
            )
        return self
