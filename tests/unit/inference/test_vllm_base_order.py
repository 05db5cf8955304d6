"""Requests and updates of vLLM engines at the same time, over a fake connection that records its calls."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase

from dojang.inference.vllm_base import ModelInfo, VllmBaseEngine
from dojang.inference.vllm_protocol import VllmOutput
from dojang.types import Sampling
from dojang.weight_sync.versions import WeightVersions
from dojang.weight_sync.weight_files import WeightFiles

SAMPLING = Sampling(1.0, 4)


class Noted:
    """A fake connection that samples when running and takes a while to update."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.running = asyncio.Event()
        self.running.set()
        self.release = asyncio.Event()

    async def ready(self) -> ModelInfo:
        return ModelInfo(100, 50, 0)

    async def generate(self, prompt: Sequence[int], wanted: Mapping[str, Any], salt: Callable[[], str]) -> VllmOutput:
        salted = salt()
        self.notes.append(f"draw {salted} {'running' if self.running.is_set() else 'paused'}")
        await self.running.wait()
        await self.release.wait()
        return VllmOutput((5,), (-1.0,), "length")

    async def abort(self) -> None: ...

    async def pause(self) -> None:
        self.notes.append("pause")
        self.running.clear()

    async def resume(self) -> None:
        self.notes.append("resume")
        self.running.set()

    async def update(self, info: Mapping[str, str], label: str) -> None:
        self.notes.append("begin")
        await asyncio.sleep(0.05)
        self.notes.append(f"end {'running' if self.running.is_set() else 'paused'}")

    async def state(self) -> int | None:
        return 0

    async def close(self) -> None: ...


@pytest.fixture
def make(tokenizer: PreTrainedTokenizerBase) -> Callable[[], tuple[VllmBaseEngine, Noted]]:
    def one() -> tuple[VllmBaseEngine, Noted]:
        weights = WeightVersions(torch.float32)
        weights.publish(7, {"a": torch.ones(2)})
        connection = Noted()
        return VllmBaseEngine(connection, WeightFiles(None), tokenizer, weights), connection

    return one


def test_requests_during_an_update_wait_and_get_a_new_salt(
    make: Callable[[], tuple[VllmBaseEngine, Noted]],
) -> None:
    async def play() -> tuple[list[str], str, str]:
        engine, connection = make()
        connection.release.set()
        before = engine._salt
        load = asyncio.create_task(engine.load(7))
        while "begin" not in connection.notes:
            await asyncio.sleep(0.001)
        [completion] = await engine.generate((1, 2), 1, SAMPLING)
        await load
        await engine.close()
        assert completion.version == 7
        return connection.notes, before, engine._salt

    notes, before, after = asyncio.run(play())
    assert before != after
    assert notes[-1] == f"draw {after} running"


def test_failed_load_does_not_block_the_next(make: Callable[[], tuple[VllmBaseEngine, Noted]]) -> None:
    async def play() -> int:
        engine, _ = make()
        with pytest.raises(LookupError):
            await engine.load(6)
        await engine.load(7)
        version = engine._version
        await engine.close()
        return version or 0

    assert asyncio.run(play()) == 7


def test_tied_head_need_not_be_sent(tmp_path: Any) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"model.embed_tokens.weight": torch.ones(3, 2), "lm_head.weight": torch.ones(3, 2)}, path)

    async def play(*, tied: bool) -> bool:
        taken = []

        async def take(*_: object) -> None:
            taken.append(True)

        weight_files = WeightFiles(tmp_path, [path], tied=tied)
        update = weight_files.begin(1, None, take, lambda: None)
        await update.send({"model.embed_tokens.weight": torch.zeros(3, 2)})
        try:
            await update.commit()
        except ValueError:
            return False
        return bool(taken)

    assert asyncio.run(play(tied=True))
    assert not asyncio.run(play(tied=False))
