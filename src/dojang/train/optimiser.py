"""AdamW, as torch has it or with eight bits for what it remembers; and things that wait in the processor's memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from dojang.errors import ConfigError
from dojang.train.config import TrainConfig

__all__ = ["make_optimiser", "memory_at", "visiting"]


def make_optimiser(parameters: Sequence[torch.nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    """For these parameters. The learning rate is set anew before every step."""
    if config.optimiser == "adamw8bit":
        return _eight_bits(parameters, config)
    return torch.optim.AdamW(
        parameters,
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


def _eight_bits(parameters: Sequence[torch.nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    if any(hasattr(each, "full_tensor") for each in parameters):
        raise ConfigError("train.optimiser=adamw8bit cannot be spread over several processes; use adamw there")
    try:
        from bitsandbytes import optim
    except ImportError as error:
        raise ConfigError("train.optimiser=adamw8bit needs bitsandbytes: pip install 'dojang[qlora]'") from error
    found: torch.optim.Optimizer = optim.AdamW8bit(  # type: ignore[no-untyped-call, attr-defined]
        parameters, lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay
    )
    return found


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
