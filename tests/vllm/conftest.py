"""Engines that use vLLM."""

from collections.abc import Callable

import pytest
from transformers import PreTrainedTokenizerBase

from dojang.inference.vllm_base import VllmBaseEngine
from vllm_servers import Served, served


@pytest.fixture(scope="session")
def kit(
    pytestconfig: pytest.Config, tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory
) -> Served:
    return served(pytestconfig, tokenizer, tmp_path_factory)


@pytest.fixture(params=["vllm", "remote"])
def get(request: pytest.FixtureRequest, kit: Served) -> Callable[[], VllmBaseEngine]:
    """The engine of a kind. Many tests use it: they leave it going, and load the weights they want."""
    kinds: dict[str, Callable[[], VllmBaseEngine]] = {"vllm": kit.local, "remote": kit.remote}
    return kinds[request.param]
