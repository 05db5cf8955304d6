"""Merges a LoRA adapter into its base model: for `dojang export`, and for evaluating an adapter as it is."""

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from dojang.core.errors import ModelError
from dojang.trainer.lora import BASE, load_peft
from dojang.trainer.quantization import dequantized_weights

__all__ = ["load_whole", "merge"]

_TOLERANCE = 1e-3
"""Largest change of logits after merging, relative to the largest logit."""


def load_whole(source: str, wanted: torch.dtype) -> PreTrainedModel:
    """Loads a model; raises ValueError for missing weights, which transformers would initialise at random."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(source, dtype=wanted, output_loading_info=True)
    model: PreTrainedModel
    model, report = loaded
    if missing := sorted(report["missing_keys"]):
        raise ValueError(f"{len(missing)} weights are missing, such as {missing[0]}")
    model.train(False)
    return model


def merge(checkpoint: Path, source: str) -> PreTrainedModel:
    """Returns the base model `source` in float32 with the adapter of `checkpoint` merged into it.

    Rounded to the training precision, these are the weights that engines sampled from.
    """
    peft = load_peft(f"{checkpoint} holds an adapter, and merging it into its base model")
    try:
        base = _load_base(checkpoint, source)
    except Exception as error:
        raise ModelError(f"the base model {source} of {checkpoint} cannot be loaded: {error}") from error
    tied = _embeddings_are_one(base)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the checks below cover peft's warnings
        adapted = peft.PeftModel.from_pretrained(base, str(checkpoint))
        report = adapted.load_adapter(str(checkpoint), "default")  # again, for its report of missing keys
        if wrong := [*report.missing_keys, *report.unexpected_keys]:
            raise ValueError(
                f"{len(wrong)} weights are missing from the adapter or unknown to {source}, such as {wrong[0]}"
            )
        before_TV = _scores(adapted)
        merged: PreTrainedModel = adapted.merge_and_unload()
    if tied and _embeddings_are_equal(merged):  # peft unties modules that were trained in full
        merged.config.tie_word_embeddings = True
        merged.get_output_embeddings().weight = merged.get_input_embeddings().weight  # type: ignore[no-untyped-call]
    gap = float((_scores(merged) - before_TV).abs().max() / before_TV.abs().max())
    if not gap <= _TOLERANCE:
        raise ModelError(
            f"the adapter in {checkpoint} cannot be merged: logits would change by {gap:.1%}. Most likely it changes "
            f"the embedding or the head, which share a weight in {source}"
        )
    return merged


def _embeddings_are_one(model: PreTrainedModel) -> bool:
    return model.get_output_embeddings().weight is model.get_input_embeddings().weight  # type: ignore[no-untyped-call]


def _embeddings_are_equal(model: PreTrainedModel) -> bool:
    ends: Any = (model.get_output_embeddings(), model.get_input_embeddings())  # type: ignore[no-untyped-call]
    return torch.equal(ends[0].weight, ends[1].weight)


def _load_base(checkpoint: Path, source: str) -> PreTrainedModel:
    """Loads the base model in float32, rounded to its precision during training."""
    base = load_whole(source, torch.float32)
    if (checkpoint / BASE).is_file():  # adapters of other tools have no such file
        known = json.loads((checkpoint / BASE).read_text())
        dtype: torch.dtype = getattr(torch, known["dtype"])
        if known["bits"] == 4:
            base.load_state_dict(
                dequantized_weights(source, dtype), strict=False
            )  # the head may be tied to the embedding
        else:
            torch.nn.Module.to(torch.nn.Module.to(base, dtype), torch.float32)
    return base


def _scores(model: torch.nn.Module) -> Tensor:
    with torch.no_grad():
        logits_TV: Tensor = model(input_ids=torch.arange(1, 17)[None]).logits[0]
    return logits_TV
