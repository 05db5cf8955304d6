"""Judging over Ray beside the local pool with as many workers: programs per second, and what the way there costs.

Both judge the same programs, one side after the other, and the other one first in the next round, so that a busy
machine slows both alike; the ratio is the median of the rounds' ratios. Both first judge a few trivial programs. Ray
runs all the while, and what it uses without being asked is counted on both sides. More workers than the machine has
cores show that nothing gets in the way, not that it gets faster.

The overhead is measured with a judge that answers at once. Not measured: machines with a network between them.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import ray

from dojang.build.ray_judges import make_judge
from dojang.cluster.ray.judges import JudgeActor, RayJudge
from dojang.config.run_config import RunConfig
from dojang.core.paths import cache_root
from dojang.judge.pool import JudgePool
from dojang.programs import IoTest, Isolation, Judgement, Stop, Submission, TestSuite
from dojang.protocols import Judge
from dojang.types import Outcome
from judge import TRIVIAL, tree_cpu_s
from judge_workload import TESTS, Language, Workload, mixed, workload
from machine import Row, arguments, numbers, report

NAMES: dict[Language, str] = {"cpp17": "C++", "python3": "Python"}
SIDES = ("local", "ray")
INSTANT = 2000


@dataclass
class Side:
    """What one side has done."""

    rates: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    wrong: int = 0


def judge_of(side: str, workers: int) -> Judge:
    """A new one."""
    if side == "local":
        return JudgePool(cache=cache_root(), workers=workers)
    sections = {"task": {"name": "code"}, "judge": {"workers": workers}, "runtime": {"name": "ray"}}
    needed = {"model": {"name": "dojang-tiny"}, "data": {"name": "arithmetic"}}
    return make_judge(RunConfig.model_validate({**needed, **sections}), {})


async def judged(judge: Judge, work: Workload, side: Side) -> None:
    """All programs at once, as a training step hands them in."""
    used, started = tree_cpu_s(os.getpid()), time.perf_counter()
    found = await asyncio.gather(
        *(
            judge.judge(Submission(work.language, each.source, each.test_suite, Stop.TIME_LIMIT))
            for each in work.programs
        )
    )
    side.rates.append(len(found) / (time.perf_counter() - started))
    side.cpu_s.append((tree_cpu_s(os.getpid()) - used) / len(found))
    side.wrong += sum(each.outcome is not one.truth for each, one in zip(found, work.programs, strict=True))


def trivial(language: Language) -> list[Submission]:
    suite = TestSuite((IoTest("", "0"),))
    return [Submission(language, text % (at, at), suite) for text in TRIVIAL[language] for at in range(8)]


async def compared(language: Language, workers: int, options: argparse.Namespace) -> list[Row]:
    sides = {side: Side() for side in SIDES}
    judges = {side: judge_of(side, workers) for side in SIDES}
    try:
        for judge in judges.values():
            await asyncio.gather(*map(judge.judge, trivial(language)))
        for turn in range(options.rounds):
            work = workload(language, mixed(language, options.programs), options.seed + 100 * workers + turn)
            for side in SIDES if turn % 2 else reversed(SIDES):
                await judged(judges[side], work, sides[side])
            rates = ", ".join(f"{name} {side.rates[-1]:.2f}/s" for name, side in sides.items())
            print(f"{NAMES[language]}, {workers}: {rates}", file=sys.stderr, flush=True)
    finally:
        for judge in judges.values():
            await judge.close()
    return _rows(f"{NAMES[language]}, workers: {workers}", sides["ray"], sides["local"], options)


def _rows(case: str, over: Side, local: Side, options: argparse.Namespace) -> list[Row]:
    notes = (
        f"{options.programs} programs x {TESTS} tests, {options.rounds} rounds; wrong: {over.wrong} and {local.wrong}"
    )
    median = statistics.median
    faster = median(mine / theirs for mine, theirs in zip(over.rates, local.rates, strict=True))
    cheaper = median(theirs / mine for mine, theirs in zip(over.cpu_s, local.cpu_s, strict=True))
    return [
        Row(case, "ray", "local pool", median(over.rates), median(local.rates), "programs/s", faster, notes),
        Row(case, "ray", "local pool", median(over.cpu_s), median(local.cpu_s), "CPU s/program", cheaper, notes),
    ]


class Instant:
    """A judge that knows beforehand."""

    async def judge(self, submission: Submission) -> Judgement:
        return Judgement(Outcome.ACCEPTED, (), len(submission.test_suite.tests), Isolation.NONE)

    async def close(self) -> None: ...


async def overhead(size: int, concurrency: int) -> Row:
    """What the way there and back takes."""
    suite = TestSuite((IoTest("1 " * (size // 2), "1"),))
    submissions = [Submission("python3", f"print({number})\n" * 20, suite) for number in range(INSTANT)]

    async def each_us(judge: Callable[[Submission], Awaitable[Judgement]]) -> float:
        started = time.perf_counter()
        await asyncio.gather(*map(judge, submissions))
        return (time.perf_counter() - started) / INSTANT * 1e6

    far = RayJudge(lambda _: lambda: JudgeActor(Instant(), None), max_per_node=concurrency, timeout_s=120.0)
    await asyncio.gather(*map(far.judge, submissions[:100]))
    try:
        values = [(await each_us(far.judge), await each_us(Instant().judge)) for _ in range(5)]
    finally:
        await far.close()
    value, base = (statistics.median(each) for each in zip(*values, strict=True))
    case = f"overhead, {concurrency} at a time, test suite of {size:,} characters"
    return Row(case, "ray", "a call in this process", value, base, "us/program", base / value, "an instant judge")


def main() -> None:
    parser = arguments((__doc__ or "").partition("\n")[0])
    parser.add_argument("--programs", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--workers", type=numbers, default=[1, 2, 4])
    parser.add_argument("--language", choices=("cpp17", "python3", "all"), default="all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "150")
    os.environ.setdefault("RAY_worker_niceness", "0")  # 15 otherwise: whatever else runs here would slow one side alone
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray.init(num_cpus=max(options.workers), include_dashboard=False, _temp_dir=folder, configure_logging=False)
        try:
            rows = [asyncio.run(overhead(size, max(options.workers))) for size in (1_000, 1_000_000)]
            for language in NAMES if options.language == "all" else [options.language]:
                for workers in options.workers:
                    rows += asyncio.run(compared(language, workers, options))
        finally:
            ray.shutdown()
    report("scale", rows, options.json)


if __name__ == "__main__":
    main()
