"""Builds one policy of a run in this process: model, tokenizer, prompt renderer, engine and trainer."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils.logging import disable_progress_bar

from dojang import models
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError, ModelError
from dojang.core.out_of_memory import explain_out_of_memory
from dojang.engine.architectures import max_length, support
from dojang.engine.config import EngineParts
from dojang.protocols import Algorithm, RolloutEngine, WeightStore
from dojang.trainer.critic import Critic
from dojang.trainer.lora_checks import check_modules
from dojang.trainer.memory import check_checkpointed_layers
from dojang.trainer.process_group import ProcessGroup, check_world
from dojang.trainer.quantization import load_quantised
from dojang.trainer.teacher_model import Teacher
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.trainer.ulysses import attention_heads, check_heads
from dojang.weight_sync.versions import DELTA_CHAIN, WeightVersions
from dojang.workflows.chat_renderer import LEAVE_OUT, ChatRenderer

__all__ = [
    "LocalPolicy",
    "Numerics",
    "check_model",
    "check_processes",
    "check_reference",
    "context_length",
    "has_critic",
    "load_model",
    "load_tokenizer",
    "make_engine",
    "make_renderer",
    "make_weights",
    "numerics",
    "numerics_on",
    "prepare_torch",
]


@dataclass(frozen=True, slots=True)
class Numerics:
    """Device, dtype of forward and backward passes, and dtype of the master weights."""

    device: torch.device
    compute: torch.dtype
    master: torch.dtype


def numerics(config: RunConfig) -> Numerics:
    """Resolves model.device and model.dtype for this process."""
    cuda = torch.cuda.is_available()
    if config.model.device == "cuda" and not cuda:
        raise ConfigError("model.device=cuda, but torch sees no GPU here; use model.device=cpu, or see `dojang doctor`")
    device = torch.device("cuda" if cuda and config.model.device != "cpu" else "cpu")
    if device.type == "cuda":
        rank = int(os.environ.get("LOCAL_RANK", "0"))  # set by torchrun: one GPU for each process
        if rank >= torch.cuda.device_count():
            raise ConfigError(
                f"more processes than GPUs: this machine has {torch.cuda.device_count()}; start fewer with torchrun"
            )
        torch.cuda.set_device(rank)
    return numerics_on(device, config)


def numerics_on(device: torch.device, config: RunConfig) -> Numerics:
    """Resolves model.dtype for a device."""
    chosen = config.model.dtype
    if chosen == "auto":
        chosen = "bfloat16" if device.type == "cuda" else "float32"
    compute: torch.dtype = getattr(torch, chosen)
    return Numerics(device, compute, torch.float64 if compute is torch.float64 else torch.float32)


def prepare_torch(device: torch.device) -> None:
    """Sets torch's process-wide options."""
    # Attention's backward pass on a GPU adds in no fixed order: runs repeat there only up to rounding.
    torch.use_deterministic_algorithms(device.type == "cpu")
    # Else torch.empty would write into all its memory, such as gigabytes of KV cache that a run may never use.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # cuDNN's attention makes a new plan for every new shape, and decoding has a new shape at every token.
    torch.backends.cuda.enable_cudnn_sdp(False)
    disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers' bars would overlap with ours


