"""The update in plain transformers and torch: the same maths as dojang's trainer, the way TRL's does it.

A micro-batch is so many samples, whatever their lengths: prompts padded on the left, answers on the right, each sample
with a prompt of its own. Scores are made for answers alone. TRL kept those of all words until its version 1 and makes
them in chunks since: `chunk` says how many tokens at a time, None keeps them. Entropies, which TRL makes for its
figures, are left out.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from dojang.types import Sample

__all__ = ["Plain"]

CLIP = 0.2


@dataclass(frozen=True)
class _Batch:
    token_BN: Tensor
    seen_BN: Tensor
    """1 where there is a token, 0 for padding."""
    answer_BT: Tensor
    mask_BT: Tensor
    old_logp_BT: Tensor
    advantage_B1: Tensor


class Plain:
    """GRPO, averaged over the tokens of an optimizer step."""

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        sequences: int,
        compute: torch.dtype,
        lr: float = 1e-6,
        gradient_checkpointing: bool = False,
        chunk: int | None = None,
        on_policy: bool = False,
    ) -> None:
        """`on_policy`: ratios are to its own log-probs, as they are for TRL when it generated itself."""
        if gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.train()  # transformers makes activations again only then; the models here have no dropout
        model.set_attn_implementation("sdpa")
        self._model, self._compute = model, compute
        self._sequences, self._chunk, self._on_policy = sequences, chunk, on_policy
        self._optimizer = torch.optim.AdamW(
            model.parameters(), lr=lr, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0, fused=True
        )

    def forward_backward(self, samples: Sequence[Sample]) -> float:
        """The loss; gradients are left in the model."""
        tokens = sum(sample.response_length for sample in samples)
        loss = 0.0
        for start in range(0, len(samples), self._sequences):
            batch = _padded(samples[start : start + self._sequences], self._model.device)
            logp_BT = self._logprobs(batch)
            old_BT = logp_BT.detach() if self._on_policy else batch.old_logp_BT.to(logp_BT.dtype)
            ratio_BT = torch.where(batch.mask_BT, logp_BT - old_BT, 0.0).exp()
            advantage_B1 = batch.advantage_B1.to(logp_BT.dtype)
            clipped_BT = ratio_BT.clamp(1 - CLIP, 1 + CLIP)
            loss_BT = -torch.minimum(ratio_BT * advantage_B1, clipped_BT * advantage_B1)
            share = (loss_BT * batch.mask_BT).sum() / tokens
            share.backward()
            loss += float(share.detach())
        return loss

    def step(self) -> None:
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _logprobs(self, batch: _Batch) -> Tensor:
        size = batch.answer_BT.shape[1]
        inputs = {"input_ids": batch.token_BN, "attention_mask": batch.seen_BN, "use_cache": False}
        with _autocast(self._model.device, self._compute):
            if self._chunk is None:
                score_BTV = self._model(**inputs, logits_to_keep=size + 1).logits[:, :-1]
                return torch.stack([_chosen(*row) for row in zip(score_BTV, batch.answer_BT, strict=True)])
            x_BTE = self._model.get_decoder()(**inputs).last_hidden_state[:, -size - 1 : -1]
            x_ME, target_M = x_BTE[batch.mask_BT], batch.answer_BT[batch.mask_BT]
            head_VE = self._model.get_output_embeddings().weight
            logps = [
                checkpoint(_scored, x_CE, head_VE, target_C, use_reentrant=False)
                for x_CE, target_C in zip(x_ME.split(self._chunk), target_M.split(self._chunk), strict=True)
            ]
        logp_M = torch.cat(logps)
        return torch.zeros(batch.mask_BT.shape, dtype=logp_M.dtype, device=logp_M.device).masked_scatter(
            batch.mask_BT, logp_M
        )


def _scored(x_CE: Tensor, head_VE: Tensor, target_C: Tensor) -> Tensor:
    return _chosen(linear(x_CE, head_VE), target_C)


def _chosen(score_TV: Tensor, target_T: Tensor) -> Tensor:
    """log softmax at the targets, in single precision at least, without keeping the whole of it."""
    precise_TV = score_TV.to(torch.promote_types(score_TV.dtype, torch.float32))
    return precise_TV.gather(-1, target_T[:, None]).squeeze(-1) - precise_TV.logsumexp(-1)


def _padded(samples: Sequence[Sample], device: torch.device) -> _Batch:
    prompts = [int(sample.mask.argmax()) for sample in samples]
    answers = [len(sample.tokens) - prompt for sample, prompt in zip(samples, prompts, strict=True)]
    left, right = max(prompts), max(answers)
    token_BN = torch.zeros(len(samples), left + right, dtype=torch.long)
    seen_BN = torch.zeros_like(token_BN)
    old_BN = torch.zeros(token_BN.shape, dtype=torch.float64)
    for row, (sample, prompt, answer) in enumerate(zip(samples, prompts, answers, strict=True)):
        place = slice(left - prompt, left + answer)
        token_BN[row, place] = torch.tensor(sample.tokens)
        seen_BN[row, place] = 1
        old_BN[row, place] = torch.tensor(sample.logprobs, dtype=torch.float64)
    advantage_B1 = torch.tensor([[sample.advantage] for sample in samples], dtype=torch.float64)
    made = (token_BN, seen_BN, token_BN[:, left:], seen_BN[:, left:].bool(), old_BN[:, left:], advantage_B1)
    return _Batch(*(each.to(device) for each in made))


def _autocast(device: torch.device, compute: torch.dtype) -> AbstractContextManager[object]:
    """Master weights stay in single precision."""
    return torch.autocast(device.type, dtype=compute) if compute is torch.bfloat16 else nullcontext()
