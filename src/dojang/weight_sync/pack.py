"""One weight update as bytes: a safetensors stream that can be sent over any connection.

    full      all weights; with LoRA, the base weights and the factors
    delta     changed elements since a base version (delta_codec.py)
    factors   LoRA factors alone, for a receiver that holds the base weights

The metadata name the version, the base version, and the checksums of the weights before and after. A digest covers all
metadata and tensors: `decode` accepts exactly what `encode` made, so a pack that was damaged on the way is not applied.
"""

import hashlib
import json
import math
import threading
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch
from torch import Tensor

from dojang.core.checksum import bits, checksum
from dojang.core.lazy_weights import LazyWeights, joined, like
from dojang.protocols import Factors, Patch
from dojang.weight_sync.delta_codec import encode as encode_delta
from dojang.weight_sync.delta_codec import indices
from dojang.weight_sync.safetensors_file import CODES

__all__ = ["Buffer", "Pack", "PackKind", "decode", "encode", "encode_parts"]

PackKind = Literal["full", "delta", "factors"]
Buffer = bytes | bytearray | memoryview

_DTYPES = {code: dtype for dtype, code in CODES.items()}
_MAX_HEADER = 100_000_000
"""Bytes; the limit of safetensors."""
_TENSORS: dict[str, set[str]] = {
    "full": {"whole", "lora_b", "lora_a"},
    "delta": {"whole", "gap", "value"},
    "factors": {"lora_b", "lora_a"},
}
"""Kinds of tensors in each kind of pack."""
_warnings_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Pack:
    """One weight update."""

    kind: PackKind
    version: int
    base: int | None
    """Version that a delta starts from, or whose base weights the factors are added to; None for full weights."""
    base_checksum: str
    """Checksum of the weights of `base`; for factors, of the base weights of LoRA; empty for full weights."""
    checksum: str
    """Checksum of all weights after the update, with factors merged."""
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    patches: Sequence[Patch] = ()
    factors: Factors = field(default_factory=dict)


def encode(pack: Pack) -> bytes:
    """Encode a pack as safetensors bytes."""
    return b"".join(encode_parts(pack))


def encode_parts(pack: Pack) -> list[Buffer]:
    """Encode a pack as consecutive buffers. Those of weights on a CPU are not copied."""
    named = _named_tensors(pack)
    header = _header(_metadata(pack), named)
    # Full weights have been summed already; `decode` sums them again.
    content = pack.checksum if pack.kind == "full" and not pack.factors else checksum(named)
    header["__metadata__"]["digest"] = _digest(header, content)
    text = _dump(header)
    data = (bits(named[name].cpu()).view(torch.uint8).numpy().data for name in named)
    return [len(text).to_bytes(8, "little") + text, *data]


def decode(data: Buffer) -> Pack:
    """Decode a pack; its tensors share the memory of `data`. ValueError if anything differs from what `encode` made."""
    header, body = _split(data)
    named = _read_tensors(header, body)
    metadata = header["__metadata__"]
    digest = metadata.popitem() if metadata else None
    if digest != ("digest", _digest(header, _content(metadata, named))):
        raise ValueError("a weight pack is damaged: its digest does not match its content")
    pack = _pack(metadata, named)
    if _metadata(pack) != metadata:
        raise ValueError("a weight pack has other metadata than its kind needs")
    return pack


def _metadata(pack: Pack) -> dict[str, str]:
    base = "" if pack.base is None else str(pack.base)
    return {
        "format": "dojang weights 1",
        "kind": pack.kind,
        "version": str(pack.version),
        "base": base,
        "base_checksum": pack.base_checksum,
        "checksum": pack.checksum,
    }


def _named_tensors(pack: Pack) -> LazyWeights:
    """Tensors by their names in the stream; the widest dtypes first, so that all are aligned."""
    factors = {f"lora_b:{name}": b for name, (b, _) in pack.factors.items()}
    factors |= {f"lora_a:{name}": a for name, (_, a) in pack.factors.items()}
    named = joined(encode_delta(pack.tensors, pack.patches), factors)
    order = sorted(named, key=lambda name: (-like(named, name).itemsize, name))
    return LazyWeights({name: named.weights[name] for name in order})


def _header(metadata: Mapping[str, str], named: Mapping[str, Tensor]) -> dict[str, Any]:
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name in named:
        shaped = like(named, name)
        start, end = end, end + shaped.numel() * shaped.itemsize
        header[name] = {"dtype": CODES[shaped.dtype], "shape": list(shaped.shape), "data_offsets": [start, end]}
    return header


def _content(metadata: Mapping[str, Any], named: Mapping[str, Tensor]) -> str:
    """Checksum of all tensors. For full weights without factors it is that of the weights."""
    whole = metadata.get("kind") == "full" and all(name.startswith("whole:") for name in named)
    return checksum({name.removeprefix("whole:"): tensor for name, tensor in named.items()} if whole else named)


