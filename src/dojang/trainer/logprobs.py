"""Log-probs of target tokens and entropy of their distributions, without materialising all logits.

Logits are computed chunk by chunk, in the forward and again in the backward pass. The gradient of a chunk is

    d logp / d logits = onehot(token) - p                 p = softmax(logits)
    d H / d logits    = -p (log p + H)                    H = -sum p log p, the entropy
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dojang.core.output_head import float32_logits
from dojang.trainer.memory import logits_per_chunk

__all__ = ["target_logprobs"]


def target_logprobs(
    x_ME: Tensor,
    head_VE: Tensor,
    target_M: Tensor,
    temperature: float,
    *,
    float32_head: bool = False,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """log softmax(x @ head.T / temperature) at the targets, and the entropy of each distribution; in float32, or in the
    dtype of x if that is wider. With `float32_head` logits are not rounded to half precision first. With `softcap`,
    logits become softcap * tanh(logits / softcap)."""
    wide = float32_head and x_ME.dtype in (torch.bfloat16, torch.float16)
    logp_M, entropy_M = _TargetLogprobs.apply(x_ME, head_VE, target_M, temperature, wide, softcap)  # type: ignore[no-untyped-call]
    return logp_M, entropy_M


class _TargetLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, x_ME: Tensor, head_VE: Tensor, target_M: Tensor, temperature: float, wide: bool, softcap: float
    ) -> tuple[Tensor, Tensor]:
        precise = torch.promote_types(x_ME.dtype, torch.float32)
        logp_M, entropy_M, total_M = (x_ME.new_empty(len(x_ME), dtype=precise) for _ in range(3))
        for rows in _chunks(x_ME, head_VE):
            score_CV = _scores(x_ME[rows], head_VE, temperature, precise, wide, softcap)
            total_M[rows] = score_CV.logsumexp(-1)
            chosen_C = score_CV.gather(-1, target_M[rows, None]).squeeze(-1)
            logp_M[rows] = chosen_C - total_M[rows]
            mass_CV = (score_CV - total_M[rows, None]).exp_()
            entropy_M[rows] = total_M[rows] - torch.linalg.vecdot(mass_CV, score_CV)
        context.save_for_backward(x_ME, head_VE, target_M, total_M, entropy_M)
        context.temperature, context.wide, context.softcap = temperature, wide, softcap
        context.set_materialize_grads(False)  # most losses have no entropy term and skip its gradient
        return logp_M, entropy_M

    @staticmethod
    def backward(
        context: Any, *gradients: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        x_ME, head_VE, target_M, total_M, entropy_M = context.saved_tensors
        gradient_M, entropy_gradient_M = (None if each is None else each / context.temperature for each in gradients)
        wants_x, wants_head = context.needs_input_grad[:2]
        x_gradient_ME = torch.empty_like(x_ME) if wants_x else None
        head_gradient_VE = torch.zeros_like(head_VE, dtype=total_M.dtype) if wants_head else None
        for rows in _chunks(x_ME, head_VE):
            score_CV = _scores(x_ME[rows], head_VE, context.temperature, total_M.dtype, context.wide, context.softcap)
            slope_CV = None  # of the soft cap
            if context.softcap:
                slope_CV = 1 - (score_CV * (context.temperature / context.softcap)).square_()
            logp_CV = score_CV.sub_(total_M[rows, None])
            factor_CV = _factors(logp_CV, entropy_M[rows], gradient_M, entropy_gradient_M, rows)
            weight_CV = logp_CV.exp_().mul_(factor_CV)
            if gradient_M is not None:
                weight_CV.scatter_add_(-1, target_M[rows, None], gradient_M[rows, None])
            if slope_CV is not None:
                weight_CV.mul_(slope_CV)
            weight_CV = weight_CV.to(x_ME.dtype)
            if x_gradient_ME is not None:
                x_gradient_ME[rows] = weight_CV @ head_VE
            if head_gradient_VE is not None:
                head_gradient_VE += weight_CV.T @ x_ME[rows]
        head_gradient = None if head_gradient_VE is None else head_gradient_VE.to(head_VE.dtype)
        return x_gradient_ME, head_gradient, None, None, None, None


def _factors(
    logp_CV: Tensor, entropy_C: Tensor, gradient_M: Tensor | None, entropy_gradient_M: Tensor | None, rows: slice
) -> Tensor:
    """Factor of each token's probability in the gradient of its logit."""
    if entropy_gradient_M is None:
        assert gradient_M is not None, "autograd calls backward only with a gradient"
        return -gradient_M[rows, None]
    # Below the clamp p is 0, and p log p must be 0 too, also for a logit of minus infinity.
    found_CV = (logp_CV.clamp(min=-1e4) + entropy_C[:, None]).mul_(-entropy_gradient_M[rows, None])
    return found_CV if gradient_M is None else found_CV.sub_(gradient_M[rows, None])


def _chunks(x_ME: Tensor, head_VE: Tensor) -> list[slice]:
    size = max(1, logits_per_chunk(gpu=x_ME.is_cuda) // len(head_VE))
    return [slice(start, start + size) for start in range(0, len(x_ME), size)]


def _scores(
    x_CE: Tensor, head_VE: Tensor, temperature: float, precise: torch.dtype, wide: bool, softcap: float
) -> Tensor:
    score_CV = float32_logits(x_CE, head_VE) if wide else functional.linear(x_CE, head_VE).to(precise)
    if softcap:
        score_CV = score_CV.div_(softcap).tanh_().mul_(softcap)
    return score_CV if temperature == 1 else score_CV.div_(temperature)
