"""The critic of PPO: a separate value model that predicts the return before each token.

It starts as a copy of the initial model, with a linear value head instead of the output head. The value head starts at
zero, so all values are 0 at first. It reads the same micro-batches as the policy.
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dojang.protocols import Algorithm, TrainsCritic
from dojang.trainer.checkpoint import load_optimizer, save_optimizer
from dojang.trainer.config import TrainConfig
from dojang.trainer.forward import hidden_states
from dojang.trainer.fsdp import full_tensor, shard
from dojang.trainer.fused_layers import enable_gradient_checkpointing, fuse_layers
from dojang.trainer.optimizer import make_optimizer, optimizer_on_device
from dojang.trainer.packed_attention import use_packed_attention
from dojang.trainer.packing import MicroBatch
from dojang.trainer.process_group import SINGLE_PROCESS, ProcessGroup
from dojang.trainer.update_memory import gradient_bytes, missing_state_bytes
from dojang.types import Metrics

__all__ = ["Critic"]

FOLDER = "critic"
_MIN_VARIANCE = 1e-12
"""Variance of returns below which they count as equal."""


class _ValueModel(torch.nn.Module):
    """A decoder and a value head."""

    def __init__(self, model: PreTrainedModel, compute: torch.dtype) -> None:
        super().__init__()
        self.decoder: PreTrainedModel = model.get_decoder()  # type: ignore[no-untyped-call]
        size = self.decoder.config.get_text_config().hidden_size
        self.head = torch.nn.Linear(size, 1, dtype=model.dtype, device=model.device)
        for each in self.head.parameters():
            torch.nn.init.zeros_(each)
        self._compute = compute

    def forward(self, batch: MicroBatch) -> Tensor:
        x_ME = hidden_states(self.decoder, batch, self._compute).to(self.head.weight.dtype)
        return batch.scatter(self.head(x_ME).squeeze(-1))


class Critic:
    """The value model with full-precision master weights, and its optimizer."""

    def __init__(
        self,
        model: PreTrainedModel,
        algorithm: Algorithm,
        config: TrainConfig,
        *,
        compute: torch.dtype,
        ranks: ProcessGroup = SINGLE_PROCESS,
    ) -> None:
        self._value_model = _ValueModel(model, compute)
        use_packed_attention(self._value_model.decoder)
        fuse_layers(self._value_model.decoder)
        enable_gradient_checkpointing(self._value_model.decoder, config.gradient_checkpointing)
        if ranks.world > 1:
            shard(self._value_model, ranks, compute)
        self._algorithm = cast(TrainsCritic, algorithm)
        self._config = config
        self._ranks = ranks
        self._optimizer = make_optimizer(self._value_model, config)

    @property
    def warmup(self) -> int:
        """Number of first optimizer steps that train only the critic."""
        return self._config.critic.warmup_steps

    def values(self, batch: MicroBatch) -> Tensor:
        """Values before each trained token, [B, T]."""
        value_BT: Tensor = self._value_model(batch)
        return value_BT

    def backward(self, batches: Iterable[MicroBatch], tokens: int) -> Metrics:
        """Accumulates the gradient of an optimizer step over `tokens` tokens; returns its metrics."""
        sums, olds, returns = defaultdict[str, float](float), list[Tensor](), list[Tensor]()
        for batch in batches:
            mask_BT = batch.mask_BT
            old_BT = batch.chosen([sample.values for sample in batch.samples])
            return_BT = batch.chosen([sample.returns for sample in batch.samples])
            value_BT = self.values(batch)
            found = self._algorithm.value_loss(value_BT, old_BT.to(value_BT), return_BT.to(value_BT), mask_BT)
            share = found.loss_BT.sum() * (0.0 if batch.idle else 1 / tokens)
            (share * self._ranks.world).backward()  # type: ignore[no-untyped-call]  # FSDP averages gradients over ranks
            for name, figure_BT in found.figures.items():
                sums[name] += 0.0 if batch.idle else float(figure_BT.detach()[mask_BT].sum())
            if not batch.idle:
                olds.append(old_BT[mask_BT].cpu())
                returns.append(return_BT[mask_BT].cpu())
        summed = self._ranks.gather(dict(sums))
        means = {name: sum(each[name] for each in summed) / tokens for name in sums}
        old_N, return_N = (
            torch.cat([part for parts in self._ranks.gather(mine) for part in parts]) for mine in (olds, returns)
        )
        return {**means, **_explained_variance(old_N, return_N)}

    def clip(self) -> Metrics:
        """Clips the gradient; returns its norm."""
        norm = torch.nn.utils.clip_grad_norm_(self._value_model.parameters(), self._config.max_grad_norm)
        return {"critic/grad_norm": float(full_tensor(norm))}

    def step(self) -> None:
        """Optimizer step, then clears the gradient."""
        for settings in self._optimizer.param_groups:
            settings["lr"] = self._config.critic.lr
        device = self._value_model.decoder.device
        with optimizer_on_device(device, self._optimizer, offload="optimizer" in self._config.offload):
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def missing_bytes(self) -> int:
        """GPU memory that its updates will still allocate next to those of the policy."""
        return gradient_bytes(self._optimizer) + missing_state_bytes(self._config.optimizer, self._optimizer)

    def save(self, path: Path) -> None:
        """Saves into a folder of the checkpoint directory `path`. All ranks must call this."""
        save_optimizer(
            path / FOLDER, self._value_model, self._optimizer, weights=dict(self._value_model.named_parameters())
        )

    def restore(self, path: Path) -> None:
        """Restores what `save` wrote. If it cannot be read, the weights stay unchanged."""
        weights = {name: each.detach().clone() for name, each in self._value_model.named_parameters()}
        load_optimizer(path / FOLDER, self._value_model, self._optimizer, weights=weights)
        with torch.no_grad():
            for name, each in self._value_model.named_parameters():
                each.copy_(weights[name])


def _explained_variance(value_N: Tensor, return_N: Tensor) -> Metrics:
    """Metrics of the values before the update, with the explained variance of the returns."""
    found = {"critic/values/mean": float(value_N.mean()), "critic/returns/mean": float(return_N.mean())}
    spread = float(return_N.var(correction=0))
    if spread > _MIN_VARIANCE:  # equal returns have no variance to explain
        found["critic/vf_explained_var"] = 1 - float((return_N - value_N).var(correction=0)) / spread
    return found
