"""Who works where: the processes that learn, the engine, and servers that attempt elsewhere."""

from dataclasses import dataclass

from dojang.config import RunConfig
from dojang.errors import ConfigError
from dojang.planning.instances import Gpu, Instance
from dojang.runtime.config import RayConfig

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

    @property
    def gpu(self) -> Gpu | None:
        return self.instance.gpu

    @property
    def cores(self) -> int:
        """Of all machines; judging is done on the first one's."""
        return self.instance.vcpus

    @property
    def ranks_per_node(self) -> int:
        return -(-self.ranks // self.nodes)

    @property
    def usd(self) -> float | None:
        """An hour of all of them."""
        return None if self.instance.usd is None else self.instance.usd * self.nodes


def lay_out(config: RunConfig, instance: Instance, nodes: int, ranks: int | None = None) -> Layout:
    """All GPUs learn; with the engine remote half of them, and the others serve. Without a GPU there is one process. On
    a Ray cluster the recipe says how many learn and how many sample."""
    gpus = (instance.gpus if config.model.device != "cpu" else 0) * nodes
    remote = config.rollout.engine == "remote"
    if isinstance(config.runtime, RayConfig) and ranks is None:
        engines = config.runtime.engines * len(config.roles())
        return Layout(
            instance, nodes, config.runtime.trainers, max(0, gpus - config.runtime.trainers) if remote else engines
        )
    if ranks is None:
        ranks = max(1, gpus // 2 if remote else gpus)
        ranks = max(ranks - ranks % config.train.sequence_ranks, 1)
    if gpus and ranks > gpus:
        raise ConfigError(f"--ranks {ranks} are more than the {gpus} GPUs of {nodes} x {instance.name}")
    return Layout(instance, nodes, ranks, gpus - ranks if remote else 0)
