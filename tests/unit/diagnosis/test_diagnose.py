"""The rules on metrics of real runs in docs/results, on damaged records, and on single symptoms."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import dojang.diagnosis
from dojang.commands.main import app
from dojang.config.key_docs import keys
from dojang.core.errors import RunDirError
from dojang.core.run_dir import RunDir
from dojang.core.run_files import RunFiles
from dojang.diagnosis.diagnose import diagnose
from dojang.diagnosis.findings import Learning, Severity
from dojang.diagnosis.record import Row, RunRecord
from dojang.diagnosis.report import as_json, full_report, short_report
from rollout_files import row, write

RESULTS = Path(__file__).parents[3] / "docs" / "results"
SECTIONS = "algo|checkpoint|data|distillation|eval|health|judge|loop|model|rollout|runtime|task|train"
CODER = "qwen2.5-coder-1.5b"


def rows_of(name: str) -> list[Row]:
    return [json.loads(line) for line in (RESULTS / name / "metrics.jsonl").read_text().splitlines()]


def loud(rows: list[Any], config: dict[str, Any] | None = None) -> list[str]:
    found = diagnose(RunRecord(rows, config or {}))
    return [each.name for each in found.of_severity(Severity.FAULT, Severity.WARNING)]


def steps(count: int = 12, **metrics: float) -> list[dict[str, float]]:
    """Training steps of a run whose reward rises, with constant other metrics."""
    plain = {"groups/total": 16.0, "groups/zero_variance": 2.0, "actor/pg_loss": 0.0, "actor/entropy": 0.5}
    named = {name.replace("__", "/"): value for name, value in metrics.items()}
    return [
        {"step": step, **plain, "critic/rewards/mean": 0.05 * step, "judge/outcome/accepted": 0.05 * step, **named}
        for step in range(1, count + 1)
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("smollm2-gsm8k", ["format_only"]),  # the reward rose, the accuracy did not: see docs/results
        (f"{CODER}/gsm8k", []),
        (f"{CODER}/mbpp", ["overfitting"]),  # 82% in training, 61% held out
        (f"{CODER}/codefu", []),
    ],
)
def test_real_runs_on_gpus(name: str, expected: list[str]) -> None:
    problems = 32 if name.endswith("codefu") else 256
    assert loud(rows_of(name), {"eval": {"problems": problems}}) == expected


def test_a_gain_on_few_problems_is_called_unclear() -> None:
    found = diagnose(RunRecord(rows_of(f"{CODER}/codefu"), {"eval": {"problems": 32}}))
    assert found.verdict.learning is Learning.UNCLEAR
    assert [each.name for each in found.findings] == ["unclear_accuracy"]
    assert "no fault found" not in full_report(found, "run")


def test_no_verdict_without_the_number_of_problems() -> None:
    found = diagnose(RunRecord(rows_of(f"{CODER}/codefu")))  # 1 and 5 of 32
    assert found.verdict.learning is Learning.UNCLEAR
    assert "interval" not in found.verdict.headline
    assert "the number of problems is not known" in found.verdict.headline


def test_no_metric_is_required() -> None:
    rows = rows_of(f"{CODER}/mbpp")
    names = sorted({name for row in rows for name in row} - {"step"})
    for missing in names:
        diagnose(RunRecord([{name: row[name] for name in row if name != missing} for row in rows]))
    for only in names:
        diagnose(RunRecord([{name: row[name] for name in row if name in ("step", only)} for row in rows]))
    for end in range(len(rows)):  # a run that goes on
        diagnose(RunRecord(rows[:end]))
    broken = diagnose(RunRecord([{**dict.fromkeys(row, math.nan), "step": row["step"]} for row in rows]))
    assert broken.verdict.learning is Learning.UNKNOWN


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({}, []),
        ({"response__cut_after_answer": 0.3, "response_length__clip_ratio": 0.3}, ["run_on"]),
        ({"response_length__clip_ratio": 0.4, "response__cut_after_answer": 0.0}, ["truncated"]),
        ({"actor__ppo_kl": 0.6}, ["kl_blow_up"]),
        ({"actor__kl_loss": 2.0}, ["kl_blow_up"]),
        ({"actor__logprob_diff__mean": 0.4}, ["logprob_mismatch"]),
        ({"judge__error_ratio": 0.1, "judge__errors": 12.0}, ["judge_errors"]),
        ({"staleness__mean": 4.0, "actor__pg_clipfrac": 0.3}, ["stale_samples"]),
        ({"staleness__mean": 1.0, "actor__pg_clipfrac": 0.3}, []),
    ],
)
def test_single_symptoms(metrics: dict[str, float], expected: list[str]) -> None:
    assert loud(steps(**metrics)) == expected


@pytest.mark.parametrize(
    ("workflow", "advice"),
    [
        ("custom", "fix the environment: .*`dojang env try custom`"),
        ("agent", "fix the agent: .*`dojang env try agent`"),
        ("single_turn", "fix the reward function or the judge: .*selftest"),
    ],
)
def test_what_always_fails_is_to_be_fixed_not_the_problems(workflow: str, advice: str) -> None:
    rows = steps(judge__error_ratio=1.0, groups__zero_variance=8.0, judge__outcome__accepted=0.0)
    found = diagnose(RunRecord([{**row, "groups/total": 8.0} for row in rows], {"workflow": {"name": workflow}}))
    assert [each.name for each in found.findings if each.severity is Severity.FAULT] == ["judge_errors"]
    (fault,) = [each for each in found.findings if each.name == "judge_errors"]
    assert re.match(advice, fault.advice[0])


def test_a_single_spike_of_the_gradient() -> None:
    rows = [{**row, "actor/grad_norm": 500.0 if row["step"] == 7 else 1.0} for row in steps()]
    assert loud(rows) == ["kl_blow_up"]


def test_completions_that_grow_without_gain() -> None:
    rows = [{**row, "response_length/mean": 40.0 * row["step"], "judge/outcome/accepted": 0.2} for row in steps()]
    assert loud(rows) == ["length_drift"]
    assert loud([{**row, "response_length/mean": 40.0 * row["step"]} for row in steps()]) == []


def test_the_engine_waits_for_the_trainer() -> None:
    rows = steps(perf__idle__engine=0.8, perf__idle__trainer=0.0, timing_s__step=20.0)
    found = diagnose(RunRecord(rows, {"loop": {"mode": "overlap"}}))
    assert [each.name for each in found.findings] == ["idle_engine"]
    assert short_report(found, "dojang explain run") == []  # no fault: not at the end of a run


def test_a_warmup_that_outlasts_the_run_is_named() -> None:
    flat = {"critic__rewards__mean": 0.3, "judge__outcome__accepted": 0.3, "actor__ppo_kl": 0.0, "actor__lr": 1e-6}
    found = diagnose(RunRecord(steps(**flat), {"train": {"lr": 3e-4, "warmup_steps": 1000}}))
    assert [each.name for each in found.findings] == ["lr_too_small"]
    assert "the warmup is too long" in found.findings[0].title
    assert found.findings[0].advice[0] == "lower train.warmup_steps or train.warmup_ratio (now 1000)"


def test_a_kl_far_below_zero_is_a_mismatch_and_no_blow_up() -> None:
    assert loud(steps(actor__ppo_kl=-0.6)) == ["logprob_mismatch"]


def test_a_run_that_did_not_clearly_learn_or_was_stopped_ends_with_the_verdict() -> None:
    accuracy = [{"step": step, "val/accuracy": value} for step, value in ((0, 0.5), (12, 0.625))]
    rows = [accuracy[0], *steps(), accuracy[1]]
    unclear = diagnose(RunRecord(rows, {"eval": {"problems": 8}}, {"status": "finished"}))
    assert short_report(unclear, "dojang explain run")[0].startswith("unclear whether it learned")
    stopped = diagnose(RunRecord(rows[:-1], {}, {"status": "interrupted"}))
    assert short_report(stopped, "dojang explain run") == [stopped.verdict.headline, "details: dojang explain run"]


def test_a_second_model_has_findings_of_its_own() -> None:
    tester = {"tester/groups/total": 16.0, "tester/groups/zero_variance": 16.0, "tester/critic/rewards/mean": 0.0}
    found = diagnose(RunRecord([{**row, **tester} for row in steps()]))
    assert [each.title.split(":")[0] for each in found.findings] == ["tester"]
    assert found.findings[0].name == "no_signal"


def test_the_reward_of_a_turn_is_no_part_of_it() -> None:
    flat = [{**row, "judge/outcome/accepted": 0.2} for row in steps()]
    rising = [{**row, "critic/rewards/turn_0/mean": row["critic/rewards/mean"]} for row in flat]
    assert loud(rising) == []
    rising = [{**row, "critic/rewards/style/mean": row["critic/rewards/mean"]} for row in flat]
    assert loud(rising) == ["reward_hacking"]


def test_the_report_never_calls_a_run_that_learned_nothing_good() -> None:
    accuracy = [{"step": step, "val/accuracy": 0.0, "val/reward": 0.1 * step} for step in (0, 12)]
    found = diagnose(RunRecord([accuracy[0], *steps(), accuracy[1]], {"eval": {"problems": 256}}))
    assert found.verdict.learning is Learning.SAME
    assert found.verdict.headline.startswith("learned nothing")
    assert found.findings[0].severity is Severity.FAULT
    assert "no fault found" not in full_report(found, "run")
    assert json.loads(as_json(found))["findings"][0]["name"] == found.findings[0].name


def test_every_setting_and_finding_that_is_named_exists() -> None:
    source = "".join(path.read_text() for path in Path(dojang.diagnosis.__file__).parent.glob("*_rules.py"))
    named = set(re.findall(rf"(?<![\w./])((?:{SECTIONS})(?:\.[a-z_]+)+)(?!\w*[(/])", source))
    known = {key.name for key in keys()}
    assert "runtime.engines" in named
    assert [name for name in named if not any(key == name or key.startswith(f"{name}.") for key in known)] == []
    page = (RESULTS.parent / "explain.md").read_text()
    findings = set(re.findall(r'Finding\(\s*"(\w+)"', source))
    assert {name for name in findings if f"| `{name}`" not in page} == set()


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "critic/rewards/mean": 1.0}\n{"step": 2, "crit')
    record = RunRecord.read(RunDir(tmp_path))
    assert [row["step"] for row in record.steps] == [1]
    assert record.status == "running"
    assert CliRunner().invoke(app, ["explain", str(tmp_path)]).exit_code == 0


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="is no run"):
        RunRecord.read(RunDir(tmp_path))
    with pytest.raises(RunDirError, match="is no run"):
        RunRecord.read(RunDir(tmp_path / "missing"))


@pytest.mark.parametrize("lost", ["role", "outcome", "problem", "prompt_index", "reward", "total", "reward_parts"])
def test_rollouts_of_a_version_that_lacked_a_column(lost: str, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write(tmp_path, "train", step, [row(step, index) for index in range(4)])
    for file in (tmp_path / "rollouts").iterdir():
        pq.write_table(pq.read_table(file).drop_columns([lost]), file)
    RunDir(tmp_path).config.write_text("{}")
    lines = [json.dumps(each) for each in steps(3, judge__outcome__wrong=1.0)]
    RunDir(tmp_path).metrics.write_text("\n".join([*lines, '{"step": "x"}', '{"step": null, "a": 1}', ""]))
    record = RunRecord.read(RunFiles(tmp_path))
    assert [each["step"] for each in record.rows] == [1, 2, 3]
    assert as_json(diagnose(record))
    found = record.last_samples(("prompt_index", "outcome"))
    assert len(found) == (0 if lost in ("prompt_index", "outcome") else 12)
