"""Optimizers (AdamW, 8-bit AdamW, Muon) and CPU offload."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from dojang.core.errors import ModelError
from dojang.trainer.config import TrainConfig
from dojang.trainer.quantization import adamw_8bit

__all__ = ["MuonAdamW", "make_optimizer", "module_on_device", "optimizer_on_device"]


def make_optimizer(module: torch.nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Makes the optimizer of a module's trainable weights. The learning rate is set before every step."""
    parameters = [each for each in module.parameters() if each.requires_grad]
    if config.optimizer == "adamw8bit":
        return adamw_8bit(parameters, config)
    if config.optimizer == "muon":
        hidden = _hidden_matrices(module)
        return MuonAdamW(hidden, [each for each in parameters if not any(each is one for one in hidden)], config)
    return _adamw(parameters, config)


class MuonAdamW(torch.optim.Optimizer):
    """Muon (Keller Jordan 2024; arXiv 2502.16982) for the matrices of hidden layers, AdamW for the rest. Muon's
    updates are scaled to the size of AdamW's, so both share the learning rate and the weight decay."""

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
        for part in self._parts:  # one shared state, by parameter
            part.state = self.state

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for part in self._parts:
            part.step()


def _hidden_matrices(module: torch.nn.Module) -> list[torch.nn.Parameter]:
    """Two-dimensional weights of the decoder layers, without embeddings and output head."""
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
def optimizer_on_device(device: torch.device, optimizer: torch.optim.Optimizer, *, offload: bool) -> Iterator[None]:
    """Moves an offloaded optimizer state to the device and back to CPU memory."""
    if offload:
        _move(optimizer, device)
    yield
    if offload:
        _move(optimizer, torch.device("cpu"))


def _move(optimizer: torch.optim.Optimizer, device: torch.device) -> None:
    for remembered in optimizer.state.values():
        for name, value in remembered.items():
            if isinstance(value, Tensor) and value.dim():  # AdamW's step counter stays on its device
                remembered[name] = value.to(device)


@contextmanager
def module_on_device(device: torch.device, module: torch.nn.Module, *, offload: bool) -> Iterator[None]:
    """Moves an offloaded module to the device and back to CPU memory."""
    if offload:
        module.to(device)
    yield
    if offload:
        module.to("cpu")
