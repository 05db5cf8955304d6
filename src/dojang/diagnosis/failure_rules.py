"""Rules on failures: an error ended the run, the judge fails, engine and trainer disagree."""

from statistics import fmean

from dojang.diagnosis.findings import Finding, Severity
from dojang.diagnosis.held_out import HeldOut
from dojang.diagnosis.record import RunRecord
from dojang.diagnosis.trends import last_steps, window

__all__ = ["diverged_to_nan", "judge_errors", "logprob_mismatch", "stopped_by_error"]

MANY_JUDGE_ERRORS = 0.02
"""Share of samples without a verdict above which rewards may be biased: what cannot be judged is not a random part."""
LOGPROB_DIFFERENCE = 0.2
"""Mean log-prob difference in nats that is no rounding, as in the alert DojangEngineDrift; bfloat16 gives 0.01."""
_MOST = 0.5
"""Share of samples without a verdict from which it explains that nothing was learned."""
_WITHOUT_VERDICTS = ("no_signal", "learned_nothing")
_ONE_TURN = ("single_turn", "coder_tester")
"""Workflows whose rewards come from the task alone."""
_QUOTED = 300
"""Characters of an error message in the evidence."""


def stopped_by_error(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """An error other than those of the other rules ended the run."""
    if not run.error or run.error.get("type") in ("HealthError", "Interrupted") or _is_divergence(run):
        return None
    message = str(run.error.get("message", ""))
    return Finding(
        "stopped_by_error",
        Severity.FAULT,
        f"the run was stopped by an error after step {_last_step(run)}",
        [message[:_QUOTED]],
        ["remove the cause that the message names, then continue with `dojang resume`"],
    )


def diverged_to_nan(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """The loss, the gradient or a log-prob is not finite, or the log-probs have moved without bound."""
    if not _is_divergence(run):
        return None
    gradients = run.points("actor/grad_norm")[-3:]
    shown = ", ".join(f"{value:.3g} at step {step}" for step, value in gradients)
    return Finding(
        "diverged",
        Severity.FAULT,
        f"the training diverged after step {_last_step(run)}",
        [
            str(run.error.get("message", ""))[:_QUOTED],
            *([f"gradient norm: {shown}"] if shown else []),
            f"train.lr={run.setting('train.lr')}, train.max_grad_norm={run.setting('train.max_grad_norm')}",
        ],
        [
            "lower train.lr by a factor of 3 to 10 and start again: the weights before the error are damaged too",
            "raise train.warmup_steps; with a 16-bit dtype try model.dtype=float32",
        ],
        explains=frozenset({"lr_too_large", "stale_samples", "logprob_mismatch", "no_signal", "entropy_collapse"}),
    )


def judge_errors(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """A part of the samples has no verdict."""
    points = run.points("judge/error_ratio")
    share = fmean(value for _, value in points) if points else 0.0
    stopped = run.error.get("type") == "JudgeError" or "could not be judged" in str(run.error.get("message", ""))
    if share <= MANY_JUDGE_ERRORS and not stopped:
        return None
    worst_step, worst = max(points, key=lambda point: point[1], default=(0, 1.0))
    count = sum(run.values("judge/errors"))
    evidence = [
        f"judge/error_ratio: {share:.1%} of the samples over {len(points)} steps ({count:.0f} samples), at most "
        f"{worst:.1%} (step {worst_step})"
    ]
    if stopped:
        evidence.append(str(run.error.get("message", ""))[:_QUOTED])
    return Finding(
        "judge_errors",
        Severity.FAULT if stopped or share > run.setting("health.max_judge_errors", 0.5) / 2 else Severity.WARNING,
        f"{share:.0%} of the samples could not be judged" if points else "the samples could not be judged",
        evidence,
        _fix_judge(run),
        run.examples(outcome="judge_error"),
        explains=frozenset({"stopped_by_error", *(_WITHOUT_VERDICTS if share > _MOST else ())}),
    )


def _fix_judge(run: RunRecord) -> list[str]:
    """Advice on samples without a verdict: most of those of an environment or an agent are its own failures."""
    name = str(run.setting("workflow.name", "single_turn"))
    errors = "the column `detail` of rollouts/*.parquet has the errors"
    if name in _ONE_TURN:
        return [
            f"fix the reward function or the judge: {errors}; `dojang judge selftest` checks the sandbox",
            "if grading is slow rather than broken, raise task.timeout_s or judge.workers",
        ]
    kind = "agent" if name == "agent" else "environment"
    return [
        f"fix the {kind}: {errors}; `dojang env try {name}`, with the settings of workflow, plays one episode",
        f"if the {kind} is slow rather than broken, raise workflow.timeout_s",
    ]


def logprob_mismatch(run: RunRecord, held_out: HeldOut | None) -> Finding | None:
    """Engine and trainer give different log-probs at the same weights."""
    points = run.points("actor/logprob_diff/mean")
    stopped = "engine and trainer disagree" in str(run.error.get("message", ""))
    difference = fmean(value for _, value in points) if points else 0.0
    size = window(len(run.steps))
    kl = fmean(run.values("actor/ppo_kl")[-size:] or [0.0])
    if difference <= LOGPROB_DIFFERENCE and kl >= -LOGPROB_DIFFERENCE and not stopped:
        return None
    evidence = []
    if difference > LOGPROB_DIFFERENCE:
        evidence.append(
            f"actor/logprob_diff/mean: {difference:.3g} nats over {len(points)} steps; rounding gives about 0.01"
        )
    if kl < -LOGPROB_DIFFERENCE:
        evidence.append(
            f"actor/ppo_kl: {kl:.3g} nats per token in {last_steps(size)}; a KL cannot be this negative unless the "
            "log-probs of the rollouts are wrong"
        )
    return Finding(
        "logprob_mismatch",
        Severity.FAULT,
        "engine and trainer disagree on the log-probs of the same weights",
        [str(run.error.get("message", ""))[:_QUOTED]] if stopped else evidence,
        [
            "compare model.dtype with the engine's dtype and quantization; check that its servers run the right model",
            "set rollout.engine.weight_sync=full; where a difference cannot be avoided, set algo.corrections",
        ],
        explains=frozenset({"lr_too_large", "stale_samples", "stopped_by_error", "kl_blow_up"}),
    )


def _is_divergence(run: RunRecord) -> bool:
    return "became NaN, infinite or too large" in str(run.error.get("message", ""))


def _last_step(run: RunRecord) -> int:
    return int(run.steps[-1]["step"]) if run.steps else 0
