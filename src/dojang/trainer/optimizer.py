"""AdamW, as torch has it or with eight bits for what it remembers; Muon; and things that wait in the processor's
memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from dojang.core.errors import ModelError
from dojang.trainer.config import TrainConfig
from dojang.trainer.quantization import eight_bit_adamw

__all__ = ["MuonAdamW", "make_optimizer", "memory_at", "visiting"]


def make_optimizer(module: torch.nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """For what a module learns. The learning rate is set anew before every step."""
    parameters = [each for each in module.parameters() if each.requires_grad]
    if config.optimizer == "adamw8bit":
        return eight_bit_adamw(parameters, config)
    if config.optimizer == "muon":
        hidden = _hidden_matrices(module)
        return MuonAdamW(hidden, [each for each in parameters if not any(each is one for one in hidden)], config)
    return _adamw(parameters, config)


class MuonAdamW(torch.optim.Optimizer):
    """Muon (Keller Jordan 2024; arXiv 2502.16982) for the matrices of hidden layers, AdamW for the rest. Updates of a
    matrix are scaled to the size AdamW's have, so that both share the learning rate and the weight decay."""

    def __init__(
        self, matrices: Sequence[torch.nn.Parameter], others: Sequence[torch.nn.Parameter], config: TrainConfig
    ) -> None:
        muon = torch.optim.Muon(
            matrices,
            lr=config.lr,
            weight_decay=config.weight_decay,
            momentum=config.muon_momentum,
            adjust_lr_fn="match_rms_adamw",
        )
        self._parts = (muon, _adamw(others, config)) if others else (muon,)
        super().__init__([{"params": [*matrices, *others]}], {})
        self.param_groups = [group for part in self._parts for group in part.param_groups]
        for part in self._parts:  # one memory, by parameter
            part.state = self.state

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for part in self._parts:
            part.step()


def _hidden_matrices(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Two-dimensional weights of the decoder's layers: neither embeddings nor the output head."""
    layers = [each for each in module.modules() if isinstance(each, GradientCheckpointingLayer)]
    found = [each for layer in layers for each in layer.parameters() if each.requires_grad and each.dim() == 2]
    if not found:
        raise ModelError(
            f"train.optimizer=muon updates the matrices of hidden layers, and {type(module).__name__} has none that "
            "transformers marks as layers; use train.optimizer=adamw"
        )
    return found


def _adamw(parameters: Sequence[torch.nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        parameters,
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


@contextmanager
def memory_at(device: torch.device, optimizer: torch.optim.Optimizer, *, away: bool) -> Iterator[None]:
    """What the optimizer remembers is on the device meanwhile, if it is away otherwise."""
    if away:
        _move(optimizer, device)
    yield
    if away:
        _move(optimizer, torch.device("cpu"))


def _move(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    for remembered in optimizer.state.values():
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
