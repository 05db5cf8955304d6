"""Decode step: sample the next token, with its log-prob, for every running sequence.

`EagerRunner` runs one step at a time on any device; on a GPU `cuda_graphs.py` replays several before the CPU collects
the tokens. Shapes: R steps, N sequences, E hidden size, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dojang.engine.attention import decode_attention
from dojang.engine.decoder import Decoder
from dojang.engine.kv_cache import KvCache
from dojang.engine.sampler import Truncation, sample_tokens
from dojang.types import Sampling

__all__ = ["DecodeRunner", "EagerRunner", "SampledTokens", "StepInputs", "sample", "verify_drafts"]

_LOGITS_PER_CALL = 2**20
"""Logits sampled at a time on a CPU: more would not stay in its cache, and their memory would be freed and allocated
again at every step."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Sampling parameters and random numbers of the next decode steps, per sequence."""

    samplings: Sequence[Sampling]
    uniform_RN: NDArray[np.float64]
    """Uniform random numbers, [steps, sequences]."""
    drafts: Sequence[Sequence[int]] = ()
    """Draft tokens of each sequence, which one step verifies (ngram_drafts.py); with them, the numbers
    are of the token sampled after each of them."""

    def drafted(self, drafts: Sequence[Sequence[int]]) -> "StepInputs":
        """The same, with draft tokens."""
        return replace(self, drafts=drafts)


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """Tokens and two log-probs of each, [steps, sequences]: in the distribution sampled from, and at temperature 1."""

    token_RN: NDArray[np.int64]
    logp_RN: NDArray[np.float64]
    plain_RN: NDArray[np.float64]
    count_N: NDArray[np.int64] | None = None
    """Number of tokens of each sequence; None: one for each step."""

    def by_sequence(self) -> list[list[list[Any]]]:
        """Tokens of each sequence, and both of their log-probs."""
        found = [each.T.tolist() for each in (self.token_RN, self.logp_RN, self.plain_RN)]
        if self.count_N is None:
            return found
        counts = self.count_N.tolist()
        return [[each[:count] for each, count in zip(rows, counts, strict=True)] for rows in found]


class DecodeRunner(Protocol):
    """Runs decode steps over the KV cache."""

    def num_steps(self, samplings: Sequence[Sampling], left: Sequence[int]) -> int:
        """Number of steps to run before collecting tokens; `left` is how many each sequence may still take."""

    def decode(
        self, token_N: Sequence[int], position_N: Sequence[int], inputs: StepInputs
    ) -> Callable[[], SampledTokens]:
        """Start steps for the N rows of the page table from their last tokens; the returned function waits for the
        result."""

    def can_continue(self, samplings: Sequence[Sampling]) -> bool:
        """Whether the next steps can start before the tokens of the last ones were collected."""

    def continue_decoding(
        self, kept: Sequence[int], rows: Sequence[int], inputs: StepInputs
    ) -> Callable[[], SampledTokens]:
        """Start further steps for `kept` of the sequences of the last steps, now in these rows of the page table, from
        tokens not yet collected."""


class EagerRunner:
    """One step at a time, on any device."""

    def __init__(self, decoder: Decoder, cache: KvCache) -> None:
        self._decoder, self._cache = decoder, cache

    def num_steps(self, samplings: Sequence[Sampling], left: Sequence[int]) -> int:
        return 1

    def decode(
        self, token_N: Sequence[int], position_N: Sequence[int], inputs: StepInputs
    ) -> Callable[[], SampledTokens]:
        if any(inputs.drafts):
            return verify_drafts(token_N, position_N, inputs, self._decode)
        return self._decode(token_N, position_N, range(len(token_N)), inputs)

    def _decode(
        self, token_N: Sequence[int], position_N: Sequence[int], row_N: Sequence[int], inputs: StepInputs
    ) -> Callable[[], SampledTokens]:
        attend = decode_attention(self._cache, position_N, self._decoder.shape, row_N)
        tokens_N, positions_N = (torch.tensor(each, device=self._decoder.device) for each in (token_N, position_N))
        x_NE = self._decoder.forward(tokens_N, positions_N, attend)
        sampled = sample(self._decoder.logits(x_NE), inputs)
        return lambda: sampled

    def can_continue(self, samplings: Sequence[Sampling]) -> bool:
        return False

    def continue_decoding(
        self, kept: Sequence[int], rows: Sequence[int], inputs: StepInputs
    ) -> Callable[[], SampledTokens]:
        raise NotImplementedError


