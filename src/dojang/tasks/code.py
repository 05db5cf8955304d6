"""Problems that are solved by a program.

    no program in the text      -1.0    NO_ANSWER
    it does not compile         -0.5    COMPILE_ERROR
    some test over time          0.0    TIME_LIMIT
    otherwise       0.0 to 1.0          `shape` of the fraction of tests passed
    the judge failed            none    JUDGE_ERROR

With task.reward_shape=binary the reward is 1 if all tests pass and 0 for everything else, missing programs and
compile errors
included; a failure of the judge still has none.

Judging may stop early, but only where the reward is settled: if tests are paid by the fraction, at the first one
over time; if only a full score is paid, at the first one that is not passed. `passed` and the fraction
in `parts` then count what was run, out of all tests.

What is wrong with the problems themselves (a reference that cannot be read, no tests of the chosen kind, tests the
language cannot take) is found when the task is made, for all of them at once. Not covered: whether the tests
are right, and how programs are run; that is the judge's business.
"""

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, Literal

from pydantic import Field, TypeAdapter, ValidationError

from dojang.core.errors import DataError
from dojang.core.section import complaints
from dojang.programs import CallTest, Checker, Exam, IoTest, Isolation, Judgement, Limits, Stop, Submission, sampled
from dojang.protocols import Judge
from dojang.tasks.extract import SPELLINGS, extract_code
from dojang.tasks.reward_settings import Rewarded
from dojang.tasks.rewards import WeightedRewards, columns_of
from dojang.tasks.splits import problems_of
from dojang.types import Outcome, Problem, Verdict

__all__ = ["CodeConfig", "CodeReference", "CodeTask", "Posed", "pose", "read_reference"]

NO_PROGRAM = -1.0
NOT_COMPILED = -0.5
SHOWN = 5
"""Unusable problems that an error names."""

_SHAPES: Mapping[str, Callable[[float], float]] = {
    "fraction": float,
    "all_or_nothing": math.floor,  # 0 for all but 1
    "binary": math.floor,
    "fraction_power": lambda fraction: fraction**1.5,
}
_FULL_SCORE = ("all_or_nothing", "binary")
"""Shapes that pay a full score only: judging stops at the first failed test."""


class CodeConfig(Rewarded):
    """The answer is a program, judged by running it on tests."""

    own_parts: ClassVar[tuple[str, ...]] = ("fraction",)
    name: Literal["code"] = "code"
    language: Literal["cpp17", "cpp20", "python3"] = "cpp17"
    """What programs are written in, where a problem does not say."""
    reward_shape: Literal["fraction", "all_or_nothing", "fraction_power", "binary"] = "fraction"
    """Reward of a program that runs: the fraction of tests passed, 1 only if that is all of them, or the fraction to
    the power of 1.5. binary: 1 if all tests pass, else 0, also for no program (otherwise -1) and a compile error
    (otherwise -0.5)."""
    tests: Literal["private", "public", "all"] = "private"
    """Which of a problem's tests are run. Public ones are shown in the statement, so they can be answered by rote."""
    max_tests: int | None = Field(default=50, ge=1)
    """Maximum number of tests to run per program, drawn at random but the same every time; null runs all. Evaluations
    on benchmarks (`dojang eval`, eval.benchmarks) run all unless told otherwise."""
    test_seed: int = 0
    """Decides which ones."""
    checker: Literal["contest", "tokens", "caseless", "floats", "exact", "unordered"] | None = None
    """Checker that compares outputs, in place of the one each problem names; checker programs stay. null: each
    problem's own, which is contest in contest datasets and tokens where a problem names none (docs/judge.md)."""

    def make(self, problems: Mapping[str, Sequence[Problem]], judge: Judge) -> "CodeTask":
        """The task with these settings; the judge stays the caller's to close."""
        return CodeTask(self, problems, judge)


