"""Prometheus alert rules over the exported metrics of a run.

Windows are in time, not in steps, because Prometheus only knows time: half an hour is many steps of a small run and
one or two of a large one. Thresholds are generous; each alert says what it means and what to do.
"""

from dataclasses import dataclass
from typing import Any

from dojang.track.registry import find, gauge_name, gauge_pattern

__all__ = ["ALERTS", "JOB", "Alert", "rules"]

JOB = "dojang"
"""Name of the scrape job of runs' exporters in the Prometheus configuration."""


@dataclass(frozen=True, slots=True)
class Alert:
    """A Prometheus alert rule with its annotations."""

    name: str
    expr: str
    wait: str
    """Duration for which the expression must hold (Prometheus `for`)."""
    severity: str
    """critical: the run is stuck or its training is useless. warning: look at it today."""
    summary: str
    meaning: str
    todo: str


def _one(metric: str) -> str:
    """Returns the gauge of a metric, for the main model of a run."""
    assert find(metric) is not None, f"unknown metric {metric}"
    return gauge_name(metric)


def _all(metric: str) -> str:
    """Returns a selector of the metric's gauges for all models of a run."""
    found = find(metric)
    assert found is not None, f"unknown metric {metric}"
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
    > 600 + 5 * max without (metric) (max_over_time({{__name__=~"{STEP}|{EVAL}(_.+)?"}}[6h]))
  and ignoring (metric) {STEP}
)
or
(
  time() - dojang_step_time_seconds > 6 * 3600
  unless ignoring (metric) {STEP}
)
""",
        "5m",
        "critical",
        "Run {{ $labels.run }} has not finished a step for {{ $value | humanizeDuration }}.",
        "metrics.jsonl has had no new line for ten minutes plus five times the duration of the slowest step or "
        "evaluation of the last six hours (for six hours if no step has finished yet). The process is alive, since its "
        "exporter answers.",
        "Look at the last lines the run printed, at the load of its machine, and at its judge and inference engines. "
        "If it hangs, stop it with Ctrl-C or SIGTERM and continue with `dojang resume`.",
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
        "The run's exporter (or Ray's) stopped exporting a run that was not at its last step: its process has ended, "
        "or its machine is unreachable.",
        "Read summary.json of the run. If the run failed or was interrupted, it holds the command that resumes it. If "
        "the file is missing, the process was killed, and `dojang resume` continues from the last checkpoint. If the "
        "run finished, its last step was too short for a scrape; ignore the alert.",
    ),
    Alert(
        "DojangRewardCollapse",
        f"""\
{BEST} - {RECENT}
  > ignoring (metric) 0.5 * ({BEST} - ignoring (metric) {FLOOR})
and
{BEST} - {RECENT}
  > ignoring (metric) 0.1 * (max_over_time({HIGHEST}[6h]) - ignoring (metric) {FLOOR})
""",
        "10m",
        "warning",
        'The reward of run {{ $labels.run }} has fallen by {{ $value | printf "%.3g" }}.',
        "The half-hour mean reward has lost more than half of the height that the best half hour of the last six hours "
        "had above the lowest reward.",
        "Read current completions (rollouts/train-*.parquet) and compare KL, entropy and lengths before and after the "
        "fall. checkpoints/best holds the best model so far; restart from it with a lower train.lr, or with "
        "algo.kl_coef. If outcomes changed but completions did not, suspect the judge.",
    ),
    Alert(
        "DojangJudgeErrors",
        f"avg_over_time({_all('judge/error_ratio')}[10m]) > 0.05",
        "5m",
        "warning",
        "{{ $value | humanizePercentage }} of the samples of run {{ $labels.run }} cannot be judged.",
        "Over ten minutes, more than 5% of the samples could not be judged. The judge fails, not the completions. Such "
        "samples are dropped, so the run trains on fewer; above health.max_judge_errors it stops.",
        "Read the column `detail` of rollouts/train-*.parquet where `outcome` is judge_error. Run `dojang judge "
        "selftest` on the judge's machine; look for a full disk, exhausted memory or judge services that are down.",
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
        '{{ $labels.metric }} of run {{ $labels.run }} is {{ $value | printf "%.3g" }} nats per token.',
        "actor/ppo_kl above 0.3: a step moves the policy too far from the one that generated the samples. "
        "actor/kl_loss above 1: the policy is far from the reference model, and its language may be damaged.",
        "Read the completions. Go back to a good checkpoint with a lower train.lr, fewer train.minibatches or a "
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
        "The gradient norm is not finite, or more than a hundred times its median. dojang's trainer takes no step with "
        "a non-finite gradient and ends the run; it clips a large one to train.max_grad_norm.",
        "If this repeats, go back to an earlier checkpoint with a lower train.lr or train.max_grad_norm, or with "
        "model.dtype=float32.",
    ),
    Alert(
        "DojangEngineDrift",
        f"avg_over_time({_all('actor/logprob_diff/mean')}[10m]) > 0.2",
        "5m",
        "warning",
        'Engine and trainer of run {{ $labels.run }} differ by {{ $value | printf "%.3g" }} nats per token.',
        "Log-probs of engine and trainer differ by more than 0.2 nats at the same weights: more than rounding "
        "explains. The samples are off-policy.",
        "Compare model.dtype with the engine's dtype, check that its servers run the right model, and try "
        "rollout.engine.weight_sync=full; algo.corrections helps where a difference cannot be avoided.",
    ),
)


def rules() -> dict[str, Any]:
    """Returns the content of a Prometheus rules file."""
    return {"groups": [{"name": "dojang", "rules": [_rule(alert) for alert in ALERTS]}]}


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.wait,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": f"{alert.meaning} What to do: {alert.todo}"},
    }
