"""A random ragged batch, and what dojang makes of it: for losses.py."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dojang.algos.grpo import GrpoConfig
from dojang.algos.policy_gradient import PolicyGradientConfig
from dojang.algos.ppo import PpoConfig
from dojang.protocols import TokenBatch
from dojang.trainer.loss_aggregation import count, mean_share
from dojang.types import Group, Outcome, Problem, Sample, Verdict

GROUPS, SAMPLES, LONGEST = 6, 4, 12
WEIGHTS = {"correct": 1.0, "length": -0.5, "format": 0.25}
"""Parts of the reward, for GDPO."""


@dataclass(frozen=True)
class Batch:
    """Answers of different lengths; a row per sample, groups one after the other."""

    parts_BK: Tensor
    mask_BT: Tensor
    logp_BT: Tensor
    old_BT: Tensor
    behaviour_BT: Tensor
    ref_BT: Tensor
    values_BT: Tensor
    """What a critic expected before each token."""
    scale: float = 1.0
    """Factor of the weights of the reward's parts."""

    @property
    def weights(self) -> dict[str, float]:
        """Of the parts of the reward."""
        return {name: weight * self.scale for name, weight in WEIGHTS.items()}

    @property
    def reward_B(self) -> Tensor:
        return self.parts_BK @ torch.tensor(list(self.weights.values()))

    @property
    def lengths(self) -> list[int]:
        return [int(each) for each in self.mask_BT.sum(-1)]

    @property
    def reward_BT(self) -> Tensor:
        """At each answer's last token."""
        found_BT = torch.zeros_like(self.logp_BT)
        found_BT[range(len(self.lengths)), [length - 1 for length in self.lengths]] = self.reward_B
        return found_BT

    def groups(self) -> list[Group]:
        """As dojang has them."""
        found = []
        for start in range(0, GROUPS * SAMPLES, SAMPLES):
            samples = tuple(self._sample(row) for row in range(start, start + SAMPLES))
            found.append(Group(Problem(str(start), "random", (), None), start, samples))
        return found

    def _sample(self, row: int) -> Sample:
        length = self.lengths[row]
        parts = dict(zip(WEIGHTS, self.parts_BK[row].tolist(), strict=True))
        terms = {name: (self.weights[name], value) for name, value in parts.items()}
        verdict = Verdict(Outcome.WRONG, float(self.reward_B[row]), parts=parts, terms=terms)
        logprobs = (0.0, *self.behaviour_BT[row, :length].tolist())
        values = (0.0, *self.values_BT[row, :length].tolist())
        mask = (False, *(True,) * length)
        return Sample((1,) * len(mask), mask, logprobs, "", "stop", 0, verdict, values=values)


@dataclass(frozen=True)
class Found:
    """What is compared, and the advantages that a loss was given."""

    values: tuple[Tensor, ...]
    advantage_BT: Tensor


def random_batch(seed: int, *, alike: bool, scale: float = 1.0) -> Batch:
    """`alike`: the last group has equal rewards. `scale`: of the parts of rewards, and of their weights."""
    draw = torch.Generator().manual_seed(seed)
    shape = (GROUPS * SAMPLES, LONGEST)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=draw)

    lengths_B = torch.randint(1, LONGEST + 1, (shape[0],), generator=draw)
    lengths_B[0] = LONGEST  # TRL cuts a batch to its longest answer
    parts_BK = normal(shape[0], len(WEIGHTS))
    if alike:
        parts_BK[-SAMPLES:] = parts_BK[-1]
    mask_BT = torch.arange(LONGEST) < lengths_B[:, None]
    old_BT = -torch.rand(shape, generator=draw) * 3 - 0.2
    return Batch(
        parts_BK=parts_BK * scale,
        mask_BT=mask_BT,
        logp_BT=(old_BT + 0.3 * normal(*shape)).clamp(max=-1e-3),
        old_BT=old_BT,
        behaviour_BT=(old_BT + 0.2 * normal(*shape)).clamp(max=-1e-3),
        ref_BT=(old_BT + 0.4 * normal(*shape)).clamp(max=-1e-3),
        values_BT=torch.where(mask_BT, normal(*shape), 0.0),
        scale=scale,
    )


def loss_of(config: PolicyGradientConfig, batch: Batch) -> Found:
    """Value and gradient of a loss, with the advantages of the same algorithm."""
    algorithm, groups = config.make(LONGEST), batch.groups()
    credit = algorithm.advantages(groups)
    groups = [
        replace(group, samples=tuple(replace(each, advantage=a) for each, a in zip(group.samples, own, strict=True)))
        for group, own in zip(groups, credit, strict=True)
    ]
    flat = torch.tensor([each for own in credit for each in own])
    advantage_BT = torch.where(batch.mask_BT, flat[:, None], 0.0)
    counts, _, _ = count(groups, algorithm)
    leaf_BT = batch.logp_BT.clone().requires_grad_()
    behaves = config.old == "behaviour" and config.corrections
    token_batch = TokenBatch(
        logp_BT=leaf_BT,
        old_logp_BT=batch.behaviour_BT if behaves else batch.old_BT,
        behaviour_logp_BT=batch.behaviour_BT,
        ref_logp_BT=batch.ref_BT if algorithm.requirements.ref_logprobs else None,
        advantage_BT=advantage_BT,
        mask_BT=batch.mask_BT,
    )
    loss = mean_share(algorithm.loss(token_batch).loss_BT, batch.mask_BT, algorithm.loss_aggregation, counts, LONGEST)
    (gradient_BT,) = torch.autograd.grad(loss, leaf_BT)
    return Found((loss.detach(), gradient_BT), advantage_BT)


def advantages_of(estimator: str, batch: Batch) -> Found:
    """Advantages of every token by an estimator."""
    config = GrpoConfig(advantage=estimator)  # type: ignore[arg-type]
    if estimator == "maxrl":
        batch = replace(batch, parts_BK=batch.parts_BK.abs() * torch.tensor([1.0, 0.0, 1.0]))
    flat = torch.tensor([each for own in config.make(LONGEST).advantages(batch.groups()) for each in own])
    found_BT = torch.where(batch.mask_BT, flat[:, None], 0.0)
    return Found((found_BT,), found_BT)


def gae_of(batch: Batch) -> Found:
    """Advantages of every token by a critic (gamma 0.9, lambda 0.8), and returns."""
    algorithm = PpoConfig(gamma=0.9, lam=0.8).make(LONGEST)
    samples = [sample for group in algorithm.compute_gae(batch.groups()) for sample in group.samples]

    def spread(streams: list[NDArray[np.floating]]) -> Tensor:
        found_BT = torch.zeros_like(batch.logp_BT)
        for row, stream in enumerate(streams):
            found_BT[row, : len(stream) - 1] = torch.tensor(stream[1:])
        return found_BT

    advantage_BT = spread([sample.advantages for sample in samples])
    return Found((advantage_BT, spread([sample.returns for sample in samples])), advantage_BT)


def value_loss_of(batch: Batch) -> Found:
    """Value and gradient of the critic's loss; the critic now says `logp`, the returns are `ref`."""
    leaf_BT = batch.logp_BT.clone().requires_grad_()
    found = PpoConfig().make(LONGEST).value_loss(leaf_BT, batch.old_BT, batch.ref_BT, batch.mask_BT)
    loss = found.loss_BT.sum() / batch.mask_BT.sum()
    (gradient_BT,) = torch.autograd.grad(loss, leaf_BT)
    return Found((loss.detach(), gradient_BT), torch.zeros_like(leaf_BT))
