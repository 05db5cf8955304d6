"""WeightVersions: versions that are kept, leases, deltas and their chains, and use from several threads."""

import random
import threading

import pytest
import torch
from torch import Tensor

from dojang.core.checksum import bits, checksum
from dojang.protocols import Changes
from dojang.weight_sync.pack_receiver import LoraBase
from dojang.weight_sync.versions import WeightVersions

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def number(store: WeightVersions, version: int) -> float:
    return float(store.fetch(version)["a"][0])


def publish(store: WeightVersions, *versions: int) -> None:
    for version in versions:
        store.publish(version, {"a": torch.full((3,), float(version))})


def apply(changes: Changes, weights: dict[str, Tensor]) -> None:
    """From the definition of Changes: full tensors, then new values at flat indices."""
    for name, tensor in changes.tensors.items():
        weights[name] = tensor.clone()
    for patch in changes.patches:
        for index, value in zip(patch.index_N.tolist(), patch.value_N, strict=True):
            weights[patch.name].view(-1)[index] = value


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(bits(one[name]), bits(other[name])) for name in one)


class TestVersions:
    def test_published_version_is_a_copy_in_the_engine_dtype(self) -> None:
        store = WeightVersions(torch.bfloat16)
        weight = torch.nn.Parameter(torch.ones(3))
        store.publish(1, {"w": weight})
        with torch.no_grad():
            weight.mul_(5)
        found = store.fetch(1)["w"]
        assert (found.tolist(), found.dtype, found.requires_grad) == ([1.0, 1.0, 1.0], torch.bfloat16, False)

    def test_the_newest_versions_are_kept(self) -> None:
        store = WeightVersions(torch.float32, 2)
        with pytest.raises(LookupError, match="no weights have been published"):
            store.newest()
        with pytest.raises(LookupError, match="version 1 is not held; the store has none"):
            store.fetch(1)
        publish(store, 1, 2, 3)
        assert (store.newest(), store.held(), number(store, 2), number(store, 3)) == (3, [2, 3], 2.0, 3.0)
        with pytest.raises(LookupError, match="version 1 is not held; the store has 2, 3"):
            store.fetch(1)

    def test_a_restored_run_goes_back_to_an_older_number(self) -> None:
        store = WeightVersions(torch.float32, 2)
        publish(store, 4, 5)
        store.publish(4, {"a": torch.full((3,), 40.0)})
        assert (store.newest(), store.held(), number(store, 4)) == (4, [5, 4], 40.0)

    def test_leased_versions_are_kept_until_the_last_lease_ends(self) -> None:
        store = WeightVersions(torch.float32)
        publish(store, 1)
        with store.lease(1):
            publish(store, 2)
            with store.lease(1), store.lease(2):
                publish(store, 3, 4)
                assert store.held() == [1, 2, 4]
            assert store.held() == [1, 4]
            assert number(store, 1) == 1.0
        assert store.held() == [4]
        with pytest.raises(LookupError, match="version 1 is not held"), store.lease(1):
            pass

    def test_lease_ends_with_an_error(self) -> None:
        store = WeightVersions(torch.float32)
        publish(store, 1)
        with pytest.raises(ValueError, match="could not convert"), store.lease(1):
            publish(store, 2, "x")  # type: ignore[arg-type]
        assert store.held() == [2]

    @pytest.mark.parametrize("settings", [{"keep": 0}, {"deltas": -1}])
    def test_invalid_numbers_are_rejected(self, settings: dict[str, int]) -> None:
        with pytest.raises(ValueError, match="must be at least 1"):
            WeightVersions(torch.float32, **settings)


