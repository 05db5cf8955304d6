"""Weights that go to real vLLM as deltas."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

import httpx
import pytest
import torch
from torch import Tensor

from dojang.core.checksum import checksum
from dojang.inference.vllm_base import VllmBaseEngine
from dojang.types import Completion, Metrics, Sampling
from dojang.weight_sync.weight_files import DeltaWeightFiles
from vllm_servers import NEEDS_VLLM, Served

pytestmark = [*NEEDS_VLLM, pytest.mark.slow]

T = TypeVar("T")
WARM = Sampling(temperature=1.0, max_tokens=12, seed=3)
PROMPT = tuple(range(10, 22))


def after(before: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """What a training step with a small learning rate might make of weights: some numbers of all, all of one."""
    draw = torch.Generator().manual_seed(seed)
    fresh = {}
    for name, each in before.items():
        chosen = torch.rand(each.shape, generator=draw) < (1.0 if name == "model.norm.weight" else 0.02)
        fresh[name] = torch.where(chosen, each + torch.randn(each.shape, generator=draw), each)
    return fresh


@pytest.fixture
def make(
    request: pytest.FixtureRequest, kit: Served, monkeypatch: pytest.MonkeyPatch
) -> Callable[[bool], VllmBaseEngine]:
    """An engine that is sent deltas, or all weights."""
    kit.weights.publish(30, dict(kit.weights.fetch(0)))
    for version in (31, 32, 33):
        kit.weights.publish(version, after(dict(kit.weights.fetch(version - 1)), version))

    def one(delta: bool) -> VllmBaseEngine:
        if request.param == "remote":
            return kit.remote(weight_sync="delta" if delta else "full")
        engine = kit.local()  # it is started once, for all tests
        monkeypatch.setattr(engine, "_weight_files", DeltaWeightFiles(None) if delta else engine._weight_files)
        return engine

    return one


def run(engine: VllmBaseEngine, kept: bool, play: Callable[[VllmBaseEngine], Awaitable[T]]) -> T:
    async def whole() -> T:
        try:
            return await asyncio.wait_for(play(engine), 120)
        finally:
            if not kept:
                await engine.close()

    return asyncio.run(whole())


@pytest.mark.parametrize("make", ["vllm", "remote"], indirect=True)
def test_a_model_updated_by_deltas_draws_what_one_updated_whole_draws(
    make: Callable[[bool], VllmBaseEngine], kit: Served, request: pytest.FixtureRequest
) -> None:
    async def play(engine: VllmBaseEngine) -> tuple[list[Metrics], list[Completion]]:
        figures, drawn = [], []
        for version in (30, 31, 32, 33):
            figures.append(await engine.load(version))
            drawn += await engine.generate(PROMPT, 2, WARM)
        assert await engine.checksum() == checksum(kit.weights.fetch(33))
        return figures, drawn

    kept = request.node.callspec.params["make"] == "vllm"
    full, expected = run(make(False), kept, play)
    sent, drawn = run(make(True), kept, play)
    assert [each["weights/whole"] for each in full] == [1.0, 1.0, 1.0, 1.0]
    assert [each["weights/whole"] for each in sent] == [1.0, 0.0, 0.0, 0.0]
    assert all(each["weights/bytes"] < 0.1 * full[0]["weights/bytes"] for each in sent[1:])
    assert [each.tokens for each in drawn] == [each.tokens for each in expected]
    assert len({each.tokens for each in expected}) > 4  # they do differ from version to version
    for one, other in zip(drawn, expected, strict=True):
        assert one.version == other.version
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


@pytest.mark.parametrize("make", ["remote"], indirect=True)
def test_a_server_that_keeps_something_else_is_sent_all(
    make: Callable[[bool], VllmBaseEngine], kit: Served, caplog: pytest.LogCaptureFixture
) -> None:
    async def play(engine: VllmBaseEngine) -> list[Metrics]:
        await engine.load(30)
        await engine.load(31)
        other = kit.remote()  # which does not ask vLLM to keep anything
        await other.load(5)
        await other.close()
        # The first engine could see that by the version; as if it had not:
        label = {"new_version": "31"}
        httpx.post(f"{kit.server().url}/update_weight_version", json=label).raise_for_status()
        figures = [await engine.load(32), await engine.load(33)]
        [one] = await engine.generate(PROMPT, 1, WARM)
        assert one.version == 33
        return figures

    with caplog.at_level(logging.WARNING, "dojang"):
        figures = run(make(True), False, play)
    assert [each["weights/whole"] for each in figures] == [1.0, 0.0]
    assert "sending the full weights of version 32 instead of a delta" in caplog.text
    assert "held are none" in caplog.text
