"""Checks LoRA settings against a model's modules without loading its weights, before a run starts."""

from contextlib import suppress
from importlib.util import find_spec

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from dojang.trainer.config import LoraConfig
from dojang.trainer.lora import Adapters

__all__ = ["check_modules"]


def check_modules(source: str | None, lora: LoraConfig | None) -> None:
    """Raises ConfigError if target_modules or modules_to_save name modules that are missing or cannot be trained.

    Skips the check if the model (`source`) or peft is not on this machine, or if transformers does not know the model's
    class.
    """
    if source is None or lora is None or not (lora.target_modules or lora.modules_to_save) or find_spec("peft") is None:
        return
    model: PreTrainedModel | None = None
    with suppress(Exception), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(source))  # type: ignore[no-untyped-call]
    if model is not None:
        Adapters(model, lora, source)