def verify_drafts(
    token_N: Sequence[int],
    position_N: Sequence[int],
    inputs: StepInputs,
    decode: Callable[[Sequence[int], Sequence[int], Sequence[int], StepInputs], Callable[[], SampledTokens]],
) -> Callable[[], SampledTokens]:
    """Sample after the last token of each sequence and after each of its draft tokens, in one step; what follows a
    rejected one is dropped. `decode` starts a step for tokens at positions of rows of the page table, several in one
    row."""
    drafts = inputs.drafts
    sizes = [1 + len(draft) for draft in drafts]
    row_M = np.repeat(np.arange(len(sizes)), sizes)
    place_M = np.concatenate([np.arange(size) for size in sizes])
    token_M = [each for token, draft in zip(token_N, drafts, strict=True) for each in (token, *draft)]
    position_M = np.asarray(position_N)[row_M] + place_M
    samplings = [inputs.samplings[row] for row in row_M.tolist()]
    step = StepInputs(samplings, np.ascontiguousarray(inputs.uniform_RN[place_M, row_M][None]))
    result = decode(token_M, position_M.tolist(), row_M.tolist(), step)

    def wait() -> SampledTokens:
        found = result()
        token_RN, logp_RN, plain_RN = (
            _by_step(each[0], place_M, row_M) for each in (found.token_RN, found.logp_RN, found.plain_RN)
        )
        count_N = np.array([1 + _num_right(draft, token_RN[:, at]) for at, draft in enumerate(drafts)])
        return SampledTokens(token_RN, logp_RN, plain_RN, count_N)

    return wait


def _by_step(value_M: NDArray[Any], place_M: NDArray[np.int64], row_M: NDArray[np.int64]) -> NDArray[Any]:
    """Values as if each place were a step, [steps, sequences]; zeros past the last draft token of a sequence."""
    value_RN = np.zeros((place_M.max() + 1, row_M.max() + 1), value_M.dtype)
    value_RN[place_M, row_M] = value_M
    return value_RN


def _num_right(draft: Sequence[int], sampled: NDArray[np.int64]) -> int:
    """Number of leading draft tokens that were sampled."""
    wrong = (at for at, token in enumerate(draft) if token != sampled[at])
    return next(wrong, len(draft))


def sample(logits_NV: Tensor, inputs: StepInputs) -> SampledTokens:
    """Sample one token for each row of logits."""
    rows = max(1, _LOGITS_PER_CALL // logits_NV.shape[1]) if logits_NV.device.type == "cpu" else len(logits_NV)
    if len(logits_NV) <= rows:
        return _sample(logits_NV, inputs)
    cuts = [slice(start, start + rows) for start in range(0, len(logits_NV), rows)]
    parts = [_sample(logits_NV[cut], StepInputs(inputs.samplings[cut], inputs.uniform_RN[:, cut])) for cut in cuts]
    return SampledTokens(
        *(np.concatenate([getattr(part, name) for part in parts], 1) for name in ("token_RN", "logp_RN", "plain_RN"))
    )


def _sample(logits_NV: Tensor, inputs: StepInputs) -> SampledTokens:
    device, samplings = logits_NV.device, inputs.samplings
    truncation = None
    if any(each.truncated for each in samplings):
        truncation = Truncation(
            torch.tensor([each.top_k for each in samplings], device=device),
            torch.tensor([each.top_p for each in samplings], dtype=torch.float64, device=device),
            torch.tensor([each.min_p for each in samplings], dtype=torch.float64, device=device),
        )
    sampled = sample_tokens(
        logits_NV,
        torch.tensor([each.temperature for each in samplings], dtype=torch.float64, device=device),
        torch.from_numpy(inputs.uniform_RN[0]).to(device),
        truncation,
        _bias(samplings, logits_NV),
    )
    logprobs = (each[None].double().cpu().numpy() for each in (sampled.logp_B, sampled.plain_logp_B))
    return SampledTokens(sampled.token_B[None].cpu().numpy(), *logprobs)


def _bias(samplings: Sequence[Sampling], logits_NV: Tensor) -> Tensor | None:
    if not any(each.bias for each in samplings):
        return None
    bias_NV = torch.zeros_like(logits_NV)
    for row, each in enumerate(samplings):
        for token, value in each.bias:
            bias_NV[row, token] = value
    return bias_NV
