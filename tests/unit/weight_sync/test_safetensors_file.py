"""safetensors files, written one tensor at a time."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from dojang.core.lazy_weights import LazyWeight, LazyWeights, joined
from dojang.weight_sync.safetensors_file import CODES, write_safetensors


def tensors() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(0)
    found = {f"{name}.{dtype}": (99 * torch.rand(3, 5, generator=draw)).to(dtype) for dtype in CODES for name in "bä"}
    return {**found, "scalar": torch.tensor(3.0), "none": torch.zeros(0, 4), "transposed": torch.rand(4, 3).T}


def test_files_are_those_of_save_file(tmp_path: Path) -> None:
    given = tensors()
    write_safetensors(tmp_path / "own", joined(given))
    save_file({name: each.contiguous() for name, each in given.items()}, tmp_path / "theirs")
    assert (tmp_path / "own").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_a_failure_leaves_no_file(tmp_path: Path) -> None:
    def fail() -> Tensor:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        write_safetensors(tmp_path / "own", joined(tensors(), LazyWeights({"z": LazyWeight(torch.zeros(1), fail)})))
    assert list(tmp_path.iterdir()) == []
