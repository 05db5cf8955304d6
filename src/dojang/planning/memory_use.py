"""Memory of a run on each device: bytes by purpose, and the phase in which they peak.

Numbers are for the first rank, which also holds the engine unless that is a separate process. They follow the code of
trainer/, engine/ and weight_sync/; sharded memory (FSDP2) has not been measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter

from dojang.config.run_config import RunConfig
from dojang.engine.config import default_prefill_chunk
from dojang.engine.kv_cache_size import DEFAULT_BYTES, UTILIZATION, kv_budget
from dojang.planning.kv_cache_memory import GIB, Cache, key_value_cache
from dojang.planning.layout import Layout
from dojang.planning.shapes import Shape
from dojang.planning.tokens_per_step import Work
from dojang.trainer.memory import NF4_BYTES, activation_bytes, checkpointed_layers, logits_bytes, optimizer_bytes

__all__ = ["Needs", "PlannedModel", "engine_needs", "host_bytes", "needs"]

_CUDA = int(0.9 * GIB)
"""GPU memory of a process before its first tensor, with libraries' workspaces."""
_PROCESS = GIB // 2
"""Host memory of a process with all imports, before a model is loaded."""
_VLLM_WORK = 2 * GIB
_BYTES = {"half": 2, "single": 4, "double": 8}


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """One model of a run, its configuration and its requirements."""

    config: RunConfig
    shape: Shape
    reference: bool
    critic: bool
    teacher: Shape | None = None
    """Local teacher model of distillation; None without one, or if its shape is unknown."""
    limit: bool = False
    """Whether a forward pass over all tokens precedes the update (M2PO)."""
    trains_all: bool = False
    """Whether groups whose rewards are all equal have a gradient too: from a KL term, a teacher or a critic."""

    @property
    def own_teacher(self) -> bool:
        """Whether the policy itself is the teacher (self-distillation)."""
        return self.config.distillation is not None and self.config.distillation.teacher == "policy"

    @property
    def precision(self) -> str:
        return {"bfloat16": "half", "float32": "single", "float64": "double"}.get(self.config.model.dtype, "auto")


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes on a process's device by name, and the names that are present in each phase."""

    parts: Mapping[str, int]
    phases: Mapping[str, tuple[str, ...]]
    cache: Cache | None = None
    """KV cache of the first model's engine, if it is in this process."""

    def during(self, phase: str) -> int:
        return sum(self.parts[name] for name in self.phases[phase])

    @property
    def fullest(self) -> str:
        return max(self.phases, key=self.during)

    @property
    def peak(self) -> int:
        return self.during(self.fullest)


def needs(planned: Mapping[str, PlannedModel], layout: Layout, work: Work) -> Needs:
    """Memory of the first rank: of all models together, or if they are separate, of the one that needs most."""
    if not layout.on_ray:
        return _together(planned, layout, work)
    each_alone = (_together({role: each}, layout.of(role), work) for role, each in planned.items())
    return max(each_alone, key=attrgetter("peak"))


def engine_needs(planned: Mapping[str, PlannedModel], layout: Layout, work: Work) -> Needs | None:
    """Memory of a separate engine, for the model that needs most; None without separate engines."""
    found = [_Device(model, layout.of(role), work.of(role), engine=True) for role, model in planned.items()]
    alone = [_alone(each, layout) for each in found if not each.model.config.rollout.engine.external]
    return max(alone, key=attrgetter("peak")) if layout.on_ray and alone else None


def _alone(engine: "_Device", layout: Layout) -> Needs:
    held = {"process": _CUDA if layout.gpu else _PROCESS, "engine weights": int(engine.engine_weights)}
    (cache,) = _caches([engine], layout, held)
    held |= {"engine work": int(engine.engine_work), "KV cache": cache.bytes, "prefix cache": engine.prefix_cache}
    parts = {name: size for name, size in held.items() if size}
    return Needs(parts, {"rollout": tuple(parts)}, cache)


