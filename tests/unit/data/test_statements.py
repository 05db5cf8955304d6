"""What statements give away about their answers."""

import pytest

from dojang.data.statements import suspicions


@pytest.mark.parametrize(
    "text",
    [
        "If there are multiple answers, print any of them.",
        "If there are several solutions,\nyou may output any.",
        "Find any string that has the property.",
        "The answer is not unique.",
        "You can print the numbers in any order.",
        "The names can be printed in any order.",
        "Print the matrix (any such matrix if many of them exist).",
        "Any valid answer will be accepted.",
    ],
)
def test_several_answers_are_suspected(text: str) -> None:
    assert [name for name, _ in suspicions(f"Sort the cards. {text} Input: n.")] == ["several_answers"]


@pytest.mark.parametrize(
    "text",
    [
        "Print the sum of the numbers.",
        "The input contains multiple test cases.",
        "He can take the cards in any order. Print how many moves he needs.",
        "In how many ways can it be done?",
        "There aren't multiple possible answers: it is unique for any input.",
        "If there are multiple such towns, print NO.",
        "Print an empty string if you didn't find any vowel.",
        "Do not print anything else.",
    ],
)
def test_most_statements_are_not_suspected(text: str) -> None:
    assert list(suspicions(text)) == []


def test_rounding_and_case() -> None:
    told = dict(suspicions("The absolute or relative error must not exceed 1e-6. Print YES or NO in any case."))
    assert told.keys() == {"tolerance", "any_case"}


def test_words_are_quoted_with_what_is_around_them() -> None:
    ((_, words),) = suspicions("x" * 100 + ". If there are several answers, print any. " + "y" * 100)
    assert "several answers, print any" in words
    assert words.startswith("...")
    assert words.endswith("...")
    assert len(words) < 140
