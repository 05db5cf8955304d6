import asyncio
from collections.abc import Sequence
from dataclasses import asdict, replace
from random import Random
from typing import Any

import pytest
from pydantic import ValidationError

from dojang.core.errors import DataError
from dojang.programs import (
    CallTest,
    Checker,
    IoTest,
    Isolation,
    Judgement,
    Limits,
    Stop,
    Submission,
    TestResult,
    fold,
)
from dojang.protocols import Judge, ProgramTask, Task
from dojang.tasks.code import CodeConfig, CodeReference, CodeTask
from dojang.types import Message, Outcome, Problem, Verdict

SHAPES = ("fraction", "all_or_nothing", "fraction_power", "binary")
ANSWER = "<code>\nint main() {}\n</code>"
OK, BAD, LATE = Outcome.ACCEPTED, Outcome.WRONG, Outcome.TIME_LIMIT


def io_tests(count: int, label: str = "t") -> tuple[IoTest, ...]:
    return tuple(IoTest(f"{label}{number}", str(number)) for number in range(count))


def make_problem(reference: object = None, id: str = "p/1") -> Problem:
    return Problem(id, "p", (Message("user", "Write it."),), reference or CodeReference(io_tests(4)))


CPP = CodeConfig(language="cpp17")


class ScriptedJudge:
    """Gives each test the outcome it is told to, and stops as it is asked to."""

    def __init__(self, outcomes: Sequence[Outcome] = (), reply: Judgement | None = None) -> None:
        self._outcomes = outcomes
        self._reply = reply
        self.seen: list[Submission] = []

    async def judge(self, submission: Submission) -> Judgement:
        self.seen.append(submission)
        if self._reply:
            return self._reply
        results: list[TestResult] = []
        for number, outcome in enumerate(self._outcomes[: len(submission.test_suite.tests)]):
            results.append(TestResult(number, outcome))
            if submission.stop is Stop.FAILURE and outcome is not OK:
                break
            if submission.stop is Stop.TIME_LIMIT and outcome is LATE:
                break
        return Judgement(
            fold(results), tuple(results), len(submission.test_suite.tests), Isolation.LANDLOCK, "said", 0.25
        )

    async def close(self) -> None:
        pass


def grade(judge: Judge, text: str = ANSWER, problem: Problem | None = None, **settings: Any) -> Verdict:
    problem = problem or make_problem()
    task: Task = CodeConfig(**{"language": "cpp17", **settings}).make({"train": [problem]}, judge)
    return asyncio.run(task.grade(problem, text))


@pytest.mark.parametrize(
    ("outcomes", "outcome", "passed", "rewards"),
    [
        ([OK, OK, OK, OK], OK, 4, (1.0, 1.0, 1.0, 1.0)),
        ([OK, OK, BAD, OK], BAD, 3, (0.75, 0.0, 0.75**1.5, 0.0)),
        ([BAD, BAD, BAD, BAD], BAD, 0, (0.0, 0.0, 0.0, 0.0)),
        ([OK, Outcome.RUNTIME_ERROR, OK, BAD], Outcome.RUNTIME_ERROR, 2, (0.5, 0.0, 0.5**1.5, 0.0)),
        ([OK, Outcome.MEMORY_LIMIT, OK, OK], Outcome.MEMORY_LIMIT, 3, (0.75, 0.0, 0.75**1.5, 0.0)),
        ([OK, Outcome.OUTPUT_LIMIT, OK, OK], Outcome.OUTPUT_LIMIT, 3, (0.75, 0.0, 0.75**1.5, 0.0)),
        ([OK, OK, OK, LATE], LATE, 3, (0.0, 0.0, 0.0, 0.0)),
    ],
)
def test_reward_of_a_program(
    outcomes: list[Outcome], outcome: Outcome, passed: int, rewards: tuple[float, ...]
) -> None:
    for reward_shape, reward in zip(SHAPES, rewards, strict=True):
        verdict = grade(ScriptedJudge(outcomes), reward_shape=reward_shape)
        assert (verdict.outcome, verdict.reward, verdict.total) == (outcome, reward, 4)
        assert verdict.parts == {"fraction": verdict.passed / 4}
        assert verdict.terms == {"fraction": (1.0, verdict.reward)}  # as it is paid, minus signs included
        assert (verdict.detail, verdict.seconds, verdict.isolation) == ("said", 0.25, "landlock")
        if reward_shape not in ("all_or_nothing", "binary"):
            assert verdict.passed == passed


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("", "no finished block of cpp17 code"),
        ("I give up.", "no finished block of cpp17 code"),
        ("```cpp\nint main() {", "no finished block of cpp17 code"),
        ("<think>easy</think>```cpp\nint main() {", "no finished block of cpp17 code"),
        ("<think>```cpp\nint main() {}\n```", "the <think> block is not closed"),
        ("<think>\n<code>\nint main() {}\n</code>", "the <think> block is not closed"),
    ],
)
def test_missing_program_is_not_judged(text: str, detail: str) -> None:
    judge = ScriptedJudge()
    verdict = grade(judge, text)
    assert (verdict.outcome, verdict.reward, verdict.passed, verdict.total) == (Outcome.NO_ANSWER, -1.0, 0, 4)
    assert verdict.detail == detail
    assert verdict.parts == {"fraction": 0.0}
    assert verdict.terms == {"fraction": (1.0, verdict.reward)}
    assert verdict.isolation == ""
    assert judge.seen == []


