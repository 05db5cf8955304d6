"""Recorded responses judged again, with the task and the data of their run."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import dojang
from dojang.core.errors import JudgeError
from dojang.core.run_dir import RunDir
from dojang.core.run_files import RunFiles
from dojang.viewer.judge_again import GradingProcess, same_verdict
from dojang.viewer.server import Viewer
from rollout_files import row, write

Serve = Callable[..., httpx.Client]
HEADERS = {"X-Dojang": "1"}


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    few = {"eval": {"problems": 4, "every": 2}, "rollout": {"prompts_per_step": 2, "group_size": 4}}
    dojang.train("quickstart", steps=2, run_dir=run, **few)
    return run


def write_config(run: Path, data: Path, task: str) -> None:
    config = {"model": {"name": "any"}, "data": {"name": "prepared", "path": str(data)}, "task": {"name": task}}
    (run / "config.yaml").write_text(yaml.safe_dump(config))


def judge(client: httpx.Client, sample: dict[str, Any], kind: str = "train") -> httpx.Response:
    ids = {key: sample[key] for key in ("step", "prompt_index", "index", "role", "turn")}
    return client.post("/api/runs/run/judge", json={"kind": kind, **ids}, headers=HEADERS, timeout=120)


def test_every_sample_gets_the_recorded_verdict(serve: Serve, quickstart: Path) -> None:
    client = serve(quickstart)
    for kind, step in (("train", 2), ("test", 0)):
        for each in pq.read_table(RunDir(quickstart).rollouts(kind, step)).to_pylist():
            reply = judge(client, each, kind)
            assert reply.status_code == 200, reply.text
            found = reply.json()
            assert (found["outcome"], found["reward"], found["detail"]) == (
                *(each["outcome"], each["reward"], each["detail"]),
            )
            assert found["reward_parts"] == dict(each["reward_parts"])
            assert found["same"]
            assert found["seconds"] > 0
    shown = client.get("/api/runs/run/tests", params={"problem": each["problem"], "kind": "test"}).json()
    assert shown["tests"] == []
    assert shown["reference"]


def test_programs_are_run_on_their_tests(serve: Serve, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    tests = [{"input": f"{number}\n", "output": f"{2 * number}\n"} for number in (1, 2)]
    line = {
        "data_source": "doubles",
        "prompt": [{"role": "user", "content": "Double it."}],
        "ability": "code",
        "reward_model": {"style": "rule", "ground_truth": json.dumps({"private": tests})},
        "extra_info": {"id": "double", "split": "train", "index": 0, "tier": ""},
    }
    (tmp_path / "data" / "train").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([line]), tmp_path / "data" / "train" / "0.parquet")
    write_config(run, tmp_path / "data", task="code")
    right = "```python\nprint(2 * int(input()))\n```"
    wrong = "```python\nprint(1 + int(input()))\n```"
    write(
        run,
        "train",
        1,
        [
            row(1, 0, problem="double", response=right, outcome="accepted", reward=1.0),
            row(1, 1, problem="double", response=wrong, outcome="accepted", reward=1.0),
        ],
    )
    client = serve(run)
    reply = client.get("/api/runs/run/tests", params={"problem": "double"}, timeout=120)
    assert reply.status_code == 200, reply.text
    expected = [{"test": place, "input": each["input"], "expected": each["output"]} for place, each in enumerate(tests)]
    assert reply.json()["tests"] == expected
    first, second = (judge(client, each).json() for each in (row(1, 0), row(1, 1)))
    assert (first["outcome"], first["reward"], first["same"]) == ("accepted", 1.0, True)
    assert (second["outcome"], second["same"]) == ("wrong", False)
    assert [each["outcome"] for each in second["tests"]] == ["accepted", "wrong"]
    assert second["tests"][1]["output"] == "3\n"


def test_what_cannot_be_judged_says_why(serve: Serve, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write_config(run, tmp_path / "gone", task="code")
    turns = [{"role": "assistant", "start": 0, "end": 1, "reward": None}]
    write(run, "train", 1, [row(1, 0), row(1, 1, role="tester"), row(1, 2, turns=turns)])
    client = serve(run)
    said = [judge(client, each).json()["error"] for each in (row(1, 0), row(1, 1, role="tester"), row(1, 2))]
    assert "data cannot be read here" in said[0]
    assert str(tmp_path / "gone") in said[0]
    assert "role tester" in said[1]
    assert "turn by turn" in said[2]
    for body in (b"[]", b"{", b"[" * 10**5, b""):
        reply = client.post("/api/runs/run/judge", content=body, headers=HEADERS)
        assert (reply.status_code, "no JSON object" in reply.json()["error"]) == (400, True)
    assert client.post("/api/runs/run/judge", content=b"x" * 10**6, headers=HEADERS).status_code == 413
    assert client.post("/api/runs/run/judge", json={"step": 9}, headers=HEADERS).status_code == 400
    assert client.get("/api/runs/run/judge").status_code == 405


def test_a_slow_task_is_ended_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("steps: 1\n")
    slow = tmp_path / "slow_child.py"
    slow.write_text("import subprocess, sys\nsubprocess.run(['sleep', '60'])\n")
    monkeypatch.setattr("dojang.viewer.judge_again._MODULE", "slow_child")
    monkeypatch.syspath_prepend(str(tmp_path))
    process = GradingProcess(RunFiles(run), tmp_path / "config.yaml")
    began = time.monotonic()
    with pytest.raises(JudgeError, match="too long"):
        process.ask({"kind": "train", "problem": "x"}, limit_s=2.0)
    assert time.monotonic() - began < 20
    slow.write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(JudgeError, match="has ended"):
        process.ask({"kind": "train", "problem": "x"})
    process.close()


def test_the_process_ends_with_the_viewer(quickstart: Path) -> None:
    with Viewer([quickstart]) as viewer, httpx.Client(base_url=viewer.url) as client:
        (sample, *_) = pq.read_table(RunDir(quickstart).rollouts("train", 1)).to_pylist()
        assert judge(client, sample).status_code == 200
        child = viewer.runs.get("run").grading._child
        assert child is not None
        assert child.poll() is None
    assert child.poll() is not None
    assert not os.path.exists(f"/proc/{child.pid}")


@pytest.mark.parametrize(
    ("recorded", "again", "same"),
    [
        (("accepted", 1.0), ("accepted", 1.0), True),
        (("accepted", 1.0), ("accepted", 1.0 + 1e-9), True),
        (("accepted", 1.0), ("accepted", 0.5), False),
        (("wrong", 0.0), ("accepted", 0.0), False),
        (("judge_error", None), ("judge_error", None), True),
        (("judge_error", None), ("wrong", 0.0), False),
    ],
)
def test_verdicts_are_compared(recorded: tuple[str, Any], again: tuple[str, Any], same: bool) -> None:
    assert same_verdict(*recorded, {"outcome": again[0], "reward": again[1]}) is same