def _together(planned: Mapping[str, PlannedModel], layout: Layout, work: Work) -> Needs:
    """Memory of models in one process; only the active one has activations."""
    found = [_Device(model, layout, work.of(role), work.copied_prompts(role)) for role, model in planned.items()]
    held = {"process": _CUDA if layout.gpu else _PROCESS}
    for name in (
        "weights",
        "gradients",
        "optimizer",
        "critic",
        "reference",
        "teacher",
        "weight store",
        "engine weights",
    ):
        held[name] = sum(int(getattr(each, name.replace(" ", "_"))) for each in found)
    for name in ("visiting", "copies", "activations", "scores", "gathered", "new version", "engine work"):
        held[name] = max(int(getattr(each, name.replace(" ", "_"))) for each in found)
    caches = _caches(found, layout, held)
    held["KV cache"] = sum(each.bytes for each in caches)
    held["prefix cache"] = sum(each.prefix_cache for each in found)
    return Needs({name: size for name, size in held.items() if size}, _phases(held, found[0], layout), _first(caches))


def _first(caches: list[Cache]) -> Cache | None:
    return caches[0] if caches else None


def _caches(found: "list[_Device]", layout: Layout, held: Mapping[str, int]) -> list[Cache]:
    """KV caches; without kv_cache_gb each takes a share of the memory that is free at the first request."""
    taken = sum(
        held.get(name, 0) for name in ("process", "weights", "critic", "reference", "teacher", "engine weights")
    )
    caches = []
    for each in found:
        if not each.engine_here:
            continue
        free = max(0, int(layout.gpu.memory_gib * GIB) - taken) if layout.gpu else 0
        caches.append(each.cache(_spare(each, layout, free, held)))
        taken += caches[-1].bytes
    return caches


def _spare(engine: "_Device", layout: Layout, free: int, held: Mapping[str, int]) -> int:
    """Bytes for the KV cache out of those that are free, as the engines compute them."""
    if layout.alone and layout.gpu and engine.rollout.engine.name == "vllm":  # it measures its activations
        kept = int((1 - UTILIZATION) * layout.gpu.memory_gib * GIB)
        return max(0, free - kept - int(engine.engine_work))
    if layout.on_ray or "gradients" not in held or not engine.rollout.engine.copies_trainer:  # no trainer beside it
        return kv_budget(free, alone=layout.alone)
    offloaded = "optimizer" in engine.train.offload
    passes = sum(held[name] for name in ("copies", "activations", "scores", "gathered"))
    # An offloaded optimizer state visits the GPU between two passes.
    passes = max(passes, held["optimizer"]) if offloaded else passes + held["optimizer"]
    versions = held["weight store"] + held["new version"]
    return kv_budget(free, alone=layout.alone, reserved=held["gradients"] + passes + versions)


def _phases(held: Mapping[str, int], first: "_Device", layout: Layout) -> dict[str, tuple[str, ...]]:
    away = first.model.config.train.offload if layout.gpu else ()
    always = ["process", "weights", "critic", "weight store", "engine weights", "prefix cache"]
    always += ["optimizer"] if "optimizer" not in away else []
    always += [name for name in ("reference", "teacher") if name not in away]
    # On a GPU, CUDA graphs hold addresses of the KV cache, so the engine keeps its memory.
    kept = [*always, "KV cache"] if layout.gpu else always
    if first.model.config.loop.staleness:  # the engine samples meanwhile
        kept = [*always, "KV cache", "engine work"]
    phases = {
        "rollout": [*always, "KV cache", "engine work"],
        "reference": [*kept, "visiting"],
        "update": [*kept, "gradients", "copies", "activations", "scores", "gathered"],
        "step": [*kept, "gradients", "optimizer"],
        "publish": [*kept, "new version"],
    }
    return {name: tuple(dict.fromkeys(each for each in parts if held[each])) for name, parts in phases.items()}


