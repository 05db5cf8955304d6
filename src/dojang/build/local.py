"""One model of a run: loading it, asking it, teaching it. How models, tasks and the loop come together is compose.py's
business."""

import os
from dataclasses import dataclass
from pathlib import Path

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
from dojang.engine.torch_engine import TorchEngine
from dojang.protocols import Algorithm, RolloutEngine, WeightStore
from dojang.tasks.code import CodeConfig
from dojang.trainer.critic import Critic
from dojang.trainer.lora_checks import check_modules
from dojang.trainer.process_group import Ranks, check_world
from dojang.trainer.quantization import load_quantised
from dojang.trainer.teacher_model import Teacher
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.trainer.ulysses import check_heads
from dojang.weight_sync.delta_store import DeltaWeights
from dojang.weight_sync.in_memory import MemoryWeights
from dojang.workflows.chat_renderer import ChatRenderer

__all__ = [
    "Learner",
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
    "make_servers",
    "numerics",
    "numerics_on",
    "prepare_torch",
]


@dataclass(frozen=True, slots=True)
class Numerics:
    """Where and how precisely the arithmetic is done."""

    device: torch.device
    compute: torch.dtype
    master: torch.dtype


def numerics(config: RunConfig) -> Numerics:
    """Resolve `auto`, for this process."""
    cuda = torch.cuda.is_available()
    if config.model.device == "cuda" and not cuda:
        raise ConfigError("model.device=cuda, but torch sees no GPU here; use model.device=cpu, or see `dojang doctor`")
    device = torch.device("cuda" if cuda and config.model.device != "cpu" else "cpu")
    if device.type == "cuda":
        rank = int(os.environ.get("LOCAL_RANK", "0"))  # torchrun's: a GPU for each process
        if rank >= torch.cuda.device_count():
            raise ConfigError(
                f"there are more processes than GPUs, of which there are {torch.cuda.device_count()} here"
            )
        torch.cuda.set_device(rank)
    return numerics_on(device, config)


def numerics_on(device: torch.device, config: RunConfig) -> Numerics:
    """How precisely the arithmetic is done there."""
    chosen = config.model.dtype
    if chosen == "auto":
        chosen = "bfloat16" if device.type == "cuda" else "float32"
    compute: torch.dtype = getattr(torch, chosen)
    return Numerics(device, compute, torch.float64 if compute is torch.float64 else torch.float32)


def prepare_torch(device: torch.device) -> None:
    """What holds for the whole process."""
    # On a GPU the backward pass of attention has no order fixed: runs repeat there only up to rounding.
    torch.use_deterministic_algorithms(device.type == "cpu")
    # cuDNN's attention plans anew for every new shape, and decoding has a new one at every token.
    torch.backends.cuda.enable_cudnn_sdp(False)
    disable_progress_bar()  # type: ignore[no-untyped-call]  # transformers' own bars would fight with ours


def load_tokenizer(source: str) -> tuple[PreTrainedTokenizerBase, PreTrainedConfig]:
    """And what else is known of a model before it is loaded."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source)
        settings = AutoConfig.from_pretrained(source).get_text_config()
    except Exception as error:  # transformers raises many kinds; each says what it could not do
        raise ModelError(f"the tokenizer of {source} cannot be loaded: {error}") from error
    return tokenizer, settings


def context_length(config: RunConfig, settings: PreTrainedConfig) -> int | None:
    """Most tokens of a prompt and its answer: rollout.max_model_len, or the model's own; None for models without a
    limit. ConfigError if the model cannot have so many."""
    own: int | None = getattr(settings, "max_position_embeddings", None)
    wanted = config.rollout.max_model_len
    if wanted is not None and own is not None and wanted > own:
        raise ConfigError(
            f"rollout.max_model_len={wanted} is more than the context of {config.model.name}, {own} tokens; lower it "
            "or leave it out"
        )
    return own if wanted is None else wanted


def make_renderer(
    config: RunConfig,
    tokenizer: PreTrainedTokenizerBase,
    settings: PreTrainedConfig,
    key: str = "rollout.max_tokens",
) -> ChatRenderer:
    """Builds the renderer of a model's prompts. `key` is where the user has set how long answers may be."""
    return ChatRenderer(
        tokenizer,
        context=context_length(config, settings),
        max_tokens=config.rollout.max_tokens,
        variables=config.model.chat_template_kwargs,
        key=key,
        limit="the model's context" if config.rollout.max_model_len is None else "rollout.max_model_len",
    )


