"""The calculator: exact, strict and bounded."""

import time
from fractions import Fraction

import pytest
from transformers import PreTrainedTokenizerBase

from dojang.environments.calculator import CalculatorConfig
from dojang.environments.exact_arithmetic import NotArithmetic, evaluate, written
from dojang.types import Outcome
from scripted_episodes import counts, play, tool_call


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 ** 200", Fraction(2**200)),
        ("0.1 + 0.2", Fraction(3, 10)),
        ("(17 + 4) * 3 / 7", Fraction(9)),
        ("-7 % 3", Fraction(2)),
        ("-7 // 2", Fraction(-4)),
        ("2 ** -3", Fraction(1, 8)),
        ("1e3 - .5", Fraction(1999, 2)),
        ("1_000 * 3.", Fraction(3000)),
        ("(-1) ** 999999999999", Fraction(-1)),
        ("0 ** 0 + 1 ** 10 ** 100", Fraction(2)),
        ("--5", Fraction(5)),
    ],
)
def test_values_are_exact(expression: str, value: Fraction) -> None:
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("1 / 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("2 ^ 3", r"\*\*"),
        ("1,000", "without commas"),
        ("x + 1", "variables"),
        ("__import__('os').getcwd()", "functions"),
        ("(1).real", "only numbers"),
        ("[1 for _ in 'a']", "only numbers"),
        ("'a' * 10", "not a decimal number"),
        ("True + 1", "not a decimal number"),
        ("0x10", "not a decimal number"),
        ("1j", "not a decimal number"),
        ("2 ** 0.5", "roots"),
        ("3 * (4", "not an expression"),
        ("", "characters"),
        ("1+" * 1500 + "1", "characters"),
        ("(" * 300 + "1" + ")" * 300, "not an expression"),
        ("-" * 1900 + "1", "too complicated"),
    ],
)
def test_everything_else_is_refused(expression: str, reason: str) -> None:
    with pytest.raises(NotArithmetic, match=reason):
        evaluate(expression)


@pytest.mark.parametrize(
    "expression",
    ["10 ** 10 ** 10", "2 ** 100000", "1e999999999", "9 ** 9 ** 9 ** 9", "(1/3) ** 99999", "*".join(["9" * 90] * 20)],
)
def test_large_results_are_bounded_in_time_and_size(expression: str) -> None:
    started = time.process_time()
    try:
        said = written(evaluate(expression))
    except NotArithmetic as error:
        said = str(error)
    assert len(said) < 10_000
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(7), "7"),
        (Fraction(1, 8), "0.125"),
        (Fraction(-22, 7), "-22/7 (about -3.14285714285714)"),
        (Fraction(1, 10**30), "1E-30"),
    ],
)
def test_results_say_whether_they_are_rounded(value: Fraction, text: str) -> None:
    assert written(value) == text


def test_an_episode_with_calls_is_graded_by_the_task(tokenizer: PreTrainedTokenizerBase) -> None:
    replies = [tool_call("calculate", expression="6 * 7"), tool_call("calculate", expression="six"), "It is 42"]
    sample = play(tokenizer, CalculatorConfig(), replies)
    assert (sample.verdict.outcome, sample.verdict.reward) == (Outcome.ACCEPTED, 1.0)
    assert counts(sample) == {"assistant": 3, "tool": 2, "user": 0}
    assert "[tool] 42" in sample.text
    assert "error: only numbers" in sample.text


def test_arguments_of_another_type_are_told_to_the_model(tokenizer: PreTrainedTokenizerBase) -> None:
    sample = play(tokenizer, CalculatorConfig(), [tool_call("calculate", expression=6), "It is 41"])
    assert "must be text" in sample.text
    assert (sample.verdict.outcome, sample.verdict.reward) == (Outcome.WRONG, 0.0)
