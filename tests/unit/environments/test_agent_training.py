"""Agents written with OpenAI's client train a model in real runs, which repeat and resume with the same tokens."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pyarrow.parquet as pq
import pytest

import dojang
from dojang.commands.serve_policy import PolicyOptions, policy_config
from dojang.environments.agent_workflow import AgentClient
from dojang.evaluation.cases import find_subject, make_cases
from dojang.evaluation.options import Options

CLIENT = openai.OpenAI(base_url="http://127.0.0.1:1", api_key="none")
SHAPE: dict[str, Any] = {
    "rollout": {"prompts_per_step": 2, "group_size": 4, "max_tokens": 16},
    "eval": {"problems": 2, "every": 10},
    "checkpoint": {"every": 1},
    "progress": False,
}


@pytest.fixture(scope="module", autouse=True)
def _close_client() -> Iterator[None]:
    yield
    CLIENT.close()


def careful(problem: dojang.Problem, client: AgentClient) -> str:
    """Asks twice, and answers what the model said first."""
    api = CLIENT.with_options(base_url=client.base_url, api_key=client.api_key)
    messages: list[Any] = [{"role": each.role, "content": each.content} for each in problem.messages]
    first = api.chat.completions.create(model=client.model, messages=messages).choices[0].message
    messages += [first, {"role": "user", "content": "Are you sure?"}]
    api.chat.completions.create(model=client.model, messages=messages)
    return first.content or ""


def rollouts(run_dir: Path, columns: list[str]) -> list[dict[str, Any]]:
    files = sorted((run_dir / "rollouts").glob("train-*.parquet"))
    return [row for file in files for row in pq.read_table(file, columns=columns).to_pylist()]


def train(run_dir: Path, steps: int, mode: str = "sync") -> dojang.RunResult:
    workflow = {"name": "agent", "make_with": careful}
    return dojang.train("quickstart", steps=steps, run_dir=run_dir, workflow=workflow, loop={"mode": mode}, **SHAPE)


@pytest.mark.parametrize("mode", ["overlap", "stream"])
def test_an_agent_trains_a_model(tmp_path: Path, mode: str) -> None:
    train(tmp_path / "run", 2, mode)
    rows = rollouts(tmp_path / "run", ["turns", "reward", "advantage", "outcome"])
    assert len(rows) == 2 * 2 * 4
    for row in rows:
        assert [turn["role"] for turn in row["turns"]] == ["assistant", "user", "assistant"]
    assert any(row["advantage"] for row in rows)


@pytest.mark.slow
def test_a_run_of_agents_resumes_with_the_same_tokens(tmp_path: Path) -> None:
    train(tmp_path / "whole", 3)
    train(tmp_path / "parts", 2)
    dojang.resume(tmp_path / "parts", overrides=["steps=3"], progress=False)
    columns = ["prompt_index", "index", "tokens", "mask", "logprobs", "reward", "turns"]
    whole, parts = (rollouts(tmp_path / name, columns) for name in ("whole", "parts"))
    assert len(whole) == 3 * 2 * 4
    assert whole == parts
    served = policy_config(str(tmp_path / "parts"), [], PolicyOptions())
    assert Path(served.model.name) == tmp_path / "parts" / "checkpoints" / "best"
    assert served.rollout.max_tokens == 16
    subject = find_subject(str(tmp_path / "parts"), "")
    (case,) = make_cases(subject, [], [], Options(), [], print)
    assert case.config.workflow.name == "agent", "dojang eval RUN_DIR plays the agents of the run"
    (other,) = make_cases(subject, ["functions"], [], Options(), [], print)
    assert other.config.workflow.name == "single_turn"
