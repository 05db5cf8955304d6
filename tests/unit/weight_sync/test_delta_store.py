"""DeltaWeights: changes between two versions."""

import torch

from dojang.core.checksum import checksum
from dojang.weight_sync.delta_store import DeltaWeights
from dojang.weight_sync.in_memory import MemoryWeights


def test_changes_since_the_previous_version() -> None:
    store = DeltaWeights(torch.bfloat16)
    store.publish(0, {"a": torch.ones(4), "b": torch.ones(3), "c": torch.ones(2)})
    assert store.changes(0, 0) is None
    # 1.001 is 1 in bfloat16.
    store.publish(2, {"a": torch.tensor([1.0, 1.001, 2.0, 1.0]), "b": torch.zeros(3), "c": torch.ones(2)})
    changes = store.changes(0, 2)
    assert changes is not None
    assert list(changes.tensors) == ["b"]
    [patch] = changes.patches
    assert (patch.name, patch.index_N.tolist(), patch.value_N.tolist()) == ("a", [2], [2.0])
    assert patch.value_N.dtype is torch.bfloat16
    assert changes.checksum == checksum(store.fetch(2))
    for base, version in ((1, 2), (0, 1), (2, 2)):
        assert store.changes(base, version) is None


def test_republished_weights_have_no_changes() -> None:
    store = DeltaWeights(torch.float32)
    for _ in range(2):
        store.publish(3, {"a": torch.ones(4)})
    changes = store.changes(3, 3)
    assert changes is not None
    assert (dict(changes.tensors), list(changes.patches)) == ({}, [])


def test_factors_are_part_of_the_changes() -> None:
    store = DeltaWeights(torch.float32)
    store.publish(0, {"a": torch.ones(3, 2), "b": torch.ones(2)})
    store.publish(1, {}, {"a": (torch.tensor([[0.0], [0.0], [1.0]]), torch.tensor([[0.0, 5.0]]))})
    changes = store.changes(0, 1)
    assert changes is not None
    [patch] = changes.patches
    assert (patch.name, patch.index_N.tolist(), patch.value_N.tolist()) == ("a", [5], [6.0])
    assert changes.checksum == checksum(store.fetch(1))


def test_different_weights_have_no_changes() -> None:
    store = DeltaWeights(torch.float32)
    store.publish(0, {"a": torch.ones(3)})
    store.publish(1, {"b": torch.ones(3)})
    assert store.changes(0, 1) is None


def test_memory_store_has_no_changes() -> None:
    store = MemoryWeights(torch.float32)
    store.publish(0, {})
    store.publish(1, {})
    assert store.changes(0, 1) is None
