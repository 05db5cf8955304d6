"""Quantization by bitsandbytes (optional): 4-bit weights (NF4) and 8-bit AdamW."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel

from dojang.core.errors import ConfigError, ModelError
from dojang.trainer.config import TrainConfig
from dojang.trainer.memory import NF4

__all__ = ["adamw_8bit", "dequantized", "dequantized_like", "dequantized_weights", "load_quantised"]

_REMEDY = "pip install 'dojang[qlora]'"


def load_quantised(source: str, compute: torch.dtype, device: torch.device) -> PreTrainedModel:
    """Loads a model with 4-bit projections (NF4 with double quantisation)."""
    try:
        settings = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
            load_in_4bit=True, bnb_4bit_compute_dtype=compute, **NF4
        )
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            source, dtype=compute, quantization_config=settings, device_map={"": device}
        )
    except ImportError as error:  # bitsandbytes or accelerate is missing
        raise ConfigError(f"train.lora.base_bits=4 needs bitsandbytes and accelerate ({error}): {_REMEDY}") from error
    except Exception as error:
        raise ModelError(f"model {source} cannot be loaded in 4 bits: {error}") from error
    # On processors with AVX512-BF16, forward passes without gradients would replace the weights by a copy for bfloat16
    # products: less precise than those with gradients, and not for all shapes.
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]
    return model


def dequantized(parameter: Tensor) -> Tensor:
    """Dequantises a 4-bit parameter; others as they are."""
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return parameter.detach()
    from bitsandbytes import functional

    found: Tensor = functional.dequantize_4bit(parameter.data, state).detach()
    return found


def dequantized_like(parameter: Tensor) -> Tensor:
    """A tensor with the shape and dtype of the dequantised parameter, without its values if it has 4 bits."""
    state = getattr(parameter, "quant_state", None)
    return parameter.detach() if state is None else torch.empty(state.shape, dtype=state.dtype, device="meta")


def dequantized_weights(source: str, compute: torch.dtype) -> dict[str, Tensor]:
    """All weights of a model, quantised to 4 bits and dequantised."""
    model = load_quantised(source, compute, torch.device("cpu"))
    return {name: dequantized(parameter).float() for name, parameter in model.named_parameters()}


def adamw_8bit(parameters: Sequence[torch.nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    try:
        from bitsandbytes import optim
    except ImportError as error:
        raise ConfigError(f"train.optimizer=adamw8bit needs bitsandbytes ({error}): {_REMEDY}") from error
    found: torch.optim.Optimizer = optim.AdamW8bit(  # type: ignore[no-untyped-call, attr-defined]
        parameters, lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay
    )
    return found
