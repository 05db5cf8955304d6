"""judge_program and grade."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import dojang
from dojang.api import judging
from dojang.core.errors import ConfigError, DataError

ADD = "a, b = map(int, input().split())\nprint(a + b)"


@pytest.fixture(scope="module", autouse=True)
def judges_end_with_the_module() -> Iterator[None]:
    """Closes the shared judges of these calls, which live as long as the process: later tests count processes."""
    made: list[Any] = []
    shared = judging._shared

    def recorded(task: str, judge: str) -> Any:
        made.append(shared(task, judge))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging, "_shared", recorded)
        yield
    shared.cache_clear()
    for grader in made:
        grader.close()


def test_programs_are_judged_test_by_test() -> None:
    found = dojang.judge_program(ADD, [("1 2", "3"), {"input": "2 2", "output": "5"}])
    assert found.outcome is dojang.Outcome.WRONG
    assert [result.outcome for result in found.results] == ["accepted", "wrong"]


def test_limits_checkers_and_languages_apply() -> None:
    loop = dojang.judge_program("while True: pass", [("", "")], "python3", limits={"cpu_s": 0.2})
    assert loop.outcome is dojang.Outcome.TIME_LIMIT
    assert dojang.judge_program("print(1/3)", [("", "0.333333")], checker="floats").outcome == "accepted"
    assert dojang.judge_program("int main() {}", [("", "")], "cpp17").outcome == "accepted"


def test_function_calls_are_judged_also_where_an_event_loop_runs() -> None:
    async def cell() -> dojang.Judgement:
        calls = {"function": "double", "calls": [{"args": [2], "expected": 4}]}
        return dojang.judge_program("def double(x):\n    return 2 * x", calls)

    assert asyncio.run(cell()).outcome == "accepted"


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match="language='java' is not supported; choose one of cpp17"):
        dojang.judge_program("", [("", "")], "java")
    with pytest.raises(ConfigError, match="the program is a NoneType, not text"):
        dojang.judge_program(None, [("", "")])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tests=None is neither a list"):
        dojang.judge_program(ADD, None)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no tests"):
        dojang.judge_program(ADD, [])
    with pytest.raises(ConfigError, match="is not a test"):
        dojang.judge_program(ADD, [("1 2", "3", "4")])  # type: ignore[list-item]
    with pytest.raises(DataError, match="cpu_s"):
        dojang.judge_program(ADD, [("1 2", "3")], limits={"cpu_s": -1})
    with pytest.raises(ConfigError, match="the tests cannot be written as JSON"):
        dojang.judge_program(ADD, [{"input": b"", "output": ""}])
    for wrong in ({"limits": 3}, {"checker": 3}, {"judge": "http://judge"}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))}=.* is a (int|str); see docs/judge.md"):
            dojang.judge_program(ADD, [("1 2", "3")], **wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="the completion is a NoneType, not text"):
        dojang.grade("answer_line", "1", None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="set is not JSON serializable"):
        dojang.grade({"name": "maths", "workers": {1}}, "1", "1")


def test_completions_are_graded_by_a_task() -> None:
    assert dojang.grade("answer_line", "4", "2 + 2\n#### 4").outcome == "accepted"
    assert dojang.grade("answer_line", {"question": "2 + 2?", "answer": "4"}, "#### 5").outcome == "wrong"
    problem = dojang.Problem("p", "test", (dojang.Message("user", "?"),), "yes")
    assert dojang.grade({"name": "exact_match"}, problem, " yes ").reward == 1


def test_a_task_that_fails_is_an_error_and_no_reward() -> None:
    with pytest.raises(dojang.DojangError, match="could not be graded"):
        dojang.grade("answer_line", "four", "#### 4")
