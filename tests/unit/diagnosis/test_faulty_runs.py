"""`dojang explain` names the fault of real runs that were made to go wrong, and finds none in healthy ones."""

import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import commands
from dojang.commands.main import app
from dojang.models import tiny

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
SHORT = ["steps=10", "eval.every=10", "eval.problems=64", "checkpoint.every=100"]
BRIEF = ["steps=6", "eval.every=6"]
TIMEOUT_S = 300.0

FAULTS: dict[str, tuple[str, list[str]]] = {
    "no signal: all wrong": ("no_signal", ["data.digits=6", "task.rewards={correct: 1.0}", "health.patience_steps=4"]),
    "no signal: constant reward": (
        "no_signal",
        ["task.rewards={'faulty_rewards:constant': 1.0}", "health.patience_steps=4"],
    ),
    "format only": ("format_only", ["data.digits=6", "rollout.temperature=1.6"]),
    "reward hacking": (
        "reward_hacking",
        ["task.rewards={correct: 0.1, 'faulty_rewards:brief': 3.0}", "train.lr=1e-3"],
    ),
    "reward with the wrong sign": ("reward_unrelated", ["task.rewards={correct: -1.0}", "train.lr=1e-3", *BRIEF]),
    "no answer, paid by a side term": (
        "no_answers",
        ["model.name=dojang-tiny-code", "task.rewards={correct: 1.0, 'faulty_rewards:brief': 0.5}", *BRIEF],
    ),
    "answers cut": ("truncated", ["rollout.max_tokens=3", *BRIEF]),
    "length drift": (
        "length_drift",
        [
            "task={name: custom, make_with: 'faulty_rewards:LikesLength'}",
            *("train.lr=2e-3", "data.digits=6", "rollout.max_tokens=64"),
        ],
    ),
    "temperature": ("sampling_too_hot", ["rollout.temperature=2.5", *BRIEF]),
    "learning rate too small": ("lr_too_small", ["train.lr=1e-9", *BRIEF]),
    "KL coefficient too large": ("lr_too_small", ["algo.kl_coef=100", *BRIEF]),
    "diverged": ("diverged", ["train.lr=1000", "train.warmup_steps=0"]),
    "stale samples": ("stale_samples", ["loop.mode=overlap", "loop.lag=6", "train.lr=2e-3"]),
    "judge errors": ("judge_errors", ["task.rewards={correct: 1.0, 'faulty_rewards:broken': 0.1}", *BRIEF]),
}
"""Name of the first finding and overrides of the quickstart, by fault."""


def dojang(*arguments: str, program: Path | None = None) -> tuple[int, str]:
    """Exit code and output of the command."""
    command = [sys.executable, *([str(program)] if program else ["-m", "dojang"]), *arguments]
    paths = [str(HERE), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    result = commands.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment)
    return result.returncode, result.stdout + result.stderr


