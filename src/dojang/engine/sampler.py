"""Sample one token per row by inverting the cumulative distribution at a given uniform number.

Two levels (blocks, then tokens inside one block) avoid a cumulative sum over the whole vocabulary. Truncation (top-k,
top-p, min-p, in this order) first sets the probability of excluded tokens to 0.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Sampled", "Truncation", "sample_tokens"]

_BLOCK = 256


@dataclass(frozen=True, slots=True)
class Truncation:
    """Truncation per row: the `top_k` likeliest tokens (0: all); of these, the fewest that make up
    `top_p` of their probability; of these, the ones at least `min_p` times as likely as the likeliest."""

    top_k_B: Tensor
    top_p_B: Tensor
    min_p_B: Tensor


@dataclass(frozen=True, slots=True)
class Sampled:
    """A token per row and two log-probs: in the distribution sampled from, and before temperature and truncation."""

    token_B: Tensor
    logp_B: Tensor
    plain_logp_B: Tensor


def sample_tokens(
    logits_BV: Tensor,
    temperature_B: Tensor,
    uniform_B: Tensor,
    truncation: Truncation | None = None,
    bias_BV: Tensor | None = None,
) -> Sampled:
    """Sample a token per row. Temperature 0 takes the likeliest token, with its log-prob at temperature 1."""
    if logits_BV.dtype in (torch.bfloat16, torch.float16):
        logits_BV = logits_BV.float()
    scale_B = temperature_B.to(logits_BV.dtype)
    greedy_B = scale_B == 0  # also temperatures that underflow to 0 in this precision
    scale_B = torch.where(greedy_B, 1.0, scale_B)
    # Every pass over all logits counts, so only the sampled token's probability is normalised.
    plain_BV = logits_BV - logits_BV.amax(-1, keepdim=True)
    mass_BV = plain_BV.exp()
    plain_total_B = mass_BV.sum(-1)
    score_BV, total_B = plain_BV, plain_total_B
    if bias_BV is not None or truncation is not None or bool((scale_B != 1).any()):
        score_BV = _apply_temperature(plain_BV, scale_B, bias_BV)
        if truncation is not None:
            score_BV = _truncate(score_BV, truncation)
        mass_BV = score_BV.exp()
        total_B = mass_BV.sum(-1)
    token_B = _invert(mass_BV, uniform_B)
    if bool(greedy_B.any()):
        token_B = torch.where(greedy_B, score_BV.argmax(-1), token_B)
    chosen_B1 = token_B[:, None]
    return Sampled(
        token_B,
        score_BV.gather(-1, chosen_B1).squeeze(-1) - total_B.log(),
        plain_BV.gather(-1, chosen_B1).squeeze(-1) - plain_total_B.log(),
    )


def _apply_temperature(plain_BV: Tensor, scale_B: Tensor, bias_BV: Tensor | None) -> Tensor:
    """Add the logit bias and divide by the temperature; the highest score becomes 0."""
    if bias_BV is not None:
        plain_BV = plain_BV + bias_BV
        plain_BV = plain_BV - plain_BV.amax(-1, keepdim=True)
    return plain_BV / scale_B[:, None]


def _truncate(score_BV: Tensor, truncation: Truncation) -> Tensor:
    """Mask the tokens outside the truncation. The likeliest always stays, and so do ties with the last one kept."""
    lowest_B1 = score_BV.amax(-1, keepdim=True) + truncation.min_p_B.to(score_BV.dtype).log()[:, None]
    if bool(((truncation.top_k_B > 0) | (truncation.top_p_B < 1)).any()):
        lowest_B1 = torch.maximum(lowest_B1, _lowest_kept(score_BV, truncation))
    return score_BV.masked_fill(score_BV < lowest_B1, -torch.inf)


def _lowest_kept(score_BV: Tensor, truncation: Truncation) -> Tensor:
    """Return the lowest score within top-k and top-p, [B, 1]."""
    sorted_BV = score_BV.sort(-1, descending=True).values
    size = sorted_BV.shape[-1]
    max_B = torch.where(truncation.top_k_B > 0, truncation.top_k_B, size).clamp(max=size)
    beyond_BV = torch.arange(size, device=sorted_BV.device) >= max_B[:, None]
    mass_BV = sorted_BV.masked_fill(beyond_BV, -torch.inf).softmax(-1)
    inside_B = (mass_BV.cumsum(-1) - mass_BV < truncation.top_p_B.to(mass_BV.dtype)[:, None]).sum(-1)
    kept_B = torch.where(truncation.top_p_B < 1, torch.minimum(max_B, inside_B), max_B).clamp(min=1)
    return sorted_BV.gather(-1, kept_B[:, None] - 1)


def _invert(mass_BV: Tensor, uniform_B: Tensor) -> Tensor:
    missing = -mass_BV.shape[-1] % _BLOCK
    mass_BKN = (functional.pad(mass_BV, (0, missing)) if missing else mass_BV).view(len(mass_BV), -1, _BLOCK)
    mass_BK = mass_BKN.sum(-1)
    upto_BK = mass_BK.cumsum(-1)
    total_B1 = upto_BK[:, -1:]
    # In single precision a uniform number may round to 1, which would select past the last possible token.
    below_B1 = total_B1.nextafter(torch.zeros_like(total_B1))
    target_B1 = torch.minimum(uniform_B.to(upto_BK.dtype)[:, None] * total_B1, below_B1)
    block_B1 = torch.searchsorted(upto_BK, target_B1, right=True).clamp(max=upto_BK.shape[-1] - 1)
    before_B1 = upto_BK.gather(-1, block_B1) - mass_BK.gather(-1, block_B1)
    inner_BN = mass_BKN.gather(1, block_B1[:, :, None].expand(-1, -1, _BLOCK)).squeeze(1)
    offset_B1 = torch.searchsorted(inner_BN.cumsum(-1), target_B1 - before_B1, right=True).clamp(max=_BLOCK - 1)
    # Rounding can push the target past the last token that has any probability; take the likeliest then.
    possible_B1 = inner_BN.gather(-1, offset_B1) > 0
    offset_B1 = torch.where(possible_B1, offset_B1, inner_BN.argmax(-1, keepdim=True))
    return (block_B1 * _BLOCK + offset_B1).squeeze(-1)
