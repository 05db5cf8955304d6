"""Applies all rules to a run, and states what it achieved."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from dojang.core.run_dir import REWARD
from dojang.diagnosis.completion_rules import length_drift, no_answers, run_on, truncated
from dojang.diagnosis.cost_rules import idle_engine, idle_trainer
from dojang.diagnosis.failure_rules import diverged_to_nan, judge_errors, logprob_mismatch, stopped_by_error
from dojang.diagnosis.findings import Diagnosis, Finding, Learning, Severity, Verdict
from dojang.diagnosis.held_out import HeldOut, held_out_change
from dojang.diagnosis.optimization_rules import kl_blow_up, lr_too_large, lr_too_small, stale_samples
from dojang.diagnosis.record import RunRecord
from dojang.diagnosis.reward_rules import (
    format_only,
    hidden_hacking,
    learned_nothing,
    overfitting,
    reward_hacking,
    reward_unrelated,
    too_few_tests,
    unclear_accuracy,
)
from dojang.diagnosis.signal_rules import entropy_collapse, no_signal, sampling_too_hot
from dojang.diagnosis.trends import Trend

__all__ = ["RULES", "diagnose"]

Rule = Callable[[RunRecord, HeldOut | None], Finding | None]

RULES: Sequence[Rule] = (
    diverged_to_nan,
    judge_errors,
    logprob_mismatch,
    stopped_by_error,
    stale_samples,
    lr_too_large,
    reward_hacking,
    sampling_too_hot,
    run_on,
    truncated,
    entropy_collapse,
    no_answers,
    format_only,
    no_signal,
    lr_too_small,
    overfitting,
    kl_blow_up,
    too_few_tests,
    length_drift,
    hidden_hacking,
    reward_unrelated,
    learned_nothing,
    unclear_accuracy,
    idle_trainer,
    idle_engine,
)
"""Causes before consequences: a finding is left out if one before it explains it."""
_OF_EACH_MODEL: Sequence[Rule] = (judge_errors, logprob_mismatch, truncated, entropy_collapse, no_signal, kl_blow_up)
"""Rules that are also applied to the metrics of a second model."""
_ORDER = list(Severity)

_HEADLINES = {
    Learning.BETTER: "better: {0}",
    Learning.SAME: "learned nothing: {0}",
    Learning.WORSE: "got worse: {0}",
    Learning.SOLVED: "nothing left to learn: {0}",
    Learning.UNCLEAR: "unclear whether it learned: {0}",
}


def diagnose(run: RunRecord) -> Diagnosis:
    """Returns the verdict and the findings. Never raises for missing metrics or files."""
    held_out = held_out_change(run)
    found = [finding for rule in RULES if (finding := rule(run, held_out))]
    for role in run.second_models:
        mine = run.of_role(role)
        more = [finding for rule in _OF_EACH_MODEL if (finding := rule(mine, held_out))]
        found += [replace(each, title=f"{role}: {each.title}") for each in more]
    kept: list[Finding] = []
    for each in found:
        if not any(each.name in other.explains for other in kept):
            kept.append(each)
    return Diagnosis(run.status, _verdict(run, held_out), sorted(kept, key=lambda each: _ORDER.index(each.severity)))


def _verdict(run: RunRecord, held_out: HeldOut | None) -> Verdict:
    facts = list(_facts(run))
    if held_out is None:
        count = len(run.evaluations)
        return Verdict(
            Learning.UNKNOWN,
            f"no comparison: held-out accuracy was measured {'once' if count == 1 else f'{count} times'}",
            facts,
        )
    learning, template = held_out.learning, _HEADLINES[held_out.learning]
    losses = [row["val/loss"] for row in run.evaluations if "val/loss" in row]
    if learning is Learning.SAME and len(losses) > 1 and losses[-1] < losses[0]:
        template = "accuracy is not better, though the held-out loss fell: {0}"
    return Verdict(learning, template.format(held_out), facts)


def _facts(run: RunRecord) -> Sequence[str]:
    found = []
    if reward := Trend.of(run.values("critic/rewards/mean")):
        accepted = Trend.of(run.accepted)
        shown = f", {accepted.first:.1%} and {accepted.last:.1%} accepted" if accepted else ""
        if run.trains_on_rewards:
            found.append(f"training reward {reward.first:.3g} in the first steps, {reward.last:.3g} in the last{shown}")
    for name, label in ((REWARD, "held-out reward"), ("val/loss", "held-out loss")):
        values = [row[name] for row in run.evaluations if name in row]
        if len(values) > 1:
            found.append(f"{label} {values[0]:.4g} before, {values[-1]:.4g} after")
    if kl := Trend.of(run.values("distillation/reverse_kl")):
        found.append(f"reverse KL to the teacher {kl.first:.3g} at first, {kl.last:.3g} at last")
    done = max((int(row["step"]) for row in run.rows), default=0)
    steps = f"{done} of {run.setting('steps')} steps" if run.setting("steps") else f"{done} steps"
    seconds = run.summary.get("seconds")
    found.append(f"{steps} in {seconds:.0f} s" if isinstance(seconds, int | float) else steps)
    return found
