import math

import pytest
import torch
from pydantic import ValidationError
from transformers import get_scheduler

from dojang.trainer.config import TrainConfig
from dojang.trainer.lr_schedule import Schedule, learning_rate, warmup_steps


@pytest.mark.parametrize("step", [0, 1, 99, 1000])
def test_constant_without_warm_up(step: int) -> None:
    assert learning_rate(step, peak=3e-4, warmup=0, total=100, schedule="constant") == 3e-4


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_warm_up_rises_in_equal_steps_from_above_zero_to_the_peak(schedule: str) -> None:
    rates = [learning_rate(step, peak=1.0, warmup=4, total=100, schedule=schedule) for step in range(5)]
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])


def test_cosine_decays_from_the_peak_to_zero() -> None:
    def rate(step: int) -> float:
        return learning_rate(step, peak=2.0, warmup=10, total=110, schedule="cosine")

    assert rate(10) == 2.0
    assert rate(10 + 50) == pytest.approx(1.0)
    assert 0 < rate(109) < 2.0 * 3e-4  # the last step of 110
    assert rate(110) == rate(500) == pytest.approx(0.0)  # a run that was made longer after the fact
    falling = [rate(step) for step in range(10, 110)]
    assert falling == sorted(falling, reverse=True)


@pytest.mark.parametrize(("schedule", "middle"), [("linear", 0.55), ("cosine", 0.55)])
def test_min_lr_ratio_is_where_decay_ends(schedule: Schedule, middle: float) -> None:
    rates = [
        learning_rate(step, peak=1.0, warmup=0, total=100, schedule=schedule, min_ratio=0.1) for step in (0, 50, 100)
    ]
    assert rates == pytest.approx([1.0, middle, 0.1])


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_decay_equals_the_scheduler_of_transformers(schedule: Schedule) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
    theirs = get_scheduler(schedule, optimizer, num_warmup_steps=7, num_training_steps=60)
    for step in range(60):
        if step >= 7:  # transformers begins its warm-up at a rate of zero
            mine = learning_rate(step, peak=3e-4, warmup=7, total=60, schedule=schedule)
            assert mine == pytest.approx(theirs.get_last_lr()[0], rel=1e-12)
        optimizer.step()
        theirs.step()


@pytest.mark.parametrize(
    ("total", "steps", "ratio", "expected"), [(421, 0, 0.1, 43), (100, 0, 0.1, 10), (100, 5, 0.0, 5), (7, 0, 0.0, 0)]
)
def test_warmup_ratio_is_a_share_of_all_optimizer_steps(total: int, steps: int, ratio: float, expected: int) -> None:
    assert warmup_steps(total, steps=steps, ratio=ratio) == expected
    if ratio:
        assert expected == math.ceil(total * ratio)  # as transformers rounds


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"warmup_steps": 3, "warmup_ratio": 0.1}, "exclude each other"),
        ({"min_lr_ratio": 0.1}, "no effect with schedule=constant"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, float], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        TrainConfig.model_validate(settings)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_run_of_one_step_has_a_rate(schedule: str) -> None:
    assert learning_rate(0, peak=1e-3, warmup=0, total=1, schedule=schedule) == 1e-3


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_a_warm_up_longer_than_the_run_just_rises(schedule: str) -> None:
    rates = [learning_rate(step, peak=1.0, warmup=9, total=3, schedule=schedule) for step in range(3)]
    assert rates == pytest.approx([0.1, 0.2, 0.3])
