"""Records of whole runs: timeline, token values, vocabulary, environment, in every mode."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import dojang
from dojang.core.run_dir import RunDir

WORK = {"engine": ("rollout", "load", "eval"), "trainer": ("teacher", "update", "publish", "checkpoint")}
FEW = {"eval": {"problems": 4, "every": 2}, "rollout": {"prompts_per_step": 2, "group_size": 4}}
STEPS = 3
Span = dict[str, Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], RunDir]:
    """Trains in a mode, once."""
    made: dict[str, RunDir] = {}

    def train(mode: str) -> RunDir:
        if mode not in made:
            path = tmp_path_factory.mktemp("runs") / mode
            if mode == "sft":
                dojang.train("quickstart-sft", steps=STEPS, run_dir=path, eval=FEW["eval"])
            else:
                dojang.train("quickstart", steps=STEPS, run_dir=path, loop={"mode": mode}, **FEW)
            made[mode] = RunDir(path)
        return made[mode]

    return train


def spans(directory: RunDir) -> list[Span]:
    return [json.loads(line) for line in directory.timeline.read_text().splitlines()]


def working(found: list[Span], who: str) -> list[Span]:
    return [each for each in found if each["who"] == who and each["stage"] in WORK[who]]


def at_once(found: list[Span]) -> float:
    """Seconds in which engine and trainer both work."""
    return sum(
        max(0.0, min(mine["end"], theirs["end"]) - max(mine["start"], theirs["start"]))
        for mine in working(found, "engine")
        for theirs in working(found, "trainer")
    )


@pytest.mark.parametrize("mode", ["sync", "overlap", "stream", "sft"])
def test_timeline(run: Callable[[str], RunDir], mode: str) -> None:
    found = spans(run(mode))
    for who in {each["who"] for each in found}:
        own = sorted((each for each in found if each["who"] == who), key=lambda each: each["start"])
        assert all(each["start"] < each["end"] for each in own)
        assert all(before["end"] <= after["start"] for before, after in pairwise(own))
    stages = {(each["who"], each["stage"]) for each in found}
    assert {("trainer", each) for each in ("wait", "update", "publish", "checkpoint")} <= stages
    assert ("engine", "eval") in stages
    assert {each["who"] for each in found if each["stage"] == "rollout"} == {
        "worker-local" if mode == "stream" else "engine"
    }
    for stage in ("wait", "update", "publish"):
        assert [each["step"] for each in found if (each["who"], each["stage"]) == ("trainer", stage)] == [1, 2, 3]
    assert [each["step"] for each in found if each["stage"] == "eval"] == [0, 2, 3]
    if mode in ("sync", "sft"):
        assert at_once(found) == 0
    if mode == "overlap":
        assert at_once(found) > 0


def test_timeline_and_metrics_tell_the_same_seconds(run: Callable[[str], RunDir]) -> None:
    directory = run("sync")
    rows = [json.loads(line) for line in directory.metrics.read_text().splitlines()]
    for stage in ("update", "wait", "publish"):
        taken = {each["step"]: each["end"] - each["start"] for each in spans(directory) if each["stage"] == stage}
        assert taken == {
            row["step"]: pytest.approx(row[f"timing_s/{stage}"], abs=0.01) for row in rows if f"timing_s/{stage}" in row
        }


@pytest.mark.parametrize("mode", ["sync", "overlap", "stream", "sft"])
def test_token_values_belong_to_rollouts(run: Callable[[str], RunDir], mode: str) -> None:
    directory, matched = run(mode), 0
    for step in range(1, STEPS + 1):
        rollouts = pq.read_table(directory.rollouts("train", step)).to_pylist()
        lengths = {
            (row["prompt_index"], row["index"], row["role"], row["turn"]): row["response_length"] for row in rollouts
        }
        path = directory.token_values("train", step)
        for row in pq.read_table(path).to_pylist() if path.exists() else ():  # a step may have no signal
            matched += 1
            length = lengths[row["prompt_index"], row["index"], row["role"], row["turn"]]
            assert len(row["trainer_logprobs"]) == len(row["entropies"]) == length
            assert max(row["trainer_logprobs"]) <= 0
    assert matched


def test_token_values_can_be_turned_off(tmp_path: Path) -> None:
    dojang.train("quickstart", steps=1, run_dir=tmp_path / "run", track={"token_values": "none"}, **FEW)
    assert not (tmp_path / "run" / "token_values").exists()


def test_tokens_are_spelled_by_the_vocabulary(run: Callable[[str], RunDir]) -> None:
    directory = run("sync")
    spelled = pq.read_table(directory.vocabulary()).to_pydict()
    for row in pq.read_table(directory.rollouts("train", 1)).to_pylist():
        chosen = [token for token, sampled in zip(row["tokens"], row["mask"], strict=True) if sampled]
        text = b"".join(spelled["bytes"][token] for token in chosen if not spelled["special"][token])
        assert text.decode(errors="replace") == row["response"]


def test_a_resumed_run_adds_to_its_records(run: Callable[[str], RunDir]) -> None:
    directory = run("overlap")
    before = spans(directory)
    directory.vocabulary().unlink()
    dojang.resume(directory.path, overrides=[f"steps={STEPS + 1}"])
    after = spans(directory)
    assert after[: len(before)] == before
    assert {each["step"] for each in after[len(before) :] if each["stage"] == "update"} == {STEPS + 1}
    assert directory.vocabulary().exists()
    assert [each["step"] for each in json.loads(directory.environment.read_bytes())["starts"]] == [0, STEPS]
