"""What the tests of this room share: batches of plain arrays, formulas over them, what an algorithm makes of them."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from numpy.typing import ArrayLike, NDArray

from dojang.algos.policy_gradient import PolicyGradientConfig
from dojang.protocols import TokenBatch

Array = NDArray[np.float64]
Formula = Callable[[float, float], float]
"""Of a token's log-ratio and advantage."""

STREAMS = ("logp", "old", "behaviour", "ref", "advantage")
with_garbage = pytest.mark.parametrize("garbage", [np.inf, -np.inf, np.nan, 1e9, -1e9])
in_each_stream = pytest.mark.parametrize("where", STREAMS)


@dataclass(frozen=True)
class Batch:
    """One row per sample, one column per token."""

    logp: Array
    old: Array
    behaviour: Array
    ref: Array
    advantage: Array
    mask: NDArray[np.bool_]

    @property
    def delta(self) -> Array:
        """Log-ratios; 0 outside the mask."""
        return np.where(self.mask, self.logp - self.old, 0.0)

    def tokens(self) -> Iterator[tuple[int, int]]:
        """Places that are inside the mask."""
        for row, column in np.argwhere(self.mask):
            yield int(row), int(column)

    def rows(self, first: int, last: int) -> "Batch":
        """Some of the samples."""
        return Batch(**{name: getattr(self, name)[first:last] for name in (*STREAMS, "mask")})


@dataclass(frozen=True)
class Found:
    """Losses of tokens, the gradient of their sum with respect to `logp`, and figures."""

    loss: Array
    gradient: Array
    figures: dict[str, Array]


def batch(delta: ArrayLike, advantage: ArrayLike, mask: ArrayLike | None = None) -> Batch:
    """Tokens with these log-ratios, of samples (or tokens) with these advantages."""
    moved = np.array(delta, dtype=np.float64)
    credit = np.array(advantage, dtype=np.float64)
    rng = np.random.default_rng(0)
    old = rng.uniform(-4, -0.5, moved.shape)
    return Batch(
        logp=old + moved,
        old=old,
        behaviour=old.copy(),
        ref=old + rng.normal(0, 0.5, moved.shape),
        advantage=np.broadcast_to(credit if credit.ndim == 2 else credit[:, None], moved.shape).copy(),
        mask=np.ones(moved.shape, dtype=bool) if mask is None else np.array(mask, dtype=bool),
    )


def mixed(spread: float = 0.5, seed: int = 0) -> Batch:
    """Six samples, good, bad and neither, of different lengths and with gaps; the last has no tokens at all."""
    rng = np.random.default_rng(seed)
    mask = rng.random((6, 7)) < 0.7
    mask[5] = False
    made = batch(rng.normal(0, spread, mask.shape), [2.0, -1.5, 0.0, 0.7, -0.3, 1.0], mask)
    return replace(made, behaviour=made.old + rng.normal(0, 0.3, mask.shape))


def run(config: PolicyGradientConfig, given: Batch, *, limit: float = math.inf) -> Found:
    """What the algorithm says; the reference is shown where it wants one."""
    algorithm = config.make(max_tokens=64)
    leaf = torch.tensor(given.logp, requires_grad=True)
    result = algorithm.loss(token_batch(given, leaf, limit=limit, reference=algorithm.requirements.reference))
    assert result.loss_BT.dtype == torch.float64
    (gradient,) = torch.autograd.grad(result.loss_BT.sum(), leaf)
    figures = {name: value.detach().numpy() for name, value in result.figures.items()}
    return Found(result.loss_BT.detach().numpy(), gradient.numpy(), figures)


def token_batch(given: Batch, logp: torch.Tensor, *, limit: float = math.inf, reference: bool = False) -> TokenBatch:
    return TokenBatch(
        logp_BT=logp,
        old_logp_BT=torch.tensor(given.old),
        behaviour_logp_BT=torch.tensor(given.behaviour),
        ref_logp_BT=torch.tensor(given.ref) if reference else None,
        advantage_BT=torch.tensor(given.advantage),
        mask_BT=torch.tensor(given.mask),
        limit=limit,
    )


def each_token(given: Batch, formula: Formula) -> Array:
    """A formula at every token inside the mask, 0 elsewhere."""
    values = np.zeros_like(given.logp)
    for place in given.tokens():
        values[place] = formula(float(given.logp[place] - given.old[place]), float(given.advantage[place]))
    return values


def numeric_gradient(loss: Callable[[Array], float], at: Array) -> Array:
    gradient = np.zeros_like(at)
    for place in np.ndindex(at.shape):
        step = np.zeros_like(at)
        step[place] = 1e-6
        gradient[place] = (loss(at + step) - loss(at - step)) / 2e-6
    return gradient


def gradient_of(oracle: Callable[[Batch], Array], given: Batch) -> Array:
    """Of the sum of an oracle's losses, by differences."""
    return numeric_gradient(lambda logp: float(oracle(replace(given, logp=logp)).sum()), given.logp)


def clipped_surrogate(ratio: float, advantage: float, low: float, high: float, dual: float | None = None) -> float:
    """PPO's loss of one token."""
    loss = -min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    return min(loss, -dual * advantage) if dual is not None and advantage < 0 else loss


def assert_same(found: Array, expected: ArrayLike, tolerance: float = 1e-12) -> None:
    np.testing.assert_allclose(found, np.asarray(expected, dtype=np.float64), rtol=tolerance, atol=1e-15)


def assert_near(found: Array, numeric: Array) -> None:
    np.testing.assert_allclose(found, numeric, rtol=1e-7, atol=1e-7)


def assert_garbage_is_ignored(
    config: PolicyGradientConfig, where: str, garbage: float, *, limit: float = math.inf
) -> None:
    """What is outside the mask changes nothing, and is given nothing."""
    clean = mixed()
    dirty = replace(clean, **{where: np.where(clean.mask, getattr(clean, where), garbage)})
    expected, found = run(config, clean, limit=limit), run(config, dirty, limit=limit)
    np.testing.assert_array_equal(found.loss, expected.loss)
    np.testing.assert_array_equal(found.gradient, expected.gradient)
    assert np.isfinite(expected.gradient).all()
    assert not found.loss[~clean.mask].any()
    assert not found.gradient[~clean.mask].any()
    for name, value in found.figures.items():
        np.testing.assert_array_equal(value[clean.mask], expected.figures[name][clean.mask])


def assert_extremes_stay_finite(config: PolicyGradientConfig, *, limit: float = math.inf) -> None:
    """Log-ratios of 10000 either way, to the old policy, the engine and the reference, for every sign of advantage."""
    near, far = np.full((3, 3), -1.0), np.full((3, 3), -10001.0)
    some = np.array([[True, False, False]] * 3)
    credit = np.repeat([[1.0], [-1.0], [0.0]], 3, axis=1)
    for now in (near, far, np.where(some, near, far), np.where(some, far, near)):
        for then in (near, far):
            for engine in (near, far):
                found = run(config, Batch(now, then, engine, then, credit, np.ones((3, 3), bool)), limit=limit)
                assert np.isfinite(found.loss).all()
                assert np.isfinite(found.gradient).all()
                assert all(np.isfinite(value).all() for value in found.figures.values())


def assert_nothing_is_learned_without_advantage(config: PolicyGradientConfig, *, limit: float = math.inf) -> None:
    given = mixed()
    found = run(config, replace(given, advantage=np.zeros_like(given.advantage)), limit=limit)
    assert not found.loss.any()
    assert not found.gradient.any()
