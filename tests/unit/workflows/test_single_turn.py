import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from transformers import PreTrainedTokenizerBase

from dojang.protocols import Workflow
from dojang.types import Group, Outcome, Problem, Sampling, Verdict
from dojang.workflows.chat_renderer import ChatRenderer
from dojang.workflows.grade_with_retries import GRADING_ATTEMPTS
from dojang.workflows.single_turn import SingleTurn
from scripted_engine import ScriptedEngine

ANSWERS = ("two", "three", "2", "four")
SAMPLING = Sampling(temperature=1.0, max_tokens=20, seed=1)


class FlakyTask:
    """Accepts "2"; fails to judge an answer as many times as `failures` says."""

    def __init__(self, failures: dict[str, int]) -> None:
        self.failures = Counter(failures)
        self.graded: Counter[str] = Counter()

    def problems(self, split: str) -> Sequence[Problem]:
        return []

    async def grade(self, problem: Problem, text: str) -> Verdict:
        self.graded[text] += 1
        if self.failures[text] > 0:
            self.failures[text] -= 1
            return Verdict(Outcome.JUDGE_ERROR, None, detail=f"no verdict on {text}, try {self.graded[text]}")
        return Verdict(Outcome.ACCEPTED, 1.0) if text == problem.reference else Verdict(Outcome.WRONG, 0.0)


@pytest.fixture
def play(tokenizer: PreTrainedTokenizerBase, problem: Problem) -> Callable[..., Group]:
    """Runs the problem through the workflow with a given task."""

    def script(prompt: str, index: int, sampling: Sampling) -> str:
        return ANSWERS[index]

    def run(task: FlakyTask, prompt_index: int = 5, sampling: Sampling = SAMPLING) -> Group:
        workflow: Workflow = SingleTurn(
            ScriptedEngine(tokenizer, script),
            task,
            ChatRenderer(tokenizer, context=512, max_tokens=20),
            group_size=len(ANSWERS),
            sampling=sampling,
        )
        return asyncio.run(workflow.run(problem, prompt_index))

    return run


def test_every_answer_is_judged_once_and_kept_in_order(play: Callable[..., Group], problem: Problem) -> None:
    task = FlakyTask({})
    group = play(task)
    assert (group.problem, group.prompt_index, group.judge_errors) == (problem, 5, ())
    assert [sample.text for sample in group.samples] == list(ANSWERS)
    assert [sample.index for sample in group.samples] == [0, 1, 2, 3]
    assert [sample.reward for sample in group.samples] == [0.0, 0.0, 1.0, 0.0]
    assert task.graded == dict.fromkeys(ANSWERS, 1)


def test_the_same_answer_gets_the_same_verdict(play: Callable[..., Group], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ANSWERS", ("two", "2", "two", "2"))
    task = FlakyTask({"two": 1})
    group = play(task)
    assert [(sample.text, sample.reward, sample.index) for sample in group.samples] == [
        ("two", 0.0, 0),
        ("2", 1.0, 1),
        ("two", 0.0, 2),
        ("2", 1.0, 3),
    ]
    assert task.graded == {"two": 2, "2": 1}


def test_trained_tokens_are_prompt_and_sampled_tokens(
    play: Callable[..., Group], tokenizer: PreTrainedTokenizerBase, problem: Problem
) -> None:
    prompt = ChatRenderer(tokenizer, context=512, max_tokens=20).render(problem.messages)
    for sample, text in zip(play(FlakyTask({})).samples, ANSWERS, strict=True):
        sampled = (*tokenizer.encode(text), tokenizer.eos_token_id)
        assert tuple(sample.tokens) == prompt + sampled
        assert tuple(sample.mask) == (False,) * len(prompt) + (True,) * len(sampled)
        assert tuple(sample.logprobs) == (0.0,) * len(sample.tokens)
        assert sample.response_length == len(sampled)


def test_a_verdict_that_comes_late_counts(play: Callable[..., Group]) -> None:
    task = FlakyTask({"2": GRADING_ATTEMPTS - 1})
    group = play(task)
    assert [sample.reward for sample in group.samples] == [0.0, 0.0, 1.0, 0.0]
    assert group.judge_errors == ()
    assert task.graded["2"] == GRADING_ATTEMPTS


def test_an_answer_that_cannot_be_judged_is_dropped_and_counted(play: Callable[..., Group]) -> None:
    task = FlakyTask({"three": 99, "2": 99})
    group = play(task)
    assert [sample.text for sample in group.samples] == ["two", "four"]
    assert [sample.index for sample in group.samples] == [0, 3]  # the gaps show what is missing
    assert group.judge_errors == ("no verdict on three, try 3", "no verdict on 2, try 3")
    assert task.graded == {"two": 1, "three": GRADING_ATTEMPTS, "2": GRADING_ATTEMPTS, "four": 1}


def test_a_judge_that_never_answers_leaves_an_empty_group(play: Callable[..., Group]) -> None:
    group = play(FlakyTask(dict.fromkeys(ANSWERS, 99)))
    assert group.samples == ()
    assert len(group.judge_errors) == len(ANSWERS)


def test_prompt_index_selects_the_random_stream(tokenizer: PreTrainedTokenizerBase, problem: Problem) -> None:
    asked: list[Sampling] = []

    def script(prompt: str, index: int, sampling: Sampling) -> str:
        asked.append(sampling)
        return "2"

    workflow = SingleTurn(
        ScriptedEngine(tokenizer, script),
        FlakyTask({}),
        ChatRenderer(tokenizer, context=512, max_tokens=20),
        group_size=1,
        sampling=SAMPLING,
    )
    asyncio.run(workflow.run(problem, 17))
    assert asked == [Sampling(temperature=1.0, max_tokens=20, seed=1, prompt_index=17)]


def test_a_task_that_raises_is_a_judge_that_failed(play: Callable[..., Group], problem: Problem) -> None:
    class Raises(FlakyTask):
        async def grade(self, problem: Problem, text: str) -> Verdict:
            if text == "three":
                raise RuntimeError("out of chalk")
            return await super().grade(problem, text)

    group = play(Raises({}))
    assert [sample.index for sample in group.samples] == [0, 2, 3]
    (said,) = group.judge_errors
    assert said.startswith(f"{problem.id}: RuntimeError: out of chalk (")
