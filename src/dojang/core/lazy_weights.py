"""Weights that are made one at a time, when they are read.

For weights that are computed from others, such as a base model with LoRA adapters merged: all at once they would take
as much memory as a second model, one by one they take that of a single tensor.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["LazyWeight", "LazyWeights", "joined", "like"]


class LazyWeight(NamedTuple):
    """How to make one weight."""

    like: "Tensor"
    """A tensor with its shape and dtype, such as one on the meta device."""
    make: "Callable[[], Tensor]"


class LazyWeights(Mapping[str, "Tensor"]):
    """Named weights, each made whenever it is read, and not kept."""

    def __init__(self, weights: Mapping[str, LazyWeight]) -> None:
        self.weights = weights

    def __getitem__(self, name: str) -> "Tensor":
        return self.weights[name].make()

    def __iter__(self) -> Iterator[str]:
        return iter(self.weights)

    def __len__(self) -> int:
        return len(self.weights)

    def __contains__(self, name: object) -> bool:
        return name in self.weights  # Mapping's would make the weight


def like(tensors: "Mapping[str, Tensor]", name: str) -> "Tensor":
    """Tensor with the shape and dtype of a weight; a lazy weight is not made for it."""
    return tensors.weights[name].like if isinstance(tensors, LazyWeights) else tensors[name]


def joined(*some: "Mapping[str, Tensor]") -> LazyWeights:
    """Weights of several mappings; the last one that has a name counts."""
    return LazyWeights({name: weight for each in some for name, weight in _lazy(each).items()})


def _lazy(tensors: "Mapping[str, Tensor]") -> Mapping[str, LazyWeight]:
    if isinstance(tensors, LazyWeights):
        return tensors.weights
    return {name: LazyWeight(tensor, lambda tensor=tensor: tensor) for name, tensor in tensors.items()}  # type: ignore[misc]
