"""Forward pass of a model over a micro-batch: log-probs and entropy."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from dojang.core.errors import ModelError
from dojang.trainer.logprobs import target_logprobs
from dojang.trainer.packed_attention import NO_MASK
from dojang.trainer.packing import MicroBatch, micro_batches
from dojang.types import Completion, Outcome, Sample, Verdict

__all__ = ["Scorer", "check_packed", "hidden_states", "token_logprobs"]

_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3, torch.bfloat16: 0.3, torch.float16: 0.05}
"""Largest log-prob difference that counts as rounding, by dtype."""


class Scorer(torch.nn.Module):
    """A model that returns log-probs and entropy of a micro-batch. One module, so that FSDP gathers the weights of the
    head with the rest."""

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
    """Log-prob of each trained token and entropy of its distribution, both [B, T].

    The temperature is the sampling temperature, so that the trained policy is the one that sampled.
    """
    decoder, head = model.get_decoder(), model.get_output_embeddings()  # type: ignore[no-untyped-call]
    x_ME = (hidden_states(decoder, batch, compute) * _logits_scale(model.config)).to(compute)
    head_VE = head.weight.to(compute)
    softcap = getattr(model.config, "final_logit_softcapping", None) or 0.0
    logp_M, entropy_M = target_logprobs(
        x_ME, head_VE, batch.target_M, temperature, float32_head=float32_head, softcap=softcap
    )
    return batch.scatter(logp_M), batch.scatter(entropy_M)


def hidden_states(decoder: PreTrainedModel, batch: MicroBatch, compute: torch.dtype) -> Tensor:
    """Hidden states that predict each trained token, [M, E]."""
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


def _logits_scale(config: PreTrainedConfig) -> float:
    """Factor of the logits: Cohere multiplies them by logit_scale, Granite divides them by logits_scaling."""
    return (getattr(config, "logit_scale", None) or 1.0) / (getattr(config, "logits_scaling", None) or 1.0)


def check_packed(model: PreTrainedModel) -> None:
    """Raises ModelError if packed samples get other log-probs than each sample alone: layers besides attention mix
    tokens, or the logits are more than a matrix product."""
    told = Verdict(Outcome.WRONG, 0.0)
    texts = [(3, 1, 4, 1), (3, 1, 5, 9), (2, 7, 1, 8)]  # equal lengths, so no padding
    samples = [Sample.of(text[:2], Completion(text[2:], (0.0, 0.0), "", "stop", 0), told) for text in texts]
    (batch,) = micro_batches(samples, 1000, model.device)
    with torch.no_grad():
        try:
            packed_BT, _ = token_logprobs(model, batch, temperature=1.0, compute=model.dtype)
        except Exception as error:  # models without attention fail in other layers
            raise ModelError(
                f"{type(model).__name__} cannot be trained here: it does not take packed samples "
                f"({type(error).__name__}: {error!s:.200}); sample from it, or train a family of docs/models.md"
            ) from error
        token_BT = torch.tensor(texts, device=model.device)
        score_BTV = model(input_ids=token_BT[:, :-1], use_cache=False).logits[:, 1:]
        alone_BT = score_BTV.to(packed_BT.dtype).log_softmax(-1).gather(-1, token_BT[:, 2:, None]).squeeze(-1)
    gap = float((packed_BT - alone_BT).abs().max())
    if not gap <= _TOLERANCE[model.dtype]:
        raise ModelError(
            f"{type(model).__name__} gives packed samples other log-probs than each sample alone (by {gap:.3g}), so it "
            "cannot be trained here: layers besides attention mix tokens, or the logits are more than a matrix product"
        )


def _autocast(device: torch.device, compute: torch.dtype) -> AbstractContextManager[object]:
    """Mixed precision: master weights stay in float32, only the compute is in half precision."""
    if compute is torch.bfloat16:
        return torch.autocast(device.type, dtype=compute)
    return nullcontext()
