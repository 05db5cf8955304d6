"""Episodes of an environment that sleeps, beside the same tokens without turns, on one engine.

All episodes are played at once, with workflow.lockstep=false: an episode goes on as soon as its environment has
answered. After each reply the environment sleeps, on average --sleep seconds. Two baselines sample the same number of
tokens without any environment and without prefix caching, all requests handed in at once:

    requests       every turn is a request: prompts and completions have the lengths of the episodes' turns
    completions    every episode is one request: its first prompt, and one completion with all its sampled tokens.
                   No conversation is read again, and the environment's messages are left out

Lengths of replies are fixed before, geometric as answers are. Rounds are interleaved, so that a busy machine slows all
alike; the median counts. Processor time is in the notes: it tells what turns cost, but not whether the engine idled.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from dojang.engine.config import TorchEngineConfig
from dojang.engine.torch_engine import TorchEngine
from dojang.environments.base import Environment, Reply, StepResult
from dojang.environments.multi_turn import EpisodeLimits, MultiTurn
from dojang.types import Completion, Metrics, Outcome, Problem, Sampling, Verdict
from dojang.weight_sync.versions import WeightVersions
from dojang.workflows.chat_renderer import ChatRenderer
from dojang.workflows.section import RolloutPolicy
from lengths import geometric
from machine import Row, arguments, report
from shapes import fast_dtype, load


@dataclass
class Asleep:
    """Number of environments that sleep."""

    now: int = 0
    most: int = 0

    @contextmanager
    def one_more(self) -> Iterator[None]:
        self.now += 1
        self.most = max(self.most, self.now)
        yield
        self.now -= 1


class Sleepy(Environment):
    """Sleeps after every reply, and ends after a number of turns."""

    def __init__(self, turns: int, sleep_s: float, random: Random, asleep: Asleep) -> None:
        self._turns, self._sleep_s, self._random, self._asleep = turns, sleep_s, random, asleep

    async def reset(self, problem: Problem) -> str:
        return f"Episode {problem.reference}"

    async def step(self, reply: Reply) -> StepResult:
        with self._asleep.one_more():
            await asyncio.sleep(self._random.uniform(0, 2 * self._sleep_s))
        return 1.0 if reply.turn == self._turns - 1 else f"Turn {reply.turn + 1}"


class NoTask:
    """The environment gives all rewards."""

    def problems(self, split: str) -> Sequence[Problem]:
        return []

    async def grade(self, problem: Problem, text: str) -> Verdict:
        return Verdict(Outcome.WRONG, 0.0)


@dataclass
class FixedLengths:
    """An engine whose replies have lengths that are fixed before. Keeps the requests."""

    engine: TorchEngine
    lengths: Sequence[Sequence[int]]
    """Of each episode and turn."""
    asked: Counter[int] = field(default_factory=Counter)
    """Turns of each episode so far."""
    requests: list[tuple[Sequence[int], Sampling]] = field(default_factory=list)

    async def generate(self, prompt: Sequence[int], n: int, sampling: Sampling) -> list[Completion]:
        episode = sampling.prompt_index
        wanted = replace(sampling, max_tokens=self.lengths[episode][self.asked[episode]])
        self.asked[episode] += 1
        self.requests.append((tuple(prompt), wanted))
        found = await self.engine.generate(prompt, n, wanted)
        return [replace(each, finish="stop") for each in found]  # a reply that is cut would end its episode

    def forget(self) -> None:
        """Begins a new round."""
        self.asked.clear()
        self.requests.clear()

    async def load(self, version: int) -> Metrics | None:
        return await self.engine.load(version)

    async def close(self) -> None:
        await self.engine.close()


@dataclass(frozen=True)
class Timed:
    """Tokens sampled, and the time it took."""

    tokens: int
    wall_s: float
    cpu_s: float


def timed(work: Coroutine[Any, Any, int]) -> Timed:
    wall, cpu = time.perf_counter(), time.process_time()
    tokens = asyncio.run(work)
    return Timed(tokens, time.perf_counter() - wall, time.process_time() - cpu)


async def play(workflow: MultiTurn, episodes: int) -> int:
    """Plays all episodes at once; returns the number of sampled tokens."""
    problems = [Problem(f"episode/{at}", "bench", (), str(at)) for at in range(episodes)]
    groups = await asyncio.gather(*(workflow.run(problem, at) for at, problem in enumerate(problems)))
    samples = [sample for group in groups for sample in group.samples]
    if failed := [sample.verdict.detail for sample in samples if sample.verdict.outcome != Outcome.ACCEPTED]:
        raise AssertionError(f"{len(failed)} episodes failed: {failed[0]}")
    return sum(int(sample.mask.sum()) for sample in samples)


async def ask(engine: TorchEngine, requests: Sequence[tuple[Sequence[int], Sampling]]) -> int:
    """Hands all requests in at once; returns the number of sampled tokens."""
    found = await asyncio.gather(*(engine.generate(prompt, 1, sampling) for prompt, sampling in requests))
    return sum(len(completion.tokens) for (completion,) in found)


def whole(requests: Sequence[tuple[Sequence[int], Sampling]]) -> list[tuple[Sequence[int], Sampling]]:
    """One request per episode: the first prompt, and as many tokens as all its turns have."""
    turns: dict[int, list[tuple[Sequence[int], Sampling]]] = {}
    for prompt, sampling in requests:
        turns.setdefault(sampling.prompt_index, []).append((prompt, sampling))
    return [
        (each[0][0], replace(each[0][1], max_tokens=sum(sampling.max_tokens for _, sampling in each)))
        for each in turns.values()
    ]


def parse_options() -> argparse.Namespace:
    parser = arguments((__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="dojang-tiny", help="dojang-tiny, random-20m, random-135m or another")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--episodes", type=int, default=1000, help="episodes at once")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--sleep", type=float, default=0.5, help="mean seconds of a step of the environment")
    parser.add_argument("--length", type=int, default=64, help="mean tokens of a reply")
    parser.add_argument("--max-tokens", type=int, default=100)
    parser.add_argument("--max-num-seqs", type=int, default=256, help="sequences that the engine decodes at a time")
    cache = "rollout.engine.prefix_cache_gb of the episodes (default: that of a run with an environment)"
    parser.add_argument("--prefix-cache-gb", type=float, help=cache)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def make_engines(options: argparse.Namespace) -> tuple[TorchEngine, TorchEngine, PreTrainedTokenizerBase, float]:
    """The engine of the episodes, that of the baselines, their tokenizer, and the GiB of the first one's prefix
    cache."""
    model, tokenizer = load(options.model, fast_dtype(options.device), options.device)
    settings = TorchEngineConfig(prefix_cache_gb=options.prefix_cache_gb)
    cached = settings.prefix_cache(gpu=torch.device(options.device).type == "cuda", several_turns=True)

    def make(prefix_cache_gb: float) -> TorchEngine:
        weights, most = WeightVersions(model.dtype), options.max_num_seqs
        engine = TorchEngine(model, tokenizer, weights, max_num_seqs=most, prefix_cache_gb=prefix_cache_gb)
        engine._scheduler._stop_criteria.end_tokens = frozenset()  # lengths are given
        return engine

    return make(cached), make(0.0), tokenizer, cached


def main() -> None:
    options = parse_options()
    engine, plain, tokenizer, prefix_cache_gb = make_engines(options)
    random = Random(0)
    lengths = [
        [geometric(random, options.length, options.max_tokens) for _ in range(options.turns)]
        for _ in range(options.episodes)
    ]
    fixed, asleep = FixedLengths(engine, lengths), Asleep()
    renderer = ChatRenderer(tokenizer, context=None, max_tokens=options.max_tokens)
    workflow = MultiTurn(
        lambda: Sleepy(options.turns, options.sleep, random, asleep),
        NoTask(),
        RolloutPolicy(fixed, renderer, Sampling(1.0, options.max_tokens)),
        EpisodeLimits(options.turns, 60.0),
        group_size=1,
        lockstep=False,
    )
    rounds: dict[str, list[Timed]] = {"episodes": [], "requests": [], "completions": []}
    for number in range(options.rounds + 1):
        fixed.forget()
        found = {
            "episodes": timed(play(workflow, options.episodes)),
            "requests": timed(ask(plain, fixed.requests)),
            "completions": timed(ask(plain, whole(fixed.requests))),
        }
        print(f"{number or 'warm-up'}: {found}", file=sys.stderr, flush=True)
        if len({each.tokens for each in found.values()}) > 1:
            raise AssertionError(f"different numbers of tokens: {found}")
        if number:
            for name, one in found.items():
                rounds[name].append(one)
    for each in (engine, plain):
        asyncio.run(each.close())
    slept = options.sleep * options.turns * options.episodes
    case = f"{options.model}, {options.episodes} episodes at once, {options.turns} turns, {slept:g} s of sleep in all"
    notes = f"{options.rounds} rounds, up to {asleep.most} environments asleep, "
    notes += f"prefix cache of {prefix_cache_gb:g} GiB" if prefix_cache_gb else "no prefix cache"
    report("episodes", rows_of(rounds, case, notes), options.json)


def rows_of(rounds: Mapping[str, Sequence[Timed]], case: str, notes: str) -> list[Row]:
    """The episodes beside each baseline: medians over the rounds."""
    rows = []
    for name in ("requests", "completions"):
        mine, theirs = ([one.tokens / one.wall_s for one in rounds[each]] for each in ("episodes", name))
        cpu = statistics.median(b.cpu_s / a.cpu_s for a, b in zip(rounds["episodes"], rounds[name], strict=True))
        ratio = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
        value, baseline = statistics.median(mine), statistics.median(theirs)
        said = f"{cpu:.2f}x in processor time, {notes}"
        rows.append(Row(case, "episodes", name, value, baseline, "tokens/s", ratio, said))
    return rows


if __name__ == "__main__":
    main()
