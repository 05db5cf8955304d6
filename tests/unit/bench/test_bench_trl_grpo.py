"""The benchmark beside TRL: its table, and the settings it refuses."""

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

import trl_grpo
from dojang.config import recipe as recipes
from dojang.core.errors import ConfigError
from peak_memory import measured
from trl_grpo import check, no_stops
from trl_grpo_table import markdown, table_rows


def step(seconds: float, **more: Any) -> dict[str, Any]:
    common = {"rollout": seconds / 2, "update": seconds / 2, "length": 10.0, "reward": 1.0, "zero_variance": 0.0}
    return {"seconds": seconds, **common, "prompts": "a", **more}


def found(**sides: list[dict[str, Any]]) -> dict[str, Any]:
    common = {"seconds": 60.0, "samples_per_step": 8, "memory": {"rss": 100.0, "allocated": 2000.0}}
    return {
        "sides": {name.replace("_", "-"): {**common, "steps": each} for name, each in sides.items()},
        "accuracy": {},
    }


def test_the_first_step_warms_up() -> None:
    mine = [step(9.0, staleness=0.0), step(2.0, staleness=0.0), step(4.0, staleness=0.0)]
    rows = {row.case: row for row in table_rows(found(dojang_sync=mine, trl=[step(30.0), step(12.0), step(12.0)]))}
    assert (rows["step"].value, rows["step"].baseline_value, rows["step"].ratio) == (3.0, 12.0, 4.0)
    assert (rows["first step"].value, rows["first step"].baseline_value) == (9.0, 30.0)
    # 80 tokens a step: 40 and 20 a second, and 80 / 12
    assert rows["completion tokens per second"].ratio == pytest.approx(30 / (80 / 12))
    assert rows["peak GPU memory"].unit == "MiB"
    assert rows["mean completion length"].ratio is None


def test_every_run_of_dojang_has_its_table_beside_trl() -> None:
    mine, stale = [step(2.0, staleness=0.0)] * 2, [step(1.0, staleness=1.0)] * 2
    results = found(dojang=stale, dojang_sync=mine, trl=[step(4.0)] * 2)
    text = markdown(table_rows(results), results)
    assert "| step | 1 s | 4 s | 4x | one step |" in text
    assert "| step | 2 s | 4 s | 2x | one step |" in text
    assert text.count("rollout and update overlap") == 2  # the two stages of the run that overlaps them
    assert "different prompts" not in text


def test_different_prompts_are_told() -> None:
    results = {**found(dojang=[step(1.0, staleness=0.0)], trl=[step(1.0)]), "same_prompts": False}
    assert "different prompts" in markdown(table_rows(results), results)


def test_one_trainer_alone_makes_no_table() -> None:
    results = found(trl=[step(1.0)])
    assert markdown(table_rows(results), results) == "no table yet: results of trl alone\n"


@pytest.mark.parametrize(
    "override",
    ["algo.name=dapo", "algo.kl_coef=0.1", "train.lora={}", "train.minibatches=2", "train.optimizer=muon"],
)
def test_settings_that_trl_does_not_follow_are_refused(override: str, tmp_path: Path) -> None:
    options = Namespace(stages=["dojang"], output=tmp_path, trl_batch=None, trl_generation="transformers")
    check(recipes.load("quickstart"), options)
    with pytest.raises(ConfigError, match=override.partition(".")[0]):
        check(recipes.load("quickstart", [override]), options)


def test_stages_of_other_settings_are_not_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    evaluated = []

    def call(what: str, command: list[str]) -> float:
        evaluated.append(what)
        folder = Path(command[-1])
        folder.mkdir()
        (folder / "results.json").write_text(json.dumps({"results": []}))
        return 1.0

    def play(*arguments: str) -> None:
        command = ["trl_grpo.py", "quickstart", *arguments, "--stages", "eval", "--output", str(tmp_path / "out")]
        monkeypatch.setattr(sys, "argv", command)
        trl_grpo.main()

    monkeypatch.setattr(trl_grpo, "_call", call)
    monkeypatch.setattr(trl_grpo, "read", lambda output: found())
    for _ in range(2):
        play()
    assert evaluated == ["eval of base"]
    for wrong in ("train.lr=1e-4", "--problems=7"):
        with pytest.raises(SystemExit, match="choose another directory"):
            play(wrong)
    assert evaluated == ["eval of base"]


def test_stop_strings_are_left_out() -> None:
    config = recipes.load("gsm8k-qwen2.5-coder-1.5b")
    assert no_stops(config) == ["task.stop_at=never", "data.stop=[]"]
    assert no_stops(recipes.load("gsm8k-qwen2.5-coder-1.5b", no_stops(config))) == []


def test_peak_memory_is_written_however_a_program_ends(tmp_path: Path) -> None:
    def program() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        measured(tmp_path / "peak.json", program)
    assert '"rss"' in (tmp_path / "peak.json").read_text()
