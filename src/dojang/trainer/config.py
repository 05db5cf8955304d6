"""Settings of the trainer."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from dojang.core.section import Requirement, Section
from dojang.trainer.lr_schedule import Schedule
from dojang.trainer.memory import AUTO

__all__ = ["CriticConfig", "LoraConfig", "TrainConfig"]


Share = Annotated[float, Field(ge=0, lt=1)]


class CriticConfig(Section):
    """Training of the critic (algo.name=ppo); other settings are shared with the policy."""

    lr: float = Field(default=1e-5, gt=0, le=1000)
    """Learning rate of the critic, constant."""
    warmup_steps: int = Field(default=0, ge=0)
    """Number of first optimizer steps that train only the critic."""


class LoraConfig(Section):
    """LoRA: train low-rank adapters instead of the weights themselves."""

    rank: int = Field(default=16, ge=1)
    """LoRA rank: inner dimension of the two factors."""
    alpha: float = Field(default=32.0, gt=0)
    """LoRA scaling numerator: the adapter output is multiplied by alpha / rank."""
    target_modules: tuple[str, ...] = ()
    """Names of modules that get an adapter, such as q_proj; empty: all projections."""
    modules_to_save: tuple[str, ...] = ()
    """Names of modules trained in full beside the adapters, such as lm_head and embed_tokens. Modules that share a
    weight (tied embeddings) are trained as one. A KL penalty then needs a separate reference model."""
    base_bits: Literal[4, 16] = 16
    """Bits of the frozen base weights: 4 stores them as NF4 (QLoRA), 16 in the compute dtype."""
    publish: Literal["merged", "factors"] = "merged"
    """Weight sync with adapters: merged sends all weights with the adapters added, factors only the two LoRA factors,
    which the engine adds. On Ray and with rollout workers the default is factors, unless modules_to_save is set."""

    def adapter_weights(self, linears: Iterable[tuple[str, int, int]]) -> int:
        """Number of weights of the adapters on linear layers, given as names with their input and output sizes."""
        return self.rank * sum(
            inputs + outputs
            for name, inputs, outputs in linears
            if not self.target_modules or any(f".{name}".endswith(f".{each}") for each in self.target_modules)
        )

    def required_packages(self) -> Iterator[Requirement]:
        if self.base_bits == 4:
            yield Requirement("train.lora.base_bits=4", ("peft", "bitsandbytes", "accelerate"), "qlora")
        else:
            yield Requirement("train.lora", ("peft",), "lora")

    @model_validator(mode="after")
    def _sent_whole(self) -> Self:
        if self.modules_to_save and self.publish == "factors":
            raise ValueError(
                f"publish=factors sends the adapters alone, and modules_to_save={list(self.modules_to_save)} change "
                "full weights; use publish=merged"
            )
        return self


class TrainConfig(Section):
    """Training of the policy."""

    lr: float = Field(default=1e-6, gt=0, le=1000)
    """Peak learning rate."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps over which the learning rate rises from zero to its peak."""
    warmup_ratio: Share = 0.0
    """Warm-up as a fraction of all optimizer steps, rounded up; excludes `warmup_steps`."""
    schedule: Schedule = "constant"
    """Learning-rate schedule after the warm-up: constant, or a linear or cosine decay to min_lr_ratio of the peak."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Final learning rate of a decaying schedule, as a fraction of the peak; 0 decays to zero."""
    weight_decay: float = Field(default=0.0, ge=0)
    """AdamW's decoupled weight decay."""
    betas: tuple[Share, Share] = (0.9, 0.99)
    """AdamW's betas: decay rates of the two running averages."""
    eps: float = Field(default=1e-8, gt=0)
    """AdamW's epsilon, added to the denominator."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradient clipping: maximum norm of the gradient."""
    minibatches: int = Field(default=1, ge=1)
    """Optimizer steps per batch of rollouts; from the second on the data is off-policy and clipping matters."""
    ppo_epochs: int = Field(default=1, ge=1)
    """Passes over each batch of rollouts (mu; TRL's num_iterations), with `minibatches` optimizer steps each."""
    mask_truncated_completions: bool = False
    """Mask completions truncated at rollout.max_tokens out of the loss. They still count in rewards, metrics and the
    advantages of their group."""
    max_tokens_per_microbatch: int | None = Field(default=None, ge=1)
    """Maximum number of tokens per forward pass; changes memory, not results. Defaults to 2048, on a GPU to 16384."""
    gradient_checkpointing: bool | int | Literal["auto"] = False
    """Gradient checkpointing: recompute activations in the backward pass (about a third more compute, far less memory
    for long completions). true: of all layers; a number: of that many layers, the first ones (Megatron's
    recompute_num_layers), for as much of both. auto: of the fewest layers that fit the GPU's free memory, as `dojang
    plan` estimates it; config.yaml then has their number. Gradients are the same."""
    lora: LoraConfig | None = None
    """LoRA adapters, with the base model frozen; `train.lora={}` for the defaults."""
    optimizer: Literal["adamw", "adamw8bit", "muon"] = "adamw"
    """Optimizer. adamw8bit keeps AdamW's running averages in 8 bits: 2 bytes per weight instead of 8. muon updates the
    matrices of hidden layers by Muon, and embeddings, head, norms and biases by AdamW; updates are scaled so that `lr`
    and `weight_decay` mean the same for both."""
    muon_momentum: float = Field(default=0.95, ge=0, lt=1)
    """Muon's momentum."""
    offload: tuple[Literal["optimizer", "reference", "teacher"], ...] = ()
    """CPU offload while the GPU does not need them: the optimizer state, the reference model of a KL penalty, the local
    teacher model of distillation."""
    ref_model_sync_steps: int | None = Field(default=None, ge=1)
    """Reference model refresh (TR-DPO, TRL's sync_ref_model): number of optimizer steps after which the reference model
    is moved towards the policy; without it the reference stays the initial model."""
    ref_model_mixup_alpha: float = Field(default=0.6, gt=0, le=1)
    """Weight of the policy in the refreshed reference model, alpha * policy + (1 - alpha) * reference; 1 copies it."""
    compile: bool = False
    """Compile the model's layers with torch.compile: a minute or more at the start, faster steps on a GPU."""
    sequence_parallel: int = Field(default=1, ge=1)
    """Sequence parallelism (Ulysses): number of processes that share each row of tokens, for completions too long for
    one GPU. The processes of torchrun divided by this is the data-parallel size (docs/parallel.md)."""
    critic: CriticConfig = CriticConfig()

    def required_packages(self) -> Iterator[Requirement]:
        if self.optimizer == "adamw8bit":
            yield Requirement("train.optimizer=adamw8bit", ("bitsandbytes",), "qlora")

    @property
    def one_process(self) -> str:
        """Why these settings need a single process; empty if they do not."""
        if self.optimizer == "adamw8bit":
            return "train.optimizer=adamw8bit needs one process; with several, the optimizer state is sharded anyway"
        if self.optimizer == "muon":
            return (
                "train.optimizer=muon needs one process: it works on full matrices, and several processes shard them; "
                "use adamw"
            )
        return ""

    def microbatch_tokens(self, *, gpu: bool) -> int:
        """Maximum number of tokens per forward pass."""
        return self.max_tokens_per_microbatch or (16384 if gpu else 2048)

    @property
    def steps_per_batch(self) -> int:
        """Optimizer steps per batch of rollouts."""
        return self.minibatches * self.ppo_epochs

    @property
    def needs_reference_model(self) -> bool:
        """Whether a KL penalty needs a separate reference model: with adapters only, they are disabled instead."""
        return self.lora is None or bool(self.lora.modules_to_save)

    @field_validator("gradient_checkpointing", mode="before")
    @classmethod
    def _some_layers(cls, value: object) -> object:
        if value == AUTO or (isinstance(value, int) and value >= 0):  # True and False are ints
            return value
        raise ValueError(
            f"{value!r} is no number of layers; set 0 or more, true for all layers, false for none, or auto"
        )

    @model_validator(mode="after")
    def _one_warmup(self) -> Self:
        if self.warmup_steps and self.warmup_ratio:
            raise ValueError(
                f"warmup_steps={self.warmup_steps} and warmup_ratio={self.warmup_ratio:g} exclude each other; set one "
                f"of them to 0"
            )
        if self.min_lr_ratio and self.schedule == "constant":
            raise ValueError(
                f"min_lr_ratio={self.min_lr_ratio:g} has no effect with schedule=constant; set train.min_lr_ratio=0, "
                "or train.schedule to linear or cosine"
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
