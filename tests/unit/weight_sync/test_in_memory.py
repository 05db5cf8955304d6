import pytest
import torch

from dojang.weight_sync.in_memory import MemoryWeights


def test_published_version_is_a_copy() -> None:
    store = MemoryWeights(torch.float32)
    weight = torch.nn.Parameter(torch.ones(3))
    store.publish(1, {"w": weight})
    with torch.no_grad():
        weight.mul_(5)
    assert store.fetch(1)["w"].tolist() == [1.0, 1.0, 1.0]
    assert not store.fetch(1)["w"].requires_grad


def test_weights_are_published_in_the_engine_dtype() -> None:
    store = MemoryWeights(torch.bfloat16)
    store.publish(1, {"w": torch.ones(3)})
    assert store.fetch(1)["w"].dtype is torch.bfloat16


def test_only_the_newest_version_is_kept() -> None:
    store = MemoryWeights(torch.float32)
    with pytest.raises(LookupError, match="version 1 is not held; the store has None"):
        store.fetch(1)
    store.publish(1, {})
    store.publish(2, {})
    with pytest.raises(LookupError, match="version 1 is not held; the store has 2"):
        store.fetch(1)
