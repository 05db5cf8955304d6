"""Asynchronous training with vLLM in the trainer's process: `dojang train loop.mode=overlap|stream` with
rollout.engine.name=vllm."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from started_commands import PATIENCE, left, members, start
from transformers import AutoModelForCausalLM, DynamicCache, PreTrainedModel

from vllm_servers import NEEDS_VLLM, Served

pytestmark = [*NEEDS_VLLM, pytest.mark.slow]

STEPS, LAG = 6, 1
RECORDED = str(Path(__file__).parent / "recorded_run.py")
Weights = dict[int, dict[str, torch.Tensor]]


def wait(process: Any, log: Path, until: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not until():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.2)


def rows(run: Path) -> list[dict[str, float]]:
    path = run / "metrics.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [row for row in found if "critic/rewards/mean" in row]


def settings(kit: Served, mode: str) -> list[str]:
    own = ("name=vllm", "enforce_eager=true", "kv_cache_gb=0.5", "max_num_seqs=16")
    return [
        *(f"model.name={kit.model}", f"steps={STEPS}", f"eval.every={STEPS}", "checkpoint.every=2"),
        *("rollout.prompts_per_step=4", "rollout.group_size=4", "rollout.max_tokens=160", "eval.problems=4"),
        *(f"loop.mode={mode}", f"loop.lag={LAG}", "algo.name=m2po"),
        *("task.rewards={'varied_reward:varied': 1.0}", "train.lr=1e-3"),
        *(f"rollout.engine.{each}" for each in own),
    ]


def expected_logprobs(model: PreTrainedModel, weights: Weights, tokens: list[int], spans: Any) -> torch.Tensor:
    """Log-probs of the sampled tokens, by transformers. A token's log-prob comes from the pass over the token before,
    with the weights of its version; keys and values of earlier tokens stay those of the weights that made them."""
    ids, cache, parts = torch.tensor([tokens]), DynamicCache(), []
    passed = 0
    for version, start_at, end in spans:
        model.load_state_dict(weights[version], strict=False)
        with torch.no_grad():
            logits = model(ids[:, passed : end - 1], past_key_values=cache, use_cache=True).logits[0]
        logp = logits.log_softmax(-1)[start_at - 1 - passed :]
        parts.append(logp.gather(-1, ids[0, start_at:end, None]).squeeze(-1))
        passed = end - 1
    return torch.cat(parts)


@pytest.mark.parametrize("mode", ["overlap", "stream"])
def test_training_with_vllm_in_the_trainers_process(kit: Served, tmp_path: Path, mode: str) -> None:
    run, log, record = tmp_path / "run", tmp_path / "log", tmp_path / "record.pt"
    process = start(
        log, "train", "quickstart", *settings(kit, mode), "--run-dir", str(run), script=[RECORDED, str(record)]
    )
    try:
        wait(process, log, lambda: process.poll() is not None)
        assert process.returncode == 0, log.read_text()
        assert left(process.pid) == []
    finally:
        end(process)
    steps = rows(run)
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    assert max(row["staleness/max"] for row in steps) == LAG
    assert all(row["timing_s/load"] >= row["timing_s/load_pause"] > 0 for row in steps[1 + (mode == "overlap") :])
    weights, samples = torch.load(record)
    model = AutoModelForCausalLM.from_pretrained(kit.model, dtype=torch.float32)
    mixed = 0
    for step, found in samples.items():
        for tokens, mask, logprobs, spans in found:
            first, size = mask.index(True), len(tokens)
            assert [start_at for _, start_at, _ in spans] == [first, *(end for _, _, end in spans[:-1])]
            assert spans[-1][2] == size
            versions = [version for version, _, _ in spans]
            assert versions == sorted(set(versions))
            assert step - 1 - LAG <= versions[0] <= versions[-1] <= step - 1
            mixed += len(spans) > 1
            expected = expected_logprobs(model, weights, tokens, spans)
            torch.testing.assert_close(torch.tensor(logprobs[first:]), expected, atol=1e-3, rtol=0)
    # A batch of overlap is sampled with one version; rollouts of stream get new weights between two tokens.
    assert mixed == 0 if mode == "overlap" else mixed > 0


def test_ctrl_c_ends_vllm_and_the_run_resumes(kit: Served, tmp_path: Path) -> None:
    run, log = tmp_path / "run", tmp_path / "log"
    process = start(log, "train", "quickstart", *settings(kit, "stream"), "--run-dir", str(run))
    try:
        wait(process, log, lambda: len(rows(run)) >= 2 or process.poll() is not None)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        wait(process, log, lambda: process.poll() is not None)
        assert process.returncode == 130, log.read_text()
        assert "everything is saved" in log.read_text()
        assert left(process.pid) == []
        process = start(log, "resume", str(run))
        wait(process, log, lambda: process.poll() is not None)
        assert process.returncode == 0, log.read_text()
        assert left(process.pid) == []
    finally:
        end(process)
    steps = rows(run)
    assert [row["step"] for row in steps] == list(range(1, STEPS + 1))
    assert max(row["staleness/max"] for row in steps) == LAG


def end(process: Any) -> None:
    if members(process.pid):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
