"""Engines of a run: which settings the workflow decides."""

import asyncio
from pathlib import Path

import pytest
import torch

from dojang.build.local import load_tokenizer, make_engine, numerics, prepare_torch
from dojang.config import recipe as recipes
from dojang.engine.torch_engine import TorchEngine
from dojang.models import resolve
from dojang.weight_sync.versions import WeightVersions


@pytest.mark.parametrize(("recipe", "caches"), [("quickstart", False), ("quickstart-frozen-lake", True)])
def test_engines_of_environments_have_a_prefix_cache_on_a_cpu(recipe: str, *, caches: bool) -> None:
    config = recipes.load(recipe, ["model.device=cpu"])
    source = resolve(config.model.name)
    tokenizer, _ = load_tokenizer(source)
    engine = make_engine(config, numerics(config), source, None, tokenizer, WeightVersions(torch.float32), alone=True)
    assert isinstance(engine, TorchEngine)
    assert engine._scheduler._prefix_cache.enabled == caches
    asyncio.run(engine.close())


def test_memory_that_a_run_does_not_use_is_not_written() -> None:
    """Deterministic algorithms would make torch.empty write: an engine would take its whole KV cache when it starts."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    try:
        prepare_torch(torch.device("cpu"))
        before = resident()
        kept = torch.empty(2**30, dtype=torch.uint8)
        assert resident() - before < len(kept) // 4
    finally:
        torch.use_deterministic_algorithms(False)
