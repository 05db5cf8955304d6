"""AdamW, as torch has it or with eight bits for what it remembers; and things that wait in the processor's memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from dojang.train.bits import eight_bit_adamw
from dojang.train.config import TrainConfig

__all__ = ["make_optimiser", "memory_at", "visiting"]


def make_optimiser(parameters: Sequence[torch.nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    """For these parameters. The learning rate is set anew before every step."""
    if config.optimiser == "adamw8bit":
        return eight_bit_adamw(parameters, config)
    return torch.optim.AdamW(
        parameters,
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


@contextmanager
def memory_at(device: torch.device, optimiser: torch.optim.Optimizer, *, away: bool) -> Iterator[None]:
    """What the optimiser remembers is on the device meanwhile, if it is away otherwise."""
    if away:
        _move(optimiser, device)
    yield
    if away:
        _move(optimiser, torch.device("cpu"))


def _move(optimiser: torch.optim.Optimizer, device: torch.device) -> None:
    for remembered in optimiser.state.values():
        for name, value in remembered.items():
            if isinstance(value, Tensor) and value.dim():  # AdamW's count of steps stays where AdamW put it
                remembered[name] = value.to(device)


@contextmanager
def visiting(device: torch.device, module: torch.nn.Module, *, away: bool) -> Iterator[None]:
    """A module is on the device meanwhile, if it is away otherwise."""
    if away:
        module.to(device)
    yield
    if away:
        module.to("cpu")