class TestFactors:
    B, A = torch.tensor([[0.0], [0.0], [1.0]]), torch.tensor([[0.0, 5.0]])

    def test_factors_are_added_to_the_base(self) -> None:
        store = WeightVersions(torch.float32, 2)
        store.publish(0, {"a": torch.ones(3, 2), "b": torch.ones(2)}, {"a": (self.B, self.A * 0)})
        store.publish(1, {}, {"a": (self.B, self.A)})
        assert store.fetch(0)["a"].tolist() == [[1.0, 1.0]] * 3
        assert store.fetch(1)["a"].tolist() == [[1.0, 1.0], [1.0, 1.0], [1.0, 6.0]]
        assert store.fetch(1)["b"].tolist() == [1.0, 1.0]
        assert store.checksum(1) == checksum(store.fetch(1)) != store.checksum(0)

    def test_factors_are_part_of_the_changes(self) -> None:
        store = WeightVersions(torch.float32, deltas=1)
        store.publish(0, {"a": torch.ones(3, 2), "b": torch.ones(2)})
        store.publish(1, {}, {"a": (self.B, self.A)})
        changes = store.changes(0, 1)
        assert changes is not None
        [patch] = changes.patches
        assert (patch.name, patch.index_N.tolist(), patch.value_N.tolist()) == ("a", [5], [6.0])
        assert changes.checksum == checksum(store.fetch(1))

    def test_factors_are_packed_for_receivers_of_the_base(self) -> None:
        store = WeightVersions(torch.float32, 2)
        base = {"a": torch.ones(3, 2), "b": torch.ones(2)}
        store.publish(0, base, {"a": (self.B, self.A)})
        pack = store.factors(0)
        assert pack is not None
        assert (pack.kind, pack.base_checksum, pack.checksum) == ("factors", checksum(base), store.checksum(0))
        there = LoraBase(torch.device("cpu"))
        assert not there.fits(pack)
        there.hold(base)
        assert there.fits(pack)
        assert checksum(there.merge(pack)) == store.checksum(0)
        store.publish(1, base)
        assert store.factors(1) is None

    def test_a_known_checksum_is_not_computed_again(self) -> None:
        store = WeightVersions(torch.float32)
        store.publish(0, {"a": torch.ones(3, 2)}, {"a": (self.B, self.A)}, "of the trainer")
        assert store.checksum(0) == store.pack(0).checksum == "of the trainer"

    def test_factors_of_an_unknown_weight_publish_nothing(self) -> None:
        store = WeightVersions(torch.float32)
        publish(store, 1)
        with pytest.raises(LookupError, match="factors were given for z"):
            store.publish(2, {}, {"z": (self.B, self.A)})
        assert store.held() == [1]


