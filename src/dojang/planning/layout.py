"""Layout of a run on machines: trainer processes, engines and rollout servers."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dojang.cluster.runtime_config import RayConfig, engine_gpus
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError
from dojang.planning.instances import Gpu, Instance

__all__ = ["Layout", "make_layout"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Machines of one type, and the processes on them."""

    instance: Instance
    nodes: int
    ranks: int
    """Number of trainer processes, each on its own GPU if the machines have any."""
    servers: int
    """GPUs of rollout servers, or of separate engines on a Ray cluster; 0 if the engine shares the trainer's process or
    runs on other machines."""
    wanted: int = 0
    """GPUs that the recipe's processes on a Ray cluster need."""
    on_ray: bool = False
    """Whether trainers and engines are separate processes on a Ray cluster."""
    cpus: float = 0.0
    """CPUs of each of these processes."""
    busy: int = 0
    """CPUs of all of them; judges use the others."""
    alone: bool = False
    """Whether an engine shares its GPUs with nothing else."""
    roles: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Numbers of trainers and engines of each role on a Ray cluster."""

    each: float = 0.0
    """GPUs of a trainer on a Ray cluster."""
    engine: float = 0.0
    """GPUs of an engine there; they are all in one machine. A rollout worker has as many."""
    workers: int = 0
    """Rollout workers on a Ray cluster. Those without room wait, and the run goes on."""
    fp8: bool = False
    """Whether engines compute in 8 bits."""
    precision: str = "bfloat16"
    """Precision of the other computations on GPUs."""

    def of(self, role: str) -> "Layout":
        """The same machines with the processes of one role."""
        if role not in self.roles:
            return self
        ranks, engines = self.roles[role]
        return replace(self, ranks=ranks, servers=engines or self.servers // len(self.roles), roles={})

    @property
    def trainers(self) -> int:
        """Number of trainer processes of all roles."""
        return sum(ranks for ranks, _ in self.roles.values()) or self.ranks

    @property
    def gpu(self) -> Gpu | None:
        return self.instance.gpu

    @property
    def unsupported(self) -> str:
        """Why the run's engine is not supported on this machine; empty if it is."""
        if not self.fp8 or self.gpu is None:
            return ""
        if self.precision != "bfloat16":
            return f"rollout.engine.quantization=fp8 on a GPU is for model.dtype=bfloat16, not {self.precision}"
        if self.gpu.fp8:
            return ""
        needed = "a GPU of compute capability 9.0 (H100 or later)"
        return f"rollout.engine.quantization=fp8 needs {needed}, not {self.gpu.name}"

    @property
    def cores(self) -> int:
        """CPUs for judging: those of the first machine, or on a Ray cluster all that are left."""
        return max(1, self.instance.vcpus * self.nodes - self.busy) if self.on_ray else self.instance.vcpus

    @property
    def machines(self) -> int:
        """Number of machines with trainers: Ray packs those of a model onto as few as possible."""
        return min(self.nodes, -(-self.ranks // max(1, self.instance.gpus))) if self.on_ray and self.gpu else self.nodes

    @property
    def ranks_per_node(self) -> int:
        return -(-self.ranks // self.machines)

    @property
    def device(self) -> Instance:
        """Share of a machine that one process has."""
        return self.instance.part(self.cpus) if self.on_ray and self.gpu is None else self.instance

    @property
    def lacks(self) -> str:
        """Resources that the processes on a Ray cluster lack; empty if none."""
        for wanted, there, what in (
            (self.wanted, self.instance.gpus, "GPUs"),
            (self.busy, self.instance.vcpus, "processors"),
        ):
            if wanted > there * self.nodes:
                return f"{wanted} {what}, and there are {there * self.nodes}"
        return self._unplaced() if self.on_ray and self.gpu else ""

    def _unplaced(self) -> str:
        """Processes that cannot be placed though the GPUs suffice in number: a process has all its GPUs on one machine,
        and a fraction is of one GPU. Trainers are placed first, on as few machines as possible."""
        engines = sum(count for _, count in self.roles.values())
        room = [_fitting(self.instance.gpus, self.each)] * self.nodes if self.each else []
        if self.each and self.trainers > sum(room):
            return f"{self.trainers} trainers of {self.each:g} GPUs, and there is room for {sum(room)}"
        if not engines or not self.engine:
            return ""
        if engines > (fits := self._room_for_engines()):
            return (
                f"{engines} engines of {self.engine:g} GPUs, each in one machine of {self.instance.gpus}, and beside "
                f"{self.trainers} trainers there is room for {max(fits, 0)}"
            )
        return ""

    def _room_for_engines(self) -> int:
        """Number of engines, or of rollout workers, that fit the GPUs beside the trainers."""
        room = [_fitting(self.instance.gpus, self.each)] * self.nodes
        if 0 < self.each < 1 and self.engine == self.each:
            return sum(room) - self.trainers
        full, more = divmod(self.trainers, room[0])
        left = [self.instance.gpus - math.ceil(more * self.each), *[self.instance.gpus] * self.nodes]
        return sum(_fitting(gpus, self.engine) for gpus in left[: self.nodes - full])

    @property
    def placed_workers(self) -> int:
        """Number of rollout workers that have room beside trainers and engines."""
        room = int((self.instance.vcpus * self.nodes - self.busy) / self.cpus) if self.cpus else 0
        if self.gpu and self.engine:
            room = min(room, self._room_for_engines() - sum(count for _, count in self.roles.values()))
        return min(self.workers, max(0, room))

    @property
    def usd(self) -> float | None:
        """USD per hour of all machines."""
        return None if self.instance.usd is None else self.instance.usd * self.nodes


def make_layout(config: RunConfig, instance: Instance, nodes: int, ranks: int | None = None) -> Layout:
    """Chooses the layout. All GPUs train; with rollout.engine=remote half of them, and the others run servers. Without
    GPUs, one process. On Ray the recipe sets the numbers of trainers and engines."""
    precision = "bfloat16" if config.model.dtype == "auto" else config.model.dtype
    return replace(_make_layout(config, instance, nodes, ranks), fp8=config.rollout.engine.fp8, precision=precision)


def _make_layout(config: RunConfig, instance: Instance, nodes: int, ranks: int | None) -> Layout:
    if config.model.device == "cpu" or (isinstance(config.runtime, RayConfig) and config.runtime.gpus == 0):
        instance = replace(instance, gpu=None, gpus=0)
    gpus = instance.gpus * nodes
    remote = config.rollout.engine.external
    if isinstance(config.runtime, RayConfig):
        if ranks is not None:
            raise ConfigError("--ranks is for runs without Ray; set runtime.trainers instead")
        return _make_ray_layout(config, config.runtime, instance, nodes)
    if ranks is None:
        ranks = max(1, gpus // 2 if remote else gpus)
        ranks = max(ranks - ranks % config.train.sequence_parallel, 1)
    if gpus and ranks > gpus:
        raise ConfigError(f"--ranks {ranks} exceeds the {gpus} GPUs of {nodes} x {instance.name}")
    return Layout(instance, nodes, ranks, gpus - ranks if remote else 0)


def _make_ray_layout(config: RunConfig, runtime: RayConfig, instance: Instance, nodes: int) -> Layout:
    gpus, remote = instance.gpus * nodes, config.rollout.engine.external
    own = [each.runtime for each in config.roles().values()]
    roles = {
        role: (each.trainers, 0 if remote else each.engines)
        for role, each in zip(config.roles(), own, strict=True)
        if isinstance(each, RayConfig)
    }
    trainers, engines = (sum(counts) for counts in zip(*roles.values(), strict=True))
    each = float(gpus > 0) if runtime.gpus is None or config.model.device == "cpu" else runtime.gpus
    engine = engine_gpus(each, config.rollout.engine.gpus())
    return Layout(
        instance,
        nodes,
        runtime.trainers,
        max(0, gpus - trainers) if remote else engines,
        math.ceil(each * trainers + engine * engines),
        on_ray=True,
        cpus=runtime.cpus,
        busy=math.ceil(runtime.cpus * (trainers + engines)),
        alone=engine >= 1,
        roles=roles,
        each=each,
        engine=engine,
        workers=config.loop.workers,
    )


def _fitting(gpus: float, each: float) -> int:
    """Number of processes with `each` GPUs that fit the GPUs of a machine."""
    return int(gpus) * int(1 / each + 1e-9) if each < 1 else int(gpus // each)
