"""Task with a program as answer, run on tests by the judge.

    no program in the text      -1.0    NO_ANSWER
    it does not compile         -0.5    COMPILE_ERROR
    a test exceeds its limit     0.0    TIME_LIMIT
    otherwise       0.0 to 1.0          task.reward_shape of the fraction of tests passed
    the judge failed            none    JUDGE_ERROR

With task.reward_shape=binary the reward is 1 if all tests pass and 0 otherwise, also without a program and for a
compile error; a failure of the judge still has none.

Judging stops early where the reward is settled: at the first time limit if the reward depends on the fraction; at the
first failed test if only a full score counts. `passed` and the fraction in `parts` then count the tests run, out of all
tests.

Defects of the problems (an invalid reference, no tests of the chosen kind, tests that the language does not support)
are reported when the task is created, for all problems at once. Not covered: whether the tests are correct, and how
programs are run (judge/).
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError

from dojang.core.section import complaints
from dojang.programs import (
    CallTest,
    Checker,
    IoTest,
    Isolation,
    JudgeInput,
    Judgement,
    Limits,
    Stop,
    Submission,
    TestResult,
    TestSuite,
    sampled,
)
from dojang.protocols import Judge
from dojang.tasks.base import RewardedTask, check_usable
from dojang.tasks.extract import SPELLINGS, extract_code, final_answer
from dojang.tasks.reward_settings import RewardedTaskConfig
from dojang.tasks.stop_lines import AFTER_FIRST_PROGRAM, TURN_AFTER_PROGRAM, program_end
from dojang.types import Outcome, Problem, StopLine, Verdict

__all__ = ["CodeConfig", "CodeReference", "CodeTask", "read_reference"]

NO_PROGRAM = -1.0
NOT_COMPILED = -0.5
_SHOWN_FAILURES = 3
"""Failed tests of a program whose outputs are kept."""

_SHAPES: Mapping[str, Callable[[float], float]] = {
    "fraction": float,
    "all_or_nothing": math.floor,  # 0 for all but 1
    "binary": math.floor,
    "fraction_power": lambda fraction: fraction**1.5,
}
_FULL_SCORE = ("all_or_nothing", "binary")
"""Shapes that reward a full score only: judging stops at the first failed test."""
_NOT_CLOSED = "the <think> block is not closed"


class CodeConfig(RewardedTaskConfig):
    """Code: the answer is a program, judged on tests."""

    own_parts: ClassVar[tuple[str, ...]] = ("fraction",)
    runs_programs: ClassVar[bool] = True
    name: Literal["code"] = "code"
    language: Literal["cpp17", "cpp20", "python3"] = "python3"
    """Programming language of problems that name none."""
    reward_shape: Literal["fraction", "all_or_nothing", "fraction_power", "binary"] = "fraction"
    """Reward of a program that runs: the fraction of tests passed, 1 only if that is all of them, or the fraction to
    the power of 1.5. binary: 1 if all tests pass, else 0, also for no program (otherwise -1) and a compile error
    (otherwise -0.5)."""
    tests: Literal["private", "public", "all"] = "private"
    """Tests to run. The statement shows public tests, so a program can hard-code their answers."""
    max_tests: int | None = Field(default=50, ge=1)
    """Maximum number of tests to run per program, drawn at random but the same every time; null runs all. Evaluations
    on benchmarks (`dojang eval`, eval.benchmarks) run all by default."""
    test_seed: int = 0
    """Seed of that draw."""
    max_cpu_s: float | None = Field(default=None, ge=0.01, le=3600)
    """Maximum of the problems' limits of CPU seconds per test (docs/judge.md): lower ones stay. A step waits for the
    slowest program, so a low maximum makes steps with endless programs faster. Evaluations on benchmarks use the
    problems' own limits by default."""
    checker: Literal["contest", "tokens", "caseless", "floats", "exact", "unordered"] | None = None
    """Checker that compares outputs, overriding that of each problem except checker programs. null: each problem's
    checker, which is contest in contest datasets and tokens where a problem names none (docs/judge.md)."""

    stop_at: Literal["answer", "next_turn", "never"] = "next_turn"
    """Stop condition of completions. next_turn: at an invented next turn ("Human:", a token of a chat template) after a
    program, which changes no verdict. answer: at the end of the first block of code, for prompts that ask for one block
    and models that do not think. never: only at the end token and at stop strings of the data."""

    def stop_line(self) -> StopLine | None:
        return {"answer": AFTER_FIRST_PROGRAM, "next_turn": TURN_AFTER_PROGRAM, "never": None}[self.stop_at]

    def answer_end(self, text: str) -> int | None:
        return program_end(text)

    def negative_rewards(self) -> Iterator[str]:
        yield from super().negative_rewards()
        if self.reward_shape != "binary":
            yield f"task.reward_shape={self.reward_shape} gives -1 without a program; set task.reward_shape=binary"

    def for_benchmark(self) -> Self:
        """Copy that runs all tests, with the problems' own limits."""
        return self.model_copy(update={"max_tests": None, "max_cpu_s": None})

    def make(self, problems: Mapping[str, Sequence[Problem]], judge: Judge | None = None) -> "CodeTask":
        """Creates the task; the caller closes the judge."""
        assert judge is not None, "runs_programs says that it needs one"
        return CodeTask(self, problems, judge)

    def judge_input(self, problem: Problem) -> JudgeInput:
        """Builds the judge input of a problem. Raises ValueError if the problem cannot be judged."""
        reference = read_reference(problem.reference)
        language = reference.language or self.language
        if language not in SPELLINGS:
            raise ValueError(f"the reference's language {language!r} is not one of {', '.join(SPELLINGS)}")
        tests = {
            "private": reference.private,
            "public": reference.public,
            "all": (*reference.public, *reference.private),
        }[self.tests]
        if not tests:
            raise ValueError(
                f"no tests for task.tests={self.tests}; it has {len(reference.public)} public and "
                f"{len(reference.private)} private ones"
            )
        if language != "python3" and any(isinstance(test, CallTest) for test in tests):
            raise ValueError(
                f"its tests call Python functions, but programs are in {language}; use task.language=python3"
            )
        chosen = sampled(tests, self.max_tests or len(tests), _seed(self.test_seed, problem.id))
        limits = reference.limits
        if self.max_cpu_s is not None:
            limits = replace(limits, cpu_s=min(limits.cpu_s, self.max_cpu_s))
        return JudgeInput(language, reference.prefix, TestSuite(chosen, limits, _checker(self, reference)))


