"""Turns of decoding: a token more for every slot in use, and how likely it was.

On a GPU (`cuda_graphs.py`) several turns are taken before anybody looks at what was drawn; here it is one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dojang.engine.attention import over_slots
from dojang.engine.decoder import Decoder
from dojang.engine.kv_cache import Slots
from dojang.engine.sampler import Limits, sample_tokens
from dojang.types import Sampling

__all__ = ["Drawn", "EagerSteps", "Steps", "Turn", "draw"]

_SCORES = 2**20
"""A processor looks at so many scores at a time: more would not stay in its cache, and the memory for them would be
given back and asked for again at every turn."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What the next tokens of some sequences depend on, a row for each."""

    samplings: Sequence[Sampling]
    uniform_RN: NDArray[np.float64]
    """Random numbers for so many turns."""


@dataclass(frozen=True, slots=True)
class Drawn:
    """Tokens and their log-probs, [turns, rows]: in the distribution they were drawn from, and in the model's own."""

    token_RN: NDArray[np.int64]
    logp_RN: NDArray[np.float64]
    plain_RN: NDArray[np.float64]


class Steps(Protocol):
    """Decodes what is in the slots."""

    def turns(self, samplings: Sequence[Sampling], left: Sequence[int]) -> int:
        """How many turns to take before looking, if sequences may still get so many tokens."""

    def take(self, token_N: Sequence[int], position_N: Sequence[int], turn: Turn) -> Callable[[], Drawn]:
        """Begin to draw for the first N slots, whose newest tokens these are; what is returned waits for the end."""

    def goes_on(self, samplings: Sequence[Sampling]) -> bool:
        """Whether it can go on with such sequences before anybody has seen their newest tokens."""

    def go_on(self, kept: Sequence[int], turn: Turn) -> Callable[[], Drawn]:
        """Begin to draw for these of the same slots again, if it can."""

    def forget(self) -> None:
        """Give back whatever memory is kept."""


class EagerSteps:
    """One turn at a time, on any device."""

    def __init__(self, decoder: Decoder, slots: Slots) -> None:
        self._decoder, self._slots = decoder, slots

    def turns(self, samplings: Sequence[Sampling], left: Sequence[int]) -> int:
        return 1

    def take(self, token_N: Sequence[int], position_N: Sequence[int], turn: Turn) -> Callable[[], Drawn]:
        attend = over_slots(self._slots, position_N, self._decoder.shape)
        words_N, places_N = (torch.tensor(each, device=self._decoder.device) for each in (token_N, position_N))
        x_NE = self._decoder.forward(words_N, places_N, attend)
        drawn = draw(self._decoder.logits(x_NE), turn)
        return lambda: drawn

    def goes_on(self, samplings: Sequence[Sampling]) -> bool:
        return False

    def go_on(self, kept: Sequence[int], turn: Turn) -> Callable[[], Drawn]:
        raise NotImplementedError

    def forget(self) -> None:
        return None


def draw(logits_NV: Tensor, turn: Turn) -> Drawn:
    """One token for each row of scores."""
    most = max(1, _SCORES // logits_NV.shape[1]) if logits_NV.device.type == "cpu" else len(logits_NV)
    if len(logits_NV) <= most:
        return _draw(logits_NV, turn)
    cuts = [slice(start, start + most) for start in range(0, len(logits_NV), most)]
    parts = [_draw(logits_NV[cut], Turn(turn.samplings[cut], turn.uniform_RN[:, cut])) for cut in cuts]
    return Drawn(
        *(np.concatenate([getattr(part, name) for part in parts], 1) for name in ("token_RN", "logp_RN", "plain_RN"))
    )


def _draw(logits_NV: Tensor, turn: Turn) -> Drawn:
    device, samplings = logits_NV.device, turn.samplings
    limits = None
    if any(each.truncated for each in samplings):
        limits = Limits(
            torch.tensor([each.top_k for each in samplings], device=device),
            torch.tensor([each.top_p for each in samplings], dtype=torch.float64, device=device),
            torch.tensor([each.min_p for each in samplings], dtype=torch.float64, device=device),
        )
    drawn = sample_tokens(
        logits_NV,
        torch.tensor([each.temperature for each in samplings], dtype=torch.float64, device=device),
        torch.from_numpy(turn.uniform_RN[0]).to(device),
        limits,
        _bias(samplings, logits_NV),
    )
    numbers = (each[None].double().cpu().numpy() for each in (drawn.logp_B, drawn.plain_logp_B))
    return Drawn(drawn.token_B[None].cpu().numpy(), *numbers)


def _bias(samplings: Sequence[Sampling], logits_NV: Tensor) -> Tensor | None:
    if not any(each.bias for each in samplings):
        return None
    bias_NV = torch.zeros_like(logits_NV)
    for place, each in enumerate(samplings):
        for token, value in each.bias:
            bias_NV[place, token] = value
    return bias_NV
