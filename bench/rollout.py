"""Rollout speed of the torch engine beside transformers' `generate` and its continuous batching.

All draw the same numbers of tokens for the same prompts, at temperature 1, with log-probs. Lengths are fixed before:
uniform, or geometric as answers are. Prompts are shared by groups of samples, or all different. Rounds are interleaved,
so that a busy machine slows all alike; the median counts. `generate` decodes one batch to the end of its longest.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from random import Random

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)

from dojang import models
from dojang.engines.torch import TorchEngine
from dojang.types import Sampling
from dojang.weights.memory import MemoryWeights
from machine import Row, arguments, report

PROMPT = (32, 64)
RANDOM_20M = LlamaConfig(
    vocab_size=8192,
    hidden_size=384,
    intermediate_size=1024,
    num_hidden_layers=6,
    num_attention_heads=6,
    num_key_value_heads=2,
    max_position_embeddings=2048,
    tie_word_embeddings=False,
)


@dataclass(frozen=True)
class Work:
    """Prompts, and how many tokens each sample of each is to have."""

    name: str
    prompts: list[list[int]]
    lengths: list[list[int]]

    @property
    def tokens(self) -> int:
        return sum(map(sum, self.lengths))

    @property
    def flat(self) -> list[tuple[list[int], int]]:
        return [(prompt, length) for prompt, row in zip(self.prompts, self.lengths, strict=True) for length in row]


def works(sequences: int, mean: int, most: int, vocabulary: int) -> list[Work]:
    """Uniform and geometric lengths, with and without shared prompts."""
    random = Random(0)
    found = []
    for shape in ("uniform", "geometric"):
        for samples in (8, 1):
            prompts = [
                [random.randrange(5, vocabulary) for _ in range(random.randint(*PROMPT))]
                for _ in range(sequences // samples)
            ]
            lengths = [
                [mean if shape == "uniform" else _geometric(random, mean, most) for _ in range(samples)]
                for _ in prompts
            ]
            shared = "groups of 8" if samples > 1 else "all different"
            found.append(Work(f"{shape} lengths, {shared}", prompts, lengths))
    return found


def _geometric(random: Random, mean: int, most: int) -> int:
    length = 1
    while length < most and random.random() > 1 / mean:
        length += 1
    return length


def ours(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, slots: int) -> Callable[[Work, int], None]:
    engine = TorchEngine(model, tokenizer, MemoryWeights(model.dtype), slots=slots)
    engine._batch._stopper._end_tokens = frozenset()  # lengths are given

    def play(work: Work, turn: int) -> None:
        async def whole() -> None:
            asks = []
            for ordinal, (prompt, lengths) in enumerate(zip(work.prompts, work.lengths, strict=True)):
                sampling = Sampling(1.0, lengths[0], seed=turn, ordinal=ordinal)
                if len(set(lengths)) == 1:
                    asks.append(engine.generate(prompt, len(lengths), sampling))
                else:
                    asks += [
                        engine.generate(prompt, 1, Sampling(1.0, length, seed=turn, ordinal=1000 * ordinal + at))
                        for at, length in enumerate(lengths)
                    ]
            groups = await asyncio.gather(*asks)
            drawn = sum(len(each.tokens) for group in groups for each in group)
            if drawn != work.tokens:
                raise AssertionError(f"{drawn} tokens instead of {work.tokens}")

        asyncio.run(whole())

    return play


class _Lengths(StoppingCriteria):
    def __init__(self, ends: torch.Tensor) -> None:
        self._ends = ends

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: object) -> torch.Tensor:
        return input_ids.shape[1] >= self._ends


def generate(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, slots: int) -> Callable[[Work, int], None]:
    def play(work: Work, turn: int) -> None:
        torch.manual_seed(turn)
        flat = work.flat
        for start in range(0, len(flat), slots):
            batch = flat[start : start + slots]
            width = max(len(prompt) for prompt, _ in batch)
            ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt, _ in batch], device=model.device)
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p, _ in batch], device=model.device)
            ends = width + torch.tensor([length for _, length in batch], device=model.device)
            config = GenerationConfig(
                do_sample=True,
                temperature=1.0,
                top_k=0,
                max_new_tokens=max(length for _, length in batch),
                output_logits=True,
                return_dict_in_generate=True,
                pad_token_id=0,
            )
            with torch.inference_mode():
                output = model.generate(
                    ids,
                    attention_mask=mask,
                    generation_config=config,
                    stopping_criteria=StoppingCriteriaList([_Lengths(ends)]),
                )
                model.compute_transition_scores(output.sequences, output.logits, normalize_logits=True)

    return play


def continuous(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, slots: int) -> Callable[[Work, int], None]:
    config = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, max_new_tokens=512, pad_token_id=0)

    def play(work: Work, turn: int) -> None:
        torch.manual_seed(turn)
        with model.continuous_batching_context_manager(generation_config=config) as manager:
            for prompt, length in work.flat:
                manager.add_request(prompt, max_new_tokens=length, eos_token_id=-1)
            left = len(work.flat)
            while left:
                result = manager.get_result(timeout=60)
                if result is None:
                    raise AssertionError("continuous batching gave no result for a minute")
                left -= bool(result.is_finished())

    return play


CONTESTANTS = {"torch engine": ours, "transformers generate": generate}
if find_spec("psutil"):  # without it, continuous batching does not know how much memory there is
    CONTESTANTS["transformers continuous batching"] = continuous


def _models(names: str, dtype: torch.dtype, device: str) -> list[tuple[str, PreTrainedModel, PreTrainedTokenizerBase]]:
    found = []
    for name in names.split(","):
        if name == "random-20m":
            torch.manual_seed(0)
            model: PreTrainedModel = LlamaForCausalLM(RANDOM_20M)
            tokenizer = AutoTokenizer.from_pretrained(models.resolve("dojang-tiny"))
        else:
            source = models.resolve(name)
            model = AutoModelForCausalLM.from_pretrained(source)
            tokenizer = AutoTokenizer.from_pretrained(source)
        model = model.to(device, dtype).eval()
        model.generation_config.eos_token_id = None
        found.append((name, model, tokenizer))
    return found


def _dtype(device: str) -> torch.dtype:
    fast = device == "cuda" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if fast else torch.float32


def main() -> None:
    parser = arguments((__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", default="random-20m,smollm2-135m-instruct")
    parser.add_argument("--sequences", type=int, default=64, help="samples in all, and decoded at a time")
    parser.add_argument("--mean", type=int, default=64, help="tokens of a sample")
    parser.add_argument("--most", type=int, default=256, help="tokens of the longest sample")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = _dtype(device)
    rows = []
    for name, model, tokenizer in _models(options.models, dtype, device):
        chosen = options.contestants.split(",")
        players = {each: CONTESTANTS[each](model, tokenizer, options.sequences) for each in chosen}
        for work in works(options.sequences, options.mean, options.most, model.config.vocab_size):
            speeds: dict[str, list[float]] = {each: [] for each in players}
            for turn in range(options.rounds + 1):  # the first round warms up and does not count
                for each, play in players.items():
                    started = time.perf_counter()
                    play(work, turn)
                    if turn:
                        speeds[each].append(work.tokens / (time.perf_counter() - started))
            medians = {each: statistics.median(values) for each, values in speeds.items()}
            print(f"{name}, {work.name}: {medians}", file=sys.stderr, flush=True)
            mine, *others = medians
            notes = f"{options.sequences} sequences, {work.tokens} tokens, {str(dtype).removeprefix('torch.')}"
            for other in others:
                ratio = medians[mine] / medians[other]
                rows.append(
                    Row(f"{name}, {work.name}", mine, other, medians[mine], medians[other], "tokens/s", ratio, notes)
                )
    report("rollout", rows, options.json)


if __name__ == "__main__":
    main()
