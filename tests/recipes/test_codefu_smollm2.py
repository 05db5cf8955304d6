"""CodeFu's first stage on the problems CodeFu published, with a model that fits a CPU: two steps."""

import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import commands

pytestmark = pytest.mark.slow

SMALL = [
    "model.device=cpu",
    "data.tiers=[]",  # CodeFu's rows do not say theirs: all are easy
    "steps=2",
    "rollout.engine=torch",
    "runtime=local",
    "rollout.prompts_per_step=1",
    "rollout.group_size=2",
    "rollout.max_tokens=24",
    "train.sequence_parallel=1",
    "train.offload=[]",
    "train.gradient_checkpointing=false",
    "train.minibatches=1",
    "eval.problems=1",
]


@pytest.fixture
def problems(shared_data: Path, tmp_path: Path) -> Path:
    """The shortest of the published problems, in their own rows: reading a long one takes a CPU seconds."""
    published = shared_data / "code_contests_easy"
    if not published.is_dir():
        pytest.skip(f"no CodeContests at {published}")
    folder = tmp_path / "problems"
    folder.mkdir()
    for split, count in (("train", 8), ("test", 1)):
        table = pq.read_table(published / f"{split}.parquet")
        sizes = [sum(len(turn["content"]) for turn in prompt) for prompt in table.column("prompt").to_pylist()]
        shortest = sorted(range(len(sizes)), key=sizes.__getitem__)[:count]
        pq.write_table(table.take(shortest), folder / f"{split}.parquet")
    return folder


def test_two_steps_on_real_problems(shallow_smollm2: Path, problems: Path, tmp_path: Path) -> None:
    small = [*SMALL, f"model.name={shallow_smollm2}", f"data.path={problems}"]
    wanted = ["codefu-7b-stage1", *small, "--run-dir", str(tmp_path / "run")]
    command = [sys.executable, "-m", "dojang", "train", *wanted]
    result = commands.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["status"], summary["steps"]) == ("finished", 2)
    samples = []
    for step in (1, 2):
        samples += pq.read_table(tmp_path / "run" / "rollouts" / f"train-{step:06d}.parquet").to_pylist()
    assert len(samples) == 4
    price = {"no_answer": -1.0, "compile_error": -0.5, "time_limit": 0.0}
    for sample in samples:
        assert sample["outcome"] != "judge_error"
        assert sample["reward"] == price.get(sample["outcome"], (sample["passed"] / sample["total"]) ** 1.5)
