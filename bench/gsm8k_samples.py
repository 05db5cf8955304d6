"""Samples of questions of GSM8K: for benchmarks whose result depends on what a model says."""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from dojang import models
from dojang.data.gsm8k import Gsm8kConfig
from dojang.engine.torch_engine import TorchEngine
from dojang.types import Completion, Sampling
from dojang.workflows.chat_renderer import ChatRenderer


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of the model, the questions and the samples."""
    parser.add_argument("--model", default="smollm2-135m-instruct", help="model name or directory")
    parser.add_argument("--data", type=Path, required=True, help="directory of GSM8K (train.jsonl, test.jsonl)")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])


def pretrained(name: str, dtype: torch.dtype, device: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model whose answers end where it ends them."""
    source = models.resolve(name)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype).to(device).eval()
    return model, AutoTokenizer.from_pretrained(source)


def gsm8k_prompts(path: Path, tokenizer: PreTrainedTokenizerBase, count: int, max_tokens: int) -> list[tuple[int, ...]]:
    """Tokens of the first `count` test problems, in the model's chat template."""
    renderer = ChatRenderer(tokenizer, context=None, max_tokens=max_tokens)
    return [tuple(renderer.render(each.messages)) for each in Gsm8kConfig(path=path).load("test")[:count]]


async def timed_samples(
    engine: TorchEngine,
    prompts: Sequence[tuple[int, ...]],
    sampling: Sampling,
    samples: int,
    warmed: Callable[[], None] = lambda: None,
) -> tuple[list[list[Completion]], float]:
    """Samples every prompt `samples` times, one prompt after the other; returns the samples and the seconds, and closes
    the engine. Before that it samples the first prompt, to the same length, and calls `warmed`. Samples that end early
    leave smaller batches, whose CUDA graphs would otherwise be captured in the measured time."""
    await engine.generate(prompts[0], samples, Sampling(sampling.temperature, sampling.max_tokens, seed=99))
    warmed()
    started = time.perf_counter()
    found = []
    for at, prompt in enumerate(prompts):
        asked = Sampling(sampling.temperature, sampling.max_tokens, seed=1, prompt_index=at)
        found.append(await engine.generate(prompt, samples, asked))
    seconds = time.perf_counter() - started
    await engine.close()
    return found, seconds
