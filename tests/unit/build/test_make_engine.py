"""Engines of a run: which settings the workflow decides."""

import asyncio

import pytest
import torch

from dojang.build.local import load_tokenizer, make_engine, numerics
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