@pytest.mark.parametrize(
    ("prompt", "counts"),
    [
        ("Think in <think> tags, and put the solution in <code> tags.", True),
        ("Given <code>nums</code>, return its sum.", False),  # HTML
    ],
)
def test_code_tags_end_thinking_if_the_prompt_asks_for_both_tags(prompt: str, counts: bool) -> None:
    problem = replace(make_problem(), messages=(Message("user", prompt),))
    judge = ScriptedJudge()
    verdict = grade(judge, "<think>\nWe add.\n<code>\nint main() {}\n</code>\nIt adds.", problem)
    assert (verdict.outcome is not Outcome.NO_ANSWER) is counts
    assert [each.source for each in judge.seen] == (["int main() {}"] if counts else [])


def test_binary_reward_is_zero_without_a_program() -> None:
    judge = ScriptedJudge()
    verdict = grade(judge, "I give up.", reward_shape="binary")
    assert (verdict.outcome, verdict.reward, judge.seen) == (Outcome.NO_ANSWER, 0.0, [])


def test_compile_error_reward() -> None:
    reply = Judgement(Outcome.COMPILE_ERROR, (), 4, Isolation.NAMESPACES, "1:1: error")
    for reward_shape in SHAPES:
        verdict = grade(ScriptedJudge(reply=reply), reward_shape=reward_shape)
        reward = 0.0 if reward_shape == "binary" else -0.5
        assert (verdict.outcome, verdict.reward, verdict.total) == (Outcome.COMPILE_ERROR, reward, 4)
        assert (verdict.detail, verdict.isolation) == ("1:1: error", "namespaces")


def test_verdict_keeps_all_results_and_the_outputs_of_the_first_failed_tests() -> None:
    outcomes = (OK, Outcome.WRONG, Outcome.WRONG, OK, Outcome.WRONG, Outcome.WRONG)
    results = tuple(TestResult(at, each, cpu_s=0.5, output="5", errors="no") for at, each in enumerate(outcomes))
    reply = Judgement(Outcome.WRONG, results, 6, Isolation.SECCOMP)
    tests = grade(ScriptedJudge(reply=reply)).tests
    assert [each.outcome for each in tests] == list(outcomes)
    assert {each.cpu_s for each in tests} == {0.5}
    assert [each.output for each in tests] == ["", "5", "5", "", "5", ""]
    assert [each.errors for each in tests] == ["", "no", "no", "", "no", ""]


def test_judge_failure_has_no_reward() -> None:
    reply = Judgement(Outcome.JUDGE_ERROR, (TestResult(0, OK),), 4, Isolation.SECCOMP, "no compiler", 1.5)
    verdict = grade(ScriptedJudge(reply=reply))
    assert (verdict.outcome, verdict.reward) == (Outcome.JUDGE_ERROR, None)
    assert (verdict.detail, verdict.seconds, verdict.isolation) == ("p/1: no compiler", 1.5, "")


