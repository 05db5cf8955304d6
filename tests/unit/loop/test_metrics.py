import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from dojang.loop.metrics import StepTimer, advantage_metrics, rollout_metrics, staleness_metrics
from dojang.types import Group, Outcome, Problem, Sample, Turn, Verdict


def test_every_figure_of_a_small_step(problem: Problem, make_sample: Callable[..., Sample]) -> None:
    samples = (
        make_sample(
            answer=(1, 2, 3),
            advantage=1.5,
            verdict=Verdict(Outcome.ACCEPTED, 1.5, parts={"format": 1.0, "correct": 1.0}),
        ),
        make_sample(
            answer=(1,), advantage=-0.5, finish="length", verdict=Verdict(Outcome.NO_ANSWER, 0.0, parts={"format": 0.0})
        ),
        make_sample(answer=(1, 2), verdict=Verdict(Outcome.WRONG, 0.5, parts={"format": 0.5})),
        make_sample(answer=(1, 2), verdict=Verdict(Outcome.WRONG, 0.5)),
    )
    lost = make_sample(verdict=Verdict(Outcome.JUDGE_ERROR, None, detail="lost"))
    groups = [Group(problem, 0, samples[:2], (lost, lost)), Group(problem, 1, samples[2:], (lost,))]
    assert rollout_metrics(groups) == {
        "groups/total": 2.0,
        "groups/zero_variance": 1.0,
        "judge/errors": 3.0,
        "judge/error_ratio": 3 / 7,
        "critic/rewards/mean": 0.625,
        "critic/rewards/min": 0.0,
        "critic/rewards/max": 1.5,
        "critic/advantages/mean": 0.25,
        "critic/advantages/min": -0.5,
        "critic/advantages/max": 1.5,
        "response_length/mean": 2.0,
        "response_length/min": 1.0,
        "response_length/max": 3.0,
        "response_length/clip_ratio": 0.25,
        "critic/rewards/format/mean": 0.5,
        "critic/rewards/correct/mean": 1.0,
        "judge/outcome/accepted": 0.25,
        "judge/outcome/no_answer": 0.25,
        "judge/outcome/wrong": 0.5,
    }


def test_advantages_of_tokens_are_counted_where_they_were_chosen(
    problem: Problem, make_sample: Callable[..., Sample]
) -> None:
    samples = (
        make_sample(answer=(1, 2), advantages=(9.0, 9.0, 9.0, -1.5, 0.5)),
        make_sample(answer=(1,), advantages=(9.0, 9.0, 9.0, 2.5)),
    )
    assert advantage_metrics([Group(problem, 0, samples)]) == {
        "critic/advantages/mean": 0.5,
        "critic/advantages/min": -1.5,
        "critic/advantages/max": 2.5,
    }


def test_shares_of_outcomes_sum_to_one(make_group: Callable[..., Group]) -> None:
    found = rollout_metrics([make_group((1.0, 0.0, 0.0)), make_group((1.0, 1.0))])
    assert sum(value for name, value in found.items() if name.startswith("judge/outcome/")) == pytest.approx(1.0)


def test_a_step_without_a_single_verdict_has_figures_too(make_group: Callable[..., Group]) -> None:
    assert rollout_metrics([make_group((), errors=["a", "b"])]) == {
        "groups/total": 1.0,
        "groups/zero_variance": 1.0,
        "judge/errors": 2.0,
        "judge/error_ratio": 1.0,
    }


def test_figures_of_a_second_model_are_under_its_role(problem: Problem, make_sample: Callable[..., Sample]) -> None:
    coder = [make_sample(reward, role="coder") for reward in (1.0, 0.0)]
    tester = [make_sample(reward, role="tester", answer=(1, 2, 3)) for reward in (0.5, 0.5, 0.5)]
    lost = make_sample(role="tester", verdict=Verdict(Outcome.JUDGE_ERROR, None, detail="lost"))
    both = rollout_metrics([Group(problem, 0, (*coder, *tester), (lost,))])
    alone = rollout_metrics([Group(problem, 0, tuple(tester), (lost,))])
    first = rollout_metrics([Group(problem, 0, tuple(coder))])
    assert both == {**first, **alone}
    assert both["critic/rewards/mean"] == 0.5
    assert both["groups/zero_variance"] == 0.0
    assert both["tester/groups/zero_variance"] == 1.0
    assert both["tester/response_length/mean"] == 3.0
    assert (both["judge/errors"], both["tester/judge/errors"]) == (0.0, 1.0)


def test_a_coder_s_turns_have_their_own_mean_rewards(problem: Problem, make_sample: Callable[..., Sample]) -> None:
    rewards = ((1.0, 0), (0.0, 0), (-1.0, 1))
    samples = tuple(make_sample(reward, role="coder", turn=turn) for reward, turn in rewards)
    found = rollout_metrics([Group(problem, 0, samples)])
    assert found["critic/rewards/mean"] == 0.0
    assert (found["critic/rewards/turn_0/mean"], found["critic/rewards/turn_1/mean"]) == (0.5, -1.0)


def test_tool_calls_that_were_answered_with_an_error_are_counted(
    problem: Problem, make_sample: Callable[..., Sample]
) -> None:
    said = "one\n[tool] error: add: missing a required argument: 'a'\ntwo\n[tool] 4\n[tool] error: no\n4"
    turns = (Turn("assistant", 2, 3), Turn("tool", 3, 4))
    plain, called = make_sample(), make_sample()
    groups = [Group(problem, 0, (replace(called, text=said, turns=turns), replace(plain, index=1, turns=turns[:1])))]
    assert rollout_metrics(groups)["episodes/tool_errors/mean"] == 1.0
    assert "episodes/tool_errors/mean" not in rollout_metrics([Group(problem, 0, (replace(plain, turns=turns[:1]),))])


def test_staleness_has_a_share_for_every_age(make_group: Callable[..., Group]) -> None:
    groups = [make_group((1.0, 0.0, 0.0), version=4), make_group((1.0,), version=2)]
    assert staleness_metrics(groups, 5) == {
        "staleness/mean": 1.5,
        "staleness/max": 3.0,
        "staleness/share/1": 0.75,
        "staleness/share/3": 0.25,
    }


def test_idle_shares_are_of_the_step(make_group: Callable[..., Group], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    timer = StepTimer()
    with timer("wait"):
        now = 2.0
    now = 8.0
    found = timer.step_metrics([make_group((1.0, 0.0))], {"timing_s/idle_engine": 6.0})
    assert (found["perf/idle/trainer"], found["perf/idle/engine"]) == (0.25, 0.75)
    assert found["timing_s/step"] == 8.0
