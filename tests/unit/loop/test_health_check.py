import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from dojang.core.errors import HealthError
from dojang.loop.config import HealthConfig
from dojang.loop.endings import Endings
from dojang.loop.health_check import HealthCheck, has_signal
from dojang.types import Group, Sample


def health(window: int = 3, max_judge_errors: float = 0.5) -> HealthCheck:
    return HealthCheck(HealthConfig(patience_steps=window, max_judge_errors=max_judge_errors))


@pytest.mark.parametrize(
    ("rewards", "signal"), [((), False), ((1.0,), False), ((0.5, 0.5), False), ((0.5, 0.5, 0.25), True)]
)
def test_a_group_teaches_if_its_rewards_differ(
    make_group: Callable[..., Group], rewards: tuple[float, ...], signal: bool
) -> None:
    assert has_signal(make_group(rewards)) is signal


def test_equal_wrong_rewards_stop_the_run_when_the_window_is_full(make_group: Callable[..., Group]) -> None:
    guard = health(window=3)
    step = [make_group((0.25, 0.25)), make_group((0.25, 0.25))]
    guard.check(step)
    guard.check(step)
    with pytest.raises(HealthError) as caught:
        guard.check(step)
    message = str(caught.value)
    assert "in the last 3 steps no group had rewards that differ (they were all 0.25)" in message
    for remedy in ("easier problems", "rollout.group_size", "rollout.temperature", "rollout.max_tokens", "rollouts/"):
        assert remedy in message


def test_rewards_that_differ_only_between_groups_teach_nothing(make_group: Callable[..., Group]) -> None:
    guard = health(window=1)
    with pytest.raises(HealthError, match=r"from 0 to 0\.5, but equal within each group"):
        guard.check([make_group((0.0, 0.0)), make_group((0.5, 0.5))])


def test_everything_accepted_is_healthy(make_group: Callable[..., Group]) -> None:
    guard = health(window=2)
    for _ in range(10):
        guard.check([make_group((1.0, 1.0)), make_group((1.5, 1.5))])
    assert len(guard.state()) == 2


def test_one_mixed_group_in_the_window_is_enough(make_group: Callable[..., Group]) -> None:
    guard = health(window=3)
    hopeless, hopeful = [make_group((0.0, 0.0))], [make_group((0.0, 0.0)), make_group((0.0, 1.0))]
    for step in (hopeless, hopeless, hopeful, hopeless, hopeless):
        guard.check(step)
    with pytest.raises(HealthError, match="last 3 steps"):
        guard.check(hopeless)


def test_too_many_judge_errors_stop_the_run_early_and_name_the_last_one(make_group: Callable[..., Group]) -> None:
    guard = health(window=10)
    broken = [make_group((0.0, 1.0), errors=["compiler is gone", "disk is gone", "judge is gone"])]
    guard.check(broken)
    guard.check(broken)
    with pytest.raises(HealthError) as caught:
        guard.check(broken)
    message = str(caught.value)
    assert "9 of 15 samples in the last 3 steps could not be judged" in message
    assert "The last failure was: judge is gone" in message


def test_the_share_of_judge_errors_may_be_reached_but_not_passed(make_group: Callable[..., Group]) -> None:
    guard = health(window=1, max_judge_errors=0.5)
    guard.check([make_group((0.0, 1.0), errors=["a", "b"])])
    with pytest.raises(HealthError, match="3 of 5 samples"):
        guard.check([make_group((0.0, 1.0), errors=["a", "b", "c"])])


def test_nothing_judged_at_all_is_the_judges_fault(make_group: Callable[..., Group]) -> None:
    with pytest.raises(HealthError, match="2 of 2 samples in the last 1 steps could not be judged"):
        health(window=1).check([make_group((), errors=["a", "b"])])


def test_a_few_judge_errors_do_not_hide_that_nothing_is_learned(make_group: Callable[..., Group]) -> None:
    with pytest.raises(HealthError, match="no group had rewards that differ"):
        health(window=1).check([make_group((0.0, 0.0, 0.0), errors=["a"])])


