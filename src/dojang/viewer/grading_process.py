"""Grades recorded responses again, with the task and the data of a run, in a child process.

    python -m dojang.viewer.grading_process CONFIG

CONFIG is the run's config.yaml. Requests and replies are JSON objects, one per line, on standard input and output:
{"kind", "problem"} is answered with the problem's tests and reference, {"kind", "problem", "text"} with a verdict, an
error with {"error"}. The data are loaded with the first request and kept.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from dojang.build.benchmarks import load_benchmarks
from dojang.build.grader import Grader
from dojang.config.recipe import load
from dojang.config.run_config import RunConfig
from dojang.core.child_process import end_with_parent
from dojang.core.errors import DataError, DojangError
from dojang.programs import CallTest, IoTest
from dojang.types import Problem, Verdict

__all__ = ["main"]

_LONGEST = 20_000
"""Characters of an input, an expected output or a reference."""


def main() -> None:
    """Answers requests until standard input ends."""
    end_with_parent(os.getppid())
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library or a task prints is no reply
    sys.path.append(os.path.abspath(os.curdir))  # the user's own modules, as in a run
    for line in sys.stdin:
        replies.write(json.dumps(_answer(json.loads(line))) + "\n")
        replies.flush()


def _answer(request: Mapping[str, str]) -> dict[str, Any]:
    try:
        config, problem = _find(request["kind"], request["problem"])
        if "text" not in request:
            return _reference(config, problem)
        (verdict,) = _grader(request["kind"]).verdicts([(problem, request["text"])])
        return _verdict(verdict)
    except DojangError as error:
        return {"error": str(error)}
    except Exception as error:  # of the user's own code, or of a task that cannot grade this
        return {"error": f"{type(error).__name__}: {error}"}


@cache
def _config() -> RunConfig:
    return load(sys.argv[1])


@cache
def _split(kind: str) -> tuple[RunConfig, Mapping[str, Problem]]:
    """Settings of the task that graded a kind of rollouts, and its problems by id."""
    config, name = _config(), kind.removeprefix("test-")
    if kind in ("train", "test"):
        return config, _by_id(config.data.load("train" if kind == "train" else config.data.held_out_split()))
    for each in load_benchmarks(config, ()):
        if each.name == name:
            return each.config, _by_id(each.problems)
    raise DataError(f"the run's configuration has no benchmark {name!r} (eval.benchmarks)")


def _by_id(problems: Sequence[Problem]) -> Mapping[str, Problem]:
    return {problem.id: problem for problem in problems}


@cache
def _grader(kind: str) -> Grader:
    config, _ = _split(kind)
    return Grader(config.task, config.judge)


def _find(kind: str, name: str) -> tuple[RunConfig, Problem]:
    try:
        config, problems = _split(kind)
    except DataError as error:
        raise DataError(f"the run's data cannot be read here: {error}") from error
    if name not in problems:
        raise DataError(f"the run's data, as they are on this machine, have no problem {name!r}; they have changed")
    return config, problems[name]


def _reference(config: RunConfig, problem: Problem) -> dict[str, Any]:
    if not config.task.runs_programs:
        return {"tests": [], "reference": str(problem.reference)[:_LONGEST]}
    tests = config.task.judge_input(problem).test_suite.tests
    return {"tests": [{"test": place, **_shown(each)} for place, each in enumerate(tests)], "reference": ""}


def _shown(test: IoTest | CallTest) -> dict[str, str]:
    if isinstance(test, CallTest):
        return {"input": test.code[:_LONGEST], "expected": ""}
    return {"input": test.input[:_LONGEST], "expected": test.output[:_LONGEST]}


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {
        "outcome": str(verdict.outcome),
        "reward": verdict.reward,
        "reward_parts": dict(verdict.parts),
        "detail": verdict.detail,
        "tests": [{**asdict(each), "outcome": str(each.outcome)} for each in verdict.tests],
    }


if __name__ == "__main__":
    main()
