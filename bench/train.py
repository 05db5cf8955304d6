"""A whole GRPO step, generate, reward and update, by dojang and by TRL's GRPOTrainer.

Both take the same model, prompts, rewards, precision and numbers of tokens: 8 prompts of 32 to 64 tokens, 8 samples of
each, of 64 tokens or of geometric lengths (mean 64, at most 256). Each plays in a process of its own, one after the
other, on as many threads: a step to warm up, then the median of some. Start-up is from the first import to the first
step; peak memory is the process's. Models called random have random weights, on which speed does not depend.

TRL's `generate` is stopped at the lengths wanted by a criterion of ours, which costs it next to nothing. TRL is not a
dependency of dojang: `pip install trl==1.16.0` beside it.
"""

import argparse
import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from itertools import pairwise
from random import Random
from typing import Any

from machine import Row, arguments, report

PROMPTS, SAMPLES = 8, 8
STARTED = time.perf_counter()


@dataclass
class Played:
    """Seconds of each part of each step, and of the start."""

    parts: dict[str, list[float]] = field(default_factory=dict)
    startup_s: float = 0.0

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.parts.setdefault(name, []).append(time.perf_counter() - started)


def lengths(shape: str, step: int) -> list[int]:
    """Of all samples of a step, the same for everybody."""
    random = Random(step)
    if shape == "uniform":
        return [64] * (PROMPTS * SAMPLES)
    return [min(256, 1 + int(random.expovariate(1 / 64))) for _ in range(PROMPTS * SAMPLES)]


def prompts(step: int) -> list[str]:
    """Sums, a token for each character or so."""
    random = Random(1000 + step)
    return [
        " ".join(f"{random.randrange(100)}+{random.randrange(100)}" for _ in range(random.randint(7, 10)))
        for _ in range(PROMPTS)
    ]


def reward(text: str) -> float:
    return len(set(text)) / 100


def play_dojang(name: str, shape: str, steps: int) -> Played:
    import torch

    import rollout
    from dojang.algos.clip import GrpoConfig
    from dojang.engines.torch import TorchEngine
    from dojang.train.config import TrainConfig
    from dojang.train.torch import TorchTrainer
    from dojang.types import Outcome, Sampling, Verdict
    from dojang.weights.memory import MemoryWeights

    device = "cuda" if torch.cuda.is_available() else "cpu"
    compute = rollout._dtype(device)
    ((_, model, tokenizer),) = rollout._models(name, torch.float32, device)
    weights = MemoryWeights(compute)
    engine = TorchEngine(model.to(compute) if compute is not torch.float32 else model, tokenizer, weights, slots=64)
    engine._batch._stopper.end_tokens = frozenset()  # lengths are given
    algorithm = GrpoConfig().make(longest=256)
    trainer = TorchTrainer(
        model.float(),
        None,
        tokenizer,
        algorithm,
        weights,
        TrainConfig(lr=1e-6),
        total_updates=steps + 1,
        longest=256,
        temperature=1.0,
        compute=compute,
    )
    played = Played()

    async def step(number: int) -> None:
        with played.timed("generate"):
            asked, wanted = [], iter(lengths(shape, number))
            ids = [tuple(tokenizer(text)["input_ids"]) for text in prompts(number)]
            for place, prompt in enumerate(ids):
                for sample in range(SAMPLES):
                    sampling = Sampling(1.0, next(wanted), seed=number, ordinal=place * SAMPLES + sample)
                    asked.append(engine.generate(prompt, 1, sampling))
            drawn = [completion for (completion,) in await asyncio.gather(*asked)]
        with played.timed("reward"):
            verdicts = [Verdict(Outcome.WRONG, reward(each.text)) for each in drawn]
        with played.timed("update"):
            credited = _credited(algorithm, ids, drawn, verdicts)
            await trainer.forward_backward(credited)
            await trainer.optim_step()
            await engine.load(await trainer.publish())

    async def whole() -> None:
        await engine.load(await trainer.publish())
        played.startup_s = time.perf_counter() - STARTED
        for number in range(steps + 1):
            with played.timed("step"):
                await step(number)
        await engine.close()

    asyncio.run(whole())
    return played