def test_the_memory_survives_a_checkpoint(make_group: Callable[..., Group]) -> None:
    first, second = health(window=3), health(window=3)
    step = [make_group((0.0, 0.0), errors=["slow"])]
    first.check(step)
    first.check(step)
    saved = json.loads(json.dumps(first.state()))
    second.restore(saved)
    assert second.state() == saved
    with pytest.raises(HealthError, match="in the last 3 steps no group"):
        second.check(step)


def test_a_shorter_window_forgets_what_a_checkpoint_remembers(make_group: Callable[..., Group]) -> None:
    long, short = health(window=5), health(window=2)
    for _ in range(4):
        long.check([make_group((0.0, 0.0))])
    short.restore(long.state())
    assert len(short.state()) == 2


def test_rewards_are_compared_with_those_of_the_same_role(
    make_group: Callable[..., Group], make_sample: Callable[..., Sample]
) -> None:
    def mixed(coder: tuple[float, ...], tester: tuple[float, ...]) -> Group:
        played = (("coder", coder), ("tester", tester))
        samples = tuple(make_sample(reward, role=role) for role, rewards in played for reward in rewards)
        return replace(make_group(), samples=samples)

    assert not has_signal(mixed((0.0, 0.0), (0.5, 0.5)))
    assert has_signal(mixed((0.0, 0.0), (0.5, 0.0)))
    with pytest.raises(HealthError, match="no group had rewards that differ"):
        health(window=1).check([mixed((0.0, 0.0), (0.5, 0.5))])


def warned(caplog: pytest.LogCaptureFixture, guard: HealthCheck, steps: list[tuple[Group, Endings]]) -> list[str]:
    caplog.clear()
    for group, endings in steps:
        guard.check([group], endings)
    return [record.getMessage() for record in caplog.records]


def test_completions_that_run_on_are_reported_once_with_a_remedy(
    make_group: Callable[..., Group], caplog: pytest.LogCaptureFixture
) -> None:
    guard, group = health(window=10), make_group((0.0, 1.0))
    run_on = (group, Endings(samples=12, cut=4, after_answer=6, cut_after_answer=4))
    assert warned(caplog, guard, [run_on] * 2) == []
    (message,) = warned(caplog, guard, [run_on] * 5)
    assert "33% of the completions of the last 3 steps ran on after their answer" in message
    for remedy in ("task.stop_at", "data.stop", "docs/rewards.md", "response/cut_after_answer"):
        assert remedy in message


def test_completions_that_are_cut_before_their_answer_are_reported_once_with_a_remedy(
    make_group: Callable[..., Group], caplog: pytest.LogCaptureFixture
) -> None:
    guard, group = health(window=3), make_group((0.0, 1.0))
    (message,) = warned(caplog, guard, [(group, Endings(samples=10, cut=4))] * 5)
    assert "40% of the completions of the last 3 steps were cut at rollout.max_tokens before they had an" in message
    for remedy in ("Raise rollout.max_tokens", "train.mask_truncated_completions", "response_length/clip_ratio"):
        assert remedy in message


@pytest.mark.parametrize(
    "endings", [Endings(), Endings(samples=10, after_answer=10), Endings(samples=10, cut=3, cut_after_answer=1)]
)
def test_a_few_cut_completions_and_explanations_after_the_answer_are_no_reason_to_warn(
    make_group: Callable[..., Group], caplog: pytest.LogCaptureFixture, endings: Endings
) -> None:
    assert warned(caplog, health(window=3), [(make_group((0.0, 1.0)), endings)] * 5) == []


def test_how_completions_end_is_remembered_by_checkpoints(
    make_group: Callable[..., Group], caplog: pytest.LogCaptureFixture
) -> None:
    first, second, step = health(window=3), health(window=3), (make_group((0.0, 1.0)), Endings(10, 5, 5, 5))
    warned(caplog, first, [step] * 2)
    second.restore(json.loads(json.dumps(first.state())))
    assert len(warned(caplog, second, [step])) == 1
    old = [
        {key: value for key, value in each.items() if key not in ("samples", "cut", "run_on")} for each in first.state()
    ]
    health(window=3).restore(old)  # of a checkpoint without these counts