@pytest.mark.parametrize("reward_shape", SHAPES)
def test_stopping_early_never_changes_the_reward(reward_shape: str) -> None:
    class Thorough(ScriptedJudge):
        async def judge(self, submission: Submission) -> Judgement:
            return await super().judge(
                Submission(submission.language, submission.source, submission.test_suite, Stop.NEVER)
            )

    random = Random(6)
    kinds = [OK, BAD, LATE, Outcome.RUNTIME_ERROR, Outcome.MEMORY_LIMIT, Outcome.OUTPUT_LIMIT]
    shorter = 0
    for _ in range(1500):
        size = random.randrange(1, 8)
        weights = [random.choice([1, 8, 30]), 1, random.choice([0, 1]), 1, 1, 1]
        outcomes = random.choices(kinds, weights, k=size)
        problem = make_problem(CodeReference(io_tests(size)))
        stopped = grade(ScriptedJudge(outcomes), problem=problem, reward_shape=reward_shape)
        full = grade(Thorough(outcomes), problem=problem, reward_shape=reward_shape)
        assert stopped.reward == full.reward, outcomes
        assert stopped.total == full.total == size
        assert (stopped.outcome is OK) == (full.outcome is OK)
        shorter += stopped.passed < full.passed
    assert shorter > 20  # it did stop early


@pytest.mark.parametrize(
    ("reward_shape", "stop"),
    [
        ("fraction", Stop.TIME_LIMIT),
        ("fraction_power", Stop.TIME_LIMIT),
        ("all_or_nothing", Stop.FAILURE),
        ("binary", Stop.FAILURE),
    ],
)
def test_submission_to_the_judge(reward_shape: str, stop: Stop) -> None:
    reference = CodeReference(io_tests(3), limits=Limits(cpu_s=1.0), checker=Checker("floats"))
    judge = ScriptedJudge([OK] * 3)
    grade(judge, problem=make_problem(reference), reward_shape=reward_shape, language="cpp20")
    (submission,) = judge.seen
    assert (submission.language, submission.source, submission.stop) == ("cpp20", "int main() {}", stop)
    assert submission.test_suite.tests == io_tests(3)
    assert submission.test_suite.limits == Limits(cpu_s=1.0)
    assert submission.test_suite.checker == Checker("floats")


def test_language_and_prefix_of_the_problem() -> None:
    reference = CodeReference(
        (CallTest("assert candidate(1) == 2", "f"),), language="python3", prefix="from typing import List"
    )
    judge = ScriptedJudge([OK])
    text = "```cpp\nint main() {}\n```\n```python\ndef f(x):\n    return x + 1\n```\n"
    assert grade(judge, text, make_problem(reference)).reward == 1.0
    assert judge.seen[0].language == "python3"
    assert judge.seen[0].source == "from typing import List\ndef f(x):\n    return x + 1"


@pytest.mark.parametrize(
    ("tests", "labels"),
    [("private", ["t0", "t1"]), ("public", ["u0"]), ("all", ["u0", "t0", "t1"])],
)
def test_task_tests_selects_tests(tests: str, labels: list[str]) -> None:
    judge = ScriptedJudge([OK] * 3)
    grade(judge, problem=make_problem(CodeReference(io_tests(2), io_tests(1, "u"))), tests=tests)
    assert [test.input for test in judge.seen[0].test_suite.tests if isinstance(test, IoTest)] == labels


def test_drawn_tests_are_deterministic() -> None:
    def drawn(id: str = "p/1", **settings: Any) -> tuple[object, ...]:
        judge = ScriptedJudge([OK] * 200)
        verdict = grade(judge, problem=make_problem(CodeReference(io_tests(200)), id), **settings)
        assert verdict.total == len(judge.seen[0].test_suite.tests)
        return judge.seen[0].test_suite.tests

    assert len(drawn()) == 50
    assert drawn() == drawn()
    assert drawn() == tuple(sorted(drawn(), key=io_tests(200).index))
    assert drawn(test_seed=1) != drawn()
    assert drawn("p/2") != drawn()
    assert drawn(max_tests=200) == drawn(max_tests=1000) == drawn(max_tests=None) == io_tests(200)
    # The very ones, on every machine: an accuracy must not depend on where it was measured.
    few = [test.input for test in drawn(max_tests=5) if isinstance(test, IoTest)]
    assert few == ["t4", "t43", "t48", "t92", "t143"]


