"""JSON of submissions, test suites and judgements, and problem files."""

import json
from typing import Any

import pytest

from dojang.core.errors import DataError
from dojang.judge.json_schema import JudgeRequest, SchemaError, dump, parse
from dojang.judge.problem_file import read_problem
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
    TestSuite,
)
from dojang.types import Outcome

SUITE = TestSuite(
    (IoTest("1 2\n", "3\n"), CallTest("assert candidate(1) == 2", "f")), Limits(cpu_s=1.5), Checker("exact")
)


def problems(text: str) -> list[str]:
    with pytest.raises(SchemaError) as caught:
        parse(Submission, text)
    return caught.value.problems


def with_tests(*tests: Any, **suite: Any) -> str:
    return json.dumps({"language": "cpp", "source": "x", "test_suite": {"tests": tests, **suite}})


def test_dump_and_parse_round_trip() -> None:
    submission = Submission("cpp", "int main() { return 'ä'; }", SUITE, Stop.FAILURE)
    assert parse(Submission, dump(submission)) == submission
    assert parse(TestSuite, dump(SUITE)) == SUITE
    assert parse(TestSuite, dump(SUITE)).digest == SUITE.digest
    result = TestResult(0, Outcome.RUNTIME_ERROR, 0.1, 0.2, 3.0, None, "SIGSEGV", "crashed", "out", "err")
    judgement = Judgement(Outcome.RUNTIME_ERROR, (result,), 2, Isolation.SECCOMP, "crashed", 0.5)
    assert parse(Judgement, dump(judgement)) == judgement
    request = JudgeRequest("python", "pass", test_suite_digest="a" * 64)
    assert parse(JudgeRequest, dump(request)) == request


def test_every_problem_is_reported_with_its_path() -> None:
    text = with_tests({"input": "1"}, limits={"cpu_s": 0}, checker={"name": "best"}, colour=1)
    found = problems(text)
    assert found[0] == "test_suite.tests.0.output: Field required"
    assert "test_suite.limits: limits.cpu_s=0.0 is out of range; choose 0.01 to 3600" in found
    assert any(line.startswith("test_suite.checker.name: Input should be 'tokens'") for line in found)
    assert "test_suite.colour: Unknown field" in found
    assert len(found) == 4


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ({"output": "1"}, ["test_suite.tests.0.input: Field required"]),
        ({"code": 3}, ["test_suite.tests.0.code: Input should be a valid string"]),
        ({"function": "f"}, ["test_suite.tests.0.code: Field required"]),
        ("1 2", ["test_suite.tests.0: Input should be an object"]),
        (
            {"input": "1", "output": "2", "weight": 3},
            ["test_suite.tests.0.weight: Unknown field"],
        ),
    ],
)
def test_union_errors_use_the_closest_type(test: Any, expected: list[str]) -> None:
    assert problems(with_tests(test)) == expected


def test_many_problems_are_truncated() -> None:
    found = problems(with_tests(*[{}] * 50))
    assert found[-1] == "... and 80 more"
    assert len(found) == 21


def test_invalid_json_is_rejected() -> None:
    assert problems('{"language"')[0].startswith("Invalid JSON")
    assert problems("[]") == ["Input should be an object"]


def test_problems_never_quote_the_program() -> None:
    text = json.dumps({"language": 1, "source": ["int main() {}"], "test_suite": {"tests": []}})
    assert "main" not in " ".join(problems(text))


def test_lone_surrogates_become_question_marks() -> None:
    submission = Submission("python", "print('\ud800')", SUITE)
    assert parse(Submission, dump(submission)).source == "print('?')"
    by_python = json.dumps({"language": "python", "source": "\udfff", "test_suite": {"tests": [{"code": "x"}]}})
    assert parse(Submission, by_python) == Submission("python", "?", TestSuite((CallTest("x"),)))


@pytest.mark.parametrize("given", [{}, {"test_suite_digest": "a", "test_suite": {"tests": [{"code": "x"}]}}])
def test_a_request_has_an_test_suite_or_its_digest(given: dict[str, Any]) -> None:
    with pytest.raises(SchemaError, match="either test_suite or test_suite_digest"):
        parse(JudgeRequest, json.dumps({"language": "cpp", "source": "", **given}))


