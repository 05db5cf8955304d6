"""Runs of a model that goes on after its answer, with and without the task's stop."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from dojang import models
from dojang.data.arithmetic import ArithmeticConfig
from dojang.runs import training
from dojang.tasks.answers import answer_line_end

MAX_TOKENS = 48
STEPS = 3
SETTINGS = (
    f"steps={STEPS}",
    f"rollout.max_tokens={MAX_TOKENS}",
    *("rollout.prompts_per_step=4", "rollout.group_size=4", "eval.problems=8", f"eval.every={STEPS}"),
    *("train.warmup_steps=0", "train.mask_truncated_completions=true", "train.lr=1e-6"),
)


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, fine-tuned to write one answer line after another and never to end."""
    source, folder = models.resolve("dojang-tiny"), tmp_path_factory.mktemp("talker")
    tokenizer = AutoTokenizer.from_pretrained(source)
    model = AutoModelForCausalLM.from_pretrained(source)
    rows = [
        tokenizer.encode(
            f"<|user|>{each.messages[-1].content}<|end|><|assistant|>"
            + f"#### The final answer is {each.reference}\n" * 14,
            add_special_tokens=False,
        )[:44]
        for each in ArithmeticConfig().load("train")[:320]
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with torch.random.fork_rng():
        for start in range(0, len(rows), 16):
            tokens = torch.tensor(rows[start : start + 16])
            labels = tokens.clone()
            labels[:, :10] = -100  # the prompt
            optimizer.zero_grad()
            model(input_ids=tokens, labels=labels).loss.backward()
            optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def run(talker: Path, folder: Path, *settings: str) -> tuple[list[dict[str, float]], list[Mapping[str, Any]]]:
    """Metrics of the training steps, and the samples of training and of the last evaluation."""
    training.run("quickstart", [f"model.name={talker}", *SETTINGS, *settings], folder, resume=False)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    files = sorted((folder / "rollouts").glob("*.parquet"))
    samples = [row for file in files for row in pq.read_table(file).to_pylist()]
    return [row for row in rows if "response_length/mean" in row], samples


def test_without_a_stop_answers_run_on_and_the_run_says_so(
    talker: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        steps, _ = run(talker, tmp_path / "run", "task.stop_at=never")
    assert len(steps) == STEPS
    assert all(step["response/text_after_answer"] > 0.5 for step in steps)
    assert all(step["response/cut_after_answer"] > 0.4 for step in steps)
    (warning,) = [each.getMessage() for each in caplog.records if "ran on after their answer" in each.getMessage()]
    assert "task.stop_at" in warning


def test_with_the_stop_answers_end_and_train(talker: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        steps, samples = run(talker, tmp_path / "run")
    assert len(steps) == STEPS
    for step in steps:
        assert step["response/cut_after_answer"] == step["response/text_after_answer"] == 0
        assert step["response_length/clip_ratio"] < 0.4
    assert not [each for each in caplog.records if "ran on" in each.getMessage()]
    tokenizer = AutoTokenizer.from_pretrained(talker)
    ended = [each for each in samples if each["finish"] == "stop" and answer_line_end(each["response"])]
    assert len(ended) > len(samples) / 2
    for each in ended:
        assert answer_line_end(each["response"]) == len(each["response"])
        sampled = [token for token, mask in zip(each["tokens"], each["mask"], strict=True) if mask]
        # All sampled tokens are trained on, up to the one that ended the line: here it is the line break alone, or
        # the beginning of the next line as well, which is not graded.
        whole = tokenizer.decode(sampled, skip_special_tokens=True)
        assert whole.startswith(each["response"])
        assert tokenizer.decode(sampled[:-1], skip_special_tokens=True) == each["response"]