def test_test_suite_is_built_once_per_problem() -> None:
    judge = ScriptedJudge([OK] * 4)
    problem = make_problem()
    task = CodeTask(CPP, {"train": [problem], "test": [problem]}, judge)
    for _ in range(2):
        asyncio.run(task.grade(problem, ANSWER))
    assert judge.seen[0].test_suite is judge.seen[1].test_suite


def test_task_checker_replaces_all_but_checker_programs() -> None:
    tests = [{"input": "1", "output": "0.5"}]
    program = {"name": "program", "language": "python3", "source": "pass"}
    for own, chosen, name in (
        (None, None, "tokens"),
        (None, "contest", "contest"),
        ({"name": "contest"}, None, "contest"),
        ({"name": "floats", "tolerance": 0.1}, "contest", "contest"),
        (program, "contest", "program"),
    ):
        reference = {"private": tests, **({"checker": own} if own else {})}
        checker = CodeConfig(checker=chosen).judge_input(make_problem(reference=reference)).test_suite.checker
        assert checker.name == name
        assert checker.tolerance == (own or {}).get("tolerance", 1e-6)
    with pytest.raises(ValidationError, match="checker"):
        CodeConfig(checker="program")


def test_mapping_as_reference() -> None:
    reference = CodeReference(io_tests(2), (CallTest("assert f()", "f"),), Limits(cpu_s=1.5), Checker("exact"))
    judge = ScriptedJudge([OK] * 2)
    grade(judge, problem=make_problem(asdict(reference)))
    suite = judge.seen[0].test_suite
    assert (suite.tests, suite.limits, suite.checker) == (io_tests(2), Limits(cpu_s=1.5), Checker("exact"))


def test_json_mapping_as_reference() -> None:
    judge = ScriptedJudge([OK])
    reference = {"private": [{"input": "1", "output": "2"}], "limits": {"cpu_s": 3}, "checker": {"name": "exact"}}
    assert grade(judge, problem=make_problem(reference)).reward == 1.0
    assert judge.seen[0].test_suite.tests == (IoTest("1", "2"),)
    assert judge.seen[0].test_suite.limits.cpu_s == 3


@pytest.mark.parametrize(("most", "used"), [(None, 3.0), (1.5, 1.5), (10.0, 3.0)])
def test_max_cpu_s_lowers_the_limit_of_a_problem(most: float | None, used: float) -> None:
    problem = make_problem(CodeReference(io_tests(1), limits=Limits(cpu_s=3.0, wall_s=7.0, memory_mb=99)))
    found = CodeConfig(max_cpu_s=most).judge_input(problem).test_suite.limits
    assert found == Limits(cpu_s=used, wall_s=7.0, memory_mb=99)


IO = {"input": "1", "output": "2"}


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("18", "the reference is str, not a CodeReference"),
        (["x"], "the reference is list, not a CodeReference"),
        ({"public": [IO]}, "private: Field required"),
        ({"private": [{"input": "1"}]}, "private.0.IoTest.output: Field required"),
        ({"private": [IO], "tests": []}, "tests: Unexpected keyword argument"),
        ({"private": [IO], "limits": {"cpu_s": -1}}, "limits.cpu_s=-1.0 is out of range"),
        ({"private": [IO], "checker": {"name": "fuzzy"}}, "checker.name: Input should be"),
        ({"private": [IO], "language": "cobol"}, "language 'cobol' is not one of cpp17, cpp20, python3"),
        ({"private": [{"code": "assert f()"}]}, "programs are in cpp17; use task.language=python3"),
        (CodeReference((), io_tests(3)), "no tests for task.tests=private; it has 3 public and 0 private ones"),
        (CodeReference(()), "no tests for task.tests=private; it has 0 public and 0 private ones"),
    ],
)
def test_unusable_problem_is_refused(reference: object, said: str) -> None:
    bad = make_problem(reference, "p/bad")
    with pytest.raises(DataError) as caught:
        CodeTask(CPP, {"train": [make_problem()], "test": [bad]}, ScriptedJudge())
    assert str(caught.value).startswith("1 problem cannot be judged:\n  p/bad: ")
    assert said in str(caught.value)
    # A task that never saw it must not take it for a wrong answer either.
    task = CodeTask(CPP, {"train": [make_problem()]}, ScriptedJudge())
    verdict = asyncio.run(task.grade(bad, ANSWER))
    assert (verdict.outcome, verdict.reward) == (Outcome.JUDGE_ERROR, None)
    assert said in verdict.detail


