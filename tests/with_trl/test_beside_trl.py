"""The benchmark beside TRL runs both trainers, and its table has what they recorded."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from safetensors.torch import load_file

from dojang.models import resolve

pytestmark = [
    pytest.mark.skipif(find_spec("trl") is None, reason="TRL is not installed here; make test-trl has it"),
    pytest.mark.slow,
]

BENCH = Path(__file__).resolve().parents[2] / "bench" / "trl_grpo.py"
PROMPTS, GROUP, PROBLEMS = 4, 4, 8
SETTINGS = (f"rollout.prompts_per_step={PROMPTS}", f"rollout.group_size={GROUP}", "model.device=cpu")


def bench(output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs it with one thread: many threads of a small model wait for each other where cores are few."""
    command = [sys.executable, str(BENCH), "quickstart", *SETTINGS, "--steps", "2", "--output", str(output), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900, check=False)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trl") / "out"
    done = bench(folder, "--stages", "dojang-sync,trl,eval", "--problems", str(PROBLEMS))
    assert done.returncode == 0, done.stderr[-4000:]
    assert (folder / "table.md").read_text() in done.stdout
    return folder


def cells(output: Path) -> dict[str, Sequence[str]]:
    """The table's values of dojang and of TRL, by row."""
    lines = [line.strip("| ").split(" | ") for line in (output / "table.md").read_text().splitlines() if "|" in line]
    return {line[0]: line[1:3] for line in lines[2:]}


def number(cell: str) -> float:
    return float(cell.split()[0].replace(",", "").rstrip("%"))


def records(output: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What dojang wrote of its steps, and what TRL's side did."""
    lines = [json.loads(line) for line in (output / "dojang-sync" / "metrics.jsonl").read_text().splitlines()]
    theirs = json.loads((output / "trl" / "steps.json").read_text())["steps"]
    return [line for line in lines if "timing_s/step" in line], theirs


def test_the_table_has_the_figures_of_the_run(output: Path) -> None:
    table, (mine, theirs) = cells(output), records(output)
    assert len(mine) == len(theirs) == 2
    expected = {
        "step": (mine[1]["timing_s/step"], theirs[1]["seconds"]),
        "rollout: generation and rewards": (mine[1]["timing_s/rollout"], theirs[1]["rollout"]),
        "first step": (mine[0]["timing_s/step"], theirs[0]["seconds"]),
        "mean completion length": (
            fmean(each["response_length/mean"] for each in mine),
            fmean(each["length"] for each in theirs),
        ),
        "mean reward, last step": (mine[1]["critic/rewards/mean"], theirs[1]["reward"]),
    }
    for row, values in expected.items():
        assert [number(cell) for cell in table[row]] == pytest.approx(values, rel=6e-3), row  # three digits are shown
    evals = [json.loads((output / f"eval-{name}" / "results.json").read_text()) for name in ("dojang-sync", "trl")]
    accuracies = [each["results"][0]["accuracy"]["value"] for each in evals]
    shown = [number(cell) / 100 for cell in table[f"accuracy on {PROBLEMS} held-out problems"]]
    assert shown == pytest.approx(accuracies, abs=6e-4)
    assert all(number(cell) > 100 for cell in table["peak resident memory"])


def test_ratios_divide_the_two_columns(output: Path) -> None:
    rows = {row["case"]: row for row in json.loads((output / "results.json").read_text())["rows"]}
    for case in ("step", "update", "peak resident memory"):
        assert rows[case]["ratio"] == pytest.approx(rows[case]["baseline_value"] / rows[case]["value"])
    faster = rows["completion tokens per second"]
    assert faster["ratio"] == pytest.approx(faster["value"] / faster["baseline_value"])


def test_both_read_the_same_prompts_at_the_same_learning_rates(output: Path) -> None:
    mine, theirs = records(output)
    found = json.loads((output / "results.json").read_text())
    assert found["same_prompts"] is True
    assert len({step["prompts"] for step in theirs}) == 2  # other prompts at every step
    assert [step["lr"] for step in theirs] == pytest.approx([line["actor/lr"] for line in mine])


def test_a_step_is_its_parts_and_the_model_is_trained(output: Path) -> None:
    _, theirs = records(output)
    for step in theirs:
        assert 0 < step["generate"] < step["rollout"]
        assert step["seconds"] == pytest.approx(step["rollout"] + step["update"])
    before = load_file(Path(resolve("dojang-tiny")) / "model.safetensors")
    after = load_file(output / "trl" / "model" / "model.safetensors")
    assert any((after[name] != before[name].to(after[name].dtype)).any() for name in after if name in before)


def test_disk_space_is_not_spent_on_optimizer_states(output: Path) -> None:
    checkpoints = output / "dojang-sync" / "checkpoints"
    assert [path.name for path in checkpoints.glob("step-*")] == ["step-000002"]
    assert not list(checkpoints.glob("step-*/optimizer"))


def test_completions_have_no_stop_strings_on_either_side(output: Path) -> None:
    config = (output / "dojang-sync" / "config.yaml").read_text()
    assert "stop_at: never" in config


def test_a_stage_that_has_run_is_not_run_over(output: Path) -> None:
    done = bench(output, "--stages", "trl")
    assert done.returncode != 0
    assert "leave trl out of --stages" in done.stderr


def test_continuous_batching_generates_too(tmp_path: Path) -> None:
    done = bench(tmp_path / "out", "--stages", "trl", "--trl-generation", "continuous")
    assert done.returncode == 0, done.stderr[-4000:]
    steps = json.loads((tmp_path / "out" / "trl" / "steps.json").read_text())["steps"]
    assert all(step["length"] > 0 for step in steps)
    assert "no table yet" in done.stdout
