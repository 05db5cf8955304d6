"""Rollout speed of the torch engine beside transformers' `generate`, its continuous batching, and vLLM.

All draw the same numbers of tokens for the same prompts, at temperature 1; the clock runs from requests handed in at
once to completions handed back. Lengths are fixed before: uniform, or geometric as answers are. Prompts are shared by
groups of samples, or all different. Rounds are interleaved, so that a busy machine slows all alike; the median counts.
`generate` decodes one batch to the end of its longest. The torch engine and vLLM give log-probs, and so does
`generate` on a CPU; on a GPU it would have to keep all scores. Before the clock runs, everybody draws a few tokens for
all prompts, and the torch engine draws all of them once, since it records a graph for every number of rows. Models
called random have random weights, on which speed does not depend.

With --table, on a GPU: the decoding step for several models, numbers of sequences and contexts, beside what the memory
allows (rollout_table.py).
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from random import Random

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase, StoppingCriteriaList

from dojang.engine.torch_engine import TorchEngine
from dojang.types import Sampling
from dojang.weight_sync.versions import WeightVersions
from lengths import Ends, geometric
from machine import Row, arguments, report
from shapes import fast_dtype, load

PROMPT = (32, 64)


@dataclass(frozen=True)
class Work:
    """Prompts, and how many tokens each sample of each is to have."""

    name: str
    prompts: list[list[int]]
    lengths: list[list[int]]

    @property
    def tokens(self) -> int:
        return sum(map(sum, self.lengths))

    def brief(self) -> "Work":
        """To warm up with."""
        return Work(self.name, self.prompts, [[min(each, 4) for each in row] for row in self.lengths])

    @property
    def flat(self) -> list[tuple[list[int], int]]:
        return [(prompt, length) for prompt, row in zip(self.prompts, self.lengths, strict=True) for length in row]


def works(options: argparse.Namespace, vocabulary: int) -> list[Work]:
    """Uniform and geometric lengths, with and without shared prompts."""
    random = Random(0)
    found = []
    for shape, requests in (("uniform", options.sequences), ("geometric", options.requests)):
        for samples in (8, 1):
            prompts = [
                [random.randrange(5, vocabulary) for _ in range(random.randint(*PROMPT))]
                for _ in range(requests // samples)
            ]
            lengths = [
                [
                    options.uniform if shape == "uniform" else geometric(random, options.mean, options.most)
                    for _ in range(samples)
                ]
                for _ in prompts
            ]
            shared = "groups of 8" if samples > 1 else "all different"
            found.append(Work(f"{shape} lengths, {shared}", prompts, lengths))
    return found


def ours(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_num_seqs: int) -> Callable[[Work, int], None]:
    engine = TorchEngine(model, tokenizer, WeightVersions(model.dtype), max_num_seqs=max_num_seqs)
    engine._scheduler._stop_criteria.end_tokens = frozenset()  # lengths are given

    def play(work: Work, turn: int) -> None:
        async def whole() -> None:
            asks = []
            for prompt_index, (prompt, lengths) in enumerate(zip(work.prompts, work.lengths, strict=True)):
                sampling = Sampling(1.0, lengths[0], seed=turn, prompt_index=prompt_index)
                if len(set(lengths)) == 1:
                    asks.append(engine.generate(prompt, len(lengths), sampling))
                else:
                    asks += [
                        engine.generate(
                            prompt, 1, Sampling(1.0, length, seed=turn, prompt_index=1000 * prompt_index + at)
                        )
                        for at, length in enumerate(lengths)
                    ]
            groups = await asyncio.gather(*asks)
            drawn = sum(len(each.tokens) for group in groups for each in group)
            if drawn != work.tokens:
                raise AssertionError(f"{drawn} tokens instead of {work.tokens}")

        asyncio.run(whole())

    return play


def generate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_num_seqs: int
) -> Callable[[Work, int], None]:
    keeps_scores = model.device.type == "cpu"

    def play(work: Work, turn: int) -> None:
        torch.manual_seed(turn)
        flat = work.flat
        for start in range(0, len(flat), max_num_seqs):
            batch = flat[start : start + max_num_seqs]
            width = max(len(prompt) for prompt, _ in batch)
            ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt, _ in batch], device=model.device)
            mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p, _ in batch], device=model.device)
            ends = width + torch.tensor([length for _, length in batch], device=model.device)
            config = GenerationConfig(
                do_sample=True,
                temperature=1.0,
                top_k=0,
                max_new_tokens=max(length for _, length in batch),
                output_logits=keeps_scores,
                return_dict_in_generate=True,
                pad_token_id=0,
            )
            with torch.inference_mode():
                output = model.generate(
                    ids,
                    attention_mask=mask,
                    generation_config=config,
                    stopping_criteria=StoppingCriteriaList([Ends(ends)]),
                )
                if keeps_scores:
                    model.compute_transition_scores(output.sequences, output.logits, normalize_logits=True)

    return play


def continuous(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_num_seqs: int
) -> Callable[[Work, int], None]:
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


def vllm(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, max_num_seqs: int) -> Callable[[Work, int], None]:
    cpu = model.device.type == "cpu"
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "4", "VLLM_LOGGING_LEVEL": "ERROR"}
    if cpu:  # a process of its own would want a core of its own
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    folder = tempfile.mkdtemp(prefix="dojang-bench-")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    beside_others = {"gpu_memory_utilization": 0.5}
    settings = {"enforce_eager": True, "distributed_executor_backend": "uni"} if cpu else beside_others
    engine = LLM(
        folder,
        dtype=str(model.dtype).removeprefix("torch."),
        max_num_seqs=max_num_seqs,
        max_model_len=1024,
        logprobs_mode="processed_logprobs",
        **settings,
    )

    def play(work: Work, turn: int) -> None:
        prompts = [{"prompt_token_ids": prompt} for prompt, _ in work.flat]
        how = [  # without seeds: with them it draws for one sample after the other
            SamplingParams(temperature=1.0, max_tokens=length, ignore_eos=True, logprobs=0) for _, length in work.flat
        ]
        outputs = engine.generate(prompts, how, use_tqdm=False)
        drawn = sum(len(each.outputs[0].token_ids) for each in outputs)
        if drawn != work.tokens:
            raise AssertionError(f"{drawn} tokens instead of {work.tokens}")

    return play


CONTESTANTS = {"torch engine": ours, "transformers generate": generate}
if find_spec("psutil"):  # without it, continuous batching does not know how much memory there is
    CONTESTANTS["transformers continuous batching"] = continuous
if find_spec("vllm"):
    CONTESTANTS["vllm"] = vllm


def main() -> None:
    gpu = torch.cuda.is_available()
    parser = arguments((__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", default="random-135m" if gpu else "random-20m,smollm2-135m-instruct")
    parser.add_argument("--sequences", type=int, default=512 if gpu else 64, help="decoded at a time")
    parser.add_argument("--requests", type=int, default=2048 if gpu else 256, help="samples of geometric lengths")
    parser.add_argument("--uniform", type=int, default=256 if gpu else 64, help="tokens of samples of uniform length")
    parser.add_argument("--mean", type=int, default=64, help="mean tokens of samples of geometric lengths")
    parser.add_argument("--most", type=int, default=256, help="tokens of the longest sample")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--table", action="store_true", help="measure the decoding step instead, on a GPU")
    options = parser.parse_args()
    if options.table:
        import rollout_table  # needs a GPU's tools

        report("rollout table", rollout_table.rows(), options.json)
        return
    device = "cuda" if gpu else "cpu"
    dtype = fast_dtype(device)
    rows = []
    for name in options.models.split(","):
        model, tokenizer = load(name, dtype, device)
        players = {
            each: CONTESTANTS[each](model, tokenizer, options.sequences) for each in options.contestants.split(",")
        }
        for work in works(options, model.config.vocab_size):
            medians = _medians(players, work, options.rounds)
            print(f"{name}, {work.name}: {medians}", file=sys.stderr, flush=True)
            mine, *others = medians
            notes = f"{options.sequences} at a time, {work.tokens} tokens, {str(dtype).removeprefix('torch.')}"
            for other in others:
                ratio = medians[mine] / medians[other]
                rows.append(
                    Row(f"{name}, {work.name}", mine, other, medians[mine], medians[other], "tokens/s", ratio, notes)
                )
    report("rollout", rows, options.json)


def _medians(players: Mapping[str, Callable[[Work, int], None]], work: Work, rounds: int) -> dict[str, float]:
    """Tokens per second. The torch engine warms up with all of it: it records a graph for every number of rows."""
    for name, play in players.items():
        play(work if name == "torch engine" else work.brief(), 0)
    speeds: dict[str, list[float]] = {each: [] for each in players}
    for turn in range(1, rounds + 1):
        for each, play in players.items():
            started = time.perf_counter()
            play(work, turn)
            speeds[each].append(work.tokens / (time.perf_counter() - started))
    return {each: statistics.median(values) for each, values in speeds.items()}


if __name__ == "__main__":
    main()