class Learner:
    """A model that is loaded once. Its engine is made first, since a trainer changes what it is given."""

    def __init__(
        self, config: RunConfig, numeric: Numerics, ranks: Ranks, source: str, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        self._config, self._numeric, self._ranks, self._source = config, numeric, ranks, source
        self.tokenizer = tokenizer
        self.weights = (DeltaWeights if config.rollout.transfer == "delta" else MemoryWeights)(numeric.compute)
        # To be spread over ranks, a model may be larger than any one device.
        self._device = numeric.device if ranks.world == 1 else torch.device("cpu")
        self._policy = self._load_policy()

    def make_engine(self) -> RolloutEngine:
        """What samples from it."""
        return make_engine(self._config, self._numeric, self._source, self._policy, self.tokenizer, self.weights)

    def make_trainer(self, algorithm: Algorithm) -> TorchTrainer:
        """What teaches it, with all that takes."""
        config, numeric, aside = self._config, self._numeric, torch.device("cpu")
        reference = critic = teacher = None
        distillation = config.distillation
        asks_reference = distillation is not None and distillation.teacher == "reference"
        if (algorithm.needs_reference or asks_reference) and config.train.needs_reference_model:
            place = aside if "reference" in config.train.offload else self._device
            quantised = config.train.lora is not None and config.train.lora.base_bits == 4
            load = load_quantised if quantised else load_model  # the same weights as under the adapters
            reference = load(self._source, numeric.compute, place)
        if distillation is not None and distillation.local_model:
            place = aside if "teacher" in config.train.offload else self._device
            teacher = Teacher(
                load_model(models.resolve(distillation.local_model), numeric.compute, place),
                temperature=config.rollout.temperature,
                compute=numeric.compute,
                float32_head=config.model.head_dtype == "float32",
                offload="teacher" in config.train.offload,
                ranks=self._ranks,
            )
        if has_critic(algorithm):
            valuer = load_model(self._source, numeric.master, self._device)
            critic = Critic(valuer, algorithm, config.train, compute=numeric.compute, ranks=self._ranks)
        return TorchTrainer(
            self._policy,
            reference,
            self.tokenizer,
            algorithm,
            self.weights,
            config.train,
            total_updates=config.steps * config.train.steps_per_batch - config.loop.stale_updates,
            longest=config.rollout.max_tokens,
            temperature=config.rollout.temperature,
            compute=numeric.compute,
            float32_head=config.model.head_dtype == "float32",
            base=config.model.name,
            critic=critic,
            teacher=teacher,
            ranks=self._ranks,
        )

    def _load_policy(self) -> PreTrainedModel:
        lora, numeric = self._config.train.lora, self._numeric
        if lora is not None and lora.base_bits == 4:
            return load_quantised(self._source, numeric.compute, numeric.device)
        return load_model(self._source, numeric.master if lora is None else numeric.compute, self._device)


def check_model(config: RunConfig) -> None:
    """ConfigError if a model that is on this machine lacks the modules of train.lora, or if its attention heads cannot
    be divided among ranks or GPUs."""
    source, size = models.local(config.model.name), config.rollout.tensor_parallel_size
    check_modules(source, config.train.lora)
    if source is None or max(config.train.sequence_parallel, size) == 1:
        return
    settings = AutoConfig.from_pretrained(source).get_text_config()
    heads = settings.num_attention_heads
    check_heads(heads, settings.num_key_value_heads, config.train.sequence_parallel)
    if heads % size:
        raise ConfigError(f"rollout.tensor_parallel_size={size} does not divide the model's {heads} attention heads")


def check_processes(config: RunConfig) -> None:
    """ConfigError if the processes torchrun has started cannot train this run."""
    if check_world(config.train.sequence_parallel) > 1 and (why := config.train.one_process):
        raise ConfigError(why)


def check_reference(config: RunConfig, algorithm: Algorithm) -> None:
    """ConfigError if a reference model is to be refreshed and there is none."""
    asked = config.distillation is not None and config.distillation.teacher == "reference"
    if (steps := config.train.ref_model_sync_steps) and not (algorithm.needs_reference or asked):
        raise ConfigError(
            f"train.ref_model_sync_steps={steps} refreshes the reference model, and algo.name={config.algo.name} has "
            "none; set algo.kl_coef or algo.kl_in_reward above 0, or leave it out"
        )


def has_critic(algorithm: Algorithm) -> bool:
    """Whether a second model says what can be expected."""
    return getattr(algorithm, "needs_critic", False)  # algorithms of one's own need not say


def make_engine(
    config: RunConfig,
    numeric: Numerics,
    source: str,
    policy: PreTrainedModel | None,
    tokenizer: PreTrainedTokenizerBase,
    weights: WeightStore,
    *,
    alone: bool = False,
) -> RolloutEngine:
    """Builds the engine that samples from a model, here or elsewhere. Without a `policy` to copy, the torch engine
    loads one. `alone` if nothing else uses its GPUs."""
    rollout = config.rollout
    if rollout.engine == "torch":
        if policy is None or policy.device.type != numeric.device.type or getattr(policy, "is_quantized", False):
            policy = load_model(source, numeric.compute, numeric.device)
        return TorchEngine(  # it takes copies
            policy,
            tokenizer,
            weights,
            slots=rollout.slots,
            kv_gb=rollout.kv_gb,
            alone=alone,
            chunk=rollout.chunk,
            context=rollout.max_model_len,
            threads=_engine_threads(config),
            dtype=numeric.compute,
            float32_head=config.model.head_dtype == "float32",
        )
    if rollout.engine == "vllm":
        from dojang.inference.vllm import VllmEngine

        dtype = str(numeric.compute).removeprefix("torch.")
        return VllmEngine(
            source,
            tokenizer,
            weights,
            slots=rollout.slots,
            kv_gb=rollout.kv_gb,
            alone=alone,
            tensor_parallel_size=rollout.tensor_parallel_size,
            context=rollout.max_model_len,
            transfer=rollout.transfer,
            dtype=dtype,
        )
    return make_servers(config, tokenizer, weights)


def make_servers(config: RunConfig, tokenizer: PreTrainedTokenizerBase, weights: WeightStore) -> RolloutEngine:
    """Servers that sample, as one engine."""
    from dojang.inference.engine_pool import Fleet
    from dojang.inference.remote import RemoteEngine

    rollout = config.rollout
    folder = Path(rollout.handover) if rollout.handover else None
    token = os.environ.get(rollout.token_env) or None
    servers = [
        RemoteEngine(url, tokenizer, weights, folder=folder, transfer=rollout.transfer, token=token)
        for url in rollout.url
    ]
    return servers[0] if len(servers) == 1 else Fleet(servers)


def _engine_threads(config: RunConfig) -> int | None:
    judges_here = isinstance(config.task, CodeConfig) and not config.judge.url
    return config.rollout.threads or (max(1, torch.get_num_threads() - 1) if judges_here else None)


def load_model(source: str, dtype: torch.dtype, device: torch.device) -> PreTrainedModel:
    """The weights, in this precision, there."""
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    except Exception as error:
        raise ModelError(f"model {source} cannot be loaded: {error}") from error
    # Dropout stays off while training too: the probabilities that are trained must be those that were sampled.
    model.train(False)
    torch.nn.Module.to(model, device)
    return model
