"""The usual ways to judge a batch of programs, kept as baselines.

`codefu` is the design of CodeFu and its relatives: compile in a shell, then a pool of processes made for each
program, one test per process, under a limit of wall time. `sequential` is a plain loop over programs and tests.
Neither isolates what it runs nor limits its memory; both are handed well-behaved programs only.
"""

import multiprocessing
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Literal

from dojang.programs import IoTest
from judge_workload import Language, Program

Answer = Literal["AC", "WA", "CE", "TLE"]
"""What these designs can say; a crash is a wrong answer to them."""

MOST_PROCESSES = 100
PYTHON = os.path.realpath(sys.executable)  # without a virtual environment's start-up
FORK = multiprocessing.get_context("fork")


def codefu(
    language: Language, programs: tuple[Program, ...], folder: Path, pool: ProcessPoolExecutor
) -> Iterator[tuple[int, Answer]]:
    """Programs side by side in `pool`, which stands in for Ray tasks: one process per core. As they finish."""
    waiting = {
        pool.submit(_pooled, language, program.source, _pairs(program), program.test_suite.limits.cpu_s, folder): index
        for index, program in enumerate(programs)
    }
    for done in as_completed(waiting):
        yield waiting[done], done.result()


def sequential(language: Language, programs: tuple[Program, ...], folder: Path) -> Iterator[tuple[int, Answer]]:
    """One program after another, one test after another."""
    for index, program in enumerate(programs):
        command = _prepared(language, program.source, folder)
        if command is None:
            yield index, "CE"
            continue
        limit = program.test_suite.limits.cpu_s
        yield index, _folded([_tested((command, given, wanted, limit)) for given, wanted in _pairs(program)])
        Path(command[-1]).unlink()


def _stopping(language: Language, program: Program, folder: Path) -> Answer:
    """One program, one test after another, up to the first time-out."""
    command = _prepared(language, program.source, folder)
    if command is None:
        return "CE"
    answers: list[Answer] = []
    for given, wanted in _pairs(program):
        answers.append(_tested((command, given, wanted, program.test_suite.limits.cpu_s)))
        if answers[-1] == "TLE":
            break
    Path(command[-1]).unlink()
    return _folded(answers)


def wall_limit(
    language: Language, programs: tuple[Program, ...], folder: Path, pool: ProcessPoolExecutor
) -> Iterator[tuple[str, Answer]]:
    """Every test of every program by itself, as many at a time as there are cores. Compiles first, at once."""
    jobs = {}
    for index, program in enumerate(programs):
        command = _prepared(language, program.source, folder)
        assert command is not None
        for place, (given, wanted) in enumerate(_pairs(program)):
            jobs[f"{index}/{place}"] = (command, given, wanted, program.test_suite.limits.cpu_s)

    def tested() -> Iterator[tuple[str, Answer]]:
        yield from zip(jobs, pool.map(_tested, jobs.values()), strict=True)

    return tested()


def plain(
    language: Language, programs: tuple[Program, ...], folder: Path, pool: ProcessPoolExecutor
) -> Iterator[tuple[int, Answer]]:
    """Programs side by side in `pool`; each runs one test after another up to the first time-out. As they finish."""
    waiting = {pool.submit(_stopping, language, program, folder): index for index, program in enumerate(programs)}
    for done in as_completed(waiting):
        yield waiting[done], done.result()


def processes_pool(size: int) -> ProcessPoolExecutor:
    """Processes that may have children of their own, already started."""
    pool = ProcessPoolExecutor(size, mp_context=FORK)
    list(pool.map(abs, range(size)))
    return pool


def _pooled(language: Language, source: str, tests: list[tuple[str, str]], limit: float, folder: Path) -> Answer:
    command = _prepared(language, source, folder)
    if command is None:
        return "CE"
    jobs = [(command, given, wanted, limit) for given, wanted in tests]
    with ProcessPoolExecutor(min(MOST_PROCESSES, len(tests)), mp_context=FORK) as pool:
        answers = list(pool.map(_tested, jobs))
    Path(command[-1]).unlink()
    return _folded(answers)


def _prepared(language: Language, source: str, folder: Path) -> list[str] | None:
    """The command that runs the source; None if it does not compile."""
    stem = folder / uuid.uuid4().hex
    if language == "python3":
        script = stem.with_suffix(".py")
        script.write_text(source)
        return [PYTHON, str(script)]
    text, binary = stem.with_suffix(".cpp"), stem.with_suffix(".bin")
    text.write_text(source)
    compiled = subprocess.run(f'g++ -std=c++17 -O2 "{text}" -o "{binary}"', shell=True, capture_output=True, text=True)
    text.unlink()
    return None if compiled.returncode else [str(binary)]


def _tested(job: tuple[list[str], str, str, float]) -> Answer:
    command, given, wanted, limit = job
    try:
        done = subprocess.run(command, input=given, capture_output=True, text=True, errors="replace", timeout=limit)
    except subprocess.TimeoutExpired:
        return "TLE"
    return "AC" if done.returncode == 0 and done.stdout.strip() == wanted.strip() else "WA"


def _folded(answers: list[Answer]) -> Answer:
    return "TLE" if "TLE" in answers else "WA" if "WA" in answers else "AC"


def _pairs(program: Program) -> list[tuple[str, str]]:
    return [(test.input, test.output) for test in program.test_suite.tests if isinstance(test, IoTest)]
