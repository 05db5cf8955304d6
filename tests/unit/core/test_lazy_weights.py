"""Weights that are made when they are read."""

import pytest
import torch
from torch import Tensor

from dojang.core.checksum import checksum
from dojang.core.lazy_weights import LazyWeight, LazyWeights, joined, like


def counted(made: list[str], **values: float) -> LazyWeights:
    def make(name: str, value: float) -> Tensor:
        made.append(name)
        return torch.full((2, 3), value)

    shaped = torch.empty(2, 3, device="meta")
    return LazyWeights(
        {name: LazyWeight(shaped, lambda name=name, value=value: make(name, value)) for name, value in values.items()}  # type: ignore[misc]
    )


def test_weights_are_made_only_when_they_are_read() -> None:
    made: list[str] = []
    weights = counted(made, a=1.0, b=2.0)
    assert (list(weights), len(weights), "a" in weights, "c" in weights) == (["a", "b"], 2, True, False)
    assert like(weights, "b").shape == (2, 3)
    both = joined(weights, {"c": torch.zeros(1)})
    assert made == []
    assert both["b"].tolist() == [[2.0] * 3] * 2
    assert weights["b"].tolist() == [[2.0] * 3] * 2
    assert made == ["b", "b"]
    with pytest.raises(KeyError):
        weights["c"]


def test_the_last_mapping_counts() -> None:
    found = joined({"a": torch.zeros(1), "b": torch.zeros(1)}, counted([], b=2.0), {"b": torch.ones(4)})
    assert {name: each.tolist() for name, each in found.items()} == {"a": [0.0], "b": [1.0] * 4}
    assert like(found, "b").shape == (4,)


def test_a_mapping_that_changes_later_changes_nothing() -> None:
    given = {"a": torch.zeros(1)}
    found = joined(given)
    given["a"] = torch.ones(1)
    assert found["a"].tolist() == [0.0]


def test_the_checksum_is_that_of_the_weights() -> None:
    weights = counted([], a=1.0, b=2.0)
    assert checksum(weights) == checksum(dict(weights))
