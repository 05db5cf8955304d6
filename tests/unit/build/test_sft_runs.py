"""Supervised fine-tuning from recipe to checkpoint: a short run, and a resumed one with the same weights."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from dojang.config import recipe as recipes
from dojang.core.errors import ConfigError, DataError, Interrupted
from dojang.core.run_dir import RunDir
from dojang.loop import train
from dojang.loop.run_state import State
from dojang.runs import training
from dojang.tasks.exact_match import ExactMatchConfig
from dojang.types import Message, Outcome, Problem

SHORT = ("steps=3", "rollout.prompts_per_step=8", "eval.problems=4", "eval.every=3", "checkpoint.every=1")


def losses(directory: Path, name: str) -> list[float]:
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [row[name] for row in rows if name in row]


def test_a_resumed_run_ends_with_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tmp_path / "rows.jsonl"
    made = ({"prompt": f"What is {at} + 1?", "completion": f"#### {at + 1}"} for at in range(40))
    rows.write_text("".join(json.dumps(row) + "\n" for row in made))
    data = [f"data={{name: prompt_completion, train: {rows}, held_out: 0.3}}", "task={name: exact_match}"]
    settings = [*SHORT, *data, "checkpoint.metric=val/loss", "checkpoint.mode=min", "train.schedule=linear"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    training.run("quickstart-sft", settings, whole, resume=False)
    taken = train.train_step

    async def stopped(run: Any, state: State, batch: Any, timer: Any, stop: asyncio.Event) -> State:
        if state.step == 1:
            stop.set()
        return await taken(run, state, batch, timer, stop)

    with monkeypatch.context() as patched:
        patched.setattr(train, "train_step", stopped)
        with pytest.raises(Interrupted):
            training.run("quickstart-sft", settings, parts, resume=False)
    training.run("quickstart-sft", settings, parts, resume=True)
    assert losses(parts, "actor/loss") == losses(whole, "actor/loss")
    before, after = losses(whole, "val/loss")
    assert after < before
    first, second = (load_file(RunDir(each).checkpoints / "last" / "model.safetensors") for each in (whole, parts))
    assert all(first[name].equal(second[name]) for name in first)
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["status"] == "finished"


def test_settings_and_rows_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    rows = "data={name: prompt_completion, train: rows.jsonl}"
    for settings, words in (
        (["rollout.temperature=0.7"], "set it to 1"),
        (["loop.mode=overlap"], "has none; leave them out"),
        (["rollout.top_p=0.9"], "eval.top_p"),
        (["distillation.teacher=a/b"], "leave one out"),
        ([rows], "task.name=exact_match"),
        (["algo.kl_coef=0.1"], "algo"),
    ):
        with pytest.raises(ConfigError, match=words):
            recipes.load("quickstart-sft", settings)
    recipes.load("quickstart-sft", ["rollout.group_size=1"])
    with pytest.raises(DataError, match="no completion in the column 'other', but completion"):
        training.dry_run("quickstart-sft", ["algo.completion=other"])


def test_exact_match_ignores_white_space_at_the_ends_alone() -> None:
    problem = Problem("rows/1", "rows", (Message("user", "x"),), "the answer\n")
    task = ExactMatchConfig().make({"train": [problem]})
    found = [asyncio.run(task.grade(problem, text)).outcome for text in (" the answer", "the  answer", " ")]
    assert found == [Outcome.ACCEPTED, Outcome.WRONG, Outcome.NO_ANSWER]
    assert task.problems("train") == [problem]
