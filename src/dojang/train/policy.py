"""What a model thinks of the tokens of a micro-batch."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dojang.train.attention import NO_MASK
from dojang.train.logprobs import chosen_logprobs
from dojang.train.packing import MicroBatch

__all__ = ["token_logprobs"]


def token_logprobs(
    model: PreTrainedModel, batch: MicroBatch, *, temperature: float, compute: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Log-prob of each token learned from and the entropy of the distribution it came from, both [B, T].

    The temperature is the one the tokens were sampled at: the policy that acted is the policy that learns.
    """
    decoder, head = model.get_decoder(), model.get_output_embeddings()  # type: ignore[no-untyped-call]
    with _autocast(model.device, compute):
        output = decoder(
            input_ids=batch.token_N[None],
            position_ids=batch.position_N[None],
            attention_mask=NO_MASK,
            use_cache=False,
            plan=batch.plan,
        )
    x_ME = output.last_hidden_state[0][batch.source_M].to(compute)
    head_VE = head.weight.to(compute)
    logp_M, entropy_M = chosen_logprobs(x_ME, head_VE, batch.target_M, temperature)
    return batch.spread(logp_M), batch.spread(entropy_M)


def _autocast(device: torch.device, compute: torch.dtype) -> AbstractContextManager[object]:
    """Master weights stay in full precision; half precision is for the arithmetic only."""
    if compute is torch.bfloat16:
        return torch.autocast(device.type, dtype=compute)
    return nullcontext()