@dataclass(frozen=True)
class CodeReference:
    """What a program is judged by: the `reference` of a code problem, or a mapping with the same keys."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    private: tuple[IoTest | CallTest, ...]
    public: tuple[IoTest | CallTest, ...] = ()
    limits: Limits = field(default_factory=Limits)
    checker: Checker = field(default_factory=Checker)
    language: str | None = None
    """The problem's own language, instead of the configured one."""
    prefix: str = ""
    """Put before the program: imports and definitions that the statement shows and an answer need not repeat."""


@dataclass(frozen=True, slots=True)
class Posed:
    """A problem as it is given to the judge."""

    language: str
    prefix: str
    exam: Exam


class CodeTask:
    """The Task of this file."""

    def __init__(self, config: CodeConfig, problems: Mapping[str, Sequence[Problem]], judge: Judge) -> None:
        self._config = config
        self._problems = problems
        self._judge = judge
        self._shape = _SHAPES[config.reward_shape]
        self._stop = Stop.FAILURE if config.reward_shape in _FULL_SCORE else Stop.TIME_LIMIT
        # Made once, because an exam remembers its digest, and reading every test anew for each attempt is slow.
        self._posed = _pose_all(config, problems)
        self._rewards = WeightedRewards(
            config.rewards, timeout_s=config.timeout_s, built_in={}, columns=columns_of(problems)
        )

    @property
    def languages(self) -> frozenset[str]:
        """What the problems are to be solved in."""
        return frozenset(posed.language for posed in self._posed.values())

    def problems(self, split: str) -> Sequence[Problem]:
        return problems_of(self._problems, split)

    async def check_rewards(self, problem: Problem) -> None:
        """Tries the reward functions on a problem: ConfigError if one cannot be called."""
        await self._rewards.check(problem)

    async def grade(self, problem: Problem, text: str) -> Verdict:
        return await self._rewards.added_to(await self._judged(problem, text), problem, text)

    async def _judged(self, problem: Problem, text: str) -> Verdict:
        started = time.perf_counter()
        try:
            posed = self._posed.get(problem.id) or pose(self._config, problem)
        except ValueError as error:
            return Verdict(Outcome.JUDGE_ERROR, None, detail=f"{problem.id}: {error}")
        program = extract_code(text, posed.language)
        if program is None:
            reward = 0.0 if self._config.reward_shape == "binary" else NO_PROGRAM
            return Verdict(
                Outcome.NO_ANSWER,
                reward,
                total=len(posed.exam.tests),
                parts={"fraction": 0.0},
                terms={"fraction": (1.0, reward)},
                detail=f"no finished block of {posed.language} code",
                seconds=time.perf_counter() - started,
            )
        source = _joined(posed.prefix, program)
        judgement = await self._judge.judge(Submission(posed.language, source, posed.exam, self._stop))
        return self._verdict(problem, judgement, len(posed.exam.tests))

    def function(self, problem: Problem) -> str | None:
        """What the tests call; "" if they are text in and text out, None if no one function is named."""
        tests = self._posed[problem.id].exam.tests
        called = {test.function or None if isinstance(test, CallTest) else "" for test in tests}
        return called.pop() if len(called) == 1 else None

    async def trial(self, problem: Problem, text: str, tests: Sequence[IoTest | CallTest]) -> Judgement:
        """The program on other tests, within the limits and by the checker of the problem."""
        posed = self._posed[problem.id]
        program = extract_code(text, posed.language)
        if program is None:
            return Judgement(Outcome.NO_ANSWER, (), len(tests), Isolation.NONE)
        exam = Exam(tuple(tests), posed.exam.limits, posed.exam.checker)
        return await self._judge.judge(Submission(posed.language, _joined(posed.prefix, program), exam))

    def _verdict(self, problem: Problem, judgement: Judgement, total: int) -> Verdict:
        failed = judgement.outcome is Outcome.JUDGE_ERROR
        fraction = judgement.passed / total
        reward = None if failed else self._reward(judgement.outcome, fraction)
        return Verdict(
            judgement.outcome,
            reward,
            passed=judgement.passed,
            total=total,
            parts={} if failed else {"fraction": fraction},
            terms={}
            if reward is None
            else {"fraction": (1.0, reward)},  # as it is paid, with what the shape makes of it
            detail=f"{problem.id}: {judgement.detail}" if failed else judgement.detail,
            seconds=judgement.seconds,
            isolation="" if judgement.outcome is Outcome.JUDGE_ERROR else judgement.isolation,
        )

    def _reward(self, outcome: Outcome, fraction: float) -> float:
        if outcome is Outcome.COMPILE_ERROR:
            return 0.0 if self._config.reward_shape == "binary" else NOT_COMPILED
        if outcome is Outcome.TIME_LIMIT:
            return 0.0
        return float(self._shape(fraction))


