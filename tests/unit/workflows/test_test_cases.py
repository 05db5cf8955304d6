import json
from typing import Any

import pytest

from dojang.programs import CallTest, IoTest, Isolation, Judgement, TestResult
from dojang.types import Message, Outcome, Problem
from dojang.workflows.test_cases import Case, InvalidCases, feedback, make_tester_prompt, parse_cases, without_examples

GOOD = {"inputs": ["1 2\n", "5 5\n"], "outputs": ["3\n", "10\n"]}


def block(value: Any) -> str:
    return f"```json\n{value if isinstance(value, str) else json.dumps(value)}\n```"


def test_cases_of_text_are_read() -> None:
    found = parse_cases(f"Two corners.\n\n{block(GOOD)}\n\nThat is all.", count=2, function="")
    assert [case.test for case in found] == [IoTest("1 2\n", "3\n"), IoTest("5 5\n", "10\n")]


def test_the_last_finished_block_after_thinking_counts() -> None:
    other = {"inputs": ["7"], "outputs": ["7"]}
    text = f"<think>{block({'draft': 1})}</think>{block({'inputs': ['0'], 'outputs': ['0']})}\nNo:\n{block(other)}"
    (case,) = parse_cases(f"{text}\n```json\n{{", count=1, function="")
    assert (case.given, case.wanted) == ("7", "7")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no finished block"),
        (json.dumps(GOOD), "no finished block"),
        (f"```\n{json.dumps(GOOD)}\n```", "no finished block"),
        (f"```json\n{json.dumps(GOOD)}", "no finished block"),
        (f"<think>{block(GOOD)}", "still thinking"),
        (block("{inputs: []}"), "not JSON"),
        (block('{"inputs": [NaN, 1], "outputs": [1, 1]}'), "NaN is not JSON"),
        (block('{"inputs": ["\\ud800", "b"], "outputs": ["1", "1"]}'), "not JSON"),
        (block("[" * 100_000), "not JSON"),
        (block([GOOD]), "not an object of inputs and outputs"),
        (block({**GOOD, "fn_name": "f"}), "not an object of inputs and outputs"),
        (block({**GOOD, "inputs": "1 2"}), "not both lists"),
        (block({"inputs": ["1"], "outputs": ["1"]}), "1 cases where 2 were asked for"),
        (block({"inputs": ["1", "2", "3"], "outputs": ["1", "2", "3"]}), "3 cases where 2 were asked for"),
        (block({"inputs": ["1", "2"], "outputs": ["1"]}), "2 inputs and 1 outputs"),
        (block({"inputs": ["1", "1"], "outputs": ["1", "1"]}), "there twice"),
        (block({"inputs": [1, 2], "outputs": ["1", "2"]}), "not a string"),
    ],
)
def test_unreadable_cases_are_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(InvalidCases, match=why):
        parse_cases(text, count=2, function="")


@pytest.mark.parametrize(("mark", "function"), [("```json", ""), ("```python", "f"), ("```", "f")])
def test_many_openings_take_no_time(mark: str, function: str) -> None:
    with pytest.raises(InvalidCases):
        parse_cases(f"{mark}\n" * 50_000, count=2, function=function)


STATEMENT = "Add two numbers.\n\nInput\n\nTwo numbers a and b.\n\nOutput\n\nTheir sum."
EXAMPLES = "Input\n\n1 2\n\nOutput\n\n3"


@pytest.mark.parametrize("heading", ["Examples", "Example", "-----Sample Input-----", "**Example 1:**", "### Sample 1"])
def test_examples_are_left_out_from_their_heading_on(heading: str) -> None:
    assert without_examples(f"{STATEMENT}\n\n{heading}\n\n{EXAMPLES}\n\nNote\n\n1 + 2 = 3").strip() == STATEMENT


def test_text_after_examples_is_kept() -> None:
    found = without_examples(f"{STATEMENT}\n\nExample 1:\n\n{EXAMPLES}\n\nConstraints:\n\na < 10")
    assert found == f"{STATEMENT}\n\nConstraints:\n\na < 10"


@pytest.mark.parametrize(
    "text", [STATEMENT, f"For example, 1 and 2 are 3.\n{STATEMENT}", f"Short.\nExample\n{STATEMENT}"]
)
def test_a_statement_without_examples_or_with_little_else_stays_whole(text: str) -> None:
    assert without_examples(text) == text


def test_the_tester_s_prompt_has_task_answer_and_format() -> None:
    messages = (Message("system", "Be brief."), Message("user", f"{STATEMENT}\n\nExample\n\n{EXAMPLES}"))
    problem = Problem("p", "p", messages, None)
    (asked,) = make_tester_prompt(problem, "print(3)", count=3, function="", strip=True)
    assert asked.role == "user"
    assert STATEMENT in asked.content
    assert "1 2" not in asked.content
    assert "print(3)" in asked.content
    assert "exactly 3 test cases" in asked.content
    assert '{"inputs": [...], "outputs": [...]}' in asked.content
    (whole,) = make_tester_prompt(problem, "print(3)", count=3, function="", strip=False)
    assert "1 2" in whole.content
    (called,) = make_tester_prompt(problem, "def f(): {}", count=3, function="f", strip=True)
    assert "assert f(...) == ...\n" * 3 in called.content
    assert "def f(): {}" in called.content


def test_feedback_has_the_result_of_each_case() -> None:
    cases = [Case("1 2", "3", IoTest("1 2", "3")), Case([1, "x"], "\ud800", CallTest.of("f", [1, "x"], "\ud800"))]
    results = (TestResult(0, Outcome.ACCEPTED), TestResult(1, Outcome.TIME_LIMIT))
    told = feedback(cases, Judgement(Outcome.TIME_LIMIT, results, 2, Isolation.NONE)).content
    assert "Case 1: PASS\nInput:\n1 2\nExpected output:\n3" in told
    assert "Case 2: FAIL\nassert f(1, 'x') == '\\ud800'" in told
    nothing = feedback(cases, Judgement(Outcome.COMPILE_ERROR, (), 2, Isolation.NONE)).content
    assert nothing.count("FAIL") == 2