class TestDeltas:
    def test_changes_since_the_previous_version(self) -> None:
        store = WeightVersions(torch.bfloat16, deltas=1)
        store.publish(0, {"a": torch.ones(4), "b": torch.ones(3), "c": torch.ones(2)})
        # 1.001 is 1 in bfloat16.
        store.publish(2, {"a": torch.tensor([1.0, 1.001, 2.0, 1.0]), "b": torch.zeros(3), "c": torch.ones(2)})
        changes = store.changes(0, 2)
        assert changes is not None
        assert list(changes.tensors) == ["b"]
        [patch] = changes.patches
        assert (patch.name, patch.index_N.tolist(), patch.value_N.tolist()) == ("a", [2], [2.0])
        assert patch.value_N.dtype is torch.bfloat16
        assert changes.checksum == checksum(store.fetch(2))
        for base, version in ((1, 2), (0, 1), (2, 0)):
            assert store.changes(base, version) is None

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_chains_give_the_same_bits(self, dtype: torch.dtype) -> None:
        draw = torch.Generator().manual_seed(0)
        store = WeightVersions(dtype, 3, deltas=6)
        weights = {name: torch.randn(size, generator=draw) for name, size in (("a", (70, 40)), ("b", (9,)), ("c", ()))}
        held: dict[int, dict[str, Tensor]] = {}
        for version in range(12):
            share = (0.0, 0.002, 0.2, 0.9)[version % 4]
            for each in weights.values():
                chosen = torch.rand(each.shape, generator=draw) < share
                each.copy_(torch.where(chosen, torch.randn(each.shape, generator=draw), each))
            store.publish(version, weights)
            held[version] = {name: each.clone() for name, each in store.fetch(version).items()}
            for base in range(version + 1):
                changes = store.changes(base, version)
                if base < version - 6:
                    assert changes is None
                    continue
                assert changes is not None
                assert changes.checksum == checksum(held[version]) == store.checksum(version)
                after = {name: each.clone() for name, each in held[base].items()}
                apply(changes, after)
                assert same(after, held[version])
        middle = store.changes(9, 10)  # not the newest
        assert middle is not None
        apply(middle, held[9])
        assert same(held[9], held[10])
        assert store.changes(6, 8) is None  # version 8 is not held any more

    def test_the_last_value_of_an_element_is_sent_once(self) -> None:
        store = WeightVersions(torch.float32, deltas=4)
        for version, value in enumerate((0.0, 1.0, 2.0, 0.0)):
            tensor = torch.zeros(9)
            tensor[4], tensor[5] = value, float(version)
            store.publish(version, {"a": tensor})
        changes = store.changes(1, 3)
        assert changes is not None
        [patch] = changes.patches
        assert dict(zip(patch.index_N.tolist(), patch.value_N.tolist(), strict=True)) == {4: 0.0, 5: 3.0}

    def test_a_version_published_again_without_a_change(self) -> None:
        store = WeightVersions(torch.float32, deltas=2)
        publish(store, 3, 3)
        changes = store.changes(3, 3)
        assert changes is not None
        assert (dict(changes.tensors), list(changes.patches), changes.checksum) == ({}, [], store.checksum(3))

    def test_a_number_published_twice_has_no_old_deltas(self) -> None:
        store = WeightVersions(torch.float32, 3, deltas=9)
        publish(store, 1, 2, 3)
        store.publish(2, {"a": torch.full((3,), 20.0)})
        assert store.changes(1, 2) is None
        assert store.changes(2, 3) is None
        changes = store.changes(3, 2)
        assert changes is not None
        assert changes.tensors["a"].tolist() == [20.0] * 3

    def test_different_weights_have_no_changes(self) -> None:
        store = WeightVersions(torch.float32, deltas=3)
        publish(store, 0)
        store.publish(1, {"b": torch.ones(3)})
        store.publish(2, {"b": torch.ones(3)})
        assert store.changes(0, 1) is None
        assert store.changes(0, 2) is None
        assert store.changes(1, 2) is not None

    def test_store_without_deltas_has_no_changes(self) -> None:
        store = WeightVersions(torch.float32, 2)
        publish(store, 0, 1)
        assert store.changes(0, 1) is None
        assert store.changes(1, 1) is None


def test_threads_see_whole_versions_while_others_are_published() -> None:
    """Every element of version v is v, so a torn or freed version would show."""
    store, last, failures = WeightVersions(torch.float32, 2, deltas=3), 120, list[BaseException]()
    publish(store, 0)

    def read(seed: int) -> None:
        draw, version = random.Random(seed), 0
        held = {"a": store.fetch(0)["a"].clone()} if 0 in store.held() else {"a": torch.full((3,), -1.0)}
        try:
            while version < last:
                newest = store.newest()
                assert newest >= version
                try:
                    with store.lease(newest):
                        changes = store.changes(version, newest)
                        assert number(store, newest) == newest
                        if changes is None or draw.random() < 0.3:
                            held = {name: each.clone() for name, each in store.fetch(newest).items()}
                        else:
                            apply(changes, held)
                        assert checksum(held) == store.checksum(newest)
                except LookupError:  # dropped between newest() and lease()
                    continue
                assert held["a"].tolist() == [newest] * 3
                version = newest
        except BaseException as error:
            failures.append(error)

    readers = [threading.Thread(target=read, args=[seed]) for seed in range(4)]
    for each in readers:
        each.start()
    for version in range(1, last + 1):
        publish(store, version)
    for each in readers:
        each.join(60)
    assert not failures
    assert not any(each.is_alive() for each in readers)
    assert store.held() == [last - 1, last]
