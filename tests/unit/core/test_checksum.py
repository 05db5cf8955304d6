"""The checksum of weights."""

import hashlib
from itertools import combinations

import pytest
import torch
from torch import Tensor

from dojang.core import checksum as module
from dojang.core.checksum import bits, checksum


def test_checksum_depends_on_bits_positions_and_names() -> None:
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}
    first = checksum(tensors)
    assert first == checksum(dict(reversed(tensors.items())))
    other = {name: tensor.clone() for name, tensor in tensors.items()}
    other["a"][1, 2] += 1e-6
    swapped = {**tensors, "a": torch.tensor([[1.0, 0.0, 2.0], [3.0, 4.0, 5.0]])}
    renamed = {"c": tensors["a"], "b": tensors["b"]}
    negative = {**tensors, "a": torch.tensor([[-0.0, 1.0, 2.0], [3.0, 4.0, 5.0]])}
    shaped = {**tensors, "a": tensors["a"].reshape(3, 2)}
    assert len({first, *(checksum(each) for each in (other, swapped, renamed, negative, shaped))}) == 6


def definition(name: str, tensor: Tensor, block: int) -> str:
    """The checksum of one weight, with Python's integers."""

    def signed(number: int) -> int:
        return (number + 2**63) % 2**64 - 2**63

    data = bits(tensor).numpy().tobytes()
    data += bytes(-len(data) % 8)
    total = 0
    for place in range(len(data) // 8):
        mixed = int.from_bytes(data[place * 8 : place * 8 + 8], "little", signed=True)
        mixed = signed(mixed * (place % block * 2 + 1) * 0x5851F42D4C957F2D)
        mixed ^= mixed >> 32
        mixed = signed(mixed * (place // block * 2 + 1) * 0x2545F4914F6CDD1D)
        mixed ^= mixed >> 29
        total = signed(total + mixed)
    return hashlib.blake2b(f"{name} {tensor.dtype} {tuple(tensor.shape)} {total}\n".encode(), digest_size=8).hexdigest()


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 31, 32, 33, 64, 100])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64, torch.uint8])
def test_checksum_is_as_defined_for_any_number_of_blocks(
    monkeypatch: pytest.MonkeyPatch, size: int, dtype: torch.dtype
) -> None:
    tensor = (torch.randn(size + 1, generator=torch.Generator().manual_seed(size)) * 50).to(dtype)[1:]  # not aligned
    monkeypatch.setattr(module, "_BLOCK", 4)
    expected = definition("a", tensor, 4)
    for blocks in (1, 2, 3, 100):
        monkeypatch.setattr(module, "_BLOCKS", {"cpu": blocks})
        assert checksum({"a": tensor}) == expected


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_pairs_of_flipped_signs_are_noticed(dtype: torch.dtype) -> None:
    tensor = torch.arange(1, 33).to(dtype)
    found = {checksum({"a": tensor})}
    for pair in combinations(range(32), 2):
        flipped = tensor.clone()
        flipped[list(pair)] *= -1
        found.add(checksum({"a": flipped}))
    assert len(found) == 1 + 32 * 31 // 2
