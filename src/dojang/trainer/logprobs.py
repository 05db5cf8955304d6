"""The log-probs of given tokens under a model, and the entropy they were chosen from.

Scores for all words are never kept: they are made, chunk by chunk, in both directions. A chunk's gradient is

    d logp / d scores = one at the token - p              p = softmax(scores)
    d H / d scores    = -p (log p + H)                    H = -sum p log p, the entropy
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dojang.core.output_head import float32_logits

__all__ = ["chosen_logprobs"]

_CHUNK, _CHUNK_GPU = 1 << 23, 1 << 26
"""Scores made at a time: 32 MiB, or 256 where smaller products would not fill the device."""


def chosen_logprobs(
    x_ME: Tensor, head_VE: Tensor, target_M: Tensor, temperature: float, *, float32_head: bool = False
) -> tuple[Tensor, Tensor]:
    """log softmax(x @ head.T / temperature) at the targets, and the entropy of the whole distribution there; in
    float32, or in what x has if that is more. With `float32_head` scores are not rounded to half precision first."""
    wide = float32_head and x_ME.dtype in (torch.bfloat16, torch.float16)
    logp_M, entropy_M = _Chosen.apply(x_ME, head_VE, target_M, temperature, wide)  # type: ignore[no-untyped-call]
    return logp_M, entropy_M


class _Chosen(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, x_ME: Tensor, head_VE: Tensor, target_M: Tensor, temperature: float, wide: bool
    ) -> tuple[Tensor, Tensor]:
        precise = torch.promote_types(x_ME.dtype, torch.float32)
        logp_M, entropy_M, total_M = (x_ME.new_empty(len(x_ME), dtype=precise) for _ in range(3))
        for rows in _chunks(x_ME, head_VE):
            score_CV = _scores(x_ME[rows], head_VE, temperature, precise, wide)
            total_M[rows] = score_CV.logsumexp(-1)
            chosen_C = score_CV.gather(-1, target_M[rows, None]).squeeze(-1)
            logp_M[rows] = chosen_C - total_M[rows]
            mass_CV = (score_CV - total_M[rows, None]).exp_()
            entropy_M[rows] = total_M[rows] - torch.linalg.vecdot(mass_CV, score_CV)
        context.save_for_backward(x_ME, head_VE, target_M, total_M, entropy_M)
        context.temperature, context.wide = temperature, wide
        context.set_materialize_grads(False)  # most losses have no term of entropy, and need not pay for one
        return logp_M, entropy_M

    @staticmethod
    def backward(context: Any, *gradients: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        x_ME, head_VE, target_M, total_M, entropy_M = context.saved_tensors
        gradient_M, entropy_gradient_M = (None if each is None else each / context.temperature for each in gradients)
        wants_x, wants_head = context.needs_input_grad[:2]
        x_gradient_ME = torch.empty_like(x_ME) if wants_x else None
        head_gradient_VE = torch.zeros_like(head_VE, dtype=total_M.dtype) if wants_head else None
        for rows in _chunks(x_ME, head_VE):
            score_CV = _scores(x_ME[rows], head_VE, context.temperature, total_M.dtype, context.wide)
            logp_CV = score_CV.sub_(total_M[rows, None])
            factor_CV = _factors(logp_CV, entropy_M[rows], gradient_M, entropy_gradient_M, rows)
            weight_CV = logp_CV.exp_().mul_(factor_CV)
            if gradient_M is not None:
                weight_CV.scatter_add_(-1, target_M[rows, None], gradient_M[rows, None])
            weight_CV = weight_CV.to(x_ME.dtype)
            if x_gradient_ME is not None:
                x_gradient_ME[rows] = weight_CV @ head_VE
            if head_gradient_VE is not None:
                head_gradient_VE += weight_CV.T @ x_ME[rows]
        head_gradient = None if head_gradient_VE is None else head_gradient_VE.to(head_VE.dtype)
        return x_gradient_ME, head_gradient, None, None, None


def _factors(
    logp_CV: Tensor, entropy_C: Tensor, gradient_M: Tensor | None, entropy_gradient_M: Tensor | None, rows: slice
) -> Tensor:
    """By what each token's probability is multiplied in the gradient of its score."""
    if entropy_gradient_M is None:
        assert gradient_M is not None, "autograd asks where there is a gradient"
        return -gradient_M[rows, None]
    # Beyond the clamp p is 0, and so must be p log p, also for a score of minus infinity.
    found_CV = (logp_CV.clamp(min=-1e4) + entropy_C[:, None]).mul_(-entropy_gradient_M[rows, None])
    return found_CV if gradient_M is None else found_CV.sub_(gradient_M[rows, None])


def _chunks(x_ME: Tensor, head_VE: Tensor) -> list[slice]:
    size = max(1, (_CHUNK_GPU if x_ME.is_cuda else _CHUNK) // len(head_VE))
    return [slice(start, start + size) for start in range(0, len(x_ME), size)]


def _scores(x_CE: Tensor, head_VE: Tensor, temperature: float, precise: torch.dtype, wide: bool) -> Tensor:
    score_CV = float32_logits(x_CE, head_VE) if wide else functional.linear(x_CE, head_VE).to(precise)
    return score_CV if temperature == 1 else score_CV.div_(temperature)
