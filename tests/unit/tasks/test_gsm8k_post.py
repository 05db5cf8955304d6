"""The reward functions of the GSM8K post."""

import asyncio
import random
import re
import time

import pytest

from dojang.tasks.answer_line import AnswerLineConfig
from dojang.tasks.gsm8k_post import post_correct, post_format
from dojang.types import Message, Outcome, Problem


def published(text: str, reference: str) -> bool:
    """The post's rule as it is described: the first match of its pattern, without , $ % g, within 1e-3."""
    found = re.search(r"####.*?([\d,]+(?:\.\d+)?)", text)
    if found is None:
        return False
    number = found[1]
    for char in ",$%g":
        number = number.replace(char, "")
    try:
        return abs(float(number) - float(reference)) < 1e-3
    except ValueError:
        return False


@pytest.mark.parametrize(
    ("text", "reference", "accepted"),
    [
        ("#### 18", "18", True),
        ("#### $18", "18", True),
        ("#### The final answer is 1,080", "1080", True),
        ("#### 18 or 19", "18", True),
        ("#### 18.0009", "18", True),
        ("#### 18.0011", "18", False),
        ("#### 0", "0.0009", True),
        ("Question: 2?\n#### 18", "18", True),
        ("#### So, the answer is 18", "18", False),
        ("#### 1,080", "1,080", False),
        ("#### -47", "-47", False),
        ("####\n18", "18", False),
        ("18", "18", False),
    ],
)
def test_post_correct(text: str, reference: str, accepted: bool) -> None:
    assert post_correct(text, reference) is published(text, reference) is accepted


def test_post_correct_equals_the_published_pattern_on_random_text() -> None:
    draw = random.Random(7)
    pieces = ["#", "####", "###", "18", "1", ",", ".", "5", "$", "%", "g", "-", " ", "\n", "\r", "x", "٣"]
    for _ in range(5_000):
        text = "".join(draw.choices(pieces, k=draw.randrange(14)))
        reference = draw.choice(["18", "1", "5", "1.5", "1,8", "0", "3"])
        assert post_correct(text, reference) is published(text, reference), (text, reference)


def test_post_correct_takes_linear_time() -> None:
    started = time.perf_counter()
    assert not post_correct("#" * 200_000, "18")
    assert time.perf_counter() - started < 1


@pytest.mark.parametrize(
    ("text", "found"),
    [("So.\n#### The final answer is 18 apples", True), ("#### The final answer is 18", False), ("\n#### 18", False)],
)
def test_post_format(text: str, found: bool) -> None:
    assert post_format(text) is found


def test_the_post_rewards_are_built_in_and_the_outcome_follows_the_answer_line() -> None:
    problem = Problem("p", "gsm8k", (Message("user", "?"),), "1,080")
    config = AnswerLineConfig(rewards={"gsm8k_post_format": 0.5, "gsm8k_post_correct": 1.0})
    verdict = asyncio.run(config.make({}).grade(problem, "So.\n#### The final answer is 1,080"))
    assert verdict.outcome is Outcome.ACCEPTED
    assert verdict.parts == {"gsm8k_post_format": 1.0, "gsm8k_post_correct": 0.0}
    assert verdict.reward == 0.5
