"""The update alone: dojang's trainer beside the same maths in plain transformers and torch (train_plain.py).

Both have the same model with random weights, the same samples, AdamW and precision: on a GPU bfloat16, with weights in
single precision. Both read about as many tokens at a time: dojang at most so many, the baseline as many samples as with
their padding have so many on average. One update to warm up, then the median of some.

    MFU = (6 x parameters x tokens + 12 x layers x heads x head size x contexts) / seconds / peak

`tokens` are those that have to be read at least once: a prompt once for its group, for all alike. `contexts` is the sum
over them of how many tokens each sees, itself included; causality makes it half as large as it would be otherwise. What
is made again in the backward pass does not count, nor what the baseline reads of padding and of prompts once more.
"""

import asyncio
import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from dojang.algos.grpo import GrpoConfig
from dojang.trainer.config import TrainConfig
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.types import Group, Message, Outcome, Problem, Sample, Verdict
from dojang.weight_sync.versions import WeightVersions
from lengths import geometric
from machine import Row
from shapes import LLAMA_20M, LLAMA_TINY, QWEN25_05B, SMOLLM2_135M, fast_dtype, random

__all__ = ["CONTESTANTS", "SIZES", "Case", "cases", "fitting", "rows", "useful_flops"]

PEAK = 989e12
"""An H200's in bfloat16, FLOP/s."""
MICRO_TOKENS = {"cuda": 16384, "cpu": 2048}
"""Read at a time: what dojang's trainer takes by itself."""
CHUNK = 1024
SAME = 0.01
"""How far losses may be apart in half precision; advantages are between -1 and 1."""
Update = Callable[[], float]
"""One update of the weights; its loss."""


@dataclass(frozen=True)
class Case:
    """A model, and what it learns from."""

    name: str
    config: PreTrainedConfig
    prompts: int
    samples: int
    prompt: tuple[int, int]
    """Tokens of the shortest and the longest."""
    length: Callable[[Random], int]
    gradient_checkpointing: bool = False

    def groups(self) -> list[Group]:
        """Random tokens, at about the log-probs that random weights give them."""
        draw, vocabulary = Random(0), self.config.vocab_size
        problem, told = Problem("", "", (Message("user", ""),), None), Verdict(Outcome.WRONG, 0.0)

        def tokens(count: int) -> tuple[int, ...]:
            return tuple(draw.randrange(5, vocabulary) for _ in range(count))

        def sample(prompt: tuple[int, ...]) -> Sample:
            answer = tokens(self.length(draw))
            mask = (False,) * len(prompt) + (True,) * len(answer)
            logprobs = (0.0,) * len(prompt) + (-math.log(vocabulary),) * len(answer)
            return Sample(prompt + answer, mask, logprobs, "", "length", 0, told, advantage=draw.uniform(-1, 1))

        found = []
        for place in range(self.prompts):
            prompt = tokens(draw.randint(*self.prompt))
            found.append(Group(problem, place, tuple(sample(prompt) for _ in range(self.samples))))
        return found


@dataclass(frozen=True)
class Sizes:
    """How much is learned from, and by whom."""

    configs: Mapping[str, PreTrainedConfig]
    prompts: int
    mean: int
    most: int
    long: tuple[int, int]
    """Tokens of the prompt and of each answer of the case with long ones."""


SIZES = {
    "cuda": Sizes({"SmolLM2-135M": SMOLLM2_135M, "Qwen2.5-0.5B": QWEN25_05B}, 64, 256, 2048, (512, 8192)),
    "cpu": Sizes({"20M": LLAMA_20M}, 8, 64, 256, (64, 1024)),
    "tiny": Sizes({"tiny": LLAMA_TINY}, 2, 8, 32, (16, 64)),  # to try it with
}


def cases(sizes: Sizes) -> list[Case]:
    """Lengths that differ, that do not, and long ones."""
    mean, most, (prompt, long) = sizes.mean, sizes.most, sizes.long
    found = []
    for name, config in sizes.configs.items():
        ordinary = (config, sizes.prompts, 8, (32, 64))
        found += [
            Case(f"{name}, geometric lengths", *ordinary, lambda draw: geometric(draw, mean, most)),
            Case(f"{name}, uniform lengths", *ordinary, lambda _: mean),
            Case(
                f"{name}, {long} tokens each",
                config,
                1,
                8,
                (prompt, prompt),
                lambda _: long,
                gradient_checkpointing=True,
            ),
        ]
    return found


def dojang(model: PreTrainedModel, case: Case, groups: Sequence[Group], compute: torch.dtype) -> Update:
    trainer = TorchTrainer(
        model,
        None,
        None,  # type: ignore[arg-type]  # wanted for saving only
        GrpoConfig().make(max_tokens=10**5),
        WeightVersions(compute),
        TrainConfig(
            lr=1e-6,
            gradient_checkpointing=case.gradient_checkpointing,
            max_tokens_per_microbatch=MICRO_TOKENS[model.device.type],
        ),
        total_updates=100,
        max_tokens=10**5,
        temperature=1.0,
        compute=compute,
    )

    async def update() -> float:
        found = await trainer.forward_backward(groups)
        await trainer.optim_step()
        return found["actor/loss"]

    return lambda: asyncio.run(update())