class _Device:
    """One model on the first rank's device."""

    def __init__(
        self,
        model: PlannedModel,
        layout: Layout,
        tokens: "tuple[int, int, int]",
        copied: int = 0,
        *,
        engine: bool | None = None,
    ) -> None:
        """`tokens` of a micro-batch, of the longest sequence and of one on average; `copied`: Work.copied_prompts.
        `engine`: whether the device has one; by default if it is neither remote nor on Ray."""
        self.model, self.layout = model, layout
        (self.micro, self.longest, self.mean), self.copied = tokens, copied
        config, shape = model.config, model.shape
        self.shape, self.train, self.rollout = shape, config.train, config.rollout
        default = "half" if layout.gpu else "single"
        self.precision = default if model.precision == "auto" else model.precision
        self.compute = _BYTES[self.precision]
        self.master = 8 if self.precision == "double" else 4
        beside = not self.rollout.engine.external and not layout.on_ray
        self.engine_here = beside if engine is None else engine
        self.tensor_parallel = self.rollout.engine.gpus() if layout.gpu else 1

    @property
    def learned(self) -> int:
        """Number of trainable weights."""
        lora = self.train.lora
        if lora is None:
            return self.shape.parameters
        ends = {"lm_head", "embed_tokens"} & {name.rpartition(".")[2] for name in lora.modules_to_save}
        full = self.shape.vocabulary * self.shape.hidden * (1 if self.shape.tied else len(ends)) if ends else 0
        return lora.adapter_weights(self.shape.linears()) + full

    @property
    def weights(self) -> float:
        lora, ranks, shape = self.train.lora, self.layout.ranks, self.shape
        if lora is None:
            return self.master * shape.parameters / ranks
        adapters = self.master * self.learned / ranks
        if lora.base_bits == 4:  # quantized weights are not sharded
            return NF4_BYTES * shape.linear + self.compute * (shape.parameters - shape.linear) / ranks + adapters
        return self.compute * shape.parameters / ranks + adapters

    @property
    def gradients(self) -> float:
        return self.master * self.learned / self.layout.ranks

    @property
    def optimizer(self) -> float:
        return self._optimizer_of(self.learned)

    @property
    def critic(self) -> float:
        """Critic: a whole model with gradients and optimizer states, without adapters."""
        if not self.model.critic:
            return 0
        decoder = self.shape.parameters - (0 if self.shape.tied else self.shape.vocabulary * self.shape.hidden)
        return 2 * self.master * decoder / self.layout.ranks + self._optimizer_of(decoder)

    def _optimizer_of(self, weights: int) -> float:
        matrices = min(self.shape.linear, weights)
        return optimizer_bytes(self.train.optimizer, self.master, matrices, weights - matrices) / self.layout.ranks

    @property
    def reference(self) -> float:
        """Reference model; with adapters it is the policy itself without them."""
        wanted = self.model.reference and self.train.needs_reference_model
        return self.compute * self.shape.parameters / self.layout.ranks if wanted else 0

    @property
    def teacher(self) -> float:
        shape = self.model.teacher
        return self.compute * shape.parameters / self.layout.ranks if shape is not None else 0

    @property
    def visiting(self) -> float:
        """An offloaded frozen model while it is on the GPU."""
        if self.layout.ranks > 1 or self.layout.gpu is None:
            return 0
        return max([getattr(self, name) for name in ("reference", "teacher") if name in self.train.offload], default=0)

    @property
    def copies(self) -> float:
        """Half-precision copies of weights for the matmuls, kept for the backward pass; of the head even with gradient
        checkpointing."""
        if self.precision != "half" or self.layout.ranks > 1 or self.train.lora is not None:
            return 0
        whole = max(1, self.shape.layers - checkpointed_layers(self.train.gradient_checkpointing, self.shape.layers))
        return 2 * (self.shape.projected * whole // self.shape.layers + self.shape.vocabulary * self.shape.hidden)

    @property
    def activations(self) -> float:
        adapted = self.train.lora is not None
        narrow = adapted or self.layout.ranks > 1
        per_token = activation_bytes(
            self.shape,
            self.precision,
            narrow=narrow,
            adapted=adapted,
            quantized=self.train.lora is not None and self.train.lora.base_bits == 4,
            gradient_checkpointing=self.train.gradient_checkpointing,
            longest=self.longest,
        )
        # Attention on a GPU saves keys and values of a shared prompt once for each of its samples.
        count = checkpointed_layers(self.train.gradient_checkpointing, self.shape.layers)
        layers = max(1, self.shape.layers - count)
        copies = self.copied * layers * 2 * self.shape.keys * self.compute if self.layout.gpu else 0
        return (per_token * self.micro + copies) / self.train.sequence_parallel

    @property
    def scores(self) -> float:
        tokens = self.micro // self.train.sequence_parallel
        return logits_bytes(
            self.shape, tokens, self.compute, gpu=self.layout.gpu is not None, trains_head=self.train.lora is None
        )

    @property
    def gathered(self) -> float:
        """Gathered FSDP weights: embedding and head all the time, layers one by one; with their gradients."""
        if self.layout.ranks == 1:
            return 0
        layer = self.shape.projected // self.shape.layers
        gradients = 6 * (self.shape.embedded + layer) if self.train.lora is None else 0
        return self.compute * (self.shape.embedded + 2 * layer) + gradients

    @property
    def weight_store(self) -> float:
        """Published versions of the weights: loop.lag + 1 of them. On Ray a trainer has one, and the object store the
        others."""
        versions = 1 if self.layout.on_ray else self.model.config.loop.kept_versions
        if (lora := self.train.lora) is None:
            return versions * self._published
        # All versions share the base weights: the trainer's own, or gathered ones where those are sharded.
        sharded = self.shape.parameters - (self.shape.linear if lora.base_bits == 4 else 0)
        gathered = self.compute * sharded if self.layout.ranks > 1 else 0
        return gathered + versions * self.master * self.learned

    @property
    def new_version(self) -> float:
        """New version of published weights next to the old ones; with LoRA its factors, and one merged weight."""
        if self.train.lora is None:
            return self._published
        largest = max(inputs * outputs for _, inputs, outputs in self.shape.linears())
        return self.master * self.learned + (self.master + self.compute) * largest

    @property
    def _published(self) -> float:
        """Bytes of one version."""
        return self.compute * self.shape.parameters

    @property
    def engine_weights(self) -> float:
        if not self.engine_here:
            return 0
        fp8, packed, quantized = self.rollout.engine.fp8, 0, 0.0
        if self.layout.gpu is None and (self.layout.instance.arm or self.precision == "half"):
            packed = self.shape.vocabulary * self.shape.hidden + (0 if fp8 else self.shape.projected)
        if fp8:
            quantized = self.shape.projected * (1 if self.layout.gpu else 1 + self.compute)
        return (self.compute * (self.shape.parameters + packed) + quantized) / self.tensor_parallel

    @property
    def engine_work(self) -> float:
        """Engine activations: a prefill chunk, and the logits of all sequences."""
        engine = self.rollout.engine
        if not self.engine_here or engine.name == "remote":
            return 0
        if engine.name == "vllm":
            return _VLLM_WORK
        shape = self.shape
        chunk = engine.prefill_chunk_tokens or default_prefill_chunk(gpu=self.layout.gpu is not None)
        read = chunk * (4 * shape.hidden + 2 * shape.queries + 2 * shape.keys + 3 * shape.token_mlp) * self.compute
        turns = 2 * shape.context * shape.head * self.compute
        rows = min(engine.max_num_seqs, self.rollout.prompts_per_step * self.rollout.group_size)
        scores = rows * shape.vocabulary * self.compute
        drawn = 0 if self.layout.gpu else min(rows * shape.vocabulary, 1 << 20) * 24
        return read + turns + scores + drawn

    @property
    def prefix_cache(self) -> int:
        """Keys and values of finished turns."""
        engine = self.rollout.engine
        if not self.engine_here or engine.name != "torch":
            return 0
        turns = self.model.config.workflow.is_environment
        most = engine.prefix_cache(gpu=self.layout.gpu is not None, several_turns=turns) * GIB
        episodes = self.rollout.prompts_per_step * self.rollout.group_size
        return int(min(most, episodes * self.longest * self.shape.kv_numbers * self.compute))

    def cache(self, spare: int) -> Cache:
        rollout, engine = self.rollout, self.rollout.engine
        assert engine.name != "remote"
        budget = int(engine.kv_cache_gb * GIB) if engine.kv_cache_gb else spare if self.layout.gpu else DEFAULT_BYTES
        wanted = rollout.prompts_per_step * rollout.group_size
        slots = engine.max_num_seqs if self.layout.gpu else min(engine.max_num_seqs, wanted)
        fused = self.layout.gpu is not None and engine.name == "torch"
        # Tensor parallel workers divide the KV heads; if these are fewer, some are duplicated.
        parts = min(self.tensor_parallel, self.shape.kv_heads)
        cache = key_value_cache(
            self.shape,
            self.compute,
            slots,
            budget * parts,
            longest=self.longest,
            mean=self.mean,
            all_at_once=fused,
        )
        return cache.part(parts)


def host_bytes(planned: Mapping[str, PlannedModel], layout: Layout) -> int:
    """Host memory of a machine with GPUs: offloaded parts, and the whole model for each process that loads it."""
    kept = loading = 0.0
    for role, model in planned.items():
        device = _Device(model, layout.of(role), (1, 1, 1))
        away = model.config.train.offload
        kept += device.optimizer if "optimizer" in away else 0
        kept += sum(getattr(device, name) for name in ("reference", "teacher") if name in away)
        whole = device.master if model.config.train.lora is None else device.compute
        whole += device.compute if device.reference else 0
        loading += whole * model.shape.parameters if layout.ranks > 1 else 0
    return int(layout.ranks_per_node * (_PROCESS + max(kept, loading)))
