"""Settings of rollout engines: the base class, and dojang's own engine."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from dojang.core.errors import ModelError
from dojang.core.section import Section
from dojang.engine.architectures import support
from dojang.protocols import RolloutEngine, WeightStore

if TYPE_CHECKING:  # torch is imported late
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["EngineParts", "EngineSection", "StartedEngineSection", "TorchEngineConfig", "default_prefill_chunk"]


def default_prefill_chunk(*, gpu: bool) -> int:
    """Tokens of a prefill chunk if rollout.engine.prefill_chunk_tokens is not set; `gpu`: with the GPU kernels."""
    return 8192 if gpu else 512


@dataclass(frozen=True, slots=True)
class EngineParts:
    """A model and its surroundings, from which a section makes its engine."""

    source: str
    """Directory or hub id of the model."""
    model: "Callable[[], PreTrainedModel]"
    """Returns the model in the engine's dtype, on its device."""
    tokenizer: "PreTrainedTokenizerBase"
    weights: WeightStore
    dtype: "torch.dtype"
    context: int | None
    """Context length in tokens; None: the model's own."""
    float32_head: bool
    alone: bool
    """No other process uses the engine's GPUs."""
    reserved: Callable[[], int] | None
    """Tells how many bytes trainers of this process will still allocate on the engine's GPU; None: not known."""
    threads: int | None
    """CPU threads, if the section does not set them; None: torch's default."""
    several_turns: bool = False
    """Prompts go on where earlier completions ended."""


class EngineSection(Section):
    """Settings of an engine. Class attributes and methods state what builders and the planner need to know of it."""

    external: ClassVar[bool] = False
    """Whether it runs on servers that the run neither starts nor places."""
    copies_trainer: ClassVar[bool] = False
    """Whether it copies the trainer's model at the start, and its weights from memory after each step."""
    float32_head: ClassVar[bool] = False
    """Whether it supports model.head_dtype=float32."""
    weight_sync: Literal["full", "delta"] = "full"
    """Weight sync after each step: full sends all weights, delta the changed values and a checksum. If the checksum
    differs, and at first, all weights are sent."""

    @property
    def fp8(self) -> bool:
        """Whether it computes in 8 bits, so that its log-probs differ from the trainer's by more than rounding."""
        return False

    def gpus(self) -> int:
        """Number of GPUs per engine."""
        return 1

    def make(self, parts: EngineParts) -> RolloutEngine:
        """Builds the engine."""
        raise NotImplementedError


class StartedEngineSection(EngineSection):
    """Settings of an engine that the run starts."""

    max_num_seqs: int = Field(default=256, ge=1)
    """Maximum number of sequences in a batch (continuous batching), as far as their KV cache fits `kv_cache_gb`."""
    kv_cache_gb: float | None = Field(default=None, gt=0)
    """KV cache size in GiB. Defaults to 4 on a CPU. On a GPU without a trainer (on Ray, unless runtime.gpus is below 1)
    most of the memory its weights leave free. Beside a trainer half of what updates, which are measured at the start,
    leave free; vllm takes a third of the free memory."""


class TorchEngineConfig(StartedEngineSection):
    """dojang's own engine, in the trainer's process or as Ray actors. Models of other families (docs/models.md) run on
    transformers' `generate` instead, which is slow and warned of."""

    copies_trainer: ClassVar[bool] = True
    float32_head: ClassVar[bool] = True
    name: Literal["torch"] = "torch"
    prefill_chunk_tokens: int | None = Field(default=None, ge=1)
    """Chunked prefill: prompt tokens that the engine prefills between two decode steps; fewer delay running sequences
    less. Defaults to 512, on a GPU to 8192."""
    prefix_cache_gb: float | None = Field(default=None, ge=0)
    """Prefix caching: GiB for keys and values of finished turns, on top of `kv_cache_gb`. The next turn of a
    conversation prefills only its new tokens. 0 disables it. Defaults to 1 on a CPU with a workflow of several turns,
    else to 0."""
    quantization: Literal["none", "fp8"] = "none"
    """Precision of the linear layers: fp8 computes them in 8 bits while sampling, and keeps the weights that updates
    write. The log-probs are those of the quantized policy (docs/engines.md). On a GPU from compute capability 9.0."""
    speculative_tokens: int = Field(default=0, ge=0, le=16)
    """Speculative decoding: draft tokens per sequence, by n-grams of its prompt and the other samples of
    one request, and verified in one decode step, as many as add hardly any time (docs/engines.md). The same tokens are
    sampled as without, up to rounding. 0 disables it."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of the engine without a GPU. Defaults to one per core, or one less where programs are judged on
    the same machine: threads synchronise, so a busy core costs more than one thread less."""

    @property
    def fp8(self) -> bool:
        return self.quantization == "fp8"

    def prefix_cache(self, *, gpu: bool, several_turns: bool) -> float:
        """Size of the prefix cache in GiB."""
        default = 1.0 if several_turns and not gpu else 0.0
        return default if self.prefix_cache_gb is None else self.prefix_cache_gb

    def make(self, parts: EngineParts) -> RolloutEngine:
        from dojang.engine.generate_engine import GenerateEngine
        from dojang.engine.torch_engine import TorchEngine

        model = parts.model()
        found = support(model.config.to_dict())
        if found.engine == "none":
            raise ModelError(f"{parts.source}: {found.message}")
        engine: Callable[..., RolloutEngine] = partial(
            TorchEngine,
            kv_cache_gb=self.kv_cache_gb,
            alone=parts.alone,
            reserved=parts.reserved,
            prefill_chunk_tokens=self.prefill_chunk_tokens,
            prefix_cache_gb=self.prefix_cache(gpu=model.device.type == "cuda", several_turns=parts.several_turns),
            speculative_tokens=self.speculative_tokens,
            quantization=self.quantization,
        )
        if found.engine == "generate":
            if self.fp8:
                raise ModelError(f"rollout.engine.quantization is not supported for {parts.source}: {found.message}")
            warnings.warn(f"{parts.source}: {found.message}", RuntimeWarning, stacklevel=2)
            engine = GenerateEngine
        return engine(  # it copies the weights
            model,
            parts.tokenizer,
            parts.weights,
            max_num_seqs=self.max_num_seqs,
            context=parts.context,
            threads=self.threads or parts.threads,
            dtype=parts.dtype,
            float32_head=parts.float32_head,
            weight_sync=self.weight_sync,
        )
