"""Draw one token per row by inverting the cumulative distribution at a given uniform number.

Two levels (blocks, then tokens inside one block) avoid a cumulative sum over the whole vocabulary. Where only the
likeliest tokens may be drawn (top-k, top-p), the others' probability is set to nothing first.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Draw", "Limits", "sample_tokens"]

_BLOCK = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """Which of the likeliest tokens a row may take: at most `top_k` (0: all), and no more than make up `top_p`."""

    top_k_B: Tensor
    top_p_B: Tensor


@dataclass(frozen=True, slots=True)
class Draw:
    """A token per row and two log-probs of it: where it was drawn from, and before temperature and limits."""

    token_B: Tensor
    logp_B: Tensor
    plain_logp_B: Tensor


def sample_tokens(
    logits_BV: Tensor,
    temperature_B: Tensor,
    uniform_B: Tensor,
    limits: Limits | None = None,
    bias_BV: Tensor | None = None,
) -> Draw:
    """Temperature 0 takes the likeliest token, scored at temperature 1."""
    if logits_BV.dtype in (torch.bfloat16, torch.float16):
        logits_BV = logits_BV.float()
    plain_BV = logits_BV.log_softmax(-1)
    greedy_B = temperature_B == 0
    heat_B = torch.where(greedy_B, 1.0, temperature_B).to(logits_BV.dtype)
    biased_BV = logits_BV if bias_BV is None else logits_BV + bias_BV
    logp_BV = (
        plain_BV if bias_BV is None and bool((heat_B == 1).all()) else (biased_BV / heat_B[:, None]).log_softmax(-1)
    )
    if limits is not None:
        logp_BV = _limited(logp_BV, limits).log_softmax(-1)
    token_B = torch.where(greedy_B, logp_BV.argmax(-1), _invert(logp_BV.exp(), uniform_B))
    chosen_B1 = token_B[:, None]
    return Draw(token_B, logp_BV.gather(-1, chosen_B1).squeeze(-1), plain_BV.gather(-1, chosen_B1).squeeze(-1))


def _limited(logp_BV: Tensor, limits: Limits) -> Tensor:
    """Without the tokens a row must not take. The likeliest always stays; equals of the last one stay with it."""
    sorted_BV = logp_BV.sort(-1, descending=True).values
    size = logp_BV.shape[-1]
    most_B = torch.where(limits.top_k_B > 0, limits.top_k_B, size).clamp(max=size)
    before_BV = sorted_BV.exp().cumsum(-1) - sorted_BV.exp()
    inside_B = (before_BV < limits.top_p_B.to(logp_BV.dtype)[:, None]).sum(-1)
    kept_B = torch.minimum(most_B, torch.where(limits.top_p_B < 1, inside_B, size)).clamp(min=1)
    least_B1 = sorted_BV.gather(-1, kept_B[:, None] - 1)
    return logp_BV.masked_fill(logp_BV < least_B1, -torch.inf)


def _invert(prob_BV: Tensor, uniform_B: Tensor) -> Tensor:
    prob_BKN = functional.pad(prob_BV, (0, -prob_BV.shape[-1] % _BLOCK)).reshape(len(prob_BV), -1, _BLOCK)
    mass_BK = prob_BKN.sum(-1)
    upto_BK = mass_BK.cumsum(-1)
    total_B1 = upto_BK[:, -1:]
    # In single precision a uniform number may round to 1, which would lead past the last possible token.
    below_B1 = total_B1.nextafter(torch.zeros_like(total_B1))
    target_B1 = torch.minimum(uniform_B.to(upto_BK.dtype)[:, None] * total_B1, below_B1)
    block_B1 = torch.searchsorted(upto_BK, target_B1, right=True).clamp(max=upto_BK.shape[-1] - 1)
    before_B1 = upto_BK.gather(-1, block_B1) - mass_BK.gather(-1, block_B1)
    inner_BN = prob_BKN.gather(1, block_B1[:, :, None].expand(-1, -1, _BLOCK)).squeeze(1)
    place_B1 = torch.searchsorted(inner_BN.cumsum(-1), target_B1 - before_B1, right=True).clamp(max=_BLOCK - 1)
    # Rounding can push the target past the last token that has any probability; take the likeliest then.
    possible_B1 = inner_BN.gather(-1, place_B1) > 0
    place_B1 = torch.where(possible_B1, place_B1, inner_BN.argmax(-1, keepdim=True))
    return (block_B1 * _BLOCK + place_B1).squeeze(-1)
