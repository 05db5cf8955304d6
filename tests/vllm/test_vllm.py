"""What concerns the engine in this process alone."""

import asyncio
import gc
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from dojang.core.errors import ConfigError, ModelError
from dojang.inference.vllm import VllmEngine
from dojang.types import Sampling
from vllm_servers import NEEDS_VLLM, Served

pytestmark = [*NEEDS_VLLM, pytest.mark.slow]

LONG = Sampling(temperature=2.0, max_tokens=1500, seed=3, bias=((1, -100.0),))
PROMPT = tuple(range(10, 22))


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """What vLLM leaves to the garbage collector complains when it is collected: here, where that is ignored."""
    yield
    gc.collect()


def test_a_model_that_is_not_there(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="vLLM could not start"):
        VllmEngine(tmp_path / "nothing", tokenizer, None)


def test_engine_options_that_dojang_sets_are_refused(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="logprobs_mode cannot be set"):
        VllmEngine(tmp_path, tokenizer, None, logprobs_mode="raw_logprobs")


@pytest.mark.parametrize("how", ["close", "kill"])
def test_its_end_leaves_nothing_behind(kit: Served, how: str) -> None:
    before, threads = children(), vllm_threads()
    engine = kit.start_local()

    async def play() -> list[object]:
        await engine.load(7)
        asked = [asyncio.create_task(engine.generate(PROMPT, 2, replace(LONG, prompt_index=at))) for at in range(2)]
        await asyncio.sleep(1.0)
        if how == "kill":
            for process in children() - before:
                os.kill(process, signal.SIGKILL)
            results = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 30)
            with pytest.raises(RuntimeError, match="has died"):
                await engine.state()
        await asyncio.wait_for(engine.close(), 60)
        await engine.close()
        if how == "close":
            results = await asyncio.wait_for(asyncio.gather(*asked, return_exceptions=True), 10)
        with pytest.raises(RuntimeError, match="the engine is closed"):
            await engine.generate(PROMPT, 1, LONG)
        return list(results)

    results = asyncio.run(play())
    expected = asyncio.CancelledError if how == "close" else RuntimeError
    assert [type(each) for each in results] == [expected] * 2
    folder = engine._weight_files._folder
    assert folder is not None
    assert not folder.exists()
    assert vllm_threads() == threads
    assert children() <= before


def children() -> set[int]:
    """Processes that this one has started, itself or through others, and that live."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            command = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if state != "Z" and b"resource_tracker" not in command:  # Python's own, which lives as long as the process
            parents[int(path.parent.name)] = int(parent)
    found = {os.getpid()}
    while more := {process for process, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def vllm_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("vllm")]


def test_tensor_parallel_workers_draw_and_are_updated_as_one(kit: Served) -> None:
    """Two workers, each with its part of the weights: those of the model's files, then those of an update."""
    greedy = Sampling(temperature=0.0, max_tokens=24, seed=0, bias=((1, -100.0),))

    async def play(engine: VllmEngine) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        found = []
        for version in (1, 2):
            await engine.load(version)
            (drawn,) = await engine.generate(PROMPT, 1, greedy)
            found.append((drawn.tokens, drawn.logprobs))
        return found

    async def divided() -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        engine = kit.start_local(tensor_parallel_size=2)
        try:
            return await asyncio.wait_for(play(engine), 300)
        finally:
            await engine.close()

    alone, two = asyncio.run(play(kit.local())), asyncio.run(divided())
    for (tokens, logprobs), (same_tokens, same_logprobs) in zip(alone, two, strict=True):
        assert same_tokens == tokens
        # Single precision; each token's scores are sums of two parts over two layers.
        assert same_logprobs == pytest.approx(logprobs, abs=1e-4)
    assert alone[0] != alone[1]
