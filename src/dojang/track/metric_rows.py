"""Metrics of a run by dashboard row and panel: the data of the registry (registry.py)."""

from dojang.track.panels import Metric, mean_min_max, panel, row

__all__ = ["ROWS"]

ROWS = (
    row(
        "Reward",
        panel("Reward", *mean_min_max("critic/rewards", "reward of the step's samples.")),
        panel(
            "Parts of the reward",
            Metric(
                "critic/rewards/<part>/mean",
                "Mean of one reward function, before its weight; `turn_0` and `turn_1`: mean reward of a coder's turn.",
            ),
        ),
        panel(
            "Advantage",
            *mean_min_max(
                "critic/advantages",
                "advantage: per sample, normalized within its group; with a critic per trained token, whitened.",
            ),
        ),
        panel(
            "Groups",
            Metric("groups/total", "Number of groups in the step.", "groups"),
            Metric(
                "groups/zero_variance",
                "Groups with zero advantage: all rewards equal (with a critic: all equal to the step's mean). "
                "They are trained on only if the loss has another term (KL, DPPO's pull, a critic).",
                "groups",
            ),
        ),
    ),
    row(
        "Curriculum",
        panel(
            "Skipped prompts",
            Metric("curriculum/skipped", "Prompts that the curriculum skipped for the step.", "prompts"),
        ),
        panel(
            "Problems without a signal",
            Metric(
                "curriculum/unsolved",
                "Problems that are drawn rarely since most samples fail, with rewards alike.",
                "problems",
            ),
            Metric(
                "curriculum/solved",
                "Problems that are drawn rarely since most samples succeed, with rewards alike.",
                "problems",
            ),
        ),
    ),
    row(
        "Episodes",
        panel(
            "Turns",
            Metric("episodes/turns/mean", "Mean number of replies in an episode, with an environment.", "replies"),
            Metric("episodes/turns/max", "Largest number of replies in an episode.", "replies"),
        ),
        panel(
            "Split episodes",
            Metric(
                "episodes/split",
                "Share of episodes in several samples, because the chat template rewrites earlier turns.",
                "share",
            ),
        ),
        panel(
            "Tool errors",
            Metric(
                "episodes/tool_errors/mean",
                "Mean number of tool calls in an episode whose answer begins with `error: `: malformed calls, wrong "
                "arguments, and exceptions of tools.",
                "calls",
            ),
        ),
    ),
    row(
        "Learning",
        panel(
            "Loss",
            Metric("actor/loss", "Total loss per token: policy loss plus weighted KL."),
            Metric("actor/pg_loss", "Policy-gradient loss per token, without KL."),
        ),
        panel(
            "KL",
            Metric("actor/ppo_kl", "Approximate KL of the policy to the rollout policy, per token.", "nats"),
            Metric("actor/kl_loss", "KL to the reference model, per token, unweighted (`algo.kl_coef`).", "nats"),
        ),
        panel(
            "KL in the reward",
            Metric("actor/reward_kl_penalty", "KL penalty in the reward, per token; with `algo.kl_in_reward`.", "nats"),
        ),
        panel("Entropy", Metric("actor/entropy", "Entropy of the policy, per token.", "nats")),
        panel("Entropy bonus", Metric("actor/entropy_coef", "Entropy bonus coefficient in this step.")),
        panel("Clipped", Metric("actor/pg_clipfrac", "Share of tokens whose importance ratio is clipped.", "share")),
        panel(
            "Distillation",
            Metric(
                "distillation/reverse_kl",
                "Reverse KL to the teacher per token: mean of log student - log teacher on sampled tokens.",
                "nats",
            ),
        ),
        panel(
            "Samples without a teacher signal",
            Metric(
                "distillation/teacher_errors",
                "Samples dropped from the step because the teacher could not score them.",
                "samples",
            ),
        ),
        panel(
            "Tokens without a teacher signal",
            Metric(
                "distillation/unaligned",
                "Share of sampled tokens that have no counterpart in the text of a teacher with another tokenizer.",
                "share",
            ),
        ),
        panel("Hinted", Metric("distillation/hinted", "Share of samples for which the teacher had a hint.", "share")),
        panel(
            "Staleness",
            Metric("staleness/mean", "Mean age of the step's samples, in published versions.", "versions"),
            Metric("staleness/max", "Age of the oldest sample of the step; at most `loop.lag`.", "versions"),
        ),
        panel(
            "Samples by staleness",
            Metric("staleness/share/<versions>", "Share of the step's samples that are this old.", "share"),
            stacked=True,
        ),
        panel("Gradient", Metric("actor/grad_norm", "Gradient norm before clipping.")),
        panel("Learning rate", Metric("actor/lr", "Learning rate of the step.")),
        panel(
            "Tokens of probability zero",
            Metric(
                "actor/zero_prob_tokens",
                "Share of tokens whose behaviour log-prob is -inf; they are trained on with a ratio of 1.",
                "share",
            ),
        ),
        panel(
            "Engine and trainer",
            Metric("actor/logp_gap", "Mean absolute log-prob difference of trainer and engine.", "nats"),
            Metric(
                "actor/logprob_diff/mean",
                "Mean absolute log-prob difference of trainer and engine in samples of the current weights (rounding).",
                "nats",
            ),
            Metric("actor/logprob_diff/max", "Largest absolute difference in samples of the current weights.", "nats"),
        ),
        panel("Corrections", Metric("actor/correction/<name>", "Mean token weight of an entry of `algo.corrections`.")),
        panel(
            "Second moment",
            Metric("actor/m2/before", "M2PO: second moment of the counted log-ratios."),
            Metric("actor/m2/after", "M2PO: second moment of those log-ratios after masking or clipping."),
        ),
    ),
    row(
        "Critic",
        panel("Loss of the critic", Metric("critic/vf_loss", "With a critic: value loss per token.")),
        panel(
            "Values and returns",
            Metric("critic/values/mean", "With a critic: mean value of the tokens, before the update."),
            Metric("critic/returns/mean", "With a critic: mean return of the tokens."),
        ),
        panel(
            "Explained variance",
            Metric(
                "critic/vf_explained_var",
                "With a critic: explained variance of the returns, at most 1; absent if all returns are equal.",
            ),
        ),
        panel(
            "Clipped values",
            Metric("critic/vf_clipfrac", "With a critic: share of tokens with a clipped value.", "share"),
        ),
        panel("Gradient of the critic", Metric("critic/grad_norm", "With a critic: its gradient norm.")),
    ),
    row(
        "Lengths",
        panel("Completion length", *mean_min_max("response_length", "completion length.", "tokens")),
        panel(
            "Truncated, or with text after the answer",
            Metric("response_length/clip_ratio", "Share truncated at `rollout.max_tokens`.", "share"),
            Metric("response/cut_after_answer", "Share truncated after its answer (`task.stop_at`).", "share"),
            Metric("response/text_after_answer", "Share with text after its answer.", "share"),
        ),
    ),
    row(
        "Judge",
        panel(
            "Outcomes",
            Metric("judge/outcome/<outcome>", "Share of one outcome among judged samples.", "share"),
            stacked=True,
        ),
        panel(
            "Share that could not be judged",
            Metric("judge/error_ratio", "Share of samples that could not be judged; dropped.", "share"),
        ),
        panel("Could not be judged", Metric("judge/errors", "Samples that could not be judged.", "samples")),
    ),
    row(
        "Timing",
        panel(
            "Stages of a step",
            Metric("timing_s/rollout", "Duration of the rollout: generation and judging.", "s"),
            Metric("timing_s/teacher", "Duration of teacher log-probs, with `distillation`.", "s"),
            Metric("timing_s/update", "Duration of the update: gradients and optimizer steps.", "s"),
            Metric("timing_s/publish", "Duration of handing the weights to the weight store.", "s"),
            Metric(
                "timing_s/load",
                "Duration of loading weights into the engine; rollouts in flight go on.",
                "s",
            ),
            stacked=True,
        ),
        panel(
            "Pause of decoding",
            Metric(
                "timing_s/load_pause",
                "Time without decoding while an engine's weights are replaced, added up over engines.",
                "s",
            ),
        ),
        panel(
            "Waiting",
            Metric("timing_s/wait", "Time that the trainer waited for rollouts.", "s"),
            Metric(
                "timing_s/idle_engine",
                "Time that the engine waited for weights, before the rollout; in stream, without any rollout.",
                "s",
            ),
        ),
        panel(
            "Idle shares",
            Metric("perf/idle/trainer", "Share of the step in which the trainer waited for rollouts.", "share"),
            Metric("perf/idle/engine", "Time that the engine waited for weights, as a share of the step.", "share"),
        ),
        panel("Step", Metric("timing_s/step", "Duration of a step, without evaluation and saving.", "s")),
        panel(
            "Evaluation",
            Metric("timing_s/eval", "Duration of the evaluation.", "s"),
            Metric("timing_s/eval/<benchmark>", "Duration on one benchmark (eval.benchmarks).", "s"),
        ),
    ),
    row(
        "Rollout queue",
        panel(
            "Prompts by state",
            Metric("rollout_queue/drawn", "With `loop.mode=stream`: prompts drawn that have no group yet.", "prompts"),
            Metric("rollout_queue/ready", "Prompts whose group waits for its batch or its update.", "prompts"),
            Metric("rollout_queue/leases", "Prompts that a rollout worker holds.", "prompts"),
        ),
        panel(
            "Prompts settled",
            Metric("rollout_queue/learned", "Prompts trained on so far.", "prompts"),
            Metric("rollout_queue/void", "Prompts settled without a group so far.", "prompts"),
            Metric("rollout_queue/void/<reason>", "Those by reason: no signal, no verdict.", "prompts"),
            Metric(
                "rollout_queue/refused", "Groups of a checkpoint that were too old and are sampled again.", "prompts"
            ),
        ),
        panel(
            "Deliveries and leases lost",
            Metric("rollout_queue/known", "Groups delivered a second time, dropped.", "groups"),
            Metric("rollout_queue/late", "Groups delivered with weights that are too old, sampled again.", "groups"),
            Metric("rollout_queue/expired", "Leases lost because the worker gave no sign of life.", "groups"),
            Metric("rollout_queue/returned", "Leases that a worker gave back.", "groups"),
        ),
        panel(
            "Waiting at the queue",
            Metric("rollout_queue/worker_wait_s", "Time that workers waited for a prompt, added up.", "s"),
            Metric("rollout_queue/trainer_wait_s", "Time that the trainer waited for a batch, added up.", "s"),
        ),
        panel(
            "Rollout workers",
            Metric("rollout_service/workers", "Rollout workers in other processes that have joined.", "workers"),
            Metric("rollout_queue/batch_workers", "Workers that sampled groups of the batch.", "workers"),
        ),
        panel(
            "Groups of the trainer's process",
            Metric("rollout_queue/sampled_here", "Groups of the batch that the trainer's process sampled.", "groups"),
        ),
        panel(
            "Weights to rollout workers",
            Metric("rollout_service/sent_bytes", "Weights sent to rollout workers since the step before.", "bytes"),
        ),
    ),
    row(
        "Throughput",
        panel(
            "Tokens", Metric("perf/tokens_per_s", "Generated tokens divided by the duration of the step.", "tokens/s")
        ),
        panel(
            "GPU memory",
            Metric("perf/max_memory_allocated_gb", "Largest GPU memory in use so far, of the trainer's process.", "GB"),
            Metric("perf/max_memory_reserved_gb", "The same with what PyTorch has cached.", "GB"),
        ),
        panel(
            "Preemptions",
            Metric(
                "perf/preempted",
                "Sequences that gave their part of the KV cache to others and were prefilled again.",
                "sequences",
            ),
        ),
        panel("Weight sync", Metric("weights/bytes", "Bytes written to send weights to vLLM.", "bytes")),
        panel(
            "Full weight syncs",
            Metric("weights/whole", "Number of engines that got full weights, not a delta.", "engines"),
        ),
    ),
    row(
        "Evaluation",
        panel(
            "Held-out loss",
            Metric("val/loss", "With `algo.name=sft`: cross-entropy of held-out completions, per token.", "nats"),
        ),
        panel(
            "Held-out accuracy",
            Metric("val/accuracy", "Share of correct held-out completions, over all data sources.", "share"),
            Metric(
                "val/accuracy/<source>",
                "Share of correct held-out completions of one data source or benchmark.",
                "share",
            ),
        ),
        panel(
            "Held-out reward",
            Metric("val/reward", "Mean reward of held-out completions, over all data sources."),
            Metric("val/test_score/<source>", "Mean reward of held-out completions of one data source or benchmark."),
        ),
        panel(
            "Held-out completion length",
            Metric("val/response_length/mean", "Mean length of held-out completions.", "tokens"),
        ),
        panel(
            "Held-out, not judged",
            Metric("val/judge_errors", "Held-out completions that could not be judged.", "samples"),
            Metric("val/judge_errors/<benchmark>", "Completions of one benchmark not judged.", "samples"),
        ),
    ),
)
