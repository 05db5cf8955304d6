"""Bytes: what a run keeps on each device, by what it is for, and when most of it is there at once.

The figures are those of the first rank, which has the engine as well unless that is apart. Everything follows what
train/, engines/ and weights/ do; where torch is sharded (FSDP2) that has not been measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter

from dojang.config.run_config import RunConfig
from dojang.engine.kv_cache_size import UTILIZATION, kv_budget
from dojang.planning.activations import activation_bytes, score_bytes
from dojang.planning.kv_cache_memory import GIB, Cache, key_value_cache
from dojang.planning.layout import Layout
from dojang.planning.shapes import Shape
from dojang.planning.tokens_per_step import Work

__all__ = ["Needs", "Player", "engine_needs", "host_bytes", "needs"]

_CUDA = int(0.9 * GIB)
"""What a process has on a GPU before its first tensor, libraries' workspaces included."""
_PROCESS = GIB // 2
"""What a process is with everything loaded that a run needs, before there is a model."""
_VLLM_WORK = 2 * GIB
_NF4 = 0.5 + 1 / 127
"""Bytes of a weight in four bits: one scale for 64 of them, in 8 bits, and one for 256 scales."""
_ADAM8 = 2 * (1 + 4 / 256)
_BYTES = {"half": 2, "single": 4, "double": 8}


@dataclass(frozen=True, slots=True)
class Player:
    """One model of a run and what it is configured with."""

    config: RunConfig
    shape: Shape
    reference: bool
    critic: bool
    teacher: int = 0
    """Number of parameters of the local teacher model, if there is one."""
    limit: bool = False
    """Whether all tokens of a step are looked at before."""

    @property
    def precision(self) -> str:
        return {"bfloat16": "half", "float32": "single", "float64": "double"}.get(self.config.model.dtype, "auto")


@dataclass(frozen=True, slots=True)
class Needs:
    """Bytes of a process's device, by name, and which of them are there at the same time."""

    parts: Mapping[str, int]
    phases: Mapping[str, tuple[str, ...]]
    cache: Cache | None = None
    """Of the first model's engine, if it is in this process."""

    def during(self, phase: str) -> int:
        return sum(self.parts[name] for name in self.phases[phase])

    @property
    def fullest(self) -> str:
        return max(self.phases, key=self.during)

    @property
    def peak(self) -> int:
        return self.during(self.fullest)


def needs(players: Mapping[str, Player], layout: Layout, work: Work) -> Needs:
    """Of the first rank: of all models of a run together, or where they are apart of the one that needs most."""
    if not layout.apart:
        return _together(players, layout, work)
    each_alone = (_together({role: each}, layout.of(role), work) for role, each in players.items())
    return max(each_alone, key=attrgetter("peak"))


def engine_needs(players: Mapping[str, Player], layout: Layout, work: Work) -> Needs | None:
    """Of an engine that is apart, of the model that needs most. None if there is none here."""
    found = [_Device(player, layout.of(role), work.of(role), engine=True) for role, player in players.items()]
    alone = [_alone(each, layout) for each in found if each.player.config.rollout.engine != "remote"]
    return max(alone, key=attrgetter("peak")) if layout.apart and alone else None


def _alone(engine: "_Device", layout: Layout) -> Needs:
    held = {"process": _CUDA if layout.gpu else _PROCESS, "engine weights": int(engine.engine_weights)}
    (cache,) = _caches([engine], layout, held)
    held |= {"engine work": int(engine.engine_work), "keys and values": cache.bytes}
    parts = {name: size for name, size in held.items() if size}
    return Needs(parts, {"attempt": tuple(parts)}, cache)


def _together(players: Mapping[str, Player], layout: Layout, work: Work) -> Needs:
    """Only the model at work has activations."""
    found = [_Device(player, layout, work.of(role)) for role, player in players.items()]
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
    held["keys and values"] = sum(each.bytes for each in caches)
    return Needs({name: size for name, size in held.items() if size}, _phases(held, found[0], layout), _first(caches))


def _first(caches: list[Cache]) -> Cache | None:
    return caches[0] if caches else None


def _caches(found: "list[_Device]", layout: Layout, held: Mapping[str, int]) -> list[Cache]:
    """Without rollout.kv_gb the KV cache takes a share of what is free when the engine is first asked."""
    taken = sum(
        held.get(name, 0) for name in ("process", "weights", "critic", "reference", "teacher", "engine weights")
    )
    caches = []
    for each in found:
        if not each.engine_here:
            continue
        free = max(0, int(layout.gpu.memory_gib * GIB) - taken) if layout.gpu else 0
        caches.append(each.cache(_spare(each, layout, free)))
        taken += caches[-1].bytes
    return caches


