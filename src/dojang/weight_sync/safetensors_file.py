"""Writes safetensors files one tensor at a time.

safetensors' own `save_file` wants all tensors at once, on the CPU: a second model in memory, if each is merged from a
base weight and LoRA factors when it is read. The files are the same, byte by byte.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from dojang.core.checksum import bits
from dojang.core.lazy_weights import like

__all__ = ["CODES", "write_safetensors"]

CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.uint16: "U16",
    torch.uint8: "U8",
}
"""safetensors' names of dtypes."""


def write_safetensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors to a safetensors file; the widest dtypes first, so that all are aligned. Leaves no part of a file
    behind."""
    order = sorted(tensors, key=lambda name: (-like(tensors, name).itemsize, _rank(like(tensors, name)), name))
    header, end = {}, 0
    for name in order:
        shaped = like(tensors, name)
        start, end = end, end + shaped.numel() * shaped.itemsize
        header[name] = {"dtype": CODES[shaped.dtype], "shape": list(shaped.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    try:
        with path.open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in order:
                file.write(bits(tensors[name].cpu()).view(torch.uint8).numpy().data)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _rank(tensor: Tensor) -> int:
    """Place of a dtype among those of its size, as in safetensors' own files."""
    return -[torch.uint8, torch.uint16, torch.float16, torch.bfloat16].index(tensor.dtype) if tensor.itemsize < 4 else 0
