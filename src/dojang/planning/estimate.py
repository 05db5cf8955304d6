"""Memory, time and money of a configuration on some machines: everything else here in one call."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from dojang.config.run_config import RunConfig
from dojang.core.errors import ModelError
from dojang.planning.cost import Times, reckon
from dojang.planning.gpu_split import with_split
from dojang.planning.instances import Instance
from dojang.planning.kv_cache_memory import GIB, Cache
from dojang.planning.layout import Layout, lay_out
from dojang.planning.memory_use import Needs, Player, engine_needs, host_bytes, needs
from dojang.planning.shapes import Shape, find_shape
from dojang.planning.tokens_per_step import Lengths, Work, measure

__all__ = ["Estimate", "Subject", "estimate"]

_TIGHT = 0.92
"""Allocators lose some memory between what they give out."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is planned: settings, and what is known of models and data."""

    config: RunConfig
    shapes: Mapping[str, Shape]
    lengths: Mapping[str, Lengths]
    language: str = ""
    """Of the programs to judge, if there are any."""

    def players(self) -> dict[str, Player]:
        """The models of the run."""
        found = {}
        for role, each in self.config.roles().items():
            algorithm = each.algo.make(each.rollout.max_tokens)
            found[role] = Player(
                each,
                self.shapes[role],
                reference=algorithm.needs_reference or _asks_reference(each),
                teacher=_teacher_parameters(each),
                critic=getattr(algorithm, "needs_critic", False),
                limit=algorithm.needs_limit,
            )
        return found


def _asks_reference(config: RunConfig) -> bool:
    return config.distillation is not None and config.distillation.teacher == "reference"


def _teacher_parameters(config: RunConfig) -> int:
    """Of the local teacher of a distillation; 0 if there is none, or its size is not known here."""
    name = config.distillation.local_model if config.distillation is not None else ""
    try:
        shape, _ = find_shape(name) if name else (None, "")
    except ModelError:
        return 0
    return shape.parameters if shape is not None else 0


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of a subject, on some machines."""

    layout: Layout
    work: Work
    needs: Needs
    engine: Needs | None
    """Of each engine, where they have devices of their own."""
    host: int
    """Bytes of the processor's memory, on each machine with GPUs."""
    times: Times
    sequence_parallel: int = 1

    @property
    def capacity(self) -> int:
        """Bytes of the device."""
        gpu = self.layout.gpu
        return int((gpu.memory_gib if gpu else self.layout.instance.memory_gib) * GIB)

    @property
    def cache(self) -> Cache | None:
        """Of the first engine, if it is on these machines."""
        return (self.engine or self.needs).cache

    @property
    def peak(self) -> int:
        """Bytes of the fullest device. Processes on CPUs that are apart share what their machine has."""
        engine = self.engine.peak if self.engine else 0
        if self.layout.gpu or not self.layout.apart:
            return max(self.needs.peak, engine)
        learning = self.layout.trainers * self.needs.peak
        return -(-(learning + self.layout.servers * engine) // self.layout.nodes)

    @property
    def fit(self) -> str:
        divided = all(self.layout.of(role).ranks % self.sequence_parallel == 0 for role in self.work.lengths)
        if not divided or self.layout.lacks or (self.cache is not None and not self.cache.slots):
            return "no"
        share = self.peak / self.capacity
        if self.layout.gpu:
            share = max(share, self.host / (self.layout.instance.memory_gib * GIB))
        return "yes" if share <= _TIGHT else "tight" if share <= 1 else "no"

    @property
    def fullest(self) -> str:
        """What the fullest device has to do then."""
        engine = self.engine
        return self.needs.fullest if engine is None or engine.peak <= self.needs.peak else engine.fullest

    @property
    def certain(self) -> int:
        """Bytes that a step of the optimizer cannot do without."""
        return sum(self.needs.parts.get(name, 0) for name in ("weights", "gradients", "optimizer"))


def estimate(subject: Subject, instance: Instance, nodes: int = 1, ranks: int | None = None) -> Estimate:
    """What it would take there; on a Ray cluster with GPUs split by `split_gpus` if the recipe does not say how."""
    subject = replace(subject, config=with_split(subject.config, instance.gpus * nodes))
    config, players = subject.config, subject.players()
    layout = lay_out(config, instance, nodes, ranks)
    data_ranks = {role: max(1, layout.of(role).ranks // config.train.sequence_parallel) for role in players}
    work = measure(config, subject.lengths, gpu=layout.gpu is not None, data_ranks=data_ranks)
    found, engine = needs(players, layout, work), engine_needs(players, layout, work)
    host = host_bytes(players, layout) if layout.gpu else 0
    times = reckon(config, players, layout, work, (engine or found).cache, subject.language)
    return Estimate(layout, work, found, engine, host, times, config.train.sequence_parallel)