def explain(run: Path) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["explain", str(run), "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


def first(found: dict[str, Any]) -> dict[str, Any]:
    assert found["findings"], found
    finding: dict[str, Any] = found["findings"][0]
    return finding


def loud(found: dict[str, Any]) -> list[str]:
    """Findings other than notes."""
    return [each["name"] for each in found["findings"] if each["severity"] != "note"]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quickstart that learns; its model is the start of others."""
    run = tmp_path_factory.mktemp("healthy") / "run"
    code, output = dojang("train", "quickstart", *SHORT, "steps=16", "eval.every=8", "--run-dir", str(run))
    assert code == 0, output
    assert "dojang train quickstart seed=1" in output
    assert "fault" not in output
    return run


@pytest.fixture
def train(tmp_path: Path) -> Callable[..., tuple[Path, str]]:
    def run(recipe: str, *overrides: str, program: Path | None = None) -> tuple[Path, str]:
        arguments = ["train", recipe, *SHORT, *overrides, "--run-dir", str(tmp_path / "run")]
        return tmp_path / "run", dojang(*arguments, program=program)[1]

    return run


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_first(train: Any, fault: str) -> None:
    name, overrides = FAULTS[fault]
    run, output = train("quickstart", *overrides)
    found = explain(run)
    finding = first(found)
    assert finding["name"] == name, output
    assert finding["evidence"]
    assert finding["advice"]
    assert finding["title"] in output  # printed at the end of the run, too
    assert finding["advice"][0] in output
    assert f"explain {run}" in output
    assert "\nnext:" not in output
    if found["verdict"]["learning"] in ("not better", "worse"):
        assert finding["severity"] == "fault"
    if name == "reward_hacking":
        assert "brief pays" in finding["title"]
        assert len(finding["examples"]) == 3


def test_problems_that_are_all_solved_give_no_signal(train: Any, healthy: Path) -> None:
    model = f"model.name={healthy}/checkpoints/last"
    run, _ = train("quickstart", model, "rollout.temperature=0.4", "steps=5", "eval.every=5")
    found = explain(run)
    assert found["verdict"]["learning"] == "solved before training"
    assert first(found)["name"] == "no_signal"
    assert "too easy" in first(found)["title"]


def write_sums(folder: Path, problems: int, mistake: Callable[[random.Random, int], int]) -> list[str]:
    """Writes sums whose labels are wrong by `mistake(random numbers, row)`; returns the settings that read them."""
    numbers = random.Random(1)
    for name, count in (("train", problems), ("test", 64)):
        rows = []
        for row in range(count):
            a, b = numbers.randint(10, 49), numbers.randint(10, 49)
            rows.append({"prompt": f"What is {a} + {b}?", "answer": str(a + b + mistake(numbers, row))})
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["data.name=files", f"data.train={folder}/train.jsonl", f"data.test={folder}/test.jsonl"]


def test_wrong_labels_are_memorized(train: Any, tmp_path: Path) -> None:
    data = write_sums(tmp_path, 8, lambda numbers, row: numbers.choice([-2, -1, 1, 2]))
    run, _ = train("quickstart", *data, "train.lr=1e-3", "steps=20", "eval.every=20")
    finding = first(explain(run))
    assert finding["name"] == "overfitting"
    assert "8 problems, drawn 40.0 times each" in finding["evidence"]


def test_entropy_collapses_without_exploration_on_half_wrong_labels(train: Any, tmp_path: Path) -> None:
    data = write_sums(tmp_path, 64, lambda numbers, row: 1000 * (row % 2))
    cold = ["train.lr=1.5e-3", "rollout.temperature=0.3", "steps=12", "eval.every=12"]
    run, output = train("quickstart", *data, *cold)
    finding = first(explain(run))
    assert finding["name"] == "entropy_collapse", output
    assert any("actor/entropy" in each for each in finding["evidence"])


def test_a_model_with_the_wrong_end_token_runs_on(train: Any, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(Path(tiny.__file__).parent, model)
    for name, key, end in (
        ("config.json", "eos_token_id", 0),
        ("generation_config.json", "eos_token_id", 0),
        ("tokenizer_config.json", "eos_token", "<|pad|>"),
    ):
        settings = json.loads((model / name).read_text())
        (model / name).write_text(json.dumps({**settings, key: end}))
    run, output = train("quickstart", f"model.name={model}", "task.stop_at=never", *BRIEF)
    found = explain(run)
    assert loud(found)[0] == "run_on", output
    assert "end token" in first(found)["advice"][0]
    assert "truncated" not in loud(found)  # a larger max_tokens would not help


def test_many_epochs_without_clipping_blow_up_the_kl(train: Any) -> None:
    loose = ["train.ppo_epochs=8", "algo.clip_low=0.99", "algo.clip_high=10", "train.lr=1e-3"]
    run, output = train("quickstart", *loose, "steps=5", "eval.every=5")
    found = explain(run)
    assert first(found)["name"] == "kl_blow_up", output
    assert "actor/ppo_kl" in first(found)["evidence"][0]


# Small batches, and waiting that takes no processor time: the result does not depend on how busy the machine is.
TINY = ["rollout.prompts_per_step=4", "rollout.group_size=4", "eval.problems=4", "steps=6", "eval.every=6"]


def test_slow_grading_leaves_the_trainer_idle(train: Any) -> None:
    run, output = train("quickstart", "task.rewards={correct: 1.0, 'faulty_rewards:slow': 0.1}", *TINY)
    assert "idle_trainer" in [each["name"] for each in explain(run)["findings"]], output


def test_a_slow_trainer_leaves_the_engine_idle(train: Any) -> None:
    run, output = train("quickstart", "loop.mode=overlap", *TINY, program=HERE / "slow_trainer.py")
    assert "idle_engine" in [each["name"] for each in explain(run)["findings"]], output


def test_one_test_per_program_is_too_few(train: Any) -> None:
    run, _ = train("quickstart-code", "task.max_tests=1", "train.lr=1e-3", *BRIEF)
    finding = first(explain(run))
    assert finding["name"] == "too_few_tests"
    assert len(finding["examples"]) == 3


def test_an_engine_with_other_log_probs(train: Any) -> None:
    run, output = train("quickstart", program=HERE / "wrong_engine.py")
    assert first(explain(run))["name"] == "logprob_mismatch", output


def test_an_engine_whose_log_probs_drift_with_every_version(train: Any) -> None:
    run, output = train("quickstart", *BRIEF, program=HERE / "drifting_engine.py")
    finding = first(explain(run))
    assert finding["name"] == "logprob_mismatch", output
    assert "actor/ppo_kl" in finding["evidence"][0]


def test_prompts_that_do_not_ask_for_the_answers_in_the_data(train: Any, tmp_path: Path) -> None:
    rows = [{"prompt": f"Write {lines} lines about the sea.", "answer": str(lines)} for lines in range(10, 74)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = ["data.name=files", f"data.train={tmp_path}/rows.jsonl", f"data.test={tmp_path}/rows.jsonl"]
    run, output = train("quickstart", *data, *BRIEF)
    assert explain(run)["verdict"]["headline"].startswith("learned nothing: held-out accuracy 0.0%")
    assert "hardly a sample was ever right" in output
    assert "does the prompt ask for the answers in the data" in output
    assert "\nnext:" not in output


def test_a_large_learning_rate_spoils_the_policy_and_collapses_the_entropy(train: Any) -> None:
    run, output = train("quickstart", "train.lr=2e-2")
    assert loud(explain(run))[:2] == ["lr_too_large", "entropy_collapse"]
    assert "fault: the policy got worse" in output


def test_a_healthy_run_is_fine_before_and_after_it_is_resumed(healthy: Path) -> None:
    found = explain(healthy)
    assert loud(found) == []
    assert found["verdict"]["learning"] == "better"
    code, output = dojang("resume", str(healthy), "steps=18")
    assert code == 0, output
    assert loud(explain(healthy)) == []
    code, output = dojang("explain", str(healthy))
    assert code == 0
    assert "no fault found" in output


@pytest.mark.parametrize(
    "settings",
    [
        ["quickstart-code", "train.lr=1e-3"],
        ["quickstart", "algo.name=cispo", "loop.mode=stream", "seed=2"],
        ["quickstart-sft", "steps=15", "eval.every=15"],
    ],
    ids=" ".join,
)
def test_healthy_runs_of_other_kinds_are_fine(train: Any, settings: list[str]) -> None:
    run, output = train(*settings)
    found = explain(run)
    assert loud(found) == [], output
    assert found["verdict"]["learning"] == "better"


def test_a_distillation_is_fine(train: Any, healthy: Path) -> None:
    run, output = train("quickstart-distill", f"distillation.teacher={healthy}/checkpoints/best", "steps=8")
    found = explain(run)
    assert loud(found) == [], output
    assert any("reverse KL" in fact for fact in found["verdict"]["facts"])
