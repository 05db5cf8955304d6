"""Draw one token per row by inverting the cumulative distribution at a given uniform number.

Two levels (blocks, then tokens inside one block) avoid a cumulative sum over the whole vocabulary.
"""

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["sample_tokens"]

_BLOCK = 256


def sample_tokens(logits_BV: Tensor, temperature_B: Tensor, uniform_B: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens and their log-probs. Temperature 0 takes the likeliest token, scored at temperature 1."""
    if logits_BV.dtype in (torch.bfloat16, torch.float16):
        logits_BV = logits_BV.float()
    greedy_B = temperature_B == 0
    heat_B = torch.where(greedy_B, 1.0, temperature_B).to(logits_BV.dtype)
    logp_BV = (logits_BV / heat_B[:, None]).log_softmax(-1)
    token_B = torch.where(greedy_B, logp_BV.argmax(-1), _invert(logp_BV.exp(), uniform_B))
    return token_B, logp_BV.gather(-1, token_B[:, None]).squeeze(-1)


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
