"""Every alert calls when it should, says so in words, and is silent while a run is well. Time runs inside promtool."""

import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from dojang.track.alerts import ALERTS

LABELS = 'run="r-1",job="dojang",instance="node:9464"'
HOURS = 8
MINUTES = HOURS * 60


def series(name: str, metric: str = "") -> str:
    return f'{name}{{{LABELS},metric="{metric}"}}' if metric else f"{name}{{{LABELS}}}"


STEP, STEPS, SEEN = (series(f"dojang_{name}") for name in ("step", "steps", "step_time_seconds"))
UP = 'up{job="dojang",instance="node:9464"}'
STEP_TIME = series("dojang_timing_s_step", "timing_s/step")
EVAL_TIME = series("dojang_timing_s_eval", "timing_s/eval")
REWARD = series("dojang_critic_rewards_mean", "critic/rewards/mean")
LOWEST, HIGHEST = (series(f"dojang_critic_rewards_{which}", f"critic/rewards/{which}") for which in ("min", "max"))
UNJUDGED = series("dojang_judge_error_ratio", "judge/error_ratio")
TESTERS_UNJUDGED = series("dojang_tester_judge_error_ratio", "tester/judge/error_ratio")
PPO_KL, KL_LOSS = (series(f"dojang_actor_{which}", f"actor/{which}") for which in ("ppo_kl", "kl_loss"))
GRADIENT = series("dojang_actor_grad_norm", "actor/grad_norm")
DIFFERENCE = series("dojang_actor_logprob_diff_mean", "actor/logprob_diff/mean")

HEALTHY = {
    UP: f"1+0x{MINUTES}",
    STEP: f"0+0.5x{MINUTES}",
    STEPS: f"1000+0x{MINUTES}",
    SEEN: f"0+60x{MINUTES}",
    STEP_TIME: f"120+0x{MINUTES}",
    EVAL_TIME: f"300+0x{MINUTES}",
    REWARD: f"0.1+0.001x{MINUTES}",
    LOWEST: f"0+0x{MINUTES}",
    HIGHEST: f"1+0x{MINUTES}",
    UNJUDGED: f"0.01+0x{MINUTES}",
    PPO_KL: f"0.002+0x{MINUTES}",
    KL_LOSS: f"0+0.001x{MINUTES}",
    GRADIENT: f"0.5+0x{MINUTES}",
    DIFFERENCE: f"0.001+0x{MINUTES}",
}
"""A step every two minutes, an evaluation of five minutes now and then, and rewards that grow."""


@dataclass(frozen=True)
class Case:
    """What happens to a healthy run, and who should have called at the end, saying what."""

    name: str
    other: dict[str, str]
    """Values of series instead of the healthy ones; an empty text leaves one out."""
    calls: dict[str, str] = field(default_factory=dict)
    """Alerts and their summaries."""
    metric: str = ""
    others: dict[str, str] = field(default_factory=dict)
    """Labels that the alerts have, besides those of a run that is asked itself."""
    at: int = MINUTES
    """When to look, in minutes."""


def then(before: str, after: str, minutes: int = 60) -> str:
    """The last so many minutes are different."""
    return f"{before}+0x{MINUTES - minutes - 1} {after}+0x{minutes}"


def on_ray(name: str) -> str:
    return name.replace('dojang"', 'ray",WorkerId="01"').replace("node:9464", "head:8080")


STUCK = f"0+60x{MINUTES - 61} {60 * (MINUTES - 61)}+0x60"
"""When lines were seen: none in the last hour."""
FELL = "The reward of run r-1 has fallen by"

