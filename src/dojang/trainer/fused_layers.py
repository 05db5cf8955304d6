"""Changes to the layers of a transformers model that keep their results: less memory, fewer kernels."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu
from transformers import PreTrainedModel
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from dojang.trainer.memory import check_checkpointed_layers, checkpointed_layers

__all__ = ["compile_layers", "enable_gradient_checkpointing", "fuse_layers"]


def enable_gradient_checkpointing(model: PreTrainedModel, setting: bool | int | str = True) -> None:
    """Recomputes activations of the first layers in the backward pass: of `setting` layers, or of all (true). The first
    ones, because the last layers are the first that the backward pass frees. transformers recomputes only in training
    mode, which also enables dropout: dropout is set to 0."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    check_checkpointed_layers(setting, len(layers))
    if not setting:
        return
    count = checkpointed_layers(setting, len(layers))
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for place, layer in enumerate(layers):
        layer.gradient_checkpointing = place < count
        layer.training = place < count
    for module in model.modules():
        for name, value in vars(module).items():
            if isinstance(value, float) and "dropout" in name:
                setattr(module, name, 0.0)


def compile_layers(model: PreTrainedModel) -> None:
    """Compiles the layers with torch.compile, except attention, whose shapes change with every batch."""
    for layer in [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]:
        for name, child in layer.named_children():
            if "attn" not in name:
                child.compile(dynamic=True)


def fuse_layers(model: PreTrainedModel) -> None:
    """Replaces standard RMSNorms and gated MLPs by versions with fewer saved activations and kernels."""
    for module in model.modules():
        fused = _fused(module)
        weight = next(module.parameters(), None)
        if fused is None or weight is None or weight.dtype is torch.float64:
            continue  # in float64, transformers computes norms in float32
        sample_TE = torch.linspace(-2, 3, 2 * weight.shape[-1], dtype=weight.dtype, device=weight.device).view(2, -1)
        with torch.no_grad():
            expected_TE = module(sample_TE)
            gap = (fused(sample_TE) - expected_TE).abs().max()
        if gap <= 0.02 * expected_TE.abs().max():
            module.forward = fused


def _fused(module: torch.nn.Module) -> "_Norm | _Gated | None":
    weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
    if type(module).__name__.endswith("RMSNorm") and isinstance(weight, Tensor) and isinstance(eps, float):
        return _Norm(module, eps)
    gate, up, down = (getattr(module, f"{name}_proj", None) for name in ("gate", "up", "down"))
    plain = type(gate) is type(up) is type(down) is torch.nn.Linear and down.bias is None  # no LoRA, no NF4
    return _Gated(module) if plain and type(getattr(module, "act_fn", None)) is type(ACT2FN["silu"]) else None


class _Norm:
    def __init__(self, module: torch.nn.Module, eps: float) -> None:
        self._module, self._eps = module, eps

    def __call__(self, x_NE: Tensor) -> Tensor:
        weight_E = self._module.weight
        assert isinstance(weight_E, Tensor)
        if x_NE.is_cuda:  # one kernel, or two if dtypes differ; seven on a CPU
            if x_NE.dtype is weight_E.dtype:
                return rms_norm(x_NE, weight_E.shape, weight_E, self._eps)
            return rms_norm(x_NE, weight_E.shape, None, self._eps) * weight_E
        result: Tensor = _RmsNorm.apply(x_NE, weight_E, self._eps)  # type: ignore[no-untyped-call]
        return result


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x_NE: Tensor, weight_E: Tensor, eps: float) -> Tensor:
        precise_NE = x_NE.float()
        scale_N1 = precise_NE.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        context.save_for_backward(x_NE, weight_E, scale_N1)
        return (precise_NE * scale_N1).to(x_NE.dtype) * weight_E

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x_NE, weight_E, scale_N1 = context.saved_tensors
        normed_NE, gradient_NE = x_NE.float() * scale_N1, gradients[0].float()
        pulled_NE = gradient_NE * weight_E
        along_N1 = (pulled_NE * normed_NE).mean(-1, keepdim=True)
        weight_gradient_E = None
        if context.needs_input_grad[1]:
            weight_gradient_E = (gradient_NE * normed_NE).flatten(0, -2).sum(0).to(weight_E.dtype)
        x_gradient_NE = pulled_NE.sub_(normed_NE.mul_(along_N1)).mul_(scale_N1)
        return x_gradient_NE.to(x_NE.dtype), weight_gradient_E, None


class _Gated:
    def __init__(self, module: Any) -> None:
        self._module = module

    def __call__(self, x_NE: Tensor) -> Tensor:
        gate_NF, up_NF = self._module.gate_proj(x_NE), self._module.up_proj(x_NE)
        weight_EF = self._module.down_proj.weight.to(gate_NF.dtype)
        result: Tensor = _GatedDown.apply(gate_NF, up_NF, weight_EF)  # type: ignore[no-untyped-call]
        return result


class _GatedDown(torch.autograd.Function):
    """down(silu(gate) * up). The backward pass recomputes the intermediate: it needs no matrix product."""

    @staticmethod
    def forward(context: Any, gate_NF: Tensor, up_NF: Tensor, weight_EF: Tensor) -> Tensor:
        context.save_for_backward(gate_NF, up_NF, weight_EF)
        return linear(silu(gate_NF).mul_(up_NF), weight_EF)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        gate_NF, up_NF, weight_EF = context.saved_tensors
        silu_NF, weight_gradient_EF = silu(gate_NF), None
        if context.needs_input_grad[2]:
            weight_gradient_EF = gradients[0].flatten(0, -2).T @ (silu_NF * up_NF).flatten(0, -2)
        pulled_NF = gradients[0] @ weight_EF
        gate_gradient_NF = torch.ops.aten.silu_backward(pulled_NF * up_NF, gate_NF)
        return gate_gradient_NF, silu_NF.mul_(pulled_NF), weight_gradient_EF
