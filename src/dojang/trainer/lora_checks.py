"""Checks LoRA settings against a model's modules without loading its weights, before a run starts."""

from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from dojang.trainer.config import LoraConfig
from dojang.trainer.lora import Adapters

__all__ = ["check_modules"]


def check_modules(config: Mapping[str, Any] | None, lora: LoraConfig | None) -> None:
    """Raises ConfigError if target_modules or modules_to_save name modules that are missing or cannot be trained, or
    if all projections of a mixture of experts would get adapters. `config` is the model's config.json.

    Skips the check if config.json or peft is not on this machine, or if transformers does not know the model's class.
    """
    if config is None or lora is None or find_spec("peft") is None:
        return
    if not (lora.target_modules or lora.modules_to_save or any("expert" in key for key in config)):
        return
    model: PreTrainedModel | None = None
    with suppress(Exception), torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))  # type: ignore[no-untyped-call]
    if model is not None:
        Adapters(model, lora, "")
