import math

import pytest

from dojang.train.schedule import learning_rate


@pytest.mark.parametrize("step", [0, 1, 99, 1000])
def test_constant_without_warm_up(step: int) -> None:
    assert learning_rate(step, peak=3e-4, warmup=0, total=100, schedule="constant") == 3e-4


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_warm_up_rises_in_equal_steps_from_above_zero_to_the_peak(schedule: str) -> None:
    rates = [learning_rate(step, peak=1.0, warmup=4, total=100, schedule=schedule) for step in range(5)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_cosine_falls_from_the_peak_to_a_tenth() -> None:
    def rate(step: int) -> float:
        return learning_rate(step, peak=2.0, warmup=11, total=110, schedule="cosine")

    assert rate(11) == 2.0
    assert rate(109) == pytest.approx(0.2)  # the last step of 110
    assert rate(500) == pytest.approx(0.2)  # a run that was made longer after the fact
    falling = [rate(step) for step in range(11, 110)]
    assert falling == sorted(falling, reverse=True)
    assert rate(11 + 49) == pytest.approx(2.0 * (0.1 + 0.9 * (1 + math.cos(math.pi / 2)) / 2))


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_run_of_one_step_has_a_rate(schedule: str) -> None:
    assert learning_rate(0, peak=1e-3, warmup=0, total=1, schedule=schedule) == 1e-3


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_a_warm_up_longer_than_the_run_just_rises(schedule: str) -> None:
    rates = [learning_rate(step, peak=1.0, warmup=9, total=3, schedule=schedule) for step in range(3)]
    assert rates == pytest.approx([0.1, 0.2, 0.3])
