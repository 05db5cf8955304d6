"""How many tokens samples have, and how transformers' `generate` is held to it."""

from random import Random

from torch import Tensor
from transformers import StoppingCriteria

__all__ = ["Ends", "geometric"]


def geometric(random: Random, mean: int, most: int) -> int:
    """As answers are: each token is the last with the same probability."""
    length = 1
    while length < most and random.random() > 1 / mean:
        length += 1
    return length


class Ends(StoppingCriteria):
    """Ends each row at a length of its own, prompt and padding included."""

    eos_token_id = None  # having it makes `generate` pad rows that have ended

    def __init__(self, end_B: Tensor) -> None:
        self._end_B = end_B

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: object) -> Tensor:
        return input_ids.shape[1] >= self._end_B
