"""Hinted prompts of self-distillation: other prompt, same sampled tokens."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from dojang.core.errors import ConfigError, TooLong
from dojang.types import Group, Message, Outcome, Problem, Sample, Verdict
from dojang.workflows.hints import Hints, check_fields, field_names, with_hint

PROBLEM = Problem("sums/1", "sums", (Message("user", "1+1?"),), "2", columns={"note": "carry", "empty": None})


class Letters:
    """A renderer with a token for each letter."""

    longest = 1000

    def render(self, messages: Sequence[Message]) -> tuple[int, ...]:
        text = "|".join(message.content for message in messages)
        if len(text) > self.longest:
            raise TooLong("too long")
        return tuple(map(ord, text))


def text_before(sample: Sample) -> str:
    return "".join(map(chr, sample.tokens[: sample.mask.argmax()]))


@pytest.fixture
def group(make_sample: Callable[..., Sample]) -> Group:
    right = Verdict(Outcome.ACCEPTED, 1.0)
    wrong = Verdict(Outcome.WRONG, 0.0, detail="says 3")
    prompt = tuple(map(ord, "1+1?"))
    samples = [
        replace(make_sample(prompt=prompt, answer=(7, 8), logprobs=(-1.0, -2.0), index=0), verdict=wrong, text="three"),
        replace(make_sample(prompt=prompt, answer=(9,), logprobs=(-0.5,), index=1), verdict=right, text="two"),
    ]
    return Group(PROBLEM, 0, tuple(samples))


def test_the_teacher_reads_the_hint_and_scores_the_same_tokens(group: Group) -> None:
    first, second = Hints(["It is {reference}."], Letters())(group)
    assert first is not None
    assert second is not None
    assert text_before(first) == "1+1?\n\nIt is 2."
    for found, own in zip((first, second), group.samples, strict=True):
        mine = [
            [each for each, mine in zip(stream, sample.mask, strict=True) if mine]
            for sample in (found, own)
            for stream in (sample.tokens, sample.logprobs)
        ]
        assert mine[:2] == mine[2:]


def test_the_first_template_with_all_its_fields_is_used(group: Group) -> None:
    """The accepted sample has neither feedback nor another accepted sample beside it."""
    first, second = Hints(["Right: {solution}", "Wrong: {feedback}"], Letters())(group)
    assert first is not None
    assert text_before(first) == "1+1?\n\nRight: two"
    assert second is None
    first, _ = Hints(["{empty}", "{note}, {feedback}"], Letters())(group)
    assert first is not None
    assert text_before(first) == "1+1?\n\ncarry, says 3"


def test_a_hinted_prompt_that_is_too_long_is_no_hint(group: Group) -> None:
    renderer = Letters()
    renderer.longest = 8
    assert Hints(["It is {reference}."], renderer)(group) == [None, None]


def test_plain_text_prompts_get_the_hint_in_front() -> None:
    found = with_hint([Message("text", "Q: 1+1?\nA:")], "Think.")
    assert "".join(message.content for message in found) == "Think.\n\nQ: 1+1?\nA:"


def test_unknown_fields_are_refused_with_what_there_is() -> None:
    check_fields(["{reference} {note}", "{solution}"], PROBLEM)
    with pytest.raises(ConfigError, match=r"\{answer\}.*columns are: empty, note"):
        check_fields(["{answer}"], PROBLEM)
    with pytest.raises(ConfigError, match="no text or number"):
        check_fields(["{reference}"], replace(PROBLEM, reference={"private": []}))
    with pytest.raises(ValueError, match="braces"):
        field_names("{0}")
    with pytest.raises(ValueError, match="braces"):
        field_names("{")
    for formatted in ("{reference:d}", "{reference:{note}}", "{reference!r}"):
        with pytest.raises(ValueError, match="name alone"):
            field_names(formatted)


def test_samples_with_token_rewards_are_hinted(group: Group) -> None:
    """A KL penalty in the reward belongs to the student's own prompt."""
    penalised = [replace(each, token_rewards=(0.0,) * len(each.tokens)) for each in group.samples]
    first, _ = Hints(["It is {reference}."], Letters())(replace(group, samples=tuple(penalised)))
    assert first is not None
    assert text_before(first) == "1+1?\n\nIt is 2."
