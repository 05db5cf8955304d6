"""Runs with `workflow.credit=turn`: only the turn that was rewarded is trained."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import dojang


class FirstTurnCounts(dojang.Environment):
    """Rewards the length of the first of two replies."""

    def reset(self, problem: dojang.Problem) -> tuple[dojang.Message, ...]:
        return problem.messages

    def step(self, reply: dojang.Reply) -> dojang.Step:
        if reply.turn:
            return dojang.Step(reward=0.0, done=True)
        return dojang.Step([dojang.Message("user", "Go on.")], reward=float(len(reply.text)))


def train(run_dir: Path, credit: str) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """One step. Returns its samples and metrics."""
    dojang.train(
        "quickstart",
        steps=1,
        run_dir=run_dir,
        task={"name": "environment"},
        workflow={"name": "custom", "make_with": FirstTurnCounts, "max_turns": 2, "credit": credit},
        rollout={"prompts_per_step": 2, "group_size": 4, "max_tokens": 48},
        eval={"problems": 1, "every": 10},
        progress=False,
    )
    (rollouts,) = (run_dir / "rollouts").glob("train-*.parquet")
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    (row,) = [each for each in map(json.loads, lines) if "actor/grad_norm" in each]
    return pq.read_table(rollouts).to_pylist(), row


def test_a_turn_is_compared_with_the_same_turn_of_the_others(tmp_path: Path) -> None:
    turns, of_turns = train(tmp_path / "turn", "turn")
    episodes, of_episodes = train(tmp_path / "episode", "episode")
    assert [each["tokens"] for each in turns] == [each["tokens"] for each in episodes]
    assert {tuple(turn["role"] for turn in each["turns"]) for each in turns} == {("assistant", "user", "assistant")}
    rewards = np.array([each["reward"] for each in turns])
    assert rewards.std() > 0
    assert of_turns["critic/rewards/mean"] == pytest.approx(of_episodes["critic/rewards/mean"])
    # The second replies have the same reward in all samples of a group: they have no gradient.
    assert of_turns["actor/grad_norm"] != pytest.approx(of_episodes["actor/grad_norm"], rel=0.01)
