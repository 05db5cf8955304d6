"""What statements give away about their answers."""

import pytest

from dojang.data.statement_rules import suspicions

SEVERAL = """
If there are several answers, print any of them.
If there are multiple solutions, you may output any.
Print any suitable coalition.
If there are many such pairs, print one of them.
If there exist several such strings, output just one of these.
If several arrays fit, print one.
Output one of the possible answers.
Print one of the optimal solutions.
If there is more than one, print whichever you like.
You may choose whichever you want.
If there are several possible moves, output an arbitrary one.
Find an arbitrary permutation that fits.
Print either of them.
Print one integer \N{EM DASH} any positive integer value of x for which there is such a k.
In the i-th line print the answer to the i-th query (i.e. any number of rolls he can make).
Print -1 if it is impossible to obtain a good string and any good string which can be obtained otherwise.
If the answer is not unique print any of them.
If it is impossible to find any such pair, print -1. Otherwise print any such pair.
You can print the numbers in any order.
Any valid answer is accepted.
""".strip().splitlines()
ONE = """
Add two numbers.
You do not need to print any extra spaces.
You don't need to print any explanation.
Do not print any blank lines.
If it is impossible to find any such pair, print -1.
Print NO if he cannot find any way out.
Vasya was unable to find any mistake.
Determine whether it is possible to find any pair of twins.
You can print each letter in any case.
You may print any letter in lower or upper case.
If there are multiple cities with minimum travel time, print "Still Rozdil".
If there are several winners, print the one with the smallest number.
If there are several such numbers, print the smallest one of them.
Print one integer \N{EM DASH} the largest one of the numbers.
Print the number of moves (any number of operations may be made).
The integers are given in arbitrary order. Print the minimum.
Print YES if any two of them differ by no more than 2.
There aren't multiple possible answers, the answer is unique for any input.
Find the first collision of any two particles.
He can start and finish in any school. Print the minimum cost.
""".strip().splitlines()


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


@pytest.mark.parametrize(("statements", "suspected"), [(SEVERAL, True), (ONE, False)])
def test_statements_that_admit_several_answers(statements: list[str], suspected: bool) -> None:
    assert [each for each in statements if ("several_answers" in dict(suspicions(each))) is not suspected] == []
