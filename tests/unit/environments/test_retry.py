"""Further tries after an answer that is not accepted."""

import ast

import pytest
from transformers import PreTrainedTokenizerBase

from dojang.data.arithmetic import ArithmeticConfig
from dojang.data.reasoning_gym import ReasoningGymConfig
from dojang.environments.retry import RetryConfig
from dojang.tasks.answer_line import AnswerLineConfig
from dojang.tasks.reasoning_gym import ReasoningGymTaskConfig
from dojang.types import Outcome, Problem, Sample
from scripted_episodes import counts, play


@pytest.fixture(scope="module")
def sum_problem() -> Problem:
    return ArithmeticConfig(train_size=1).read("train")[0]


def retry(tokenizer: PreTrainedTokenizerBase, problem: Problem, replies: list[str], **settings: object) -> Sample:
    task = AnswerLineConfig().make({"train": [problem]})
    return play(tokenizer, RetryConfig.model_validate(settings), replies, task=task, problem=problem)


def test_a_second_answer_is_rewarded(tokenizer: PreTrainedTokenizerBase, sum_problem: Problem) -> None:
    right = f"#### {sum_problem.reference}"
    first = retry(tokenizer, sum_problem, [right], turn_discount=0.5)
    assert (first.verdict.outcome, counts(first)["assistant"]) == (Outcome.ACCEPTED, 1)
    second = retry(tokenizer, sum_problem, ["#### -1", right], turn_discount=0.5)
    assert (second.verdict.outcome, counts(second)) == (Outcome.ACCEPTED, {"assistant": 2, "tool": 0, "user": 1})
    assert first.verdict.reward is not None
    assert second.verdict.reward == 0.5 * first.verdict.reward
    assert "That is not right. Check your steps" in second.text


def test_the_last_answer_counts(tokenizer: PreTrainedTokenizerBase, sum_problem: Problem) -> None:
    sample = retry(tokenizer, sum_problem, ["no idea", "#### -1"], show_score=True)
    assert sample.verdict.outcome is Outcome.WRONG
    assert "There is no answer in the reply. Its reward is" in sample.text


def test_a_reply_that_is_cut_is_graded(tokenizer: PreTrainedTokenizerBase, sum_problem: Problem) -> None:
    task = AnswerLineConfig().make({"train": [sum_problem]})
    sample = play(tokenizer, RetryConfig(), ["x" * 999], task=task, problem=sum_problem, max_tokens=50)
    assert sample.finish == "length"
    assert sample.verdict.outcome in (Outcome.NO_ANSWER, Outcome.WRONG)
    assert counts(sample)["assistant"] == 1


def test_puzzles_of_reasoning_gym_may_be_corrected(tokenizer: PreTrainedTokenizerBase) -> None:
    pytest.importorskip("reasoning_gym", reason="reasoning-gym is not installed")
    data = ReasoningGymConfig.model_validate({"generators": {"chain_sum": {}}, "train_size": 2, "test_size": 1})
    (problem, *_) = data.load("train")
    right = ast.literal_eval(problem.reference["entry"])["answer"]  # type: ignore[index]
    task = ReasoningGymTaskConfig(timeout_s=60).make({})
    replies = ["<answer>no number</answer>", f"<answer>{right}</answer>"]
    section = RetryConfig(max_turns=2, show_score=True)
    sample = play(tokenizer, section, replies, task=task, problem=problem)
    assert (sample.verdict.outcome, sample.verdict.reward) == (Outcome.ACCEPTED, 1.0)
    assert counts(sample) == {"assistant": 2, "tool": 0, "user": 1}
    assert "Its reward is" in sample.text
