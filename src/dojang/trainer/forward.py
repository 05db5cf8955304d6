"""What a model thinks of the tokens of a micro-batch."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dojang.core.errors import ModelError
from dojang.trainer.logprobs import chosen_logprobs
from dojang.trainer.packed_attention import NO_MASK
from dojang.trainer.packing import MicroBatch, micro_batches
from dojang.types import Outcome, Sample, Verdict

__all__ = ["Scorer", "check_packed", "states", "token_logprobs"]

_SAME = {torch.float64: 1e-4, torch.float32: 1e-3, torch.bfloat16: 0.3, torch.float16: 0.05}
"""How far roundings may be apart."""


class Scorer(torch.nn.Module):
    """A model that says what it thinks of a micro-batch. As one module, so that whoever spreads its weights over ranks
    knows when all of them are needed, those of the head too."""

    def __init__(
        self, model: PreTrainedModel, *, temperature: float, compute: torch.dtype, float32_head: bool = False
    ) -> None:
        super().__init__()
        self.model = model
        self._temperature, self._compute, self._float32_head = temperature, compute, float32_head

    def forward(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        return token_logprobs(
            self.model,
            batch,
            temperature=self._temperature,
            compute=self._compute,
            float32_head=self._float32_head,
        )


def token_logprobs(
    model: PreTrainedModel,
    batch: MicroBatch,
    *,
    temperature: float,
    compute: torch.dtype,
    float32_head: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-prob of each token learned from and the entropy of the distribution it came from, both [B, T].

    The temperature is the one the tokens were sampled at: the policy that acted is the policy that learns.
    """
    decoder, head = model.get_decoder(), model.get_output_embeddings()  # type: ignore[no-untyped-call]
    x_ME = states(decoder, batch, compute).to(compute)
    head_VE = head.weight.to(compute)
    logp_M, entropy_M = chosen_logprobs(x_ME, head_VE, batch.target_M, temperature, float32_head=float32_head)
    return batch.spread(logp_M), batch.spread(entropy_M)


def states(decoder: PreTrainedModel, batch: MicroBatch, compute: torch.dtype) -> Tensor:
    """What a decoder makes of all there is before each token learned from, [M, E]."""
    with _autocast(decoder.device, compute):
        output = decoder(
            input_ids=batch.token_N[None],
            position_ids=batch.position_N[None],
            attention_mask=NO_MASK,
            use_cache=False,
            plan=batch.plan,
        )
    found_ME: Tensor = output.last_hidden_state[0][batch.source_M]
    return found_ME


def check_packed(model: PreTrainedModel) -> None:
    """ModelError if packed samples get other log-probs than the model gives each alone: where layers other than
    attention mix tokens, or where the scores are more than a product."""
    told = Verdict(Outcome.WRONG, 0.0)
    texts = [(3, 1, 4, 1), (3, 1, 5, 9), (2, 7, 1, 8)]  # equally long, so that there is no padding
    samples = [Sample(text, (False, False, True, True), (0.0,) * 4, "", "stop", 0, told) for text in texts]
    (batch,) = micro_batches(samples, 1000, model.device)
    with torch.no_grad():
        packed_BT, _ = token_logprobs(model, batch, temperature=1.0, compute=model.dtype)
        token_BT = torch.tensor(texts, device=model.device)
        score_BTV = model(input_ids=token_BT[:, :-1], use_cache=False).logits[:, 1:]
        alone_BT = score_BTV.to(packed_BT.dtype).log_softmax(-1).gather(-1, token_BT[:, 2:, None]).squeeze(-1)
    gap = float((packed_BT - alone_BT).abs().max())
    if not gap <= _SAME[model.dtype]:
        raise ModelError(
            f"{type(model).__name__} gives packed samples other log-probs than each alone (by {gap:.3g}), and "
            "cannot be trained here: its layers mix tokens outside of attention, or its scores are more than a product"
        )


def _autocast(device: torch.device, compute: torch.dtype) -> AbstractContextManager[object]:
    """Master weights stay in full precision; half precision is for the arithmetic only."""
    if compute is torch.bfloat16:
        return torch.autocast(device.type, dtype=compute)
    return nullcontext()
