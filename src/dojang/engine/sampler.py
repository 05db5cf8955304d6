"""Draw one token per row by inverting the cumulative distribution at a given uniform number.

Two levels (blocks, then tokens inside one block) avoid a cumulative sum over the whole vocabulary. Where only the
likeliest tokens may be drawn (top-k, top-p, min-p, in this order), the others' probability is set to nothing first.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["Draw", "Limits", "sample_tokens"]

_BLOCK = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """Truncation of each row's distribution: the `top_k` likeliest tokens (0: all); of these, the fewest that make up
    `top_p` of their probability; of these, the ones at least `min_p` times as likely as the likeliest."""

    top_k_B: Tensor
    top_p_B: Tensor
    min_p_B: Tensor


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
    heat_B = temperature_B.to(logits_BV.dtype)
    greedy_B = heat_B == 0  # also what is too small for this precision
    heat_B = torch.where(greedy_B, 1.0, heat_B)
    # Every pass over all scores counts here, so nothing is normalised but the token that was drawn.
    plain_BV = logits_BV - logits_BV.amax(-1, keepdim=True)
    mass_BV = plain_BV.exp()
    plain_total_B = mass_BV.sum(-1)
    score_BV, total_B = plain_BV, plain_total_B
    if bias_BV is not None or limits is not None or bool((heat_B != 1).any()):
        score_BV = _heated(plain_BV, heat_B, bias_BV)
        if limits is not None:
            score_BV = _limited(score_BV, limits)
        mass_BV = score_BV.exp()
        total_B = mass_BV.sum(-1)
    token_B = _invert(mass_BV, uniform_B)
    if bool(greedy_B.any()):
        token_B = torch.where(greedy_B, score_BV.argmax(-1), token_B)
    chosen_B1 = token_B[:, None]
    return Draw(
        token_B,
        score_BV.gather(-1, chosen_B1).squeeze(-1) - total_B.log(),
        plain_BV.gather(-1, chosen_B1).squeeze(-1) - plain_total_B.log(),
    )


def _heated(plain_BV: Tensor, heat_B: Tensor, bias_BV: Tensor | None) -> Tensor:
    """Scores as they are drawn from; the highest is 0."""
    if bias_BV is not None:
        plain_BV = plain_BV + bias_BV
        plain_BV = plain_BV - plain_BV.amax(-1, keepdim=True)
    return plain_BV / heat_B[:, None]


def _limited(score_BV: Tensor, limits: Limits) -> Tensor:
    """Without the tokens a row must not take. The likeliest always stays; equals of the last one stay with it."""
    least_B1 = score_BV.amax(-1, keepdim=True) + limits.min_p_B.to(score_BV.dtype).log()[:, None]
    if bool(((limits.top_k_B > 0) | (limits.top_p_B < 1)).any()):
        least_B1 = torch.maximum(least_B1, _last_kept(score_BV, limits))
    return score_BV.masked_fill(score_BV < least_B1, -torch.inf)


def _last_kept(score_BV: Tensor, limits: Limits) -> Tensor:
    """The lowest score within top-k and top-p, [B, 1]."""
    sorted_BV = score_BV.sort(-1, descending=True).values
    size = sorted_BV.shape[-1]
    most_B = torch.where(limits.top_k_B > 0, limits.top_k_B, size).clamp(max=size)
    beyond_BV = torch.arange(size, device=sorted_BV.device) >= most_B[:, None]
    mass_BV = sorted_BV.masked_fill(beyond_BV, -torch.inf).softmax(-1)
    inside_B = (mass_BV.cumsum(-1) - mass_BV < limits.top_p_B.to(mass_BV.dtype)[:, None]).sum(-1)
    kept_B = torch.where(limits.top_p_B < 1, torch.minimum(most_B, inside_B), most_B).clamp(min=1)
    return sorted_BV.gather(-1, kept_B[:, None] - 1)


def _invert(mass_BV: Tensor, uniform_B: Tensor) -> Tensor:
    missing = -mass_BV.shape[-1] % _BLOCK
    mass_BKN = (functional.pad(mass_BV, (0, missing)) if missing else mass_BV).view(len(mass_BV), -1, _BLOCK)
    mass_BK = mass_BKN.sum(-1)
    upto_BK = mass_BK.cumsum(-1)
    total_B1 = upto_BK[:, -1:]
    # In single precision a uniform number may round to 1, which would lead past the last possible token.
    below_B1 = total_B1.nextafter(torch.zeros_like(total_B1))
    target_B1 = torch.minimum(uniform_B.to(upto_BK.dtype)[:, None] * total_B1, below_B1)
    block_B1 = torch.searchsorted(upto_BK, target_B1, right=True).clamp(max=upto_BK.shape[-1] - 1)
    before_B1 = upto_BK.gather(-1, block_B1) - mass_BK.gather(-1, block_B1)
    inner_BN = mass_BKN.gather(1, block_B1[:, :, None].expand(-1, -1, _BLOCK)).squeeze(1)
    place_B1 = torch.searchsorted(inner_BN.cumsum(-1), target_B1 - before_B1, right=True).clamp(max=_BLOCK - 1)
    # Rounding can push the target past the last token that has any probability; take the likeliest then.
    possible_B1 = inner_BN.gather(-1, place_B1) > 0
    place_B1 = torch.where(possible_B1, place_B1, inner_BN.argmax(-1, keepdim=True))
    return (block_B1 * _BLOCK + place_B1).squeeze(-1)