def _digest(header: Mapping[str, Any], content: str) -> str:
    """Digest of the header, which has none yet, and of all tensors."""
    return hashlib.blake2b(_dump(header) + content.encode(), digest_size=16).hexdigest()


def _dump(header: Mapping[str, Any]) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def _split(data: Buffer) -> tuple[dict[str, Any], memoryview]:
    view = memoryview(data).cast("B")
    size = int.from_bytes(view[:8], "little")
    if len(view) < 8 or size > min(len(view) - 8, _MAX_HEADER):
        raise ValueError(f"a weight pack of {len(view)} bytes is cut short")
    text = bytes(view[8 : 8 + size])
    try:
        header = json.loads(text)
        same = isinstance(header, dict) and _dump(header) == text
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a weight pack has an unreadable header: {error}") from error
    if not same or not isinstance(header.get("__metadata__"), dict):
        raise ValueError("a weight pack has a header that is not in its only valid form")
    return header, view[8 + size :]


def _read_tensors(header: Mapping[str, Any], body: memoryview) -> dict[str, Tensor]:
    named: dict[str, Tensor] = {}
    at = 0
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape = _DTYPES[entry["dtype"]], entry["shape"]
            if not all(type(size) is int and size >= 0 for size in (*shape, *entry["data_offsets"])):
                raise ValueError("sizes must not be negative")
            count = math.prod(shape)
            start, at = at, at + count * dtype.itemsize
            if entry["data_offsets"] != [start, at] or len(entry) != 3 or at > len(body):
                raise ValueError("tensors must follow each other")
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"a weight pack describes {name} as {entry}: {error}") from error
        named[name] = _tensor(body, start, count, dtype).reshape(shape)
    if at != len(body):
        raise ValueError(f"a weight pack has {len(body)} bytes of tensors; its header describes {at}")
    return named


def _tensor(body: memoryview, start: int, count: int, dtype: torch.dtype) -> Tensor:
    if not count:
        return torch.empty(0, dtype=dtype)
    with _warnings_lock, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given buffer is not writable")  # packs are only read
        return torch.frombuffer(body, dtype=dtype, count=count, offset=start)


def _pack(metadata: Mapping[str, str], named: Mapping[str, Tensor]) -> Pack:
    kind, version, base, base_checksum, sum_after = (
        metadata.get(key, "") for key in ("kind", "version", "base", "base_checksum", "checksum")
    )
    if kind not in _TENSORS or not all(isinstance(each, str) for each in metadata.values()) or not sum_after:
        raise ValueError(f"a weight pack has unknown metadata: {dict(metadata)}")
    if not ((kind == "full") == (base == "") == (base_checksum == "")):
        raise ValueError(f"a weight pack of kind {kind} has base version {base!r} with checksum {base_checksum!r}")
    by_kind: dict[str, dict[str, Tensor]] = {each: {} for each in ("whole", "gap", "value", "lora_b", "lora_a")}
    for key, tensor in named.items():
        tensor_kind, _, name = key.partition(":")
        if tensor_kind not in _TENSORS[kind]:
            raise ValueError(f"a weight pack of kind {kind} has a tensor {key}")
        by_kind[tensor_kind][name] = tensor
    whole, gap, value, b, a = by_kind.values()
    if gap.keys() != value.keys() or gap.keys() & whole.keys() or b.keys() != a.keys():
        raise ValueError("a weight pack has tensors that do not belong together")
    return Pack(
        cast(PackKind, kind),
        int(version),
        int(base) if base else None,
        base_checksum,
        sum_after,
        whole,
        [_patch(name, gap[name], value[name]) for name in gap],
        {name: _factors(name, b[name], a[name]) for name in b},
    )


def _patch(name: str, gap_M: Tensor, value_N: Tensor) -> Patch:
    if gap_M.dtype not in (torch.uint8, torch.uint16) or gap_M.dim() != 1 or not value_N.is_floating_point():
        raise ValueError(f"a weight pack has indices of {name} of type {gap_M.dtype}, values of {value_N.dtype}")
    index_N = indices(gap_M)
    if index_N.shape != value_N.shape or bool((index_N[1:] <= index_N[:-1]).any()):
        raise ValueError(f"a weight pack has {len(index_N)} indices and {list(value_N.shape)} values of {name}")
    small = torch.int32 if not len(index_N) or int(index_N[-1]) < 2**31 else torch.int64
    return Patch(name, index_N.to(small), value_N)


def _factors(name: str, b: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    if b.dim() != 2 or a.dim() != 2 or b.shape[1] != a.shape[0] or b.dtype != a.dtype or not b.is_floating_point():
        raise ValueError(f"a weight pack has LoRA factors of {name} with shapes {list(b.shape)} and {list(a.shape)}")
    return b, a
