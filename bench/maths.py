"""Grading mathematics at scale: from many threads, and under Ray; rates, wrong verdicts, hangs and what is left behind.

The baseline is math-verify called directly, in one process, on honest answers of the same corpus (maths_corpus.py).
On the pathological ones it would not come back, since no signal interrupts one multiplication of huge numbers. The
corpus is graded from so many threads with an event loop each, all of them asking one task, and by actors of Ray, one
a core, each with a task that was sent to it. It is an error if a verdict is wrong, if an honest answer gets none, if
a deadline passes, or if a process is left.

    python bench/maths.py --data DIR            # with math500/test.jsonl and gsm8k/*.jsonl
    python bench/maths.py --data DIR --ray      # needs ray
"""

import asyncio
import os
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from dojang.tasks.maths import MathsConfig, MathsTask
from dojang.types import Outcome, Problem
from machine import Row, arguments, report
from maths_corpus import Case, corpus

CORES = len(os.sched_getaffinity(0))
AT_ONCE = 8
"""Gradings that one thread, or one call to an actor, waits for together."""
MARK = "DOJANG_BENCH_MATHS"
"""A variable whose value every process of this run inherits."""

Graded = list[tuple[Case, Outcome]]


async def grade(task: MathsTask, cases: Sequence[Case]) -> Graded:
    """Some at a time."""
    found: Graded = []
    for start in range(0, len(cases), AT_ONCE):
        batch = cases[start : start + AT_ONCE]
        problems = [Problem("maths", "maths", (), case.gold) for case in batch]
        verdicts = await asyncio.gather(
            *(task.grade(problem, case.text) for problem, case in zip(problems, batch, strict=True))
        )
        found += [(case, verdict.outcome) for case, verdict in zip(batch, verdicts, strict=True)]
    return found


def in_threads(cases: Sequence[Case], threads: int, timeout_s: float, deadline_s: float) -> Graded:
    """All threads ask the same task."""
    task = MathsConfig(timeout_s=timeout_s).make({})
    found: Graded = []
    workers = [
        threading.Thread(
            target=lambda mine=cases[at::threads]: found.extend(asyncio.run(grade(task, mine))), daemon=True
        )
        for at in range(threads)
    ]
    end = time.monotonic() + deadline_s
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(0.0, end - time.monotonic()))
    return list(found)


def under_ray(cases: Sequence[Case], timeout_s: float, deadline_s: float) -> Graded:
    """An actor a core; each gets a copy of one task."""
    import ray

    class Grader:
        def __init__(self, task: MathsTask) -> None:
            self._task = task

        async def grade(self, cases: Sequence[Case]) -> Graded:
            return await grade(self._task, cases)

    ray.init(num_cpus=CORES, include_dashboard=False, log_to_driver=False)
    try:
        task = ray.put(MathsConfig(workers=1, timeout_s=timeout_s).make({}))
        actors = [ray.remote(Grader).remote(task) for _ in range(CORES)]
        calls = [
            actors[place % CORES].grade.remote(cases[start : start + AT_ONCE])
            for place, start in enumerate(range(0, len(cases), AT_ONCE))
        ]
        done, _ = ray.wait(calls, num_returns=len(calls), timeout=deadline_s)
        return [each for found in ray.get(done) for each in found]
    finally:
        ray.shutdown()


def directly(cases: Sequence[Case]) -> float:
    """Gradings a second of math-verify by itself."""
    from math_verify import parse, verify

    verify(parse("$1$"), parse(r"\boxed{1}"))
    started = time.perf_counter()
    for case in cases:
        verify(parse(f"${case.gold}$"), parse(case.text))
    return len(cases) / (time.perf_counter() - started)


def complaints(cases: Sequence[Case], graded: Graded) -> list[str]:
    """Whatever is not as it should be."""
    allowed = {
        "right": {Outcome.ACCEPTED},
        "wrong": {Outcome.WRONG},
        "not right": set(Outcome) - {Outcome.ACCEPTED},
        "anything": set(Outcome),
    }
    said = [f"{len(cases) - len(graded)} gradings did not come back"] if len(graded) < len(cases) else []
    return said + [
        f"{case.kind}: {outcome} for {case.gold[:40]!r} and {case.text[-60:]!r}"
        for case, outcome in graded
        if outcome not in allowed[case.expected]
    ]


def left_behind(mark: str) -> int:
    """Verifiers of this run that are still there."""
    found = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found += b"dojang.tasks.math_verify_process" in (process / "cmdline").read_bytes()
        except OSError:
            continue
    return found


def measure(
    name: str, run: Callable[[], Graded], cases: Sequence[Case], direct: float, mark: str
) -> tuple[Row, list[str]]:
    started = time.perf_counter()
    graded = run()
    seconds = time.perf_counter() - started
    wrong = complaints(cases, graded)
    end = time.monotonic() + 10
    while (left := left_behind(mark)) and time.monotonic() < end:
        time.sleep(0.1)
    wrong += [f"{left} processes were left behind"] if left else []
    errors = Counter(case.kind for case, outcome in graded if outcome is Outcome.JUDGE_ERROR)
    rate = len(graded) / seconds
    notes = f"in {seconds:.0f} s; {len(wrong)} not as they should be; {errors.total()} judge errors"
    return Row(name, "dojang", "math-verify, one process", rate, direct, "gradings/s", rate / direct, notes), wrong


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds math500 and gsm8k")
    parser.add_argument("--gradings", type=int, default=10_000)
    parser.add_argument("--hostile", type=int, default=112, help="how many of them are pathological")
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--timeout", type=float, default=5.0, help="task.timeout_s")
    parser.add_argument("--deadline", type=float, default=1800.0, help="seconds for a case")
    parser.add_argument("--ray", action="store_true", help="under Ray, too")
    asked = parser.parse_args()
    mark = os.environ[MARK] = uuid.uuid4().hex
    honest = corpus(asked.data, asked.gradings - asked.hostile, hostile=0)
    mixed = corpus(asked.data, asked.gradings, hostile=asked.hostile)
    direct = directly(honest[:2000])
    runs: dict[str, tuple[Callable[[], Graded], Sequence[Case]]] = {
        f"{len(cases):,} {what}, {asked.threads} threads": (
            lambda cases=cases: in_threads(cases, asked.threads, asked.timeout, asked.deadline),
            cases,
        )
        for what, cases in (("honest", honest), (f"with {asked.hostile} pathological", mixed))
    }
    if asked.ray:
        name = f"{len(mixed):,} with {asked.hostile} pathological, {CORES} actors of Ray"
        runs[name] = (lambda: under_ray(mixed, asked.timeout, asked.deadline), mixed)
    rows, wrong = [], []
    for name, (run, cases) in runs.items():
        row, said = measure(name, run, cases, direct, mark)
        rows.append(row)
        wrong += [f"{name}: {each}" for each in said]
    report("maths", rows, asked.json)
    print(*wrong[:40], sep="\n", file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
