"""Checks that rollout.engine.quantization=fp8 is supported for a model and the device of a run."""

import torch
from transformers import AutoConfig

from dojang import models
from dojang.build.local import numerics, numerics_on
from dojang.config.run_config import RunConfig
from dojang.core.errors import ModelError
from dojang.engine.architectures import support
from dojang.engine.fp8 import check_gpu, check_layers
from dojang.engine.shape import Shape

__all__ = ["check_fp8"]


def check_fp8(config: RunConfig) -> None:
    """Raises ModelError if the engine would refuse it. The kinds of GPUs in a cluster are only known there."""
    known = models.read_config(config.model.name)
    if not config.rollout.engine.fp8 or known is None:
        return
    if (found := support(known)).engine != "torch":
        raise ModelError(f"rollout.engine.quantization=fp8 is not supported for {config.model.name}: {found.message}")
    if config.runtime.name == "local":
        numeric = numerics(config)
        if numeric.device.type == "cuda":
            check_gpu(numeric.device)
    else:
        gpus = config.model.device == "cuda" or (config.runtime.gpus or 0) > 0
        numeric = numerics_on(torch.device("cuda" if gpus else "cpu"), config)
    if numeric.device.type != "cuda":
        return
    settings = AutoConfig.for_model(**known).get_text_config()
    shape = Shape.of(settings)
    experts = getattr(settings, "moe_intermediate_size", None) or settings.intermediate_size
    heads = shape.heads * shape.head, (shape.heads + 2 * shape.kv_heads) * shape.head
    check_layers(numeric.compute, (settings.hidden_size, settings.intermediate_size, experts, *heads))