CASES = [
    Case("healthy", {}),
    Case("a step takes an hour", {SEEN: STUCK, STEP_TIME: f"1000+0x{MINUTES}"}),
    Case("hangs", {SEEN: STUCK}, {"DojangNoProgress": "Run r-1 has not finished a step for 1h 1m 0s."}),
    Case("the first step is long", {STEP: f"0+0x{MINUTES}", SEEN: f"10+0x{MINUTES}", STEP_TIME: ""}, at=5 * 60),
    Case(
        "the first step never ends",
        {STEP: f"0+0x{MINUTES}", SEEN: f"60+0x{MINUTES}", STEP_TIME: ""},
        {"DojangNoProgress": "Run r-1 has not finished a step for 7h 59m 0s."},
    ),
    Case("finished", {UP: then("1", "0"), STEP: "9+0x400 stale", STEPS: "9+0x400 stale", SEEN: "9+60x400 stale"}),
    Case(
        "killed before its last step",
        {UP: then("1", "0"), STEP: "7+0x400 stale", STEPS: "9+0x400 stale", SEEN: "9+60x400 stale"},
        {"DojangExporterDown": "Run r-1 no longer answers at node:9464, and was not at its last step."},
    ),
    Case(
        "killed, and begun again",
        {UP: "1+0x379 0+0x80 1+0x40", STEP: "7+0x400 stale", STEPS: "9+0x400 stale", SEEN: "9+60x400 stale"},
    ),
    Case(
        "killed, on Ray",
        {
            'up{job="ray",instance="head:8080"}': f"1+0x{MINUTES}",
            on_ray(STEP): "7+0x400 stale",
            on_ray(STEPS): "9+0x400 stale",
            on_ray(SEEN): "9+60x400 stale",
        },
        {"DojangExporterDown": "Run r-1 no longer answers at head:8080, and was not at its last step."},
        others={"job": "ray", "instance": "head:8080", "WorkerId": "01"},
    ),
    Case(
        "finished, on the port of one that was killed",
        {
            UP: then("1", "0"),
            STEP.replace("r-1", "r-0"): "7+0x100 stale",
            STEPS.replace("r-1", "r-0"): "9+0x100 stale",
            SEEN.replace("r-1", "r-0"): "9+60x100 stale",
            STEP: "_x200 9+0x200 stale",
            STEPS: "_x200 9+0x200 stale",
            SEEN: "_x200 12009+60x200 stale",
        },
    ),
    Case("collapses", {REWARD: then("0.6", "0.1")}, {"DojangRewardCollapse": f"{FELL} 0.5."}),
    Case(
        "collapses below zero",
        {REWARD: then("-0.1", "-0.8"), LOWEST: f"-1+0x{MINUTES}"},
        {"DojangRewardCollapse": f"{FELL} 0.7."},
    ),
    Case("rewards are noise near nothing", {REWARD: then("0.04", "0.01")}),
    Case("a few bad steps", {REWARD: f"0.6+0x{MINUTES - 5} 0.1+0x4"}),
    Case(
        "the judge fails",
        {UNJUDGED: then("0", "0.125")},
        {"DojangJudgeErrors": "12.5% of the samples of run r-1 cannot be judged."},
        "judge/error_ratio",
    ),
    Case(
        "the judge fails the tester",
        {TESTERS_UNJUDGED: then("0", "0.25")},
        {"DojangJudgeErrors": "25% of the samples of run r-1 cannot be judged."},
        "tester/judge/error_ratio",
    ),
    Case(
        "steps too far",
        {PPO_KL: then("0.002", "0.75")},
        {"DojangKLBlowUp": "actor/ppo_kl of run r-1 is 0.75 nats per token."},
        "actor/ppo_kl",
    ),
    Case(
        "went too far",
        {KL_LOSS: then("0.2", "5")},
        {"DojangKLBlowUp": "actor/kl_loss of run r-1 is 5 nats per token."},
        "actor/kl_loss",
    ),
    Case(
        "no number",
        {GRADIENT: then("0.5", "NaN", 2)},
        {"DojangGradient": "The gradient of run r-1 is NaN."},
        "actor/grad_norm",
    ),
    Case(
        "infinite",
        {GRADIENT: then("0.5", "Inf", 2)},
        {"DojangGradient": "The gradient of run r-1 is +Inf."},
        "actor/grad_norm",
    ),
    Case(
        "explodes",
        {GRADIENT: then("0.5", "80", 2)},
        {"DojangGradient": "The gradient of run r-1 is 80."},
        "actor/grad_norm",
    ),
    Case("a long gradient", {GRADIENT: then("0.5", "20", 2)}),
    Case(
        "drifts",
        {DIFFERENCE: then("0.001", "0.5")},
        {"DojangEngineDrift": "Engine and trainer of run r-1 differ by 0.5 nats per token."},
        "actor/logprob_diff/mean",
    ),
]


def expected(case: Case, alert: Any) -> list[dict[str, Any]]:
    if alert.name not in case.calls:
        return []
    labels = {"run": "r-1", "job": "dojang", "instance": "node:9464", "severity": alert.severity, **case.others}
    if case.metric:
        labels["metric"] = case.metric
    description = f"{alert.meaning} What to do: {alert.todo}"
    return [{"exp_labels": labels, "exp_annotations": {"summary": case.calls[alert.name], "description": description}}]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_alerts_call_when_they_should(tools: Path, written: Path, tmp_path: Path, case: Case) -> None:
    values = {name: text for name, text in {**HEALTHY, **case.other}.items() if text}
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": text} for name, text in values.items()],
        "alert_rule_test": [
            {"eval_time": f"{case.at}m", "alertname": alert.name, "exp_alerts": expected(case, alert)}
            for alert in ALERTS
        ],
    }
    rules = written / "prometheus" / "dojang.rules.yml"
    path = tmp_path / "test.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": "5m", "tests": [test]}))
    command = [str(tools / "promtool"), "test", "rules", str(path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_alert_was_heard() -> None:
    assert {name for case in CASES for name in case.calls} == {alert.name for alert in ALERTS}
