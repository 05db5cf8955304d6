import subprocess
import sys

import pytest
from pydantic import ValidationError

from dojang.core.errors import DataError
from dojang.data.arithmetic import ArithmeticConfig, is_held_out, question
from dojang.tasks.answers import is_correct
from dojang.types import Message, Problem


def test_a_problem_has_prompt_and_reference() -> None:
    assert ArithmeticConfig().load("test")[0] == Problem(
        id="arithmetic/43+65",
        source="arithmetic",
        messages=(Message("user", "What is 43 + 65?"),),
        reference="108",
    )


@pytest.mark.parametrize(
    ("digits", "split", "ids"),
    [
        (2, "train", ["23+78", "40+22", "13+66"]),
        (2, "test", ["43+65", "17+38", "83+10"]),
        (3, "train", ["488+438", "856+426", "117+793"]),
        (6, "test", ["140398+372712", "521302+510726", "478216+414681"]),
    ],
)
def test_problems_are_deterministic(digits: int, split: str, ids: list[str]) -> None:
    problems = ArithmeticConfig(digits=digits, train_size=3, test_size=3).load(split)
    assert [problem.id for problem in problems] == [f"arithmetic/{pair}" for pair in ids]


@pytest.mark.parametrize("digits", [2, 3, 6])
def test_splits_have_their_sizes_and_share_nothing(digits: int) -> None:
    config = ArithmeticConfig(digits=digits, test_size=512)  # the largest splits there are
    train, test = (config.load(split) for split in ("train", "test"))
    assert (len(train), len(test)) == (4096, 512)
    assert len({problem.id for problem in train + test}) == 4096 + 512


def test_every_operand_has_its_digits_and_every_reference_is_the_sum() -> None:
    for problem in ArithmeticConfig(digits=3).load("train"):
        left, right = problem.id.removeprefix("arithmetic/").split("+")
        assert len(left) == len(right) == 3
        assert problem.messages[0].content == question(int(left), int(right))
        assert problem.reference == str(int(left) + int(right))


def test_products_are_those_of_their_operands() -> None:
    problems = ArithmeticConfig(operation="multiply", digits=9, system="Use the tool.").load("train")
    assert len(problems) == 4096
    for problem in problems:
        left, right = map(int, problem.id.removeprefix("arithmetic/").split("*"))
        assert len(str(left)) == len(str(right)) == 9
        assert problem.messages == (Message("system", "Use the tool."), Message("user", f"What is {left} * {right}?"))
        assert problem.reference == str(left * right)
        solution = str(problem.columns["completion"])
        assert is_correct(solution, problem.reference)
        steps = solution.partition("\n")[0]
        assert sum(map(int, steps.split("+"))) == left * right


def test_a_size_does_not_move_problems_across_the_split() -> None:
    small, large = ArithmeticConfig(train_size=10, test_size=10), ArithmeticConfig(train_size=100, test_size=100)
    for split in ("train", "test"):
        assert small.load(split) == large.load(split)[:10]


def test_the_swapped_problem_is_on_the_same_side() -> None:
    for problem in ArithmeticConfig().load("test"):
        left, right = map(int, problem.id.removeprefix("arithmetic/").split("+"))
        assert is_held_out(left, right)
        assert is_held_out(right, left)


def test_an_unknown_split_is_named_with_the_known_ones() -> None:
    with pytest.raises(DataError, match="no split 'validation'; use 'train' or 'test'"):
        ArithmeticConfig().load("validation")


@pytest.mark.parametrize(
    "setting",
    [
        {"digits": 1},
        {"digits": 10},
        {"operation": "divide"},
        {"train_size": 0},
        {"train_size": 4097},
        {"test_size": 513},
        {"size": 3},
    ],
)
def test_settings_out_of_bounds_are_refused(setting: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match=next(iter(setting))):
        ArithmeticConfig.model_validate(setting)


def test_torch_is_not_loaded() -> None:
    program = "import sys, dojang.data.arithmetic; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
