"""Sequences that run at a time in one KV cache: in pages, beside a slot of maximum length for each.

    python bench/kv_cache.py [--max-tokens 16384] [--mean 2048] [--requests 192] [--slots 16] [--json]

The engine answers requests of geometric lengths with a random model of a few thousand weights; its cache has the bytes
of `--slots` slots. Only lengths count here, not the model: the result is tokens per decoding step, with the tail of the
last sequences in both. Slots are simulated: a free one takes the next request at once, so the baseline loses nothing.
"""

import asyncio
import heapq
from dataclasses import dataclass
from random import Random

import torch
from transformers import AutoTokenizer, LlamaConfig

import shapes
from dojang import models
from dojang.engine.kv_cache_size import PAGE_TOKENS
from dojang.engine.torch_engine import TorchEngine
from dojang.types import Completion, Sampling
from dojang.weight_sync.versions import WeightVersions
from lengths import geometric
from machine import Row, arguments, report

PROMPT, SAMPLES = 256, 8
CONFIG = LlamaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    max_position_embeddings=1 << 17,
)


@dataclass
class Steps:
    """Decoding steps of an engine."""

    count: int = 0
    most: int = 0
    """Sequences of the largest one."""


def played(lengths: list[int], slots: int, longest: int) -> tuple[Steps, int]:
    """Decoding steps of the engine for completions of these lengths, and how many sequences it preempted."""
    source = models.resolve("dojang-tiny")
    model = shapes.random(CONFIG, "cpu")
    bytes_per_token = 2 * CONFIG.num_hidden_layers * CONFIG.num_key_value_heads * 16 * 4
    engine = TorchEngine(
        model,
        AutoTokenizer.from_pretrained(source),
        WeightVersions(torch.float32),
        max_num_seqs=len(lengths),
        kv_cache_gb=(slots * longest + PAGE_TOKENS) * bytes_per_token / 2**30,
    )
    scheduler, steps = engine._scheduler, Steps()
    scheduler._stop_criteria.end_tokens = frozenset()  # lengths are given
    decode = scheduler._runner.decode

    def counted(token_N: list[int], *rest: object) -> object:
        steps.count += 1
        steps.most = max(steps.most, len(token_N))
        return decode(token_N, *rest)  # type: ignore[arg-type]

    scheduler._runner.decode = counted  # type: ignore[assignment, method-assign]

    async def one(at: int, length: int) -> list[Completion]:
        prompt = [5 + at // SAMPLES % 50] * PROMPT
        return await engine.generate(prompt, 1, Sampling(1.0, length, prompt_index=at))

    async def whole() -> None:
        answers = await asyncio.gather(*(one(at, length) for at, length in enumerate(lengths)))
        assert [len(each.tokens) for (each,) in answers] == lengths
        await engine.close()

    asyncio.run(whole())
    return steps, scheduler.preempted


def slot_steps(lengths: list[int], slots: int) -> int:
    """Decoding steps if that many sequences run at a time."""
    ends = [0] * slots
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def main() -> None:
    parser = arguments((__doc__ or "").partition("\n")[0])
    parser.add_argument("--max-tokens", type=int, default=16384)
    parser.add_argument("--mean", type=int, default=2048, help="mean tokens of a completion")
    parser.add_argument("--requests", type=int, default=192)
    parser.add_argument("--slots", type=int, default=16, help="slots of maximum length that the cache would hold")
    options = parser.parse_args()
    random = Random(0)
    lengths = [geometric(random, options.mean, options.max_tokens) for _ in range(options.requests)]
    steps, preempted = played(lengths, options.slots, PROMPT + options.max_tokens)
    tokens, baseline = sum(lengths), slot_steps(lengths, options.slots)
    row = Row(
        f"{options.requests} completions of {tokens / len(lengths):,.0f} tokens, at most {options.max_tokens:,}",
        "pages",
        "slots",
        tokens / steps.count,
        tokens / baseline,
        "tokens per step",
        baseline / steps.count,
        f"at most {steps.most} at a time, slots {options.slots}; {preempted} preempted",
    )
    report("kv cache", [row], options.json)


if __name__ == "__main__":
    main()
