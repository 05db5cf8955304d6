"""Weights in four bits, and what an optimizer remembers in eight: all that bitsandbytes, an optional part, is for."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, PreTrainedModel

from dojang.core.errors import ConfigError, ModelError
from dojang.trainer.config import TrainConfig

__all__ = ["coarsened", "eight_bit_adamw", "load_quantised", "unpacked"]

_REMEDY = "pip install 'dojang[qlora]'"


def load_quantised(source: str, compute: torch.dtype, device: torch.device) -> PreTrainedModel:
    """A model with its projections in four bits (NF4, their scales quantised too)."""
    try:
        settings = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=compute,
        )
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            source, dtype=compute, quantization_config=settings, device_map={"": device}
        )
    except ImportError as error:  # of bitsandbytes, or of accelerate
        raise ConfigError(f"train.lora.base_bits=4 needs more than is installed ({error}): {_REMEDY}") from error
    except Exception as error:
        raise ModelError(f"model {source} cannot be loaded in four bits: {error}") from error
    return model


def unpacked(parameter: Tensor) -> Tensor:
    """The numbers that four bits stand for; others as they are."""
    state = getattr(parameter, "quant_state", None)
    if state is None:
        return parameter.detach()
    from bitsandbytes import functional

    found: Tensor = functional.dequantize_4bit(parameter.data, state).detach()
    return found


def coarsened(source: str, compute: torch.dtype) -> dict[str, Tensor]:
    """The weights of a model as four bits stand for them."""
    model = load_quantised(source, compute, torch.device("cpu"))
    return {name: unpacked(parameter).float() for name, parameter in model.named_parameters()}


def eight_bit_adamw(parameters: Sequence[torch.nn.Parameter], config: TrainConfig) -> torch.optim.Optimizer:
    try:
        from bitsandbytes import optim
    except ImportError as error:
        raise ConfigError(f"train.optimizer=adamw8bit needs bitsandbytes ({error}): {_REMEDY}") from error
    found: torch.optim.Optimizer = optim.AdamW8bit(  # type: ignore[no-untyped-call, attr-defined]
        parameters, lr=config.lr, betas=config.betas, eps=config.eps, weight_decay=config.weight_decay
    )
    return found
