"""The decoding step on a GPU beside what its memory and arithmetic allow.

The bound of a step: all weights are read once or, if that takes longer, multiplied with all rows; keys and values of
all tokens are read; scores are written and read. Bandwidth is what a plain copy reaches in the same run. A step is
everything from the last token to the next: model, log-probs, drawing. Weights are random: speed does not depend on
them.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from transformers import LlamaForCausalLM, PreTrainedConfig, PreTrainedModel, Qwen2ForCausalLM, Qwen3ForCausalLM

from dojang.engine.cuda_graphs import CudaGraphRunner
from dojang.engine.decode import StepInputs
from dojang.engine.decoder import Decoder
from dojang.engine.kv_cache import KvCache
from dojang.engine.kv_cache_size import pages_for
from dojang.types import Sampling
from machine import Row
from shapes import QWEN3_06B, QWEN25_05B, SMOLLM2_135M

BATCHES = (1, 8, 64, 256, 512, 1024, 2048)
CONTEXTS = (256, 512, 1024)
FLOPS = 790e12
"""What large products in bfloat16 reach on an H200."""
TURNS = 16
SHAPES: dict[str, tuple[type[PreTrainedModel], PreTrainedConfig]] = {
    "SmolLM2-135M": (LlamaForCausalLM, SMOLLM2_135M),
    "Qwen2.5-0.5B": (Qwen2ForCausalLM, QWEN25_05B),
    "Qwen3-0.6B": (Qwen3ForCausalLM, QWEN3_06B),
}


@dataclass(frozen=True)
class Bound:
    """What a machine can do."""

    bandwidth: float

    def step_s(self, decoder: Decoder, parameters: int, rows: int, context: int) -> float:
        shape = decoder.shape
        weights = max(2 * parameters / self.bandwidth, 2 * parameters * rows / FLOPS)
        cache = rows * context * shape.layers * 2 * shape.kv_heads * shape.head * 2 / self.bandwidth
        return weights + cache + 2 * rows * shape.vocabulary * 2 / self.bandwidth


def rows() -> list[Row]:
    """Every model, number of sequences and context."""
    if not torch.cuda.is_available():
        raise SystemExit("the table is about a GPU, and there is none")
    bound = Bound(_bandwidth())
    print(f"copying reaches {bound.bandwidth / 1e12:.2f} TB/s", file=sys.stderr)
    found = []
    for name, (kind, config) in SHAPES.items():
        torch.manual_seed(0)
        model = kind(config).to("cuda", torch.bfloat16).eval()
        found += _rows(name, model, bound)
        del model
        torch.cuda.empty_cache()
    return found


@torch.inference_mode()
def _rows(name: str, model: PreTrainedModel, bound: Bound) -> list[Row]:
    decoder, parameters = Decoder(model), sum(each.numel() for each in model.parameters())
    cache = KvCache(
        decoder.shape, decoder.dtype, decoder.device, max_num_seqs=max(BATCHES), budget=100 << 30, zeroed=False
    )
    cache.reserve(max(CONTEXTS) + TURNS)
    cache.keys_LPKTD.normal_()
    cache.values_LPKTD.normal_()
    runner = CudaGraphRunner(decoder, cache, max(BATCHES))
    pages, rows = pages_for(max(CONTEXTS) + TURNS), 0
    while rows < max(BATCHES) and cache.has(pages):
        cache.enter(cache.take(pages))
        rows += 1
    found = []
    for count in BATCHES:
        for context in CONTEXTS:
            if count > rows:
                continue
            seconds = _step_s(runner, count, context)
            limit = bound.step_s(decoder, parameters, count, context)
            print(f"{name}, {count} at {context}: {seconds * 1e3:.3f} ms", file=sys.stderr, flush=True)
            found.append(
                Row(
                    f"{name}, {count} sequences, context {context}",
                    "decoding step",
                    "bound",
                    count / seconds,
                    count / limit,
                    "tokens/s",
                    limit / seconds,
                    f"{seconds * 1e3:.3f} ms a step",
                )
            )
    return found


def _step_s(runner: CudaGraphRunner, count: int, context: int) -> float:
    inputs = StepInputs([Sampling(1.0, TURNS)] * count, np.random.default_rng(0).random((TURNS, count)))
    start = context - TURNS // 2
    for _ in range(2):
        runner.decode([5] * count, [start] * count, inputs)()
    return min(_seconds(lambda: runner.decode([5] * count, [start] * count, inputs)) for _ in range(3)) / TURNS


def _seconds(play: Callable[[], object]) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    play()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3


def _bandwidth() -> float:
    source = torch.empty(1 << 31, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * len(source) / min(_seconds(lambda: target.copy_(source)) for _ in range(5))