@dataclass(frozen=True)
class CodeReference:
    """Reference of a code problem: tests, limits, checker. A mapping with the same keys is accepted as well."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    private: tuple[IoTest | CallTest, ...]
    public: tuple[IoTest | CallTest, ...] = ()
    limits: Limits = field(default_factory=Limits)
    checker: Checker = field(default_factory=Checker)
    language: str | None = None
    """Language of the problem; None: task.language."""
    prefix: str = ""
    """Code put before the program: imports and definitions from the statement that an answer need not repeat."""


class CodeTask(RewardedTask):
    """Grades programs with the judge."""

    def __init__(self, config: CodeConfig, problems: Mapping[str, Sequence[Problem]], judge: Judge) -> None:
        super().__init__(config, problems)
        self._config = config
        self._judge = judge
        self._shape = _SHAPES[config.reward_shape]
        self._stop = Stop.FAILURE if config.reward_shape in _FULL_SCORE else Stop.TIME_LIMIT
        # Built once, because a TestSuite caches its digest, and parsing all tests for each completion is slow.
        self._judge_inputs = _make_judge_inputs(config, problems)

    @property
    def languages(self) -> frozenset[str]:
        return frozenset(each.language for each in self._judge_inputs.values())

    def extract(self, problem: Problem, text: str) -> str | None:
        return _program(problem, text, self._judge_inputs[problem.id].language)

    async def _own_verdict(self, problem: Problem, text: str) -> Verdict:
        started = time.perf_counter()
        try:
            judge_input = self._judge_inputs.get(problem.id) or self._config.judge_input(problem)
        except ValueError as error:
            return Verdict(Outcome.JUDGE_ERROR, None, detail=f"{problem.id}: {error}")
        program = _program(problem, text, judge_input.language)
        total = len(judge_input.test_suite.tests)
        if program is None:
            reward = 0.0 if self._config.reward_shape == "binary" else NO_PROGRAM
            thinks = final_answer(text) is None
            return Verdict(
                Outcome.NO_ANSWER,
                reward,
                total=total,
                parts={"fraction": 0.0},
                terms={"fraction": (1.0, reward)},
                detail=_NOT_CLOSED if thinks else f"no finished block of {judge_input.language} code",
                seconds=time.perf_counter() - started,
            )
        source = _joined(judge_input.prefix, program)
        submission = Submission(judge_input.language, source, judge_input.test_suite, self._stop)
        return self._verdict(problem, await self._judge.judge(submission), total)

    def tests(self, problem: Problem) -> tuple[IoTest | CallTest, ...]:
        """Returns the tests that programs are graded on; `tests` of a verdict has their indices."""
        return self._judge_inputs[problem.id].test_suite.tests

    def function(self, problem: Problem) -> str | None:
        """Returns the function that the tests call; "" for tests with input and output text, None if not unique."""
        tests = self._judge_inputs[problem.id].test_suite.tests
        called = {test.function or None if isinstance(test, CallTest) else "" for test in tests}
        return called.pop() if len(called) == 1 else None

    async def trial(self, problem: Problem, text: str, tests: Sequence[IoTest | CallTest]) -> Judgement:
        """Judges the program on other tests, with the limits and the checker of the problem."""
        judge_input = self._judge_inputs[problem.id]
        program = _program(problem, text, judge_input.language)
        if program is None:
            return Judgement(Outcome.NO_ANSWER, (), len(tests), Isolation.NONE)
        suite = TestSuite(tuple(tests), judge_input.test_suite.limits, judge_input.test_suite.checker)
        return await self._judge.judge(Submission(judge_input.language, _joined(judge_input.prefix, program), suite))

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
            terms={} if reward is None else {"fraction": (1.0, reward)},  # the shaped reward
            detail=f"{problem.id}: {judgement.detail}" if failed else judgement.detail,
            seconds=judgement.seconds,
            isolation="" if judgement.outcome is Outcome.JUDGE_ERROR else judgement.isolation,
            tests=_recorded(judgement.results),
        )

    def _reward(self, outcome: Outcome, fraction: float) -> float:
        if outcome is Outcome.COMPILE_ERROR:
            return 0.0 if self._config.reward_shape == "binary" else NOT_COMPILED
        if outcome is Outcome.TIME_LIMIT:
            return 0.0
        return float(self._shape(fraction))


def _recorded(results: Sequence[TestResult]) -> tuple[TestResult, ...]:
    """Results without the outputs of all but the first failed tests: those tell what went wrong, and a sample with a
    hundred failed tests would have hundreds of kilobytes of them."""
    failed = [result.test for result in results if result.outcome is not Outcome.ACCEPTED]
    shown = frozenset(failed[:_SHOWN_FAILURES])
    return tuple(each if each.test in shown else replace(each, output="", errors="") for each in results)


def _program(problem: Problem, text: str, language: str) -> str | None:
    prompt = "\n".join(message.content for message in problem.messages)
    asks = "<think>" in prompt and "<code>" in prompt  # both: a statement in HTML has <code>, too
    return extract_code(text, language, asks_for_tags=asks)


def _joined(prefix: str, program: str) -> str:
    return f"{prefix}\n{program}" if prefix else program


def _make_judge_inputs(config: CodeConfig, problems: Mapping[str, Sequence[Problem]]) -> Mapping[str, JudgeInput]:
    """Builds the judge inputs by problem id. Raises DataError if any problem cannot be judged."""
    judge_inputs: dict[str, JudgeInput] = {}
    wrong: list[str] = []
    for problem in (problem for split in problems.values() for problem in split):
        try:
            made = config.judge_input(problem)
            if judge_inputs.setdefault(problem.id, made) != made:
                raise ValueError("another problem with other tests has the same id")
        except ValueError as error:
            wrong.append(f"{problem.id}: {error}")
    check_usable(wrong)
    return judge_inputs


def _checker(config: CodeConfig, reference: CodeReference) -> Checker:
    if config.checker is None or reference.checker.name == "program":
        return reference.checker
    return replace(reference.checker, name=config.checker)


def read_reference(value: object) -> CodeReference:
    """Parses a reference. Raises ValueError if it is invalid."""
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
    """Returns a seed that does not depend on the process, the platform or the other problems."""
    return int.from_bytes(hashlib.sha256(f"{test_seed}/{problem_id}".encode("utf-8", "surrogatepass")).digest()[:8])
