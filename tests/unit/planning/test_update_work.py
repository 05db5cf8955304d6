"""Work of passes on a GPU, and what groups without a gradient take."""

from dataclasses import replace

import pytest
from plan_subjects import H200_QWEN25, subject

from dojang.planning.estimate import Estimate, estimate
from dojang.planning.instances import INSTANCES
from dojang.planning.update_work import Layers, Tokens, backward, forward

H200 = INSTANCES["h200"]
TOKENS = Tokens(read=1000, answered=800, contexts=50_000, batches=2)


def test_a_backward_pass_has_twice_the_products_of_a_forward_pass_and_the_head_once_more() -> None:
    once, back = (each(H200_QWEN25, Layers.TRAINED, TOKENS) for each in (forward, backward))
    head = H200_QWEN25.vocabulary * H200_QWEN25.hidden
    assert once.products == 2 * 1000 * H200_QWEN25.projected + 2 * 800 * head
    assert back.products == 2 * once.products + 2 * 800 * head  # its logits are computed again
    assert back.attention == 2.5 * once.attention


def test_frozen_weights_have_no_gradient() -> None:
    full, lora = (backward(H200_QWEN25, layers, TOKENS) for layers in (Layers.TRAINED, Layers.ADAPTED))
    assert full.products - lora.products == 2 * 1000 * H200_QWEN25.projected + 2 * 800 * (151936 * 896)


@pytest.mark.parametrize("layers", list(Layers))
def test_no_tokens_are_no_work_but_that_of_weights(layers: Layers) -> None:
    nothing = Tokens(0, 0, 0, 0)
    for each in (forward, backward):
        assert each(H200_QWEN25, layers, nothing) == replace(each(H200_QWEN25, layers, nothing), products=0, moved=0)
        assert each(H200_QWEN25, layers, TOKENS).moved > 0


def _plan(share: float, *settings: str) -> Estimate:
    asked = subject("smollm2-gsm8k", *settings, shape=H200_QWEN25, answer=64)
    return estimate(replace(asked, zero_variance={"policy": share}), H200)


def test_groups_without_a_gradient_cost_a_forward_pass() -> None:
    none, half, most = (_plan(share).times.update for share in (0.0, 0.5, 0.9))
    assert none > half > most > 0.2 * none


@pytest.mark.parametrize("setting", ["algo.kl_coef=0.1", "distillation={teacher: policy, hint: '{reference}'}"])
def test_groups_with_another_gradient_are_trained(setting: str) -> None:
    none, half = (_plan(share, setting).times.update for share in (0.0, 0.5))
    assert none == half


def test_a_step_on_one_device_takes_as_long_as_decoding_and_update_after_each_other() -> None:
    sync, overlap = (_plan(0.0, f"loop.mode={mode}").times for mode in ("sync", "overlap"))
    assert sync.run_step == sync.step
    assert overlap.run_step == max(overlap.rollout, overlap.generate + overlap.train)
    assert max(overlap.rollout, overlap.train) < overlap.run_step < overlap.step
    assert overlap.as_json()["run_step_s"] == overlap.run_step


def test_a_step_on_separate_devices_takes_as_long_as_the_longer_stage() -> None:
    asked = subject("codefu-7b-post", "loop={mode: overlap, lag: 1}", "algo.name=m2po")
    times = estimate(asked, INSTANCES["p5.48xlarge"], nodes=2).times
    assert not times.shared
    assert times.run_step == max(times.rollout, times.train)
