"""Tiny programs as they are posed."""

import re
from collections import Counter
from typing import Any

import pytest

from dojang.core.errors import DataError
from dojang.data.tiny_programs import Formula, TinyProgramsConfig, is_held_out, question
from dojang.types import Problem


def shape(problem: Problem) -> str:
    """What is computed, whatever the numbers are called."""
    names, formula = problem.id.split("/")[1:]
    for place, name in enumerate(names):
        formula = formula.replace(name, f"<{place}>")
    return formula


def test_a_problem_has_prompt_and_tests() -> None:
    problem = next(each for each in TinyProgramsConfig().load("train") if len(each.id.split("/")[1]) == 2)
    names, formula = problem.id.split("/")[1:]
    first, second = names
    assert problem.messages[0].content.startswith(f"Read {first} and {second}. Print ")
    reference: Any = problem.reference
    assert reference["language"] == "python3"
    assert len(reference["private"]) == 4
    for test in reference["private"]:
        numbers = dict(zip(names, map(int, test["input"].split()), strict=True))
        assert int(test["output"]) == eval(formula, {}, numbers)


def test_every_answer_is_what_python_says() -> None:
    problems = TinyProgramsConfig(train_size=4096, test_size=512)
    for problem in [*problems.load("train"), *problems.load("test")]:
        names, formula = problem.id.split("/")[1:]
        reference: Any = problem.reference
        for test in reference["private"]:
            numbers = dict(zip(names, map(int, test["input"].split()), strict=True))
            assert int(test["output"]) == eval(formula, {}, numbers)


def test_questions_spell_out_the_formula() -> None:
    assert question(Formula("kx", ("x", "*", "7", "-", "k"))) == "Read k and x. Print x times 7 minus k."
    assert Formula("kx", ("x", "*", "7", "-", "k")).value((3, 5)) == 32
    assert question(Formula("a", ("a", "+", "12"))) == "Read a. Print a plus 12."


def test_held_out_formulas_are_not_trained_on_with_renamed_variables() -> None:
    config = TinyProgramsConfig()
    train, test = config.load("train"), config.load("test")
    assert (len(train), len(test)) == (2048, 256)
    assert len({problem.id for problem in [*train, *test]}) == 2304
    assert not {shape(problem) for problem in train} & {shape(problem) for problem in test}
    assert is_held_out(Formula("ab", ("a", "+", "b"))) == is_held_out(Formula("xk", ("x", "+", "k")))
    assert TinyProgramsConfig(test_size=10).load("test") == test[:10]


@pytest.mark.parametrize("split", ["train", "test"])
def test_both_splits_have_problems_of_all_kinds(split: str) -> None:
    kinds = Counter(re.sub(r"\d+", "9", shape(each)) for each in TinyProgramsConfig().load(split))
    assert len(kinds) >= 15
    assert max(kinds.values()) < sum(kinds.values()) / 4


def test_unknown_split_is_refused() -> None:
    with pytest.raises(DataError, match="no split 'dev'"):
        TinyProgramsConfig().load("dev")