def _credited(algorithm: Any, ids: Sequence[Any], drawn: Sequence[Any], verdicts: Sequence[Any]) -> list[Any]:
    from dojang.types import Group, Message, Problem, Sample

    groups = []
    for place, prompt in enumerate(ids):
        some = range(place * SAMPLES, (place + 1) * SAMPLES)
        samples = tuple(Sample.of(prompt, drawn[at], verdicts[at]) for at in some)
        groups.append(Group(Problem(str(place), "", (Message("user", ""),), None), place, samples))
    return [
        replace(group, samples=tuple(map(lambda sample, by: replace(sample, advantage=by), group.samples, advantages)))
        for group, advantages in zip(groups, algorithm.advantages(groups), strict=True)
    ]


def play_trl(name: str, shape: str, steps: int) -> Played:
    import torch
    from datasets import Dataset
    from transformers import StoppingCriteriaList
    from trl import GRPOConfig, GRPOTrainer

    import rollout

    device = "cuda" if torch.cuda.is_available() else "cpu"
    ((_, model, tokenizer),) = rollout._models(name, torch.float32, device)
    tokenizer.pad_token = tokenizer.eos_token  # so that what comes after a sample's end counts as its end
    rows = [{"prompt": text} for step in range(steps + 1) for text in prompts(step)]
    played = Played()

    def rewards(completions: Sequence[str], **_: Any) -> list[float]:
        with played.timed("reward"):
            return [reward(text) for text in completions]

    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            processing_class=tokenizer,
            reward_funcs=rewards,
            train_dataset=Dataset.from_list(rows),
            args=GRPOConfig(
                output_dir=folder,
                per_device_train_batch_size=16,
                gradient_accumulation_steps=PROMPTS * SAMPLES // 16,
                num_generations=SAMPLES,
                max_completion_length=256,
                max_steps=steps + 1,
                shuffle_dataset=False,
                learning_rate=1e-6,
                beta=0.0,
                temperature=1.0,
                save_strategy="no",
                report_to="none",
                gradient_checkpointing=False,
                use_cpu=device == "cpu",
                bf16=rollout._dtype(device) is torch.bfloat16,
                disable_tqdm=True,
                logging_steps=1000,
            ),
        )
        generate, number = model.generate, iter(range(steps + 1))

        def stopped(*asked: Any, **options: Any) -> Any:
            with played.timed("generate"):
                wanted = torch.tensor(lengths(shape, next(number)), device=model.device)
                width = options["input_ids"].shape[1] if "input_ids" in options else asked[0].shape[1]
                ends = StoppingCriteriaList([rollout._Lengths(width + wanted)])
                return generate(*asked, **options, stopping_criteria=ends)

        model.generate = stopped
        train_step, begun = trainer.training_step, []

        def timed(*asked: Any, **options: Any) -> Any:
            begun.append(time.perf_counter())
            return train_step(*asked, **options)

        trainer.training_step = timed
        played.startup_s = time.perf_counter() - STARTED
        trainer.train()
        begun.append(time.perf_counter())
    per_step = PROMPTS * SAMPLES // 16
    starts = [*begun[:-1:per_step], begun[-1]]
    played.parts["step"] = [end - start for start, end in pairwise(starts)]
    others = zip(played.parts["step"], played.parts["generate"], played.parts["reward"], strict=True)
    played.parts["update"] = [whole - generated - rewarded for whole, generated, rewarded in others]
    return played


PLAYERS = {"dojang": play_dojang, "TRL": play_trl}


def main() -> None:
    parser = arguments((__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", default="random-20m,smollm2-135m-instruct")
    parser.add_argument("--shapes", default="geometric,uniform")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--play", nargs=3, metavar=("WHO", "MODEL", "SHAPE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        who, model, shape = options.play
        played = PLAYERS[who](model, shape, options.steps)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        medians = {name: statistics.median(values[1:]) for name, values in played.parts.items()}
        print(json.dumps({**medians, "start-up": played.startup_s, "peak memory": peak}))
        return
    if not find_spec("trl"):
        sys.exit("this compares with TRL, which is not installed here; pip install trl==1.16.0 datasets")
    rows = []
    for model in options.models.split(","):
        for shape in options.shapes.split(","):
            found = {who: _play(who, model, shape, options.steps) for who in PLAYERS}
            for part, mine in found["dojang"].items():
                theirs, unit = found["TRL"][part], "MB" if part == "peak memory" else "s"
                case = f"{model}, {shape} lengths, {part}"
                rows.append(Row(case, "dojang", "TRL", mine, theirs, unit, theirs / mine if mine else None))
    report("train", rows, options.json)


def _play(who: str, model: str, shape: str, steps: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--steps", str(steps), "--play", who, model, shape]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    print(f"{who}, {model}, {shape}: {figures}", file=sys.stderr, flush=True)
    return figures


if __name__ == "__main__":
    main()
