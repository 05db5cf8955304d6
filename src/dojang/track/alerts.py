"""When Prometheus should call for somebody: alerts over what an exporter says of a run.

Windows are of time, not of steps, since that is what Prometheus knows: half an hour is many steps of a small run and
one or two of a large one. Thresholds are generous; each alert says what it means and what to do.
"""

from dataclasses import dataclass
from typing import Any

from dojang.track.registry import find, gauge_name, gauge_pattern

__all__ = ["ALERTS", "JOB", "Alert", "rules"]

JOB = "dojang"
"""What runs' own exporters are called in the configuration of Prometheus."""


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule of Prometheus, and what it says to people."""

    name: str
    expr: str
    wait: str
    """For how long it must hold."""
    severity: str
    """critical: the run does not go on, or to no avail. warning: look at it today."""
    summary: str
    meaning: str
    todo: str


def _one(figure: str) -> str:
    """The gauge of a figure of the model a run is about."""
    assert find(figure) is not None, f"there is no figure {figure}"
    return gauge_name(figure)


def _all(figure: str) -> str:
    """Its gauges for all models of a run."""
    found = find(figure)
    assert found is not None, f"there is no figure {figure}"
    return f'{{__name__=~"{gauge_pattern(found)}"}}'


STEP, EVAL = _one("timing_s/step"), _one("timing_s/eval")
REWARD, LOWEST, HIGHEST = (_one(f"critic/rewards/{which}") for which in ("mean", "min", "max"))
GRADIENT = _all("actor/grad_norm")
RECENT = f"avg_over_time({REWARD}[30m])"
BEST = f"max_over_time({RECENT}[6h:5m])"
FLOOR = f"min_over_time({LOWEST}[6h])"

ALERTS = (
    Alert(
        "DojangNoProgress",
        f"""\
(
  time() - dojang_step_time_seconds
    > 600 + 5 * max without (figure) (max_over_time({{__name__=~"{STEP}|{EVAL}(_.+)?"}}[6h]))
  and ignoring (figure) {STEP}
)
or
(
  time() - dojang_step_time_seconds > 6 * 3600
  unless ignoring (figure) {STEP}
)
""",
        "5m",
        "critical",
        "Run {{ $labels.run }} has not finished a step for {{ $value | humanizeDuration }}.",
        "Since the newest line of metrics.jsonl ten minutes have passed, and five times what the slowest step or "
        "evaluation of the last six hours took (six hours in all if no step has been finished yet). The process is "
        "alive, since it answers.",
        "Look at the last lines the run printed, at the load of its machine, and at the judge and the engines it asks. "
        "If it hangs, stop it with Ctrl-C or SIGTERM and continue with --resume.",
    ),
    Alert(
        "DojangExporterDown",
        f"""\
topk by (job, instance) (1, last_over_time(dojang_step_time_seconds[1d]))
  and last_over_time(dojang_step[1d]) < last_over_time(dojang_steps[1d])
  unless dojang_step
  unless on (job, instance) up{{job="{JOB}"}} == 1
""",
        "5m",
        "critical",
        "Run {{ $labels.run }} no longer answers at {{ $labels.instance }}, and was not at its last step.",
        "The exporter, or Ray's, has nothing more to say of a run that was not at its last step: its process has "
        "ended, or its machine is out of reach.",
        "Look at summary.json of the run: if it has failed or was interrupted, that has the command which resumes it; "
        "if there is none, the process was killed, and --resume continues from the last checkpoint. If the run has "
        "finished, its last step was too short to be seen here, and there is nothing to do.",
    ),
    Alert(
        "DojangRewardCollapse",
        f"""\
{BEST} - {RECENT}
  > ignoring (figure) 0.5 * ({BEST} - ignoring (figure) {FLOOR})
and
{BEST} - {RECENT}
  > ignoring (figure) 0.1 * (max_over_time({HIGHEST}[6h]) - ignoring (figure) {FLOOR})
""",
        "10m",
        "warning",
        'The reward of run {{ $labels.run }} has fallen by {{ $value | printf "%.3g" }}.',
        "The mean over half an hour has lost more than half of what the best half hour of the last six hours had above "
        "the lowest reward.",
        "Read what the model writes now (rollouts/train-*.parquet) and compare KL, entropy and lengths before and "
        "after the fall. checkpoints/best has the best model so far; start again from there with a lower train.lr, or "
        "with algo.kl_coef. If outcomes have changed and answers have not, suspect the judge.",
    ),
    Alert(
        "DojangJudgeErrors",
        f"avg_over_time({_all('judge/error_ratio')}[10m]) > 0.05",
        "5m",
        "warning",
        "{{ $value | humanizePercentage }} of the samples of run {{ $labels.run }} cannot be judged.",
        "Over ten minutes, more than 5% of the samples could not be judged. The judge fails, not the answers: they are "
        "left out, so the run learns from fewer; above health.max_judge_errors it stops.",
        "The column detail of rollouts/train-*.parquet says why, where outcome is judge_error. Run `dojang judge "
        "selftest` on the machine that judges; look for a full disk, exhausted memory or judge services that are down.",
    ),
    Alert(
        "DojangKLBlowUp",
        f"""\
avg_over_time({_all("actor/ppo_kl")}[10m]) > 0.3
or
avg_over_time({_all("actor/kl_loss")}[10m]) > 1
""",
        "5m",
        "warning",
        '{{ $labels.figure }} of run {{ $labels.run }} is {{ $value | printf "%.3g" }} nats per token.',
        "actor/ppo_kl above 0.3: a step moves the policy too far from the one that drew the samples. actor/kl_loss "
        "above 1: the policy has left the initial model far behind, and its language may be gone.",
        "Read what the model writes. Go back to a good checkpoint with a lower train.lr, fewer train.minibatches or a "
        "larger algo.kl_coef.",
    ),
    Alert(
        "DojangGradient",
        f"""\
{GRADIENT} != {GRADIENT}
or
{GRADIENT} == Inf
or
{GRADIENT} > 100 * quantile_over_time(0.5, {GRADIENT}[6h])
""",
        "0m",
        "critical",
        'The gradient of run {{ $labels.run }} is {{ $value | printf "%.3g" }}.',
        "The gradient is not finite, or more than a hundred times as long as it usually is. dojang's own trainer takes "
        "no step with a gradient that is not finite, and ends the run; a long one is scaled down to "
        "train.max_grad_norm.",
        "If this repeats, go back to a checkpoint from before with a lower train.lr or train.max_grad_norm, or with "
        "model.dtype=float32.",
    ),
    Alert(
        "DojangEngineDrift",
        f"avg_over_time({_all('actor/logprob_diff/mean')}[10m]) > 0.2",
        "5m",
        "warning",
        'Engine and trainer of run {{ $labels.run }} differ by {{ $value | printf "%.3g" }} nats per token.',
        "The log-probs of engine and trainer are more than 0.2 nats apart where both had the same weights: more than "
        "rounding does. The samples are then not quite those of the policy that learns.",
        "Compare model.dtype with what the engine computes in, check that its servers have the right model, and try "
        "rollout.transfer=full; algo.corrections helps where a difference cannot be avoided.",
    ),
)


def rules() -> dict[str, Any]:
    """As a rules file has them."""
    return {"groups": [{"name": "dojang", "rules": [_rule(alert) for alert in ALERTS]}]}


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.wait,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": f"{alert.meaning} What to do: {alert.todo}"},
    }
