"""Answers that are not the right one."""

import pytest

from dojang.tasks.wrong_answers import FORMS, wrong_answers


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


def test_forms() -> None:
    assert FORMS["maths"]("1") == "\\boxed{1}"
    assert FORMS["answer_line"]("1") == "#### The final answer is 1"
