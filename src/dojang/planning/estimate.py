"""Estimates memory, time and cost of a configuration on machines."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dojang.config.run_config import RunConfig
from dojang.core.errors import ModelError
from dojang.planning.checkpointed_layers import with_layers
from dojang.planning.cost import Times, estimate_times
from dojang.planning.gpu_split import with_split
from dojang.planning.instances import Instance
from dojang.planning.kv_cache_memory import GIB, Cache
from dojang.planning.layout import Layout, make_layout
from dojang.planning.memory_use import Needs, PlannedModel, engine_needs, host_bytes, needs
from dojang.planning.shapes import Shape, find_shape
from dojang.planning.tokens_per_step import Lengths, Work, measure

__all__ = ["Estimate", "Subject", "estimate"]

_TIGHT = 0.92
"""Fraction of the memory that is safe to use: allocators lose some to fragmentation."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Input of a plan: settings, shapes of models and lengths of prompts."""

    config: RunConfig
    shapes: Mapping[str, Shape]
    lengths: Mapping[str, Lengths]
    language: str = ""
    """Language of the judged programs, if any."""
    zero_variance: Mapping[str, float] = field(default_factory=dict)
    """Share of groups whose rewards are all equal, by role: they have no gradient. 0 where it is not given."""

    def planned_models(self) -> dict[str, PlannedModel]:
        """Models of the run by role."""
        found = {}
        for role, each in self.config.roles().items():
            algorithm = each.algo.make(each.rollout.max_tokens)
            found[role] = PlannedModel(
                each,
                self.shapes[role],
                reference=algorithm.requirements.reference or _asks_reference(each),
                teacher=_teacher_shape(each),
                critic=algorithm.requirements.critic,
                limit=algorithm.requirements.limit,
                trains_all=algorithm.requirements.zero_advantage or each.distillation is not None,
            )
        return found


def _asks_reference(config: RunConfig) -> bool:
    return config.distillation is not None and config.distillation.teacher == "reference"


def _teacher_shape(config: RunConfig) -> Shape | None:
    """Shape of a local teacher; None without one, or if it is unknown."""
    name = config.distillation.local_model if config.distillation is not None else ""
    try:
        return find_shape(name)[0] if name else None
    except ModelError:
        return None


@dataclass(frozen=True, slots=True)
class Estimate:
    """Memory, time and cost on given machines."""

    layout: Layout
    work: Work
    needs: Needs
    engine: Needs | None
    """Memory of each engine, if engines have their own devices."""
    host: int
    """Bytes of host memory on each machine with GPUs."""
    times: Times
    sequence_parallel: int = 1

    @property
    def shared(self) -> bool:
        """Whether an engine samples on a device that also trains."""
        return _shared(self.layout, self.needs)

    @property
    def capacity(self) -> int:
        """Bytes of the device."""
        gpu = self.layout.gpu
        return int((gpu.memory_gib if gpu else self.layout.instance.memory_gib) * GIB)

    @property
    def cache(self) -> Cache | None:
        """KV cache of the first engine, if it is on these machines."""
        return (self.engine or self.needs).cache

    @property
    def peak(self) -> int:
        """Peak bytes of the fullest device. On CPUs, separate processes share their machine's memory."""
        engine = self.engine.peak if self.engine else 0
        if self.layout.gpu or not self.layout.on_ray:
            return max(self.needs.peak, engine)
        learning = self.layout.trainers * self.needs.peak
        return -(-(learning + self.layout.servers * engine) // self.layout.nodes)

    @property
    def fit(self) -> str:
        divided = all(self.layout.of(role).ranks % self.sequence_parallel == 0 for role in self.work.lengths)
        if not divided or self.layout.lacks or self.layout.unsupported:
            return "no"
        if self.cache is not None and not self.cache.slots:
            return "no"
        share = self.peak / self.capacity
        if self.layout.gpu:
            share = max(share, self.host / (self.layout.instance.memory_gib * GIB))
        return "yes" if share <= _TIGHT else "tight" if share <= 1 else "no"

    @property
    def fullest(self) -> str:
        """Phase in which the fullest device peaks."""
        engine = self.engine
        return self.needs.fullest if engine is None or engine.peak <= self.needs.peak else engine.fullest

    @property
    def certain(self) -> int:
        """Bytes that an optimizer step needs in any case."""
        return sum(self.needs.parts.get(name, 0) for name in ("weights", "gradients", "optimizer"))


def _shared(layout: Layout, needs: Needs) -> bool:
    return 0 < layout.each < 1 if layout.on_ray else needs.cache is not None


def estimate(subject: Subject, instance: Instance, nodes: int = 1, ranks: int | None = None) -> Estimate:
    """Estimates a run on an instance type; on Ray, `split_gpus` chooses the counts that the recipe does not set."""
    subject = replace(subject, config=with_split(subject.config, instance.gpus * nodes))
    subject = with_layers(subject, lambda each: estimate(each, instance, nodes, ranks))
    config, planned = subject.config, subject.planned_models()
    layout = make_layout(config, instance, nodes, ranks)
    data_ranks = {role: max(1, layout.of(role).ranks // config.train.sequence_parallel) for role in planned}
    work = measure(
        config,
        subject.lengths,
        gpu=layout.gpu is not None,
        data_ranks=data_ranks,
        zero_variance={} if config.algo.name == "sft" else subject.zero_variance,
    )
    found, engine = needs(planned, layout, work), engine_needs(planned, layout, work)
    host = host_bytes(planned, layout) if layout.gpu else 0
    times = estimate_times(
        config, planned, layout, work, (engine or found).cache, subject.language, shared=_shared(layout, found)
    )
    return Estimate(layout, work, found, engine, host, times, config.train.sequence_parallel)