def _spare(engine: "_Device", layout: Layout, free: int) -> int:
    """Bytes for the KV cache out of those that are free, as the engines reckon."""
    if layout.alone and layout.gpu and engine.rollout.engine == "vllm":  # it measures its own work, and takes the rest
        kept = int((1 - UTILIZATION) * layout.gpu.memory_gib * GIB)
        return max(0, free - kept - int(engine.engine_work))
    return kv_budget(free, alone=layout.alone)


def _phases(held: Mapping[str, int], first: "_Device", layout: Layout) -> dict[str, tuple[str, ...]]:
    away = first.player.config.train.offload if layout.gpu else ()
    always = ["process", "weights", "critic", "weight store", "engine weights"]
    always += ["optimizer"] if "optimizer" not in away else []
    always += [name for name in ("reference", "teacher") if name not in away]
    # On a GPU graphs know where the keys and values are, so the engine keeps their memory.
    kept = [*always, "keys and values"] if layout.gpu else always
    phases = {
        "attempt": [*always, "keys and values", "engine work"],
        "reference": [*kept, "visiting"],
        "learn": [*kept, "gradients", "copies", "activations", "scores", "gathered"],
        "step": [*kept, "gradients", "optimizer"],
        "publish": [*kept, "new version"],
    }
    return {name: tuple(dict.fromkeys(each for each in parts if held[each])) for name, parts in phases.items()}


