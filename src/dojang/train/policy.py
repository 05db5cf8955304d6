"""The log-probs of given tokens under a model."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dojang.train.batching import MicroBatch

__all__ = ["token_logprobs"]


def token_logprobs(
    model: PreTrainedModel, batch: MicroBatch, *, temperature: float, compute: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Log-prob of each kept token and the entropy of the distribution it came from, both [B, kept].

    The temperature is the one the tokens were sampled at: the policy that acted is the policy that learns.
    """
    with _autocast(model.device, compute):
        # One prediction more than is kept: the last one looks past the end and is dropped.
        output = model(input_ids=batch.tokens_BT, use_cache=False, logits_to_keep=batch.kept + 1)
    logits_BTV = output.logits[:, :-1]
    if logits_BTV.dtype in (torch.bfloat16, torch.float16):
        logits_BTV = logits_BTV.float()
    logp_BTV = (logits_BTV / temperature).log_softmax(-1)
    target_BT = batch.tokens_BT[:, -batch.kept :]
    logp_BT = logp_BTV.gather(-1, target_BT[:, :, None]).squeeze(-1)
    with torch.no_grad():
        entropy_BT = -(logp_BTV.exp() * logp_BTV).sum(-1)
    return logp_BT, entropy_BT


def _autocast(device: torch.device, compute: torch.dtype) -> AbstractContextManager[object]:
    """Master weights stay in full precision; half precision is for the arithmetic only."""
    if compute is torch.bfloat16:
        return torch.autocast(device.type, dtype=compute)
    return nullcontext()
