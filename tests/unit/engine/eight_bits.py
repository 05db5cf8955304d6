"""FP8 for tests, written from its definition: models whose linear layers have inputs and weights in E4M3."""

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel


def rounded(x: Tensor) -> Tensor:
    """Each row in E4M3, written here from its definition: sign, 4 bits of exponent, 3 of mantissa, largest 448."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
    scaled = x / scale
    exponent = scaled.abs().clamp(min=2.0**-6).log2().floor()
    step = 2.0 ** (exponent - 3)
    return (scaled / step).round().clamp(-448 / step, 448 / step) * step * scale


def in_eight_bits(model: PreTrainedModel) -> PreTrainedModel:
    """The model with all linear layers but the output head rounded like that."""

    def product(layer: torch.nn.Linear, x: Tensor) -> Tensor:
        return functional.linear(rounded(x.flatten(0, -2)).view(x.shape), rounded(layer.weight), layer.bias)

    for name, layer in model.model.named_modules():
        if isinstance(layer, torch.nn.Linear) and not name.endswith("router"):
            layer.forward = lambda x, layer=layer: product(layer, x)  # type: ignore[method-assign]
    return model
