"""Process groups of distributed training: data parallelism and sequence parallelism.

Every rank gets all samples of a step and takes its share: samples are divided among `data` ranks, and the tokens of a
row among the `sequence` ranks of each. Weights, gradients and optimizer state are sharded over all ranks (fsdp.py).
"""

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from dojang.core.errors import ConfigError

__all__ = ["SINGLE_PROCESS", "ProcessGroup", "check_world", "join_process_group"]

T = TypeVar("T")
_CONTROL_TIMEOUT = timedelta(days=365)
"""Timeout of waiting for the first rank, which runs the rollouts; a lost connection ends the wait earlier."""
_COLLECTIVE_TIMEOUT = timedelta(hours=2)
"""Timeout of collectives; the first rank may take long to write a checkpoint of a large model."""


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """Sizes of the process groups, and the position of this process in them."""

    data: int = 1
    data_rank: int = 0
    sequence: int = 1
    sequence_rank: int = 0
    kind: str = "cpu"
    """Device type: cpu or cuda."""
    data_group: Any = None
    """Ranks with other samples and the same part of the rows."""
    sequence_group: Any = None
    """Ranks with the same samples and other parts of the rows."""
    control_group: Any = None
    """All ranks, for the calls that the first rank broadcasts."""

    @property
    def world(self) -> int:
        return self.data * self.sequence

    @property
    def first(self) -> bool:
        return self.data_rank == self.sequence_rank == 0

    def gather(self, thing: T) -> list[T]:
        """Gathers an object from each data rank."""
        if self.data == 1:
            return [thing]
        found: list[Any] = [None] * self.data
        dist.all_gather_object(found, thing, group=self.data_group)
        return found

    def broadcast_first(self, thing: T) -> T:
        """Broadcasts the first rank's value. All ranks must call this."""
        if self.world == 1:
            return thing
        box: list[Any] = [thing]
        dist.broadcast_object_list(box, src=0, group=self.control_group)
        return cast(T, box[0])


SINGLE_PROCESS = ProcessGroup()


def check_world(sequence: int) -> int:
    """World size of torchrun, 1 without it; raises ConfigError if `sequence` does not divide it."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world % sequence:
        raise ConfigError(
            f"train.sequence_parallel={sequence} does not divide the world size of {world}; start a multiple of it: "
            f" torchrun --nproc-per-node {sequence} -m dojang train ..."
        )
    return world


def join_process_group(device: torch.device, sequence: int) -> ProcessGroup:
    """Joins the process group of torchrun, with `sequence` ranks per row of tokens; SINGLE_PROCESS without torchrun."""
    world = check_world(sequence)
    if world == 1:
        return SINGLE_PROCESS
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=_COLLECTIVE_TIMEOUT)
    mesh = init_device_mesh(device.type, (world // sequence, sequence), mesh_dim_names=("data", "sequence"))
    return ProcessGroup(
        data=world // sequence,
        data_rank=mesh.get_local_rank("data"),
        sequence=sequence,
        sequence_rank=mesh.get_local_rank("sequence"),
        kind=device.type,
        data_group=mesh.get_group("data"),
        sequence_group=mesh.get_group("sequence"),
        control_group=dist.new_group(backend="gloo", timeout=_CONTROL_TIMEOUT),
    )
