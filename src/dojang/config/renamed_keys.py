"""Old names of settings, so that a recipe or a run directory of an earlier version is told the new ones."""

__all__ = ["RENAMED"]

RENAMED = {
    "algo.average": "algo.loss_aggregation",
    "algo.kl": "algo.kl_coef",
    "algo.old": "algo.old_logprobs",
    "algo.overlong": "algo.overlong_buffer_fraction",
    "algo.parts": "algo.reward_weights",
    "algo.refills": "algo.max_resample_rounds",
    "health.window": "health.patience_steps",
    "model.template": "model.chat_template_kwargs",
    "rollout.prompts": "rollout.prompts_per_step",
    "rollout.samples": "rollout.group_size",
    "runtime.patience_s": "runtime.timeout_s",
    "task.shape": "task.reward_shape",
    "tester.template": "tester.chat_template_kwargs",
    "track.patience_s": "track.timeout_s",
    "train.critic.warmup": "train.critic.warmup_steps",
    "train.lora.bits": "train.lora.base_bits",
    "train.lora.targets": "train.lora.target_modules",
    "train.micro_tokens": "train.max_tokens_per_microbatch",
    "train.optimiser": "train.optimizer",
    "train.recompute": "train.gradient_checkpointing",
    "train.sequence_ranks": "train.sequence_parallel",
    "train.updates": "train.minibatches",
    "train.warmup": "train.warmup_steps",
}
