"""MLP of a decoder layer: dense (one gated MLP), or a mixture of experts with a top-k router.

Shapes: N tokens, E hidden size, F intermediate size, X experts, k experts of a token.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from dojang.engine.linear import Linear

__all__ = ["DenseMlp", "Experts", "GateMul", "Mlp"]

GateMul = Callable[[Tensor], Tensor]
"""Activation function of the first half of each row, times the second half."""


class Mlp(Protocol):
    """MLP of one layer."""

    @property
    def linears(self) -> list[Linear]:
        """Its matrix products, to be refreshed after a weight update."""

    @property
    def weights(self) -> dict[str, Tensor]:
        """Views of its weights, by their names within the layer."""

    def __call__(self, x_NE: Tensor, gate_mul: GateMul) -> Tensor:
        """Return its output, [N, E]."""


class DenseMlp:
    """down(activation(gate(x)) * up(x))."""

    def __init__(self, gate_up: Linear, gate_up_names: tuple[str, ...], down: Linear, down_name: str) -> None:
        self._gate_up, self._down = gate_up, down
        self._names = gate_up_names, (down_name,)

    @property
    def linears(self) -> list[Linear]:
        return [self._gate_up, self._down]

    @property
    def weights(self) -> dict[str, Tensor]:
        return self._gate_up.named(self._names[0]) | self._down.named(self._names[1])

    def __call__(self, x_NE: Tensor, gate_mul: GateMul) -> Tensor:
        return self._down(gate_mul(self._gate_up(x_NE)))


class Experts:
    """Mixture of experts: each token goes to the `top_k` experts with the highest router probability."""

    def __init__(
        self,
        router_XE: Tensor,
        gate_up_XFE: Tensor,
        down_XEF: Tensor,
        *,
        top_k: int,
        normalise: bool,
        fp8: bool,
    ) -> None:
        """With `normalise`, the probabilities of a token's experts are scaled to sum to one."""
        self._top_k, self._normalise = top_k, normalise
        self.weights = {
            "mlp.gate.weight": router_XE,
            "mlp.experts.gate_up_proj": gate_up_XFE,
            "mlp.experts.down_proj": down_XEF,
        }
        self._router_XE = router_XE
        self._gate_up = [Linear(each_FE, [len(each_FE)], fp8=fp8) for each_FE in gate_up_XFE]
        self._down = [Linear(each_EF, [len(each_EF)], fp8=fp8) for each_EF in down_XEF]

    @property
    def linears(self) -> list[Linear]:
        return self._gate_up + self._down

    def __call__(self, x_NE: Tensor, gate_mul: GateMul) -> Tensor:
        mass_NX = functional.linear(x_NE, self._router_XE).softmax(-1, dtype=torch.float32)
        weight_Nk, expert_Nk = mass_NX.topk(self._top_k, -1)
        if self._normalise:
            weight_Nk = weight_Nk / weight_Nk.sum(-1, keepdim=True)
        weight_M, expert_M = weight_Nk.to(x_NE.dtype).flatten(), expert_Nk.flatten()
        order_M = expert_M.argsort(stable=True)
        counts = torch.bincount(expert_M, minlength=len(self._down)).tolist()
        out_NE = torch.zeros_like(x_NE)
        for expert, chosen in enumerate(order_M.split_with_sizes(counts)):
            if len(chosen):
                row = chosen // self._top_k
                y = self._down[expert](gate_mul(self._gate_up[expert](x_NE[row])))
                out_NE.index_add_(0, row, y * weight_M[chosen, None])
        return out_NE
