"""Who works where: the processes that learn, the engine, and servers that attempt elsewhere."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dojang.cluster.runtime_config import RayConfig, engine_gpus
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError
from dojang.planning.instances import Gpu, Instance

__all__ = ["Layout", "lay_out"]


@dataclass(frozen=True, slots=True)
class Layout:
    """So many machines of one kind, and what is done on them."""

    instance: Instance
    nodes: int
    ranks: int
    """Processes that learn, each on a GPU if there are any."""
    servers: int
    """GPUs left to rollout servers, or to engines of their own on a Ray cluster; 0 if the engine is beside the trainer,
    or elsewhere."""
    wanted: int = 0
    """GPUs that the processes on a Ray cluster have for themselves, as the recipe says."""
    apart: bool = False
    """Whether each model's trainers and engines are processes of their own: on a Ray cluster."""
    cpus: float = 0.0
    """Processors of each of those."""
    busy: int = 0
    """Of all of them; judges get the others."""
    alone: bool = False
    """Whether an engine shares its GPUs with nothing else."""
    roles: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Numbers of trainers and engines of each role on a Ray cluster."""

    each: float = 0.0
    """GPUs of a trainer on a Ray cluster."""
    engine: float = 0.0
    """GPUs of an engine there; they are all in one machine."""

    def of(self, role: str) -> "Layout":
        """The same machines, with the processes of one role alone."""
        if role not in self.roles:
            return self
        ranks, engines = self.roles[role]
        return replace(self, ranks=ranks, servers=engines or self.servers // len(self.roles), roles={})

    @property
    def trainers(self) -> int:
        """Processes that learn, of all roles."""
        return sum(ranks for ranks, _ in self.roles.values()) or self.ranks

    @property
    def gpu(self) -> Gpu | None:
        return self.instance.gpu

    @property
    def cores(self) -> int:
        """To judge with: those of the first machine, or on a Ray cluster what is left of all."""
        return max(1, self.instance.vcpus * self.nodes - self.busy) if self.apart else self.instance.vcpus

    @property
    def machines(self) -> int:
        """On how many of them trainers are: Ray packs those of a model onto as few as it can."""
        return min(self.nodes, -(-self.ranks // max(1, self.instance.gpus))) if self.apart and self.gpu else self.nodes

    @property
    def ranks_per_node(self) -> int:
        return -(-self.ranks // self.machines)

    @property
    def device(self) -> Instance:
        """What one process has of a machine."""
        return self.instance.part(self.cpus) if self.apart and self.gpu is None else self.instance

    @property
    def lacks(self) -> str:
        """What there are fewer of than processes on a Ray cluster want; empty if nothing."""
        for wanted, there, what in (
            (self.wanted, self.instance.gpus, "GPUs"),
            (self.busy, self.instance.vcpus, "processors"),
        ):
            if wanted > there * self.nodes:
                return f"{wanted} {what}, and there are {there * self.nodes}"
        return self._unplaced() if self.apart and self.gpu else ""

    def _unplaced(self) -> str:
        """What finds no place though there are GPUs enough: a process has all its GPUs in one machine, and a share of
        one GPU is of that GPU. Trainers are placed first, on as few machines as possible."""
        engines = sum(count for _, count in self.roles.values())
        room = [_room(self.instance.gpus, self.each)] * self.nodes if self.each else []
        if self.each and self.trainers > sum(room):
            return f"{self.trainers} trainers of {self.each:g} GPUs, and there is room for {sum(room)}"
        if not engines or not self.engine:
            return ""
        if 0 < self.each < 1 and self.engine == self.each:
            fits = sum(room) - self.trainers
        else:
            full, more = divmod(self.trainers, room[0]) if room else (0, 0)
            left = [self.instance.gpus - math.ceil(more * self.each), *[self.instance.gpus] * self.nodes]
            fits = sum(_room(gpus, self.engine) for gpus in left[: self.nodes - full])
        if engines > fits:
            return (
                f"{engines} engines of {self.engine:g} GPUs, each in one machine of {self.instance.gpus}, and beside "
                f"{self.trainers} trainers there is room for {max(fits, 0)}"
            )
        return ""

    @property
    def usd(self) -> float | None:
        """An hour of all of them."""
        return None if self.instance.usd is None else self.instance.usd * self.nodes


def lay_out(config: RunConfig, instance: Instance, nodes: int, ranks: int | None = None) -> Layout:
    """All GPUs learn; with the engine remote half of them, and the others serve. Without a GPU there is one process. On
    a Ray cluster the recipe says how many learn and how many sample."""
    if config.model.device == "cpu" or (isinstance(config.runtime, RayConfig) and config.runtime.gpus == 0):
        instance = replace(instance, gpu=None, gpus=0)
    gpus = instance.gpus * nodes
    remote = config.rollout.engine == "remote"
    if isinstance(config.runtime, RayConfig):
        if ranks is not None:
            raise ConfigError("--ranks is for runs without Ray; runtime.trainers says how many processes learn")
        return _lay_out_ray(config, config.runtime, instance, nodes)
    if ranks is None:
        ranks = max(1, gpus // 2 if remote else gpus)
        ranks = max(ranks - ranks % config.train.sequence_parallel, 1)
    if gpus and ranks > gpus:
        raise ConfigError(f"--ranks {ranks} are more than the {gpus} GPUs of {nodes} x {instance.name}")
    return Layout(instance, nodes, ranks, gpus - ranks if remote else 0)


def _lay_out_ray(config: RunConfig, runtime: RayConfig, instance: Instance, nodes: int) -> Layout:
    gpus, remote = instance.gpus * nodes, config.rollout.engine == "remote"
    own = [each.runtime for each in config.roles().values()]
    roles = {
        role: (each.trainers, 0 if remote else each.engines)
        for role, each in zip(config.roles(), own, strict=True)
        if isinstance(each, RayConfig)
    }
    trainers, engines = (sum(counts) for counts in zip(*roles.values(), strict=True))
    each = float(gpus > 0) if runtime.gpus is None or config.model.device == "cpu" else runtime.gpus
    engine = engine_gpus(each, config.rollout.tensor_parallel_size)
    return Layout(
        instance,
        nodes,
        runtime.trainers,
        max(0, gpus - trainers) if remote else engines,
        math.ceil(each * trainers + engine * engines),
        apart=True,
        cpus=runtime.cpus,
        busy=math.ceil(runtime.cpus * (trainers + engines)),
        alone=engine >= 1,
        roles=roles,
        each=each,
        engine=engine,
    )


def _room(gpus: float, each: float) -> int:
    """How many processes with `each` GPUs the GPUs of a machine have room for."""
    return int(gpus) * int(1 / each + 1e-9) if each < 1 else int(gpus // each)
