"""What overlap can gain, and the memory it needs."""

import pytest
from plan_subjects import H200_QWEN25, subject

from dojang.planning.estimate import Estimate, estimate
from dojang.planning.instances import INSTANCES
from dojang.planning.overlap import bottleneck, overlap_gain
from dojang.planning.plan_report import Report

H200 = INSTANCES["h200"]


def plan(*overrides: str) -> Estimate:
    return estimate(subject("quickstart", *overrides, shape=H200_QWEN25), H200, ranks=1)


@pytest.mark.parametrize(
    ("rollout", "update", "rest", "gain", "limit"),
    [(79, 96, 0.7, 1.83, "update"), (1, 1, 0, 2, "rollout"), (9, 1, 0, 10 / 9, "rollout"), (0, 0, 0, 1, "rollout")],
)
def test_the_longer_stage_bounds_the_gain(rollout: float, update: float, rest: float, gain: float, limit: str) -> None:
    assert overlap_gain(rollout, update, rest) == pytest.approx(gain, rel=1e-3)
    assert bottleneck(rollout, update) == limit


def test_the_plan_says_what_overlap_can_gain() -> None:
    found = plan()
    times = found.times
    longer = max(times.rollout, times.update)
    assert times.overlap_gain == pytest.approx((times.rollout + times.update + times.publish) / longer)
    (line,) = [line for line in Report("quickstart", [], {}, found).lines() if "overlapped" in line]
    assert f"at most {times.overlap_gain:.2f}x as fast" in line
    assert f"limited by the {times.bottleneck}" in line
    assert line.endswith("less where both share processors, as here")
    assert found.times.as_json()["overlap_gain"] == times.overlap_gain


def test_supervised_fine_tuning_has_no_rollouts_to_overlap() -> None:
    found = estimate(subject("quickstart-sft", shape=H200_QWEN25), H200, ranks=1)
    assert not [line for line in Report("quickstart-sft", [], {}, found).lines() if "overlapped" in line]
    assert found.times.as_json()["overlap_gain"] is None


def test_lag_plus_one_versions_of_the_weights_are_counted() -> None:
    one, three = plan("loop.mode=sync"), plan("loop.mode=overlap", "loop.lag=2")
    version = 2 * H200_QWEN25.parameters
    assert one.needs.parts["weight store"] == version
    assert three.needs.parts["weight store"] == 3 * version
    assert three.needs.parts["new version"] == one.needs.parts["new version"] == version


def test_versions_of_lora_factors_share_the_base_weights() -> None:
    lora = ("train.lora={publish: factors}",)
    one, three = plan(*lora, "loop.mode=sync"), plan(*lora, "loop.mode=overlap", "loop.lag=2")
    added = three.needs.parts["weight store"] - one.needs.parts["weight store"]
    assert added == 2 * one.needs.parts["gradients"]  # adapters in single precision, as their gradients


def test_the_engine_keeps_its_memory_during_an_overlapped_update() -> None:
    alone, beside = plan("loop.mode=sync"), plan("loop.mode=overlap")
    assert "engine work" not in alone.needs.phases["update"]
    assert {"KV cache", "engine work"} <= set(beside.needs.phases["update"])