def load_tokenizer(source: str) -> tuple[PreTrainedTokenizerBase, PreTrainedConfig]:
    """Loads a model's tokenizer and its configuration."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source)
        settings = AutoConfig.from_pretrained(source).get_text_config()
    except Exception as error:  # transformers raises many kinds
        raise ModelError(f"cannot load the tokenizer of {source}: {error}") from error
    return tokenizer, settings


def context_length(config: RunConfig, settings: PreTrainedConfig) -> int | None:
    """Context length in tokens: rollout.max_model_len, or the model's; None for models without a limit.

    Raises ConfigError if rollout.max_model_len exceeds the model's.
    """
    own: int | None = getattr(settings, "max_position_embeddings", None)
    if config.rollout.engine.copies_trainer and support(found := settings.to_dict()).engine == "torch":
        own = max_length(found)
    wanted = config.rollout.max_model_len
    if wanted is not None and own is not None and wanted > own:
        raise ConfigError(
            f"rollout.max_model_len={wanted} exceeds the context length of {config.model.name}, {own} tokens; lower "
            "it or leave it out"
        )
    return own if wanted is None else wanted


def make_renderer(
    config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    settings: PreTrainedConfig,
    key: str = "rollout.max_tokens",
    remedy: str = LEAVE_OUT,
) -> ChatRenderer:
    """Builds the prompt renderer of a model. For error messages, `key` is the setting of the completion length and
    `remedy` what to do about overlong prompts."""
    return ChatRenderer(
        tokenizer,
        context=context_length(config, settings),
        max_tokens=config.rollout.max_tokens,
        variables=config.model.chat_template_kwargs,
        key=key,
        remedy=remedy,
        limit="the model's context" if config.rollout.max_model_len is None else "rollout.max_model_len",
    )


def make_weights(config: RunConfig, numeric: Numerics) -> WeightVersions:
    """Builds the weight store between a trainer and an engine of this process, or external servers."""
    deltas = DELTA_CHAIN if config.rollout.engine.weight_sync == "delta" else 0
    return WeightVersions(numeric.compute, keep=config.loop.kept_versions, deltas=deltas)


class LocalPolicy:
    """A policy in this process: loads its model once. Make its engine first: the trainer modifies the model."""

    def __init__(
        self,
        config: RunConfig,
        numeric: Numerics,
        ranks: ProcessGroup,
        source: str,
        tokenizer: PreTrainedTokenizerBase,
        weights: WeightVersions | None = None,
        reservations: list[Callable[[], int]] | None = None,
    ) -> None:
        """`reservations`: GPU memory that the trainers of this process will still allocate, for engines beside them."""
        self._reservations = reservations
        self._config, self._numeric, self._ranks, self._source = config, numeric, ranks, source
        self.tokenizer = tokenizer
        self.weights = weights or make_weights(config, numeric)
        self.served: WeightVersions | None = self.weights
        """Weights for rollout workers in other processes."""
        # A model to be sharded over ranks may not fit one device.
        self._device = numeric.device if ranks.world == 1 else torch.device("cpu")
        self._policy = self._load_policy()

    def make_engine(self) -> RolloutEngine:
        """Builds the inference engine."""
        reservations = self._reservations

        def reserved() -> int:
            return sum(each() for each in reservations or ())

        return make_engine(
            self._config,
            self._numeric,
            self._source,
            self._policy,
            self.tokenizer,
            self.weights,
            reserved=reserved if reservations is not None else None,
        )

    def make_trainer(self, algorithm: Algorithm) -> TorchTrainer:
        """Builds the trainer, with the reference model, critic and teacher that the configuration needs."""
        config, numeric, cpu = self._config, self._numeric, torch.device("cpu")
        reference = critic = teacher = None
        distillation = config.distillation
        asks_reference = distillation is not None and distillation.teacher == "reference"
        if (algorithm.requirements.reference or asks_reference) and config.train.needs_reference_model:
            device = cpu if "reference" in config.train.offload else self._device
            quantised = config.train.lora is not None and config.train.lora.base_bits == 4
            load = load_quantised if quantised else load_model  # the same weights as the adapters' base model
            reference = load(self._source, numeric.compute, device)
        if distillation is not None and distillation.local_model:
            device = cpu if "teacher" in config.train.offload else self._device
            teacher = Teacher(
                load_model(models.resolve(distillation.local_model), numeric.compute, device),
                temperature=config.rollout.temperature,
                compute=numeric.compute,
                float32_head=config.model.head_dtype == "float32",
                offload="teacher" in config.train.offload,
                ranks=self._ranks,
            )
        if has_critic(algorithm):
            value_model = load_model(self._source, numeric.master, self._device)
            critic = Critic(value_model, algorithm, config.train, compute=numeric.compute, ranks=self._ranks)
        trainer = TorchTrainer(
            self._policy,
            reference,
            self.tokenizer,
            algorithm,
            self.weights,
            config.train,
            total_updates=config.steps * config.train.steps_per_batch,
            max_tokens=config.rollout.max_tokens,
            temperature=config.rollout.temperature,
            compute=numeric.compute,
            float32_head=config.model.head_dtype == "float32",
            base=config.model.name,
            critic=critic,
            teacher=teacher,
            ranks=self._ranks,
            token_values=config.track.token_values == "all",
        )
        engine = config.rollout.engine
        if self._reservations is not None and numeric.device.type == "cuda" and engine.copies_trainer:
            passes = trainer.measure_passes()  # also if kv_cache_gb is set: it raises if updates do not fit
            self._reservations.append(lambda: trainer.reserved_bytes(passes, config.loop.kept_versions))
        return trainer

    def _load_policy(self) -> PreTrainedModel:
        lora, numeric = self._config.train.lora, self._numeric
        if lora is not None and lora.base_bits == 4:
            return load_quantised(self._source, numeric.compute, numeric.device)
        return load_model(self._source, numeric.master if lora is None else numeric.compute, self._device)


def check_model(config: RunConfig) -> None:
    """Raises ConfigError if a local model lacks the modules of train.lora or has fewer layers than
    train.gradient_checkpointing, or if its attention heads cannot be divided among sequence parallel ranks or tensor
    parallel GPUs."""
    source, size = models.local(config.model.name), config.rollout.engine.gpus()
    known = models.read_config(config.model.name)
    check_modules(known, config.train.lora)
    if (layers := _layer_count(known)) is not None:
        check_checkpointed_layers(config.train.gradient_checkpointing, layers)
    if source is None or max(config.train.sequence_parallel, size) == 1:
        return
    settings = AutoConfig.from_pretrained(source).get_text_config()
    heads, kv_heads = attention_heads(settings)
    check_heads(heads, kv_heads, config.train.sequence_parallel)
    if heads % size:
        raise ConfigError(
            f"rollout.engine.tensor_parallel_size={size} does not divide the model's {heads} attention heads"
        )


def _layer_count(known: Mapping[str, Any] | None) -> int | None:
    """Number of layers of the language model, which some families call otherwise or describe in a part of the config;
    None if it is not known."""
    try:
        settings = AutoConfig.for_model(**known).get_text_config() if known else None
    except (TypeError, ValueError):
        return None  # a family that transformers does not know
    layers = getattr(settings, "num_hidden_layers", None)
    return layers if isinstance(layers, int) else None


def check_processes(config: RunConfig) -> None:
    """Raises ConfigError if this run cannot be trained by the number of processes that torchrun started."""
    if check_world(config.train.sequence_parallel) > 1 and (why := config.train.one_process):
        raise ConfigError(why)


def check_reference(config: RunConfig, algorithm: Algorithm) -> None:
    """Raises ConfigError if train.ref_model_sync_steps is set without a reference model."""
    asked = config.distillation is not None and config.distillation.teacher == "reference"
    if (steps := config.train.ref_model_sync_steps) and not (algorithm.requirements.reference or asked):
        raise ConfigError(
            f"train.ref_model_sync_steps={steps} refreshes the reference model, but algo.name={config.algo.name} uses "
            "none; set algo.kl_coef or algo.kl_in_reward above 0, or leave it out"
        )


def has_critic(algorithm: Algorithm) -> bool:
    """Reports whether the algorithm trains a critic (value model)."""
    return algorithm.requirements.critic


def make_engine(
    config: RunConfig,
    numeric: Numerics,
    source: str,
    policy: PreTrainedModel | None,
    tokenizer: PreTrainedTokenizerBase,
    weights: WeightStore,
    *,
    alone: bool = False,
    reserved: Callable[[], int] | None = None,
    threads: int | None = None,
) -> RolloutEngine:
    """Builds the inference engine of a model. Without a `policy` to copy, an engine in this process loads the model.
    `alone`: no other process uses its GPUs. `reserved` tells how much GPU memory trainers of this process will still
    allocate. `threads`: CPU threads, if the engine's settings have none."""

    def model() -> PreTrainedModel:
        if policy is None or policy.device.type != numeric.device.type or getattr(policy, "is_quantized", False):
            return load_model(source, numeric.compute, numeric.device)
        return policy

    return config.rollout.engine.make(
        EngineParts(
            source,
            model,
            tokenizer,
            weights,
            dtype=numeric.compute,
            context=config.rollout.max_model_len,
            float32_head=config.model.head_dtype == "float32",
            alone=alone,
            reserved=reserved,
            threads=threads or _threads_beside_judge(config),
            several_turns=config.workflow.is_environment,
        )
    )


def _threads_beside_judge(config: RunConfig) -> int | None:
    judges_here = config.task.runs_programs and not config.judge.url
    return max(1, torch.get_num_threads() - 1) if judges_here else None


def load_model(source: str, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Loads a model with a dtype on a device, in evaluation mode."""
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    except Exception as error:
        raise ModelError(f"cannot load model {source}: {error}") from error
    # Dropout stays off in training too: the trained log-probs must be those of the sampling policy.
    model.train(False)
    with explain_out_of_memory(f"model {source}", "free some, or choose a smaller model or a larger GPU"):
        torch.nn.Module.to(model, device)
    return model
