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
from dojang.train.attention import recompute, see_packed
from dojang.train.config import TrainConfig
from dojang.train.packing import MicroBatch
from dojang.train.policy import states
from dojang.types import Metrics

__all__ = ["Critic"]

FOLDER = "critic"
FILE = "head.pt"
_ALIKE = 1e-12
"""A variance of returns that is only rounding."""


class Critic:
    """A decoder with full-precision master weights, a head, and their optimiser."""

    def __init__(
        self, model: PreTrainedModel, algorithm: Algorithm, config: TrainConfig, *, compute: torch.dtype
    ) -> None:
        self._decoder: PreTrainedModel = model.get_decoder()  # type: ignore[no-untyped-call]
        see_packed(self._decoder)
        if config.recompute:
            recompute(self._decoder)
        self._head = torch.nn.Linear(
            self._decoder.config.get_text_config().hidden_size, 1, dtype=model.dtype, device=model.device
        )
        for each in self._head.parameters():
            torch.nn.init.zeros_(each)
        self._algorithm = algorithm
        self._config = config
        self._compute = compute
        self._optimiser = torch.optim.AdamW(
            self._optimised(),
            lr=config.critic.lr,
            betas=config.betas,
            eps=config.eps,
            weight_decay=config.weight_decay,
            fused=True,
        )

    @property
    def warmup(self) -> int:
        """Optimiser steps in which the policy waits for it."""
        return self._config.critic.warmup

    def values(self, batch: MicroBatch) -> Tensor:
        """What it expects before each token learned from, [B, T]."""
        x_ME = states(self._decoder, batch, self._compute).to(self._head.weight.dtype)
        return batch.spread(self._head(x_ME).squeeze(-1))

    def backward(self, batches: Iterable[MicroBatch], tokens: int) -> Metrics:
        """Accumulate the gradient of an optimiser step of so many tokens; figures of that step."""
        sums, olds, returns = defaultdict[str, float](float), list[Tensor](), list[Tensor]()
        for batch in batches:
            mask_BT = batch.mask_BT
            old_BT = batch.chosen([sample.values for sample in batch.samples])
            return_BT = batch.chosen([sample.returns for sample in batch.samples])
            value_BT = self.values(batch)
            found = self._algorithm.value_loss(value_BT, old_BT.to(value_BT), return_BT.to(value_BT), mask_BT)
            (found.loss_BT.sum() / tokens).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            for name, figure_BT in found.figures.items():
                sums[name] += float(figure_BT.detach()[mask_BT].sum())
            olds.append(old_BT[mask_BT])
            returns.append(return_BT[mask_BT])
        means = {name: value / tokens for name, value in sums.items()}
        return {**means, **_fit(torch.cat(olds), torch.cat(returns))}

    def clip(self) -> Metrics:
        """The length of the gradient, which is scaled down if that is too much."""
        norm = torch.nn.utils.clip_grad_norm_(self._optimised(), self._config.max_grad_norm)
        return {"critic/grad_norm": float(norm)}

    def step(self) -> None:
        """Step, clear."""
        for settings in self._optimiser.param_groups:  # a resumed run may have been given another rate
            settings["lr"] = self._config.critic.lr
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)

    def save(self, path: Path) -> None:
        """Into a folder of the checkpoint directory `path`."""
        self._decoder.save_pretrained(path / FOLDER)
        state = {"head": self._head.state_dict(), "adamw": self._optimiser.state_dict()}
        torch.save(state, path / FOLDER / FILE)

    def restore(self, path: Path) -> None:
        """What `save` wrote. Nothing has changed if it cannot be read."""
        saved = torch.load(path / FOLDER / FILE, map_location="cpu", weights_only=True)
        kind, config = type(self._decoder), self._decoder.config
        state = kind.from_pretrained(path / FOLDER, config=config, dtype=self._decoder.dtype).state_dict()
        self._decoder.load_state_dict(state)
        self._head.load_state_dict(saved["head"])
        self._optimiser.load_state_dict(saved["adamw"])

    def _optimised(self) -> list[torch.nn.Parameter]:
        return [*self._decoder.parameters(), *self._head.parameters()]


def _fit(value_N: Tensor, return_N: Tensor) -> Metrics:
    """How well it expected what came, before it learned from that."""
    found = {"critic/values/mean": float(value_N.mean()), "critic/returns/mean": float(return_N.mean())}
    spread = float(return_N.var(correction=0))
    if spread > _ALIKE:  # otherwise there is nothing to explain
        found["critic/vf_explained_var"] = 1 - float((return_N - value_N).var(correction=0)) / spread
    return found
