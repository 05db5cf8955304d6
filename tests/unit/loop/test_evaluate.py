import asyncio
from collections.abc import Callable

import pytest

from dojang.core.errors import HealthError
from dojang.loop.evaluate import Evaluation, evaluate
from dojang.types import Group, Message, Outcome, Problem, Sample, Verdict

PROBLEMS = [Problem(f"{source}/{place}", source, (Message("user", "?"),), "") for source in "ab" for place in range(2)]


class Recorded:
    """A workflow that plays back what was decided beforehand."""

    def __init__(self, groups: list[Group]) -> None:
        self.groups = groups
        self.asked: list[tuple[str, int]] = []

    async def run(self, problem: Problem, prompt_index: int) -> Group:
        self.asked.append((problem.id, prompt_index))
        return self.groups[prompt_index]


@pytest.fixture
def run_evaluation(make_sample: Callable[..., Sample]) -> Callable[..., tuple[Recorded, Evaluation]]:
    def run(*rewards: tuple[float, ...], errors: int = 0) -> tuple[Recorded, Evaluation]:
        groups = [
            Group(
                each,
                at,
                tuple(make_sample(reward, answer=(1,) * (at + 1)) for reward in given),
                (make_sample(verdict=Verdict(Outcome.JUDGE_ERROR, None, detail="gone")),) * errors,
            )
            for at, (each, given) in enumerate(zip(PROBLEMS, rewards, strict=True))
        ]
        workflow = Recorded(groups)
        return workflow, asyncio.run(evaluate(workflow, PROBLEMS))

    return run


def test_accuracy_and_mean_reward_over_all_and_per_source(
    run_evaluation: Callable[..., tuple[Recorded, Evaluation]],
) -> None:
    workflow, found = run_evaluation((1.0,), (0.5,), (1.0,), (1.5,))
    assert found.score == 0.75
    assert found.metrics == {
        "val/accuracy": 0.75,
        "val/accuracy/a": 0.5,
        "val/accuracy/b": 1.0,
        "val/reward": 1.0,
        "val/test_score/a": 0.75,
        "val/test_score/b": 1.25,
        "val/judge_errors": 0.0,
        "val/response_length/mean": 2.5,
    }
    assert found.groups == tuple(workflow.groups)


def test_each_problem_is_posed_once_under_its_place(run_evaluation: Callable[..., tuple[Recorded, Evaluation]]) -> None:
    workflow, _ = run_evaluation((1.0,), (0.0,), (1.0,), (1.0,))
    assert workflow.asked == [("a/0", 0), ("a/1", 1), ("b/0", 2), ("b/1", 3)]


def test_every_problem_counts_once_as_in_dojang_eval(
    run_evaluation: Callable[..., tuple[Recorded, Evaluation]],
) -> None:
    """However many of its answers could be judged."""
    _, found = run_evaluation((1.0, 0.0, 0.0), (1.0, 1.0, 1.0), (0.0,), ())
    assert found.metrics["val/accuracy/a"] == pytest.approx(4 / 6)
    assert found.metrics["val/accuracy/b"] == 0.0
    assert found.score == pytest.approx((1 / 3 + 1 + 0) / 3)


def test_what_could_not_be_judged_is_counted_and_no_wrong_answer(
    run_evaluation: Callable[..., tuple[Recorded, Evaluation]],
) -> None:
    _, found = run_evaluation((1.0,), (1.0,), (), (1.0,), errors=2)
    assert found.score == 1.0
    assert found.metrics["val/judge_errors"] == 8.0


def test_nothing_judged_at_all_ends_the_run(run_evaluation: Callable[..., tuple[Recorded, Evaluation]]) -> None:
    with pytest.raises(
        HealthError, match="no completion of the evaluation could be judged; the last failure was: gone"
    ):
        run_evaluation((), (), (), (), errors=1)
