"""The critic: a decoder of its own that says, before each token, how much reward is to be expected.

It starts as a copy of the initial model, with a linear layer to one number in the place of the scores: zero, so that at
first nothing is expected of anything. It reads micro-batches as the policy does.
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dojang.protocols import Algorithm
from dojang.trainer.checkpoint import recall, remember
from dojang.trainer.config import TrainConfig
from dojang.trainer.forward import states
from dojang.trainer.fsdp import shard, whole
from dojang.trainer.fused_layers import lighten, recompute
from dojang.trainer.optimizer import make_optimizer, memory_at
from dojang.trainer.packed_attention import see_packed
from dojang.trainer.packing import MicroBatch
from dojang.trainer.process_group import ALONE, Ranks
from dojang.types import Metrics

__all__ = ["Critic"]

FOLDER = "critic"
_ALIKE = 1e-12
"""A variance of returns that is only rounding."""


class _Valuer(torch.nn.Module):
    """A decoder and a head."""

    def __init__(self, model: PreTrainedModel, compute: torch.dtype) -> None:
        super().__init__()
        self.decoder: PreTrainedModel = model.get_decoder()  # type: ignore[no-untyped-call]
        size = self.decoder.config.get_text_config().hidden_size
        self.head = torch.nn.Linear(size, 1, dtype=model.dtype, device=model.device)
        for each in self.head.parameters():
            torch.nn.init.zeros_(each)
        self._compute = compute

    def forward(self, batch: MicroBatch) -> Tensor:
        x_ME = states(self.decoder, batch, self._compute).to(self.head.weight.dtype)
        return batch.spread(self.head(x_ME).squeeze(-1))


class Critic:
    """A decoder with full-precision master weights, a head, and their optimizer."""

    def __init__(
        self,
        model: PreTrainedModel,
        algorithm: Algorithm,
        config: TrainConfig,
        *,
        compute: torch.dtype,
        ranks: Ranks = ALONE,
    ) -> None:
        self._valuer = _Valuer(model, compute)
        see_packed(self._valuer.decoder)
        lighten(self._valuer.decoder)
        if config.gradient_checkpointing:
            recompute(self._valuer.decoder)
        if ranks.world > 1:
            shard(self._valuer, ranks, compute)
        self._algorithm = algorithm
        self._config = config
        self._ranks = ranks
        self._optimizer = make_optimizer(self._valuer, config)

    @property
    def warmup(self) -> int:
        """Optimizer steps in which the policy waits for it."""
        return self._config.critic.warmup_steps

    def values(self, batch: MicroBatch) -> Tensor:
        """What it expects before each token learned from, [B, T]."""
        value_BT: Tensor = self._valuer(batch)
        return value_BT

    def backward(self, batches: Iterable[MicroBatch], tokens: int) -> Metrics:
        """Accumulate the gradient of an optimizer step of so many tokens; figures of that step."""
        sums, olds, returns = defaultdict[str, float](float), list[Tensor](), list[Tensor]()
        for batch in batches:
            mask_BT = batch.mask_BT
            old_BT = batch.chosen([sample.values for sample in batch.samples])
            return_BT = batch.chosen([sample.returns for sample in batch.samples])
            value_BT = self.values(batch)
            found = self._algorithm.value_loss(value_BT, old_BT.to(value_BT), return_BT.to(value_BT), mask_BT)
            share = found.loss_BT.sum() * (0.0 if batch.idle else 1 / tokens)
            (share * self._ranks.world).backward()  # type: ignore[no-untyped-call]  # ranks take the mean of gradients
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
        return {**means, **_fit(old_N, return_N)}

    def clip(self) -> Metrics:
        """The length of the gradient, which is scaled down if that is too much."""
        norm = torch.nn.utils.clip_grad_norm_(self._valuer.parameters(), self._config.max_grad_norm)
        return {"critic/grad_norm": float(whole(norm))}

    def step(self) -> None:
        """Step, clear."""
        for settings in self._optimizer.param_groups:
            settings["lr"] = self._config.critic.lr
        device = self._valuer.decoder.device
        with memory_at(device, self._optimizer, away="optimizer" in self._config.offload):
            self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def save(self, path: Path) -> None:
        """Into a folder of the checkpoint directory `path`. All ranks must take part."""
        remember(path / FOLDER, self._valuer, self._optimizer, weights=dict(self._valuer.named_parameters()))

    def restore(self, path: Path) -> None:
        """What `save` wrote. The weights have not changed if it cannot be read."""
        weights = {name: each.detach().clone() for name, each in self._valuer.named_parameters()}
        recall(path / FOLDER, self._valuer, self._optimizer, weights=weights)
        with torch.no_grad():
            for name, each in self._valuer.named_parameters():
                each.copy_(weights[name])


def _fit(value_N: Tensor, return_N: Tensor) -> Metrics:
    """How well it expected what came, before it learned from that."""
    found = {"critic/values/mean": float(value_N.mean()), "critic/returns/mean": float(return_N.mean())}
    spread = float(return_N.var(correction=0))
    if spread > _ALIKE:  # otherwise there is nothing to explain
        found["critic/vf_explained_var"] = 1 - float((return_N - value_N).var(correction=0)) / spread
    return found
