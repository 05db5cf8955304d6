"""Weights in files."""

import asyncio
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dojang.engine.weight_update import StagedUpdate
from dojang.protocols import Patch
from dojang.weight_sync.weight_files import WeightFiles, read


async def _nothing(update: StagedUpdate, checksum: str | None) -> None:
    pass


def begin(weight_files: WeightFiles, version: int, base: int | None = None) -> StagedUpdate:
    return weight_files.begin(version, base, _nothing, lambda: None)


def test_an_update_is_completed_from_what_there_was(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, 2), "b": torch.zeros(3)}, tmp_path / "first.safetensors")
    weight_files = WeightFiles(tmp_path, [tmp_path / "first.safetensors"])
    update = begin(weight_files, 1, 0)

    async def fill() -> None:
        await update.send({"b": torch.ones(3)})
        await update.patch([Patch("a", torch.tensor([1]), torch.tensor([5.0]))])
        await update.patch([Patch("a", torch.tensor([2]), torch.tensor([6.0]))])
        with pytest.raises(ValueError, match="no weight called c"):
            await update.send({"c": torch.ones(1)})

    asyncio.run(fill())
    path = weight_files.write(update)
    assert weight_files.loaded()["a"].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    weight_files.mark_loaded(path)
    assert {name: each.tolist() for name, each in weight_files.loaded().items()} == {
        "a": [[0.0, 5.0], [6.0, 0.0]],
        "b": [1.0, 1.0, 1.0],
    }
    weight_files.close()
    assert [each.name for each in tmp_path.iterdir()] == ["first.safetensors"]


def test_tensors_that_share_memory_can_be_sent(tmp_path: Path) -> None:
    weight_files = WeightFiles(tmp_path)
    assert not weight_files.known
    update = begin(weight_files, 1)
    shared = torch.arange(6.0).view(2, 3)
    asyncio.run(update.send({"a": shared, "b": shared, "c": shared.T}))
    found = read([weight_files.write(update)])
    assert found["b"].tolist() == shared.tolist()
    assert found["c"].tolist() == shared.T.tolist()
    weight_files.close()