def test_all_bad_problems_are_reported_at_once() -> None:
    bad = [make_problem(CodeReference(()), f"p/{number}") for number in range(30)]
    with pytest.raises(DataError) as caught:
        CodeTask(CPP, {"train": bad, "test": []}, ScriptedJudge())
    lines = str(caught.value).split("\n  ")
    assert lines[0] == "30 problems cannot be judged:"
    assert [line.partition(":")[0] for line in lines[1:-1]] == ["p/0", "p/1", "p/2", "p/3", "p/4"]
    assert lines[-1] == "and 25 more"


def test_two_problems_cannot_share_an_id() -> None:
    problems = [make_problem(), make_problem(CodeReference(io_tests(5)))]
    with pytest.raises(DataError, match="p/1: another problem with other tests has the same id"):
        CodeTask(CPP, {"train": problems}, ScriptedJudge())


def test_unknown_problem_is_judged() -> None:
    task = CodeTask(CPP, {}, ScriptedJudge([OK] * 4))
    assert asyncio.run(task.grade(make_problem(), ANSWER)).reward == 1.0


def test_problems_by_split() -> None:
    problem = make_problem()
    task = CodeTask(CPP, {"train": [problem], "test": []}, ScriptedJudge())
    assert task.problems("train") == [problem]
    with pytest.raises(DataError, match="the data has no split 'dev'; splits: 'train', 'test'"):
        task.problems("dev")


def test_the_default_configuration() -> None:
    assert CodeConfig().model_dump() == {
        "name": "code",
        "language": "python3",
        "reward_shape": "fraction",
        "tests": "private",
        "max_tests": 50,
        "test_seed": 0,
        "max_cpu_s": None,
        "checker": None,
        "stop_at": "next_turn",
        "rewards": {},
        "timeout_s": 10.0,
    }
    assert all(each.description for name, each in CodeConfig.model_fields.items() if name != "name")


@pytest.mark.parametrize(
    "settings",
    [
        {"max_tests": 0},
        {"max_cpu_s": 0.0},
        {"language": "cobol"},
        {"reward_shape": "square"},
        {"tests": "some"},
        {"seed": 1},
    ],
)
def test_invalid_configuration_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        CodeConfig.model_validate(settings)


@pytest.mark.parametrize(
    ("tests", "called"),
    [
        (io_tests(2), ""),
        ((CallTest("assert candidate(1)", "f"), CallTest("assert candidate(2)", "f")), "f"),
        ((CallTest("assert candidate(1)", "f"), CallTest("assert candidate(2)", "g")), None),
        ((CallTest("assert f(1)"),), None),
        ((*io_tests(1), CallTest("assert candidate(1)", "f")), None),
    ],
)
def test_function_called_by_tests(tests: tuple[IoTest | CallTest, ...], called: str | None) -> None:
    problem = make_problem(CodeReference(tests, language="python3"))
    assert CodeConfig().make({"train": [problem]}, ScriptedJudge()).function(problem) == called


def test_trial_on_other_tests() -> None:
    limits, checker = Limits(cpu_s=7.0), Checker("exact")
    problem = make_problem(CodeReference(io_tests(4), limits=limits, checker=checker, prefix="// mine"))
    judge = ScriptedJudge([OK, BAD, OK])
    task: ProgramTask = CodeConfig(language="cpp17", reward_shape="all_or_nothing").make({"train": [problem]}, judge)
    found = asyncio.run(task.trial(problem, ANSWER, io_tests(3, "other")))
    assert [result.outcome for result in found.results] == [OK, BAD, OK]  # all of them: each is told of
    (seen,) = judge.seen
    assert seen.test_suite.tests == io_tests(3, "other")
    assert (seen.test_suite.limits, seen.test_suite.checker, seen.source) == (limits, checker, "// mine\nint main() {}")
    nothing = asyncio.run(task.trial(problem, "I cannot.", io_tests(3, "other")))
    assert (nothing.outcome, nothing.total, nothing.results) == (Outcome.NO_ANSWER, 3, ())