class _Device:
    """One model on the first rank's device."""

    def __init__(
        self, player: Player, layout: Layout, tokens: "tuple[int, int]", *, engine: bool | None = None
    ) -> None:
        """`engine` says whether there is one; without it, if it is neither remote nor apart."""
        self.player, self.layout = player, layout
        self.micro, self.longest = tokens
        config, shape = player.config, player.shape
        self.shape, self.train, self.rollout = shape, config.train, config.rollout
        default = "half" if layout.gpu else "single"
        self.precision = default if player.precision == "auto" else player.precision
        self.compute = _BYTES[self.precision]
        self.master = 8 if self.precision == "double" else 4
        beside = self.rollout.engine != "remote" and not layout.apart
        self.engine_here = beside if engine is None else engine
        self.tensor_parallel = self.rollout.tensor_parallel_size if layout.gpu else 1

    @property
    def learned(self) -> int:
        """Weights that have gradients."""
        lora = self.train.lora
        if lora is None:
            return self.shape.parameters
        names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
        chosen = [
            sum(size)
            for name, size in zip(names, self.shape.projections, strict=True)
            if not lora.target_modules or any(target.endswith(name) for target in lora.target_modules)
        ]
        ends = {"lm_head", "embed_tokens"} & {name.rpartition(".")[2] for name in lora.modules_to_save}
        full = self.shape.vocabulary * self.shape.hidden * (1 if self.shape.tied else len(ends)) if ends else 0
        return lora.rank * self.shape.layers * sum(chosen) + full

    @property
    def weights(self) -> float:
        lora, ranks, shape = self.train.lora, self.layout.ranks, self.shape
        if lora is None:
            return self.master * shape.parameters / ranks
        adapters = self.master * self.learned / ranks
        if lora.base_bits == 4:  # packed ones stay whole on every rank
            return _NF4 * shape.projected + self.compute * (shape.parameters - shape.projected) / ranks + adapters
        return self.compute * shape.parameters / ranks + adapters

    @property
    def gradients(self) -> float:
        return self.master * self.learned / self.layout.ranks

    @property
    def optimizer(self) -> float:
        each = _ADAM8 if self.train.optimizer == "adamw8bit" else 2 * self.master
        return each * self.learned / self.layout.ranks

    @property
    def critic(self) -> float:
        """A whole model, with gradients and an optimizer, never adapted."""
        if not self.player.critic:
            return 0
        each = 2 * self.master + (_ADAM8 if self.train.optimizer == "adamw8bit" else 2 * self.master)
        decoder = self.shape.parameters - (0 if self.shape.tied else self.shape.vocabulary * self.shape.hidden)
        return each * decoder / self.layout.ranks

    @property
    def reference(self) -> float:
        """With adapters it is the model itself."""
        wanted = self.player.reference and self.train.needs_reference_model
        return self.compute * self.shape.parameters / self.layout.ranks if wanted else 0

    @property
    def teacher(self) -> float:
        return self.compute * self.player.teacher / self.layout.ranks

    @property
    def visiting(self) -> float:
        """One of the frozen models that train.offload keeps elsewhere, while it is asked."""
        if self.layout.ranks > 1 or self.layout.gpu is None:
            return 0
        return max([getattr(self, name) for name in ("reference", "teacher") if name in self.train.offload], default=0)

    @property
    def copies(self) -> float:
        """Weights in half precision, made for the products and kept for their gradients; of the head even if the layers
        are made again."""
        if self.precision != "half" or self.layout.ranks > 1 or self.train.lora is not None:
            return 0
        layers = (
            self.shape.projected if not self.train.gradient_checkpointing else self.shape.projected // self.shape.layers
        )
        return 2 * (layers + self.shape.vocabulary * self.shape.hidden)

    @property
    def activations(self) -> float:
        adapted = self.train.lora is not None
        narrow = adapted or self.layout.ranks > 1
        per_token = activation_bytes(
            self.shape,
            self.precision,
            narrow=narrow,
            adapted=adapted,
            gradient_checkpointing=self.train.gradient_checkpointing,
        )
        return per_token * self.micro / self.train.sequence_parallel

    @property
    def scores(self) -> float:
        tokens = self.micro // self.train.sequence_parallel
        return score_bytes(
            self.shape, tokens, self.compute, gpu=self.layout.gpu is not None, head_learns=self.train.lora is None
        )

    @property
    def gathered(self) -> float:
        """Of spread weights, what is whole while it works: embedding and head all the time, layers one after the other;
        and their gradients."""
        if self.layout.ranks == 1:
            return 0
        layer = self.shape.projected // self.shape.layers
        gradients = 6 * (self.shape.embedded + layer) if self.train.lora is None else 0
        return self.compute * (self.shape.embedded + 2 * layer) + gradients

    @property
    def weight_store(self) -> float:
        return self.compute * self.shape.parameters

    @property
    def new_version(self) -> float:
        """Beside the old one; where weights must be gathered or merged first, twice."""
        lora = self.train.lora
        if lora is not None and lora.publish == "factors":
            return 0
        times = 1 if lora is None and self.layout.ranks == 1 else 2
        return times * self.weight_store

    @property
    def engine_weights(self) -> float:
        if not self.engine_here:
            return 0
        packed = 0
        if self.layout.gpu is None and (self.layout.instance.arm or self.precision == "half"):
            packed = self.shape.projected + self.shape.vocabulary * self.shape.hidden
        return self.compute * (self.shape.parameters + packed) / self.tensor_parallel

    @property
    def engine_work(self) -> float:
        """Reading a chunk of prompts, and the scores of all sequences."""
        if not self.engine_here:
            return 0
        if self.rollout.engine == "vllm":
            return _VLLM_WORK
        shape = self.shape
        chunk = self.rollout.chunk or (8192 if self.layout.gpu else 512)
        read = chunk * (4 * shape.hidden + 2 * shape.queries + 2 * shape.keys + 3 * shape.mlp) * self.compute
        turns = 2 * shape.context * shape.head * self.compute
        rows = min(self.rollout.slots, self.rollout.prompts_per_step * self.rollout.group_size)
        scores = rows * shape.vocabulary * self.compute
        drawn = 0 if self.layout.gpu else min(rows * shape.vocabulary, 1 << 20) * 24
        return read + turns + scores + drawn

    def cache(self, spare: int) -> Cache:
        rollout = self.rollout
        budget = int(rollout.kv_gb * GIB) if rollout.kv_gb else spare if self.layout.gpu else 4 * GIB
        wanted = rollout.prompts_per_step * rollout.group_size
        slots = rollout.slots if self.layout.gpu else min(rollout.slots, wanted)
        fused = self.layout.gpu is not None and rollout.engine == "torch"
        # Tensor parallel workers divide the heads of keys and values; where these are fewer, some are kept twice.
        parts = min(self.tensor_parallel, self.shape.kv_heads)
        return key_value_cache(self.shape, self.compute, slots, budget * parts, self.longest, all_at_once=fused).part(
            parts
        )


def host_bytes(players: Mapping[str, Player], layout: Layout) -> int:
    """Of a machine with GPUs, in the processor's memory: what is kept away from GPUs, and while several processes load
    a model, all of it for each."""
    kept = loading = 0.0
    for role, player in players.items():
        device = _Device(player, layout.of(role), (1, 1))
        away = player.config.train.offload
        kept += device.optimizer if "optimizer" in away else 0
        kept += sum(getattr(device, name) for name in ("reference", "teacher") if name in away)
        whole = device.master if player.config.train.lora is None else device.compute
        whole += device.compute if device.reference else 0
        loading += whole * player.shape.parameters if layout.ranks > 1 else 0
    return int(layout.ranks_per_node * (_PROCESS + max(kept, loading)))
