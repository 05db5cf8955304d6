"""veRL's own functions, asked about a batch of losses_batch.py."""

import numpy as np
import torch
import verl.trainer.ppo.core_algos as core
import verl.trainer.ppo.rollout_corr_helper as rollout
from torch import Tensor
from verl.trainer.config import AlgoConfig
from verl.workers.config import ActorConfig

from losses_batch import GROUPS, LONGEST, SAMPLES, Batch, Found

FAR = 1e12
"""A dual clip that never cuts: veRL always has one."""


def loss(
    batch: Batch,
    credit_BT: Tensor,
    kind: str,
    mode: str,
    *,
    low: float = 0.2,
    high: float = 0.2,
    c: float = FAR,
    kl: float = 0.0,
    estimator: str = "k3",
    weights: tuple[str, float | str] | None = None,
    reject: tuple[str, str] | None = None,
) -> Found:
    """Value and gradient of a policy loss. `weights`: importance weights, by level and threshold; `reject`: a mask."""
    mask_BT = batch.mask_BT.double()
    scale = {"loss_scale_factor": LONGEST} if mode.endswith("norm") else {}
    config = ActorConfig(
        strategy="fsdp",
        rollout_n=SAMPLES,
        use_dynamic_bsz=True,
        clip_ratio_low=low,
        clip_ratio_high=high,
        clip_ratio_c=c,
        global_batch_info=scale,
    )
    rho_BT = batch.old_BT - batch.behaviour_BT
    weight_BT = None
    if weights is not None:
        weight_BT, _ = rollout.compute_rollout_correction_weights(rho_BT, mask_BT, *weights)
    if reject is not None:
        weight_BT, _ = rollout.compute_rollout_rejection_mask(rho_BT, mask_BT, *reject)
    leaf_BT = batch.logp_BT.clone().requires_grad_()
    found, _ = core.get_policy_loss_fn(kind)(
        old_log_prob=batch.old_BT,
        log_prob=leaf_BT,
        advantages=credit_BT,
        response_mask=mask_BT,
        loss_agg_mode=mode,
        config=config,
        rollout_is_weights=weight_BT,
    )
    if kl:
        penalty_BT = core.kl_penalty(leaf_BT, batch.ref_BT, estimator)
        found = found + kl * core.agg_loss(penalty_BT, mask_BT, mode, **scale)
    (gradient_BT,) = torch.autograd.grad(found, leaf_BT)
    return Found((found.detach(), gradient_BT), credit_BT)


def advantages(batch: Batch, kind: str) -> Found:
    """Advantages of every token; of GAE the returns, too."""
    mask_BT, index = batch.mask_BT.double(), np.repeat(np.arange(GROUPS), SAMPLES)
    given = {"token_level_rewards": batch.reward_BT, "response_mask": mask_BT}
    if kind == "gae":
        found_BT, return_BT = core.compute_gae_advantage_return(
            **given, values=batch.values_BT, gamma=torch.tensor(0.9), lam=torch.tensor(0.8)
        )
        return Found((found_BT * mask_BT, return_BT * mask_BT), found_BT)
    by_std = kind != "dr_grpo"
    estimator = core.get_adv_estimator_fn("grpo" if kind == "dr_grpo" else kind)
    more = {"norm_adv_by_std_in_grpo": by_std} if kind in ("grpo", "dr_grpo") else {}
    found_BT, _ = estimator(**given, index=index, config=AlgoConfig(gamma=1.0), **more)
    return Found((found_BT * mask_BT,), found_BT)


def value_loss(batch: Batch) -> Found:
    """Value and gradient of the critic's loss, as losses_batch.value_loss_of has it."""
    leaf_BT = batch.logp_BT.clone().requires_grad_()
    found, _ = core.compute_value_loss(leaf_BT, batch.ref_BT, batch.old_BT, batch.mask_BT.double(), 0.2)
    (gradient_BT,) = torch.autograd.grad(found, leaf_BT)
    return Found((found.detach(), gradient_BT), torch.zeros_like(leaf_BT))