def _joined(prefix: str, program: str) -> str:
    return f"{prefix}\n{program}" if prefix else program


def _pose_all(config: CodeConfig, problems: Mapping[str, Sequence[Problem]]) -> Mapping[str, Posed]:
    """DataError if any of the problems cannot be judged."""
    posed: dict[str, Posed] = {}
    wrong: list[str] = []
    for problem in (problem for split in problems.values() for problem in split):
        try:
            made = pose(config, problem)
            if posed.setdefault(problem.id, made) != made:
                raise ValueError("another problem with other tests has the same id")
        except ValueError as error:
            wrong.append(f"{problem.id}: {error}")
    if wrong:
        many = "1 problem" if len(wrong) == 1 else f"{len(wrong)} problems"
        more = [f"and {len(wrong) - SHOWN} more"] if len(wrong) > SHOWN else []
        raise DataError("\n  ".join([f"{many} cannot be judged:", *wrong[:SHOWN], *more]))
    return posed


def pose(config: CodeConfig, problem: Problem) -> Posed:
    """ValueError if the problem cannot be judged."""
    reference = read_reference(problem.reference)
    language = reference.language or config.language
    if language not in SPELLINGS:
        raise ValueError(f"the reference's language {language!r} is none of {', '.join(SPELLINGS)}")
    tests = {
        "private": reference.private,
        "public": reference.public,
        "all": (*reference.public, *reference.private),
    }[config.tests]
    if not tests:
        raise ValueError(
            f"no tests for task.tests={config.tests}; it has {len(reference.public)} public and "
            f"{len(reference.private)} private ones"
        )
    if language != "python3" and any(isinstance(test, CallTest) for test in tests):
        raise ValueError(f"its tests call Python functions, but programs are in {language}; use task.language=python3")
    chosen = sampled(tests, config.max_tests or len(tests), _seed(config.test_seed, problem.id))
    return Posed(language, reference.prefix, Exam(chosen, reference.limits, _checker(config, reference)))


def _checker(config: CodeConfig, reference: CodeReference) -> Checker:
    if config.checker is None or reference.checker.name == "program":
        return reference.checker
    return replace(reference.checker, name=config.checker)


def read_reference(value: object) -> CodeReference:
    """ValueError if it is none."""
    if isinstance(value, CodeReference):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"the reference is {type(value).__name__}, not a CodeReference or a mapping with its keys")
    try:
        return _adapter().validate_python(dict(value))
    except ValidationError as error:
        raise ValueError(f"the reference cannot be read: {'; '.join(complaints(error)[:3])}") from None


@cache
def _adapter() -> TypeAdapter[CodeReference]:
    return TypeAdapter(CodeReference)


def _seed(test_seed: int, problem_id: str) -> int:
    """Depends on nothing but these two: not on the process, the platform or the other problems."""
    return int.from_bytes(hashlib.sha256(f"{test_seed}/{problem_id}".encode("utf-8", "surrogatepass")).digest()[:8])
