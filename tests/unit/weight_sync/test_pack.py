"""Packs: encoded and decoded without loss, and refused when anything in them is wrong."""

import json
import random
import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
from safetensors.torch import load
from torch import Tensor

from dojang.core.checksum import bits, checksum
from dojang.protocols import Patch
from dojang.weight_sync import pack as module
from dojang.weight_sync.pack import Pack, decode, encode, encode_parts
from weight_soak import DAMAGES, damage

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
SUMS = {"base_checksum": "0011223344556677", "checksum": "8899aabbccddeeff"}


def tensors(dtype: torch.dtype) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    shapes = {"embedding": (30, 7), "norm": (5,), "bias": (), "none": (0, 3)}
    return {name: torch.randn(shape, generator=draw).to(dtype) for name, shape in shapes.items()}


def full(dtype: torch.dtype = torch.bfloat16) -> Pack:
    return Pack("full", 3, None, "", checksum(tensors(dtype)), tensors(dtype))


def delta(dtype: torch.dtype = torch.bfloat16) -> Pack:
    patches = [
        Patch("layer", torch.tensor([0, 3, 70_000]), torch.tensor([1.0, -0.0, torch.nan]).to(dtype)),
        Patch("norm", torch.tensor([4]), torch.tensor([9.0]).to(dtype)),
    ]
    return Pack("delta", 7, 5, *SUMS.values(), {"embedding": tensors(dtype)["embedding"]}, patches)


def factors(dtype: torch.dtype = torch.bfloat16) -> Pack:
    pair = torch.randn(6, 2).to(dtype), torch.randn(2, 4).to(dtype)
    return Pack("factors", 7, 0, *SUMS.values(), factors={"layer": pair})


def full_with_factors(dtype: torch.dtype = torch.bfloat16) -> Pack:
    pair = torch.randn(30, 2), torch.randn(2, 7)
    return Pack("full", 3, None, "", SUMS["checksum"], tensors(dtype), factors={"embedding": pair})


KINDS = [full, delta, factors, full_with_factors]


