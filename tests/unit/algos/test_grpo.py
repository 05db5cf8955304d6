"""GRPO against a few lines of numpy, gradients included."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from dojang.algos.grpo import Grpo, GrpoConfig
from dojang.protocols import TokenBatch, TokenLoss
from dojang.types import Group, Outcome, Sample, Verdict

Array = NDArray[np.float64]

LOW, HIGH = 0.2, 0.3
SETTINGS = GrpoConfig(clip_low=LOW, clip_high=HIGH)

# One row per advantage, one column per place of the ratio: below, at the lower side inside, at 1, inside, above.
RATIOS = np.array([0.5, 0.9, 1.0, 1.2, 1.7])
ADVANTAGES = np.array([2.0, -1.5])


def oracle(logp: Array, old: Array, advantage: Array, mask: Array, ref: Array | None = None, kl: float = 0.0) -> Array:
    """The loss of each token, straight from the formula."""
    loss = np.zeros_like(logp)
    for row, column in zip(*np.nonzero(mask), strict=True):
        ratio = np.exp(logp[row, column] - old[row, column])
        clipped = min(max(ratio, 1 - LOW), 1 + HIGH)
        loss[row, column] = -min(ratio * advantage[row], clipped * advantage[row])
        if ref is not None:
            gap = ref[row, column] - logp[row, column]
            loss[row, column] += kl * (np.exp(gap) - gap - 1)
    return loss


def numeric_gradient(loss: Callable[[Array], float], at: Array) -> Array:
    gradient = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[place] = 1e-6
        gradient[place] = (loss(at + step) - loss(at - step)) / 2e-6
    return gradient


def run(
    logp: Array, old: Array, advantage: Array, mask: Array, ref: Array | None = None, kl: float = 0.0
) -> tuple[TokenLoss, Array]:
    """The loss and the gradient of its sum."""
    leaf = torch.tensor(logp, requires_grad=True)
    result = Grpo(SETTINGS.model_copy(update={"kl": kl})).loss(
        TokenBatch(
            logp_BT=leaf,
            old_logp_BT=torch.tensor(old),
            ref_logp_BT=None if ref is None else torch.tensor(ref),
            advantage_B=torch.tensor(advantage),
            mask_BT=torch.tensor(mask, dtype=torch.bool),
        )
    )
    result.loss_BT.sum().backward()
    assert leaf.grad is not None
    return result, leaf.grad.numpy()


@pytest.fixture
def grid() -> tuple[Array, Array, Array]:
    """Log-probs now and then, and a mask, over all combinations of advantage and ratio."""
    old = np.random.default_rng(0).uniform(-4, -0.5, (len(ADVANTAGES), len(RATIOS)))
    return old + np.log(RATIOS), old, np.ones_like(old)


@pytest.mark.parametrize("rewards", [(1.0, 0.0, 0.0), (1.5, 0.5, 0.25, 0.0), (0.1, 0.2), (3.0, -2.0, 0.0, 0.0, 1.0)])
def test_advantages_are_standardised_within_the_group(
    make_group: Callable[..., Group], rewards: tuple[float, ...]
) -> None:
    values = np.array(rewards)
    expected = (values - values.mean()) / (values.std(ddof=1) + 1e-6)
    found = Grpo(GrpoConfig()).advantages(make_group(rewards))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_advantages_without_scale_are_distances_from_the_mean(make_group: Callable[..., Group]) -> None:
    assert Grpo(GrpoConfig(scale="none")).advantages(make_group((1.0, 0.0, 0.5, 0.5))) == (0.5, -0.5, 0.0, 0.0)


@pytest.mark.parametrize("scale", ["std", "none"])
@pytest.mark.parametrize("rewards", [(), (1.5,), (0.25, 0.25), (0.1,) * 7])
def test_rewards_that_do_not_differ_give_no_advantage(
    make_group: Callable[..., Group], rewards: tuple[float, ...], scale: str
) -> None:
    found = Grpo(GrpoConfig(scale=scale)).advantages(make_group(rewards))
    assert found == (0.0,) * len(rewards)


def test_an_unjudged_sample_cannot_be_credited(
    make_group: Callable[..., Group], make_sample: Callable[..., Sample]
) -> None:
    group = make_group((1.0,))
    unjudged = make_sample(verdict=Verdict(Outcome.JUDGE_ERROR, None, detail="lost"))
    broken = Group(group.problem, 0, (*group.samples, unjudged))
    with pytest.raises(ValueError, match="must not be trained on"):
        Grpo(GrpoConfig()).advantages(broken)


def test_loss_and_gradient_agree_with_the_oracle(grid: tuple[Array, Array, Array]) -> None:
    logp, old, mask = grid
    result, gradient = run(logp, old, ADVANTAGES, mask)
    np.testing.assert_allclose(result.loss_BT.detach(), oracle(logp, old, ADVANTAGES, mask), rtol=1e-12)
    numeric = numeric_gradient(lambda at: float(oracle(at, old, ADVANTAGES, mask).sum()), logp)
    np.testing.assert_allclose(gradient, numeric, atol=1e-7)


def test_clipping_cuts_the_gradient_on_the_far_side_only(grid: tuple[Array, Array, Array]) -> None:
    logp, old, mask = grid
    _, gradient = run(logp, old, ADVANTAGES, mask)
    # Unclipped, the gradient of -ratio * A with respect to logp is -ratio * A.
    expected = -RATIOS[None, :] * ADVANTAGES[:, None]
    expected[0, 4] = 0.0  # a good answer that has become likely enough
    expected[1, 0] = 0.0  # a bad answer that has become unlikely enough
    np.testing.assert_allclose(gradient, expected, rtol=1e-12)


def test_figures(grid: tuple[Array, Array, Array]) -> None:
    logp, old, mask = grid
    result, _ = run(logp, old, ADVANTAGES, mask)
    assert set(result.figures) == {"actor/pg_loss", "actor/ppo_kl", "actor/pg_clipfrac"}
    np.testing.assert_array_equal(result.figures["actor/pg_loss"].detach(), result.loss_BT.detach())
    np.testing.assert_allclose(result.figures["actor/ppo_kl"].detach(), old - logp, rtol=1e-12)
    np.testing.assert_array_equal(result.figures["actor/pg_clipfrac"], [[0, 0, 0, 0, 1], [1, 0, 0, 0, 0]])


def test_on_policy_the_loss_is_the_negative_advantage_and_nothing_is_clipped() -> None:
    logp = np.array([[-1.0, -2.0], [-3.0, -0.1]])
    result, gradient = run(logp, logp, ADVANTAGES, np.ones_like(logp))
    np.testing.assert_array_equal(result.loss_BT.detach(), [[-2.0, -2.0], [1.5, 1.5]])
    np.testing.assert_array_equal(gradient, [[-2.0, -2.0], [1.5, 1.5]])
    assert not result.figures["actor/pg_clipfrac"].any()
    assert not result.figures["actor/ppo_kl"].any()


@pytest.mark.parametrize("garbage", [np.inf, -np.inf, np.nan, 1e9, -1e9])
@pytest.mark.parametrize("where", ["logp", "old", "ref"])
def test_what_is_outside_the_mask_contributes_nothing(garbage: float, where: str) -> None:
    arrays = {
        "logp": np.array([[-1.0, -2.0, -1.5]] * 2),
        "old": np.array([[-1.1, -2.0, -1.2]] * 2),
        "ref": np.array([[-1.0, -2.5, -1.5]] * 2),
    }
    mask = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    expected = oracle(arrays["logp"], arrays["old"], ADVANTAGES, mask, arrays["ref"], 0.1)
    _, clean_gradient = run(**arrays, advantage=ADVANTAGES, mask=mask, kl=0.1)
    arrays[where] = np.where(mask, arrays[where], garbage)
    result, gradient = run(**arrays, advantage=ADVANTAGES, mask=mask, kl=0.1)
    np.testing.assert_allclose(result.loss_BT.detach(), expected, rtol=1e-12)
    np.testing.assert_array_equal(gradient, clean_gradient)
    assert not gradient[mask == 0].any()


def test_the_kl_penalty_agrees_with_the_oracle(grid: tuple[Array, Array, Array]) -> None:
    logp, old, mask = grid
    ref = logp + np.random.default_rng(1).normal(0, 0.5, logp.shape)
    result, gradient = run(logp, old, ADVANTAGES, mask, ref, kl=0.3)
    np.testing.assert_allclose(result.loss_BT.detach(), oracle(logp, old, ADVANTAGES, mask, ref, 0.3), rtol=1e-12)
    numeric = numeric_gradient(lambda at: float(oracle(at, old, ADVANTAGES, mask, ref, 0.3).sum()), logp)
    np.testing.assert_allclose(gradient, numeric, atol=1e-7)
    np.testing.assert_allclose(
        result.figures["actor/kl_loss"].detach(), np.exp(ref - logp) - (ref - logp) - 1, rtol=1e-12
    )


@pytest.mark.parametrize("move", [-1.0, -0.1, 0.1, 1.0])
def test_moving_away_from_the_reference_costs_and_the_gradient_leads_back(move: float) -> None:
    ref = np.array([[-2.0]])
    here = ref + move
    none, all_of_it = np.zeros(1), np.ones((1, 1))
    at_reference, flat = run(ref, ref, none, all_of_it, ref, kl=0.5)
    moved, gradient = run(here, here, none, all_of_it, ref, kl=0.5)
    assert at_reference.loss_BT.item() == 0.0
    assert not flat.any()
    assert moved.loss_BT.item() > 0.0
    assert np.sign(gradient.item()) == np.sign(move)  # a step against the gradient goes towards the reference


@pytest.mark.parametrize(("kl", "needed"), [(0.0, False), (1e-3, True)])
def test_a_reference_is_needed_only_with_a_kl_term(kl: float, needed: bool) -> None:
    assert GrpoConfig(kl=kl).make().needs_reference is needed
