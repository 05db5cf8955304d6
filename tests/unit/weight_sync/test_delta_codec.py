"""Delta encoding, and the receiver that applies deltas."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from dojang.core.checksum import bits, checksum
from dojang.protocols import Changes, Patch
from dojang.weight_sync.delta_codec import apply_delta, changes_at, compare, encode, gaps, indices, union
from dojang.weight_sync.delta_receiver import DeltaReceiver

CPU = torch.device("cpu")


def weights(dtype: torch.dtype = torch.bfloat16) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = {"embedding": (300, 40), "norm": (40,), "bias": (), "none": (0, 3), "layer": (90, 70)}
    return {name: torch.randn(shape, generator=draw).to(dtype) for name, shape in shapes.items()}


def changed(before: dict[str, Tensor], share: float) -> dict[str, Tensor]:
    """The next number for some, anywhere."""
    draw = torch.Generator().manual_seed(1)
    after = {name: each.clone() for name, each in before.items()}
    for each in after.values():
        bits(each).add_((torch.rand(each.numel(), generator=draw) < share).to(bits(each).dtype))
    return after


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(bits(one[name]), bits(other[name])) for name in one)


def found(before: dict[str, Tensor], after: dict[str, Tensor]) -> Changes:
    positions = compare(before, after)
    assert positions is not None
    return Changes(*changes_at(positions, after), checksum(after))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("share", [0.0, 0.0005, 0.01, 0.3, 0.6, 1.0])
def test_encoded_delta_gives_the_same_bits(dtype: torch.dtype, share: float) -> None:
    before = weights(dtype)
    after = changed(before, share)
    changes = found(before, after)
    packed = encode(changes.tensors, changes.patches)
    apply_delta(packed, before)
    assert same(before, after)
    assert changes.checksum == checksum(before)
    size = sum(each.nbytes for each in packed.values())
    assert size <= sum(each.nbytes for each in after.values())
    if share == 0.01:
        numbers = sum(each.numel() for each in after.values())
        assert size < 0.01 * numbers * (dtype.itemsize + 1) * 1.5
    if share == 0.0:
        assert not packed
    if share == 1.0:
        assert {key.partition(":")[0] for key in packed} == {"whole"}


def test_equal_values_with_other_bits_count_as_changed() -> None:
    before = {"a": torch.tensor([0.0, torch.nan, 1.0, 2.0])}
    after = {"a": torch.tensor([-0.0, torch.nan, 1.0, 2.0])}
    changes = found(before, after)
    assert [patch.index_N.tolist() for patch in changes.patches] == [[0]]
    apply_delta(encode(changes.tensors, changes.patches), before)
    assert same(before, after)


def test_different_names_shapes_or_dtypes_give_no_delta() -> None:
    before = weights()
    assert compare(before, {**before, "more": torch.ones(1)}) is None
    assert compare(before, {**before, "norm": torch.ones(41, dtype=torch.bfloat16)}) is None
    assert compare(before, weights(torch.float32)) is None


def test_union_of_a_chain_has_every_changed_element() -> None:
    chain = [
        {"a": gaps(torch.tensor([1, 400])), "b": gaps(torch.tensor([7]))},
        {"a": gaps(torch.tensor([0, 1, 70_000])), "c": None},
        {"b": None, "c": gaps(torch.tensor([2]))},
    ]
    joined = union(chain)
    assert {name: None if each is None else indices(each).tolist() for name, each in joined.items()} == {
        "a": [0, 1, 400, 70_000],
        "b": None,
        "c": None,
    }
    assert union([]) == {}


def test_elements_are_found_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dojang.weight_sync.delta_codec._CHUNK", 7)
    before = {"a": torch.zeros(50)}
    after = {"a": torch.zeros(50)}
    after["a"][[0, 6, 7, 13, 49]] = 1.0
    [patch] = found(before, after).patches
    assert patch.index_N.tolist() == [0, 6, 7, 13, 49]


@pytest.mark.parametrize(
    "index",
    [
        [],
        [0],
        [254],
        [255],
        [256, 510, 511, 65535 * 3, 65535 * 3 + 1],
        [0, 2**31 - 1, 2**31, 2**31 + 5, 2**33],
        list(range(0, 5000, 250)),
        list(range(0, 90_000_000, 65535)),
    ],
)
def test_gaps_decode_to_the_indices(index: list[int]) -> None:
    index_N = torch.tensor(index, dtype=torch.int64)
    assert torch.equal(indices(gaps(index_N)), index_N)


def test_gaps_use_the_smaller_encoding() -> None:
    assert gaps(torch.arange(0, 100_000, 100, dtype=torch.int32)).dtype == torch.uint8
    assert gaps(torch.arange(0, 100_000, 2000, dtype=torch.int32)).dtype == torch.uint16


def test_unordered_patches_are_encoded_and_the_last_counts() -> None:
    packed = encode(
        {},
        [
            Patch("a", torch.tensor([7, 2]), torch.tensor([1.0, 2.0])),
            Patch("b", torch.tensor([0]), torch.tensor([3.0])),
            Patch("a", torch.tensor([2, 0]), torch.tensor([4.0, 5.0])),
        ],
    )
    held = {"a": torch.zeros(8), "b": torch.zeros(1)}
    apply_delta(packed, held)
    assert held["a"].tolist() == [5.0, 0.0, 4.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    assert held["b"].tolist() == [3.0]


@pytest.mark.parametrize(
    ("packed", "words"),
    [
        (encode({"b": torch.ones(1)}, []), "is not a weight of the engine"),
        (encode({"a": torch.ones(5)}, []), r"shape \[5\]; the engine has \[4\]"),
        (encode({}, [Patch("a", torch.tensor([4]), torch.tensor([1.0]))]), "an index outside of a"),
    ],
)
def test_delta_for_other_weights_is_rejected(packed: dict[str, Tensor], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        apply_delta(packed, {"a": torch.zeros(4)})


class TestDeltaReceiver:
    def receive(
        self, receiver: DeltaReceiver, path: Path, expected: str, base: str = "", *, keep: bool = True
    ) -> dict[str, Tensor]:
        return dict(receiver.receive(path, expected, base=base, keep=keep, device=CPU))

    def save(self, folder: Path, tensors: Mapping[str, Tensor]) -> Path:
        path = folder / "weights.safetensors"
        save_file(dict(tensors), path)
        return path

    def test_consecutive_deltas(self, tmp_path: Path) -> None:
        receiver, now = DeltaReceiver(), weights()
        self.receive(receiver, self.save(tmp_path, now), checksum(now))
        for _ in range(3):
            before, now = now, changed(now, 0.05)
            changes = found(before, now)
            path = self.save(tmp_path, encode(changes.tensors, changes.patches))
            assert same(self.receive(receiver, path, changes.checksum, checksum(before)), now)
            path.unlink()

    def test_delta_with_another_base_is_rejected_without_change(self, tmp_path: Path) -> None:
        receiver, first, second = DeltaReceiver(), weights(), changed(weights(), 0.05)
        changes = found(first, second)
        delta = tmp_path / "delta.safetensors"
        save_file(dict(encode(changes.tensors, changes.patches)), delta)
        with pytest.raises(ValueError, match="held are none"):
            self.receive(receiver, delta, changes.checksum, checksum(first))
        self.receive(receiver, self.save(tmp_path, first), checksum(first))
        with pytest.raises(ValueError, match=f"held are {checksum(first)}"):
            self.receive(receiver, delta, changes.checksum, checksum(second))
        assert same(self.receive(receiver, delta, changes.checksum, checksum(first)), second)

    def test_wrong_checksum_drops_the_held_weights(self, tmp_path: Path) -> None:
        receiver, first = DeltaReceiver(), weights()
        self.receive(receiver, self.save(tmp_path, first), checksum(first))
        delta = self.save(tmp_path, encode({"norm": torch.ones(40)}, []))
        with pytest.raises(ValueError, match="not 0123"):
            self.receive(receiver, delta, "0123", checksum(first))
        with pytest.raises(ValueError, match="held are none"):
            self.receive(receiver, delta, "0123", checksum(first))

    def test_nothing_is_held_with_keep_false(self, tmp_path: Path) -> None:
        receiver, first = DeltaReceiver(), weights()
        path = self.save(tmp_path, first)
        assert same(self.receive(receiver, path, checksum(first), keep=False), first)
        with pytest.raises(ValueError, match="held are none"):
            self.receive(receiver, path, "", checksum(first))
