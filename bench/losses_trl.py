"""TRL's own GRPOTrainer, asked about a batch of losses_batch.py: no model, its log-probs and rewards are given."""

from collections import defaultdict
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
import trl.trainer.grpo_trainer as trl_grpo
from torch import Tensor
from trl import GRPOTrainer

from losses_batch import LONGEST, SAMPLES, WEIGHTS, Batch, Found

trl_grpo.disable_gradient_checkpointing = lambda *_: nullcontext()  # of a model, and there is none


class Asked(GRPOTrainer):
    """A GRPOTrainer whose model, engine and rewards are a batch."""

    def __init__(self, batch: Batch, **settings: Any) -> None:
        rows = len(batch.lengths)
        accelerator = SimpleNamespace(
            device=torch.device("cpu"),
            num_processes=1,
            process_index=0,
            gather=lambda tensor: tensor,
            reduce=lambda tensor, reduction: tensor,
            sync_gradients=True,
        )
        args = SimpleNamespace(
            use_bias_correction_kl=False,
            delta=None,
            sapo_temperature_pos=1.0,
            sapo_temperature_neg=1.05,
            steps_per_generation=1,
            gradient_accumulation_steps=1,
            per_device_train_batch_size=rows,
            gradient_checkpointing_kwargs=None,
            report_to=[],
        )
        known: dict[str, Any] = {
            "batch": batch,
            "answer_BT": batch.old_BT,
            "accelerator": accelerator,
            "args": args,
            "model": SimpleNamespace(training=True),
            "loss_type": "dapo",
            "importance_sampling_level": "token",
            "epsilon_low": 0.2,
            "epsilon_high": 0.2,
            "beta": 0.0,
            "top_entropy_quantile": 1.0,
            "off_policy_mask_threshold": None,
            "use_vllm": False,
            "vllm_importance_sampling_correction": True,
            "vllm_importance_sampling_mode": "token_truncate",
            "vllm_importance_sampling_clip_max": None,
            "vllm_importance_sampling_clip_min": None,
            "current_gradient_accumulation_steps": 1,
            "num_iterations": 1,
            "max_completion_length": LONGEST,
            "aux_loss_enabled": False,
            "_entropy_bonus_enabled": False,
            "_metrics": {"train": defaultdict(list), "eval": defaultdict(list)},
            "_logs": {"prompt": [], "completion": [], "rewards": defaultdict(list), "advantages": []},
            "_pending_extra_logs": {},
            "_pending_metrics": {},
            "_tokenizer": SimpleNamespace(pad_token_id=0, batch_decode=lambda ids, **_: [""] * len(ids)),
            "pad_to_multiple_of": None,
            "mask_truncated_completions": False,
            "tools": None,
            "environments": None,
            "environment_factories": None,
            "num_generations": SAMPLES,
            "multi_objective_aggregation": "sum_then_normalize",
            "scale_rewards": "group",
            "reward_funcs": list(WEIGHTS),
            "reward_func_names": list(WEIGHTS),
            "reward_weights": torch.tensor(list(batch.weights.values())),
            "ref_model": None,
            "log_completions": False,
        }
        self.__dict__.update({**known, **settings})

    def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> Any:
        return self.answer_BT, torch.zeros_like(self.answer_BT), None

    def _calculate_rewards(self, *_: Any) -> Tensor:
        return self.batch.parts_BK

    def _generate(self, prompts: Any) -> Any:
        batch = self.batch
        answers = [[1] * length for length in batch.lengths]
        sampled = [row[:length].tolist() for row, length in zip(batch.behaviour_BT, batch.lengths, strict=True)]
        return [[1]] * len(prompts), answers, None, [""] * len(prompts), sampled, {}, None, None


def loss(
    batch: Batch,
    credit_BT: Tensor,
    *,
    loss_type: str = "dapo",
    level: str = "token",
    low: float = 0.2,
    high: float = 0.2,
    delta: float | None = None,
    beta: float = 0.0,
    unbiased: bool = False,
    opsm: float | None = None,
    old: str = "trainer",
    mode: str | None = None,
    cap: float | None = None,
    floor: float | None = None,
) -> Found:
    """Value and gradient of a loss. `mode`: how it corrects for another engine, between `floor` and `cap`."""
    asked = Asked(
        batch,
        loss_type=loss_type,
        importance_sampling_level=level,
        epsilon_low=low,
        epsilon_high=high,
        beta=beta,
        off_policy_mask_threshold=opsm,
        use_vllm=mode is not None,
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_max=cap,
        vllm_importance_sampling_clip_min=floor,
    )
    asked.args.delta, asked.args.use_bias_correction_kl = delta, unbiased
    leaf_BT = batch.logp_BT.clone().requires_grad_()
    mask_BT = batch.mask_BT.double()
    ids_BT = batch.mask_BT.long()
    inputs = {
        "prompt_ids": ids_BT[:, :1],
        "prompt_mask": ids_BT[:, :1],
        "completion_ids": ids_BT,
        "completion_mask": mask_BT,
        "advantages": credit_BT,
        "old_per_token_logps": batch.old_BT if old == "trainer" else batch.behaviour_BT,
        "sampling_per_token_logps": batch.behaviour_BT,
        "ref_per_token_logps": batch.ref_BT,
        "num_items_in_batch": mask_BT.sum(),
    }
    if mode is not None:
        inputs["importance_sampling_ratio"] = _generated(asked)["importance_sampling_ratio"]
    asked.answer_BT = leaf_BT
    found = asked._compute_loss(asked.model, inputs)
    (gradient_BT,) = torch.autograd.grad(found, leaf_BT)
    return Found((found.detach(), gradient_BT), credit_BT)


def advantages(batch: Batch, kind: str) -> Found:
    """Advantages of every token: `kind` is a scale_rewards, or gdpo."""
    how = {"multi_objective_aggregation": "normalize_then_sum"} if kind == "gdpo" else {"scale_rewards": kind}
    found_B = _generated(Asked(batch, **how))["advantages"]
    found_BT = torch.where(batch.mask_BT, found_B[:, None], 0.0)
    return Found((found_BT,), found_BT)


def _generated(asked: Asked) -> dict[str, Any]:
    found: dict[str, Any] = asked._generate_and_score_completions([{"prompt": ""} for _ in asked.batch.lengths])
    return found
