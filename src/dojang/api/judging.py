"""Judges programs and grades completions, from any thread, with or without a running event loop."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from dojang.build.grader import Described, Grader
from dojang.core.errors import ConfigError, JudgeError
from dojang.core.section import Section
from dojang.judge.config import JudgeConfig
from dojang.judge.languages import LANGUAGES, OTHER_NAMES
from dojang.judge.problem_file import read_problem
from dojang.programs import Judgement, Stop, Submission
from dojang.types import Message, Outcome, Problem, Verdict

__all__ = ["grade", "judge_program"]

Test = Mapping[str, Any] | tuple[str, str]
"""{"input": ..., "output": ...}, a pair, {"code": ..., "function": ...}, or {"function": ..., "calls": ...}."""


def judge_program(
    code: str,
    tests: Sequence[Test] | Mapping[str, Any],
    language: str = "python3",
    *,
    limits: Mapping[str, Any] | None = None,
    checker: str | Mapping[str, Any] | None = None,
    stop_at_failure: bool = False,
    judge: Mapping[str, Any] | JudgeConfig | None = None,
) -> Judgement:
    """Compiles and runs a program on tests in the sandbox, and returns the outcome of every test.

    `tests` is a list of tests, or a whole problem as in `dojang judge run --problem`. `limits` are cpu_s, memory_mb,
    ...; `checker` is tokens, exact, floats, ...; `judge` is the judge section of a recipe. The sandbox starts with the
    first call, which therefore takes longer, and ends with the program. Raises JudgeError if the judge itself failed.
    """
    known = (*LANGUAGES, *OTHER_NAMES)
    if language not in known:
        raise ConfigError(f"language={language!r} is not supported; choose one of {', '.join(known)}")
    if not isinstance(code, str):
        raise ConfigError(f"the program is a {type(code).__name__}, not text")
    if not isinstance(tests, Sequence | Mapping) or isinstance(tests, str):
        raise ConfigError(f"tests={tests!r:.80} is neither a list of tests nor a problem with tests; see docs/judge.md")
    _check_kind("limits", limits, Mapping)
    _check_kind("checker", checker, str | Mapping)
    problem: dict[str, Any] = dict(tests) if isinstance(tests, Mapping) else {"tests": [_test(each) for each in tests]}
    if limits is not None:
        problem["limits"] = dict(limits)
    if checker is not None:
        problem["checker"] = {"name": checker} if isinstance(checker, str) else dict(checker)
    try:
        written = json.dumps(problem)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"the tests cannot be written as JSON: {error}") from None
    suite = read_problem(written, "all")
    submission = Submission(
        OTHER_NAMES.get(language, language), code, suite, Stop.FAILURE if stop_at_failure else Stop.NEVER
    )
    (judgement,) = _grader("code", judge).judgements([submission])
    if judgement.outcome is Outcome.JUDGE_ERROR:
        raise JudgeError(f"the program could not be judged: {judgement.detail}")
    return judgement


def grade(
    task: Described, problem: Problem | object, text: str, *, judge: Mapping[str, Any] | JudgeConfig | None = None
) -> Verdict:
    """Grades one completion. Raises JudgeError if grading itself failed: that is never a reward.

    `task` is a name (maths, answer_line, code, ...), its section of a recipe, or an object with `grade`. `problem` is a
    Problem, a row with an `answer`, or the reference answer alone. Programs (`code`) are in the `language` of the
    reference, else of the task, by default python3.
    """
    if not isinstance(text, str):
        raise ConfigError(f"the completion is a {type(text).__name__}, not text")
    (verdict,) = _grader(task, judge).verdicts([(_problem(problem), text)])
    if verdict.outcome is Outcome.JUDGE_ERROR:
        raise JudgeError(f"the completion could not be graded: {verdict.detail}")
    return verdict


def _test(test: Test) -> dict[str, Any]:
    if isinstance(test, Mapping):
        return dict(test)
    if not (isinstance(test, tuple | list) and len(test) == 2):
        raise ConfigError(f'{test!r:.80} is not a test; give {{"input": ..., "output": ...}} or a pair of texts')
    given, wanted = test
    return {"input": given, "output": wanted}


def _check_kind(argument: str, value: object, kind: Any) -> None:
    if value is not None and not isinstance(value, kind):
        raise ConfigError(f"{argument}={value!r:.80} is a {type(value).__name__}; see docs/judge.md for its form")


def _problem(problem: object) -> Problem:
    if isinstance(problem, Problem):
        return problem
    if isinstance(problem, Mapping) and "answer" in problem:
        asked = str(problem.get("prompt") or problem.get("question") or "")
        return Problem("problem", "python", (Message("user", asked),), problem["answer"], columns=dict(problem))
    return Problem("problem", "python", (Message("user", ""),), problem)


def _grader(task: Described, judge: Mapping[str, Any] | JudgeConfig | None) -> Grader:
    """Returns a grader that earlier calls with the same settings have started."""
    _check_kind("judge", judge, Mapping | JudgeConfig)
    judging = judge.model_dump(mode="json") if isinstance(judge, JudgeConfig) else dict(judge or {})
    if isinstance(task, Section):
        task = task.model_dump(mode="json")
    if not isinstance(task, str | Mapping):
        return Grader(task, judging)
    try:
        return _shared(json.dumps(task, sort_keys=True), json.dumps(judging, sort_keys=True))
    except TypeError as error:  # not JSON
        raise ConfigError(f"the task or the judge's settings cannot be used: {error}") from None


@cache
def _shared(task: str, judge: str) -> Grader:
    return Grader(json.loads(task), json.loads(judge))
