"""A run with every optional loss term and setting of the trainer switched on goes on token-exact after a resume."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file

from dojang.runs import training

RECIPE = """
model: {name: dojang-tiny, device: cpu, head_dtype: float32}
data: {name: arithmetic}
seed: 3
steps: 4
rollout: {prompts_per_step: 4, group_size: 4, max_tokens: 24, top_p: 0.95, top_k: 200, min_p: 0.001}
algo:
  name: grpo
  old_logprobs: trainer
  kl_coef: 0.01
  use_bias_correction_kl: true
  kl_in_reward: 0.001
  entropy: {coef: 0.001, target: 5.0}
train:
  lr: 5.0e-4
  minibatches: 2
  ppo_epochs: 2
  mask_truncated_completions: true
  optimizer: muon
  ref_model_sync_steps: 5
  ref_model_mixup_alpha: 0.5
eval: {every: 2, problems: 4, samples: 2, temperature: 0.7, top_p: 0.9}
checkpoint: {every: 2}
track: {custom: "mytracking:Tracker"}
"""
TRACKER = """
told = []


class Tracker:
    def metrics(self, step, values):
        told.append(step)
"""


@pytest.fixture(autouse=True)
def tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "mytracking.py").write_text(TRACKER)
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("mytracking", None)
    torch.use_deterministic_algorithms(False)  # which a run switches on for the whole process


def record(directory: Path) -> dict[str, Any]:
    columns = ["prompt_index", "index", "tokens", "logprobs", "reward", "advantage", "version"]
    tables = sorted((directory / "rollouts").glob("*.parquet"))
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return {
        "rollouts": {path.name: pq.read_table(path, columns=columns).to_pylist() for path in tables},
        "metrics": [{k: v for k, v in row.items() if not k.startswith(("timing_s", "perf"))} for row in rows],
    }


def test_everything_switched_on_is_resumed_token_exact(tmp_path: Path) -> None:
    recipe, whole, parts = str(tmp_path / "recipe.yaml"), tmp_path / "whole", tmp_path / "parts"
    training.run(recipe, ["train.lr=6e-4"], whole, resume=False)
    training.run(recipe, ["train.lr=6e-4", "steps=2"], parts, resume=False)
    training.resume(parts, ["steps=4"])  # keeps train.lr
    first, again = record(whole), record(parts)
    assert first["rollouts"] == again["rollouts"]
    assert first["metrics"] == again["metrics"]
    one, other = (load_file(each / "checkpoints" / "last" / "model.safetensors") for each in (whole, parts))
    assert all(torch.equal(one[name], other[name]) for name in one)
    steps = [row for row in first["metrics"] if "actor/lr" in row]
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    assert {"actor/entropy_coef", "actor/kl_loss", "actor/reward_kl_penalty"} <= steps[-1].keys()
    assert steps[-1]["actor/entropy_coef"] > steps[0]["actor/entropy_coef"]
    assert (whole / "checkpoints" / "last" / "reference").is_dir()
    import mytracking

    assert set(mytracking.told) == {0, 1, 2, 3, 4}