def test_a_problem_file_with_tests() -> None:
    text = json.dumps({"tests": [{"input": "1", "output": "2"}], "limits": {"cpu_s": 1}, "checker": {"name": "exact"}})
    assert read_problem(text) == TestSuite((IoTest("1", "2"),), Limits(cpu_s=1.0), Checker("exact"))
    assert read_problem(text, "all") == read_problem(text)
    with pytest.raises(DataError, match="no public tests"):
        read_problem(text, "public")


def test_a_problem_file_with_public_and_private_tests() -> None:
    text = json.dumps({"public": [{"input": "1", "output": "2"}], "private": [{"code": "assert 1", "function": "f"}]})
    assert read_problem(text, "public").tests == (IoTest("1", "2"),)
    assert read_problem(text, "private").tests == (CallTest("assert 1", "f"),)
    assert read_problem(text, "all").tests == (IoTest("1", "2"), CallTest("assert 1", "f"))


def passes(test: IoTest | CallTest, result: object) -> bool:
    assert isinstance(test, CallTest)
    calls: list[Any] = []

    def candidate(*args: Any, **kwargs: Any) -> object:
        calls.append((args, kwargs))
        return result

    try:
        exec(test.code, {"candidate": candidate})
    except AssertionError as error:
        return "expected" not in str(error)
    finally:
        assert calls == [((1, "a'b"), {"deep": [None, True]})]
    return True


@pytest.mark.parametrize(
    ("expected", "right", "wrong"),
    [
        (3, [3, 3.0], [4, "3", None]),
        ("it's", ["it's"], ["its"]),
        (None, [None], [0, False]),
        (True, [True], [False]),
        (0.3, [0.1 + 0.2, 0.3], [0.31, "0.3", None, float("nan"), float("inf")]),
        (1e9, [1e9 + 1, 10**9], [1e9 + 1e4]),
        ([1, [0.5]], [(1, [0.5]), [1, (0.5 + 1e-9,)]], [[1], [1, [0.6]], "1", [1, 0.5]]),
        ({"a": [1.0]}, [{"a": [1]}], [{"a": [2]}, {"b": [1]}, {}, [1]]),
    ],
)
def test_calls_become_assertions(expected: Any, right: list[Any], wrong: list[Any]) -> None:
    call = {"args": [1, "a'b"], "kwargs": {"deep": [None, True]}, "expected": expected}
    (test,) = read_problem(json.dumps({"function": "f", "calls": [call]})).tests
    assert test == read_problem(json.dumps({"private": [{"function": "f", "calls": [call]}]})).tests[0]
    assert isinstance(test, CallTest)
    assert test.function == "f"
    assert [passes(test, result) for result in right] == [True] * len(right)
    assert [passes(test, result) for result in wrong] == [False] * len(wrong)


def test_each_call_becomes_a_test() -> None:
    calls = [{"args": [each], "expected": each} for each in range(3)]
    assert len(read_problem(json.dumps({"tests": [{"function": "f", "calls": calls}]})).tests) == 3


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "not valid JSON"),
        ('{"tests": [], "limits": {"cpu_s": NaN}}', "NaN is not a JSON number"),
        ('{"function": "f", "calls": [{"expected": 1e999}]}', "1e999 is not a JSON number"),
        ("[" * 100_000, "not valid JSON"),
        ("{}", "give either tests"),
        ('{"tests": []}', "no private tests"),
        ('{"tests": [], "public": []}', "give either tests"),
        ('{"tests": [{"input": "1"}], "limit": {}}', "limit: Unknown field"),
        ('{"tests": [{"input": "1"}], "limit": {}}', "tests.0.output: Field required"),
        ('{"tests": [{"function": "f", "calls": [{"args": []}]}]}', "tests.0.calls.0.expected: Field required"),
        ('{"tests": [{"function": "", "calls": []}]}', "tests.0.function: String should have at least 1 character"),
        ('{"function": "f", "tests": []}', "give function and calls together"),
        ('{"function": "f", "calls": [{"expected": 1, "arg": 2}]}', "calls.0.arg: Unknown field"),
    ],
)
def test_invalid_problem_file(text: str, expected: str) -> None:
    with pytest.raises(DataError) as caught:
        read_problem(text)
    assert expected in str(caught.value)
    assert "ry again" in str(caught.value) or "add some" in str(caught.value)