def content(pack: Pack) -> dict[str, Any]:
    named = {f"t {name}": each for name, each in pack.tensors.items()}
    for patch in pack.patches:
        named |= {f"i {patch.name}": patch.index_N.long(), f"v {patch.name}": patch.value_N}
    for name, (b, a) in pack.factors.items():
        named |= {f"b {name}": b, f"a {name}": a}
    return {name: (each.dtype, each.shape, bits(each).tolist()) for name, each in named.items()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("writable", [True, False])
def test_decoded_pack_is_the_encoded_one(
    make: Callable[[torch.dtype], Pack], dtype: torch.dtype, writable: bool
) -> None:
    pack = make(dtype)
    data = encode(pack)
    assert data == b"".join(encode_parts(pack))
    found = decode(bytearray(data) if writable else data)
    assert content(found) == content(pack)
    for name in ("kind", "version", "base", "base_checksum", "checksum"):
        assert getattr(found, name) == getattr(pack, name)


@pytest.mark.parametrize("make", KINDS)
def test_safetensors_reads_packs(make: Callable[[], Pack]) -> None:
    pack = make()
    found = load(encode(pack))
    for name, tensor in pack.tensors.items():
        assert torch.equal(bits(found[f"whole:{name}"]), bits(tensor))
    for patch in pack.patches:
        assert torch.equal(bits(found[f"value:{patch.name}"]), bits(patch.value_N))
    for name, (b, a) in pack.factors.items():
        assert torch.equal(found[f"lora_b:{name}"], b)
        assert torch.equal(found[f"lora_a:{name}"], a)


def test_unchanged_weights_make_a_pack_without_tensors() -> None:
    found = decode(encode(Pack("delta", 7, 5, *SUMS.values())))
    assert (dict(found.tensors), list(found.patches), dict(found.factors)) == ({}, [], {})


def test_full_weights_with_another_checksum_are_refused() -> None:
    data = encode(Pack("full", 3, None, "", SUMS["checksum"], tensors(torch.float32)))
    with pytest.raises(ValueError, match="its digest does not match"):
        decode(data)


def test_large_weights_are_not_copied() -> None:
    weight = torch.zeros(1000, dtype=torch.bfloat16)
    parts = encode_parts(Pack("full", 1, None, "", SUMS["checksum"], {"a": weight}))
    weight += 1
    assert bytes(parts[1]) == weight.view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("make", [delta, factors])
def test_damaged_packs_are_refused(make: Callable[[], Pack], kind: str) -> None:
    data, draw = encode(make()), random.Random(0)
    for _ in range(100):
        damaged = damage(data, kind, draw)
        assert damaged != data
        with pytest.raises(ValueError, match="a weight pack"):
            decode(damaged)


def rewritten(pack: Pack, change: Callable[[dict[str, Any]], None]) -> bytes:
    """A pack with another header and a digest that fits it, as a sender with a bug would make it."""
    data = encode(pack)
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    change(header)
    header["__metadata__"].pop("digest")
    named = load(data)
    order = {name: named[name] for name in header if name in named}
    header["__metadata__"]["digest"] = module._digest(header, module._content(header["__metadata__"], order))
    text = module._dump(header)
    return struct.pack("<Q", len(text)) + text + data[8 + size :]


def set_metadata(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header["__metadata__"].update(values)


def set_entry(name: str, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda header: header[name].update(values)


@pytest.mark.parametrize(
    ("make", "change", "words"),
    [
        (delta, set_metadata(kind="other"), "unknown metadata"),
        (delta, set_metadata(kind="full"), "base version '5'"),
        (delta, set_metadata(kind="factors"), "of kind factors has a tensor"),
        (factors, set_metadata(kind="delta"), "of kind delta has a tensor"),
        (delta, set_metadata(version="07"), "other metadata"),
        (delta, set_metadata(version="x"), "invalid literal"),
        (delta, set_metadata(base=""), "base version ''"),
        (delta, set_metadata(base_checksum=""), "with checksum ''"),
        (delta, set_metadata(checksum=""), "unknown metadata"),
        (delta, set_metadata(format="dojang weights 2"), "other metadata"),
        (delta, set_metadata(more="x"), "other metadata"),
        (delta, set_metadata(version=7), "unknown metadata"),
        (full, set_entry("whole:norm", dtype="I32"), "describes whole:norm"),
        (full, set_entry("whole:norm", shape=[4]), "describes whole:norm"),
        (full, set_entry("whole:norm", shape=[-5]), "describes whole:norm"),
        (full, set_entry("whole:norm", shape=[True, 5]), "describes whole:norm"),
        (full, set_entry("whole:norm", shape=5), "describes whole:norm"),
        (full, set_entry("whole:norm", more=1), "describes whole:norm"),
        (full, set_entry("whole:norm", data_offsets=[422.0, 432]), "describes whole:norm"),
        (full, set_entry("whole:norm", data_offsets=[0, 10]), "describes whole:norm"),
    ],
)
def test_wrong_headers_are_refused(
    make: Callable[[], Pack], change: Callable[[dict[str, Any]], None], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        decode(rewritten(make(), change))


def stream(pack: Pack, named: dict[str, Tensor]) -> bytes:
    """A pack's stream with other tensors, and a digest that fits."""
    named = dict(sorted(named.items(), key=lambda item: -item[1].itemsize))
    header = module._header(module._metadata(pack), named)
    header["__metadata__"]["digest"] = module._digest(header, module._content(header["__metadata__"], named))
    text = module._dump(header)
    data = b"".join(each.view(torch.uint8).numpy().tobytes() for each in named.values())
    return struct.pack("<Q", len(text)) + text + data


ONE, GAP = torch.ones(1), torch.ones(1, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("make", "named", "words"),
    [
        (delta, {"gap:a": GAP}, "do not belong together"),
        (delta, {"value:a": ONE}, "do not belong together"),
        (delta, {"gap:a": GAP, "value:a": ONE, "whole:a": ONE}, "do not belong together"),
        (delta, {"gap:a": GAP, "value:a": torch.ones(2)}, r"1 indices and \[2\] values of a"),
        (delta, {"gap:a": torch.tensor([3, 0], dtype=torch.uint8), "value:a": torch.ones(2)}, "indices and"),
        (delta, {"gap:a": ONE, "value:a": ONE}, "indices of a of type"),
        (delta, {"gap:a": GAP, "value:a": GAP}, "values of torch.uint8"),
        (delta, {"lora_a:a": ONE}, "of kind delta has a tensor lora_a:a"),
        (factors, {"lora_a:a": torch.ones(1, 1)}, "do not belong together"),
        (factors, {"lora_b:a": torch.ones(3, 2), "lora_a:a": torch.ones(1, 3)}, "LoRA factors of a"),
        (factors, {"lora_b:a": torch.ones(3), "lora_a:a": torch.ones(3)}, "LoRA factors of a"),
        (factors, {"lora_b:a": torch.ones(3, 2), "lora_a:a": torch.ones(2, 3).half()}, "LoRA factors of a"),
        (full, {"gap:a": GAP, "value:a": ONE}, "of kind full has a tensor value:a"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(make: Callable[[], Pack], named: dict[str, Tensor], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        decode(stream(make(), named))


@pytest.mark.parametrize("data", [b"", b"\0" * 8, b"\xff" * 16, struct.pack("<Q", 8) + b"{}      ", b"<html>" * 99])
def test_other_data_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="a weight pack"):
        decode(data)
