"""Answers that are not the right one."""

import pytest

from dojang.tasks.answer_line import AnswerLineConfig
from dojang.tasks.maths import MathsConfig
from dojang.tasks.wrong_answers import wrong_answers
from dojang.types import Message, Problem


@pytest.mark.parametrize(
    ("answer", "made"),
    [
        ("18", ["19", "-18", "180"]),
        ("1,080", ["1081", "-1080", "10800"]),
        ("-0.75", ["0.25", "0.75", "-7.50"]),
        ("0", ["1"]),
        ("$5", ["6", "-5", "50"]),
        ("\\frac{1}{2}", ["\\frac{2}{2}", "\\frac{1}{3}"]),
        ("x^2", ["x^3"]),
        ("p - q", ["p - q + 1"]),
    ],
)
def test_wrong_answers_are_generated(answer: str, made: list[str]) -> None:
    assert list(wrong_answers(answer)) == made


def test_long_number() -> None:
    assert list(wrong_answers("7" * 5000)) == ["7" * 5000 + " + 1"]


def test_right_and_wrong_answers_have_the_form_of_the_task() -> None:
    problem = Problem("sum/1", "sums", (Message("user", "0 + 1?"),), "1")
    assert MathsConfig().right_and_wrong(problem)[0] == ["\\boxed{1}"]
    right, wrong = AnswerLineConfig().right_and_wrong(problem)
    assert right == ["#### The final answer is 1"]
    assert wrong[0] == "#### The final answer is 2"
    assert wrong[-2:] == ["#### The final answer is ", ""]
