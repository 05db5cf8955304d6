"""The processes that train together.

Every one of them is told of all samples of a step, and takes its part of the work: samples are divided among `data`
ranks, and the tokens of a row among the `sequence` ranks of each. Weights, gradients and what the optimizer keeps are
spread over all (fsdp.py).
"""

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from dojang.core.errors import ConfigError

__all__ = ["ALONE", "Ranks", "check_world", "join"]

T = TypeVar("T")
_PATIENCE = timedelta(days=365)
"""Ranks wait for the first one while it attempts problems; if it is gone, they are told by its connection."""
_AT_MOST = timedelta(hours=2)
"""For what they do together; a checkpoint of a large model may take the first one long."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """How many there are, and which one this is."""

    data: int = 1
    data_rank: int = 0
    sequence: int = 1
    sequence_rank: int = 0
    kind: str = "cpu"
    """Of device that they work on."""
    data_group: Any = None
    """Those that have the same part of other samples."""
    sequence_group: Any = None
    """Those that have other parts of the same samples."""
    orders: Any = None
    """All, to be told by the first what to do next."""

    @property
    def world(self) -> int:
        return self.data * self.sequence

    @property
    def first(self) -> bool:
        return self.data_rank == self.sequence_rank == 0

    def gather(self, thing: T) -> list[T]:
        """What each of the data ranks has."""
        if self.data == 1:
            return [thing]
        found: list[Any] = [None] * self.data
        dist.all_gather_object(found, thing, group=self.data_group)
        return found

    def of_first(self, thing: T) -> T:
        """The first rank's value, on all ranks. All of them must ask."""
        if self.world == 1:
            return thing
        box: list[Any] = [thing]
        dist.broadcast_object_list(box, src=0, group=self.orders)
        return cast(T, box[0])


ALONE = Ranks()


def check_world(sequence: int) -> int:
    """How many processes torchrun began, one if it did not; ConfigError if they cannot be divided so."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world % sequence:
        raise ConfigError(
            f"train.sequence_parallel={sequence} does not divide the {world} processes there are; start a multiple of "
            f"it: torchrun --nproc-per-node {sequence} -m dojang train ..."
        )
    return world


def join(device: torch.device, sequence: int) -> Ranks:
    """Take part in what torchrun began, with so many ranks for each row of tokens; alone if it did not."""
    world = check_world(sequence)
    if world == 1:
        return ALONE
    if not dist.is_initialized():
        dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=_AT_MOST)
    mesh = init_device_mesh(device.type, (world // sequence, sequence), mesh_dim_names=("data", "sequence"))
    return Ranks(
        data=world // sequence,
        data_rank=mesh.get_local_rank("data"),
        sequence=sequence,
        sequence_rank=mesh.get_local_rank("sequence"),
        kind=device.type,
        data_group=mesh.get_group("data"),
        sequence_group=mesh.get_group("sequence"),
        orders=dist.new_group(backend="gloo", timeout=_PATIENCE),
    )