def plain(
    model: PreTrainedModel, case: Case, groups: Sequence[Group], compute: torch.dtype, chunk: int | None = None
) -> Update:
    from train_plain import Plain

    samples = [sample for group in groups for sample in group.samples]
    sequences = fitting(samples, MICRO_TOKENS[model.device.type])
    learner = Plain(
        model, sequences=sequences, compute=compute, gradient_checkpointing=case.gradient_checkpointing, chunk=chunk
    )

    def update() -> float:
        loss = learner.forward_backward(samples)
        learner.step()
        return loss

    return update


def fitting(samples: Sequence[Sample], budget: int) -> int:
    """How many samples a micro-batch may have, so that with their padding they are that many tokens on average."""

    def padded(count: int) -> float:
        parts = [samples[start : start + count] for start in range(0, len(samples), count)]
        whole = sum(len(part) * max(len(sample.tokens) for sample in part) for part in parts)
        return whole * count / len(samples)  # the last part may be smaller

    return max((count for count in range(1, len(samples) + 1) if padded(count) <= budget), default=1)


def in_chunks(model: PreTrainedModel, case: Case, groups: Sequence[Group], compute: torch.dtype) -> Update:
    return plain(model, case, groups, compute, CHUNK)


Contestant = Callable[[PreTrainedModel, Case, Sequence[Group], torch.dtype], Update]
CONTESTANTS: Mapping[str, Contestant] = {
    "dojang": dojang,
    "plain transformers": plain,
    "plain transformers, scores in chunks": in_chunks,
}


def useful_flops(model: PreTrainedModel, groups: Sequence[Group]) -> float:
    """What one update cannot do without."""
    tokens = contexts = 0
    for group in groups:
        prompt = int(group.samples[0].mask.argmax())
        answers = [sample.response_length for sample in group.samples]
        tokens += prompt + sum(answers)
        contexts += prompt * (prompt + 1) // 2 + sum(prompt * each + each * (each + 1) // 2 for each in answers)
    config, parameters = model.config, sum(each.numel() for each in model.parameters())
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 6 * parameters * tokens + 12 * config.num_hidden_layers * config.num_attention_heads * head * contexts


def rows(*, tiny: bool, rounds: int) -> list[Row]:
    """Every case, each baseline."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.enable_cudnn_sdp(False)  # as in a run: it plans anew for every new shape
    found = []
    for case in cases(SIZES["tiny" if tiny else device]):
        played = {who: _played(who, case, device, rounds) for who in CONTESTANTS}
        mine = played.pop("dojang")
        for other, theirs in played.items():
            if mine is None or theirs is None:
                continue
            if abs(mine.loss - theirs.loss) > SAME:
                raise AssertionError(f"{case.name}: {other} has another loss than dojang, so it does other sums")
            found += _rows(case, other, mine, theirs, rounds)
    return found


@dataclass(frozen=True)
class Played:
    seconds: float
    memory: float
    """The GPU's at its peak, MB."""
    flops: float
    loss: float
    """Of the first update."""


def _played(who: str, case: Case, device: str, rounds: int) -> Played | None:
    """None if the memory does not suffice."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        found = _measured(CONTESTANTS[who], case, device, rounds)
    except torch.OutOfMemoryError as error:
        print(f"{case.name}, {who}: {error}", file=sys.stderr, flush=True)
        return None
    print(f"{case.name}, {who}: {found}", file=sys.stderr, flush=True)
    return found


def _measured(contestant: Contestant, case: Case, device: str, rounds: int) -> Played:
    model, groups = random(case.config, device), case.groups()
    flops = useful_flops(model, groups)
    update = contestant(model, case, groups, fast_dtype(device))
    seconds, losses = [], []
    for _ in range(rounds + 1):
        _settle(device)
        started = time.perf_counter()
        losses.append(update())
        _settle(device)
        seconds.append(time.perf_counter() - started)
    peak = torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else 0.0
    return Played(statistics.median(seconds[1:]), peak, flops, losses[0])


def _settle(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _rows(case: Case, other: str, mine: Played, theirs: Played, rounds: int) -> list[Row]:
    notes = f"median of {rounds}{', activations made again' if case.gradient_checkpointing else ''}"

    def row(part: str, one: float, two: float, unit: str, ratio: float, more: str = "") -> Row:
        return Row(f"{case.name}, {part}", "dojang", other, one, two, unit, ratio, notes + more)

    found = [row("update", mine.seconds, theirs.seconds, "s", theirs.seconds / mine.seconds)]
    if mine.memory:
        found.append(row("peak memory", mine.memory, theirs.memory, "MB", theirs.memory / mine.memory))
        one, two = (100 * each.flops / each.seconds / PEAK for each in (mine, theirs))
        formula = (
            "; (6 x parameters x tokens + 12 x layers x heads x head size x contexts) / s / 989 TFLOP/s, a token "
            f"counted once however often it is read: {mine.flops:.3g} FLOP"
        )
        found.append(row("MFU", one, two, "%", one / two, formula))
    return found
