"""A run that goes on while it is looked at: it grows, is rewound, and has damaged files."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from dojang.core.run_dir import RunDir
from dojang.core.run_files import RunFiles
from dojang.viewer.metric_log import MetricLog, thin_out
from dojang.viewer.run_index import RunIndex
from rollout_files import row, write

Serve = Callable[..., httpx.Client]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.yaml").write_text("steps: 9\nmodel: {name: tiny}\n")
    for step in (1, 2):
        write(path, "train", step, [row(step, index) for index in range(4)])
    return path


def ask(client: httpx.Client, path: str, **params: Any) -> Any:
    reply = client.get(f"/api/{path}", params=params)
    assert reply.status_code == 200, reply.text
    return reply.json()


def until(client: httpx.Client, total: int) -> Any:
    """The rollouts, once there are this many."""
    end = time.monotonic() + 20
    while (found := ask(client, "runs/run/rollouts", sort="step", limit=1000))["total"] != total:
        assert time.monotonic() < end, found["total"]
        time.sleep(0.1)
    return found


def test_a_run_that_grows_and_is_rewound(serve: Serve, run: Path) -> None:
    client = serve(run)
    assert until(client, 8)["indexed"] == {"files": 2, "of": 2}
    before = ask(client, "state")["runs"]["run"]
    assert (before["indexed_files"], before["files"], before["status"]) == (2, 2, "running")
    ask(client, "runs/run/rollouts", sort="-reward")  # an order that is kept up to date
    write(run, "train", 3, [row(3, index, reward=index / 7) for index in range(5)])
    rows = until(client, 13)["rows"]
    assert [each["step"] for each in rows] == [1] * 4 + [2] * 4 + [3] * 5
    assert ask(client, "state")["runs"]["run"]["rollouts_version"] > before["rollouts_version"]
    rewards = [each["reward"] for each in ask(client, "runs/run/rollouts", sort="-reward")["rows"]]
    assert rewards == sorted(rewards, reverse=True)
    write(run, "train", 2, [row(2, index, response="again") for index in range(2)])
    rows = until(client, 11)["rows"]
    assert [each["snippet"] for each in rows if each["step"] == 2] == ["again"] * 2
    RunDir(run).rewind(1, {})
    assert {each["step"] for each in until(client, 4)["rows"]} == {1}
    found = ask(client, "runs/run/rollouts", q="again")
    assert (found["total"], found["search"]["found"]) == (0, 0)
    reply = client.get("/api/runs/run/rollout", params={"step": 2, "prompt_index": 0, "index": 0})
    assert reply.status_code == 400


def test_damaged_files_are_skipped_with_a_note(serve: Serve, run: Path) -> None:
    bad = RunDir(run).rollouts("train", 3)
    bad.write_bytes(b"PAR1 damaged")
    cut = write(run, "train", 4, [row(4, response="x" * 5000)])
    cut.write_bytes(cut.read_bytes()[:-100])
    (run / "rollouts" / "train-x.parquet").write_bytes(b"")
    (run / "metrics.jsonl").write_text(
        '{"step": 1, "a": 1}\nbroken\n{"step": 2, "a": NaN, "b": 1e999}\n{"step": 3, "a"'
    )
    (run / "summary.json").write_text("{")
    (run / "run.json").write_text("[]")
    client = serve(run)
    until(client, 8)
    (found,) = ask(client, "runs")["runs"]
    notes = " ".join(found["notes"])
    for word in ("train-000003.parquet is damaged", "train-000004.parquet is damaged", "1 lines of metrics.jsonl"):
        assert word in notes
    series = ask(client, "runs/run/metrics", names="a,b")["series"]
    assert series == {"a": {"step": [1, 2], "value": [1, None]}, "b": {"step": [2], "value": [None]}}
    write(run, "train", 3, [row(3)])
    until(client, 9)


def test_metrics_of_a_rewound_run_are_read_again(run: Path) -> None:
    def line(step: int, value: float) -> str:
        return json.dumps({"step": step, "a": value}) + "\n"

    path = run / "metrics.jsonl"
    log = MetricLog(RunFiles(run))
    log.update()
    assert (log.series(["a"]), log.last_step) == ({}, 0)
    path.write_text("".join(line(step, step) for step in range(1, 50)) + '{"step": 50')
    log.update()
    assert (log.last_step, log.last("a")) == (49, 49)
    version = log.version
    log.update()
    assert log.version == version
    RunDir(run).rewind(20, {})
    with path.open("a") as file:  # longer than before, with other values
        file.writelines(line(step, -step) for step in range(21, 90))
    log.update()
    assert log.series(["a"])["a"]["value"] == [*range(1, 21), *(-step for step in range(21, 90))]
    assert log.version != version
    path.unlink()
    log.update()
    assert log.series(["a"]) == {}


def test_long_series_keep_their_spikes() -> None:
    count = 100_000
    values = [0.0] * count
    values[12_345], values[67_890], values[-1] = 9.0, -9.0, 3.0
    found = thin_out(range(count), values, 2000)
    assert len(found["step"]) <= 2000
    assert {9.0, -9.0} <= set(found["value"])
    assert (found["step"][-1], found["value"][-1]) == (count - 1, 3.0)
    assert found["step"] == sorted(found["step"])
    whole = thin_out([1, 2], [1.0, float("nan")], 2000)
    assert whole == {"step": [1, 2], "value": [1.0, None]}


def test_orders_stay_right_while_rows_are_added(run: Path, tmp_path: Path) -> None:
    index = RunIndex(RunFiles(run), tmp_path / "snippets")
    try:
        for step in range(1, 30):
            values = [None if (step + each) % 5 == 0 else (step * each * 7) % 4 for each in range(9)]
            write(run, "train", step, [row(step, each, reward=value) for each, value in enumerate(values)])
            index.update()
            rows = index.rollouts.rows("train")
            for sort in ("reward", "-reward", "-step"):
                kept = rows.order(sort).tolist()
                assert kept == rows.sorted_places(sort, rows.order("step")).tolist()
    finally:
        index.close()


def test_timeline_config_and_differences(serve: Serve, run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.yaml").write_text("steps: 9\nmodel: {name: large}\nseed: .nan\n")
    start = {"time": "now", "packages": {"torch": "2"}}
    (other / "environment.json").write_text(json.dumps({"starts": [start]}))
    lines = [
        {"step": 1, "timing_s/step": 10.0, "timing_s/rollout": 6.0, "timing_s/update": 3.0},
        {"step": 2, "timing_s/step": 10.0, "timing_s/rollout": 5.0},
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    client = serve(run, other)
    found = ask(client, "runs/run/timeline")
    assert (found["source"], found["steps"]) == ("durations", [1, 2])
    spans = [(each["step"], each["stage"], each["start"], each["end"]) for each in found["spans"]]
    assert spans == [(1, "rollout", 0, 6), (1, "update", 6, 9), (2, "rollout", 10, 15)]
    span = {"step": 2, "who": "trainer", "stage": "update", "start": 5.0, "end": 7.5}
    lines = [json.dumps(span), json.dumps({**span, "step": 1, "start": 1.0}), "broken", '{"step": 3}', '{"step"']
    (run / "timeline.jsonl").write_text("\n".join(lines))
    found = ask(client, "runs/run/timeline", from_step=2)
    assert (found["spans"], found["source"], found["steps"], found["cut"]) == ([span], "spans", [1, 2], False)
    assert ask(client, "runs/other/timeline") == {"spans": [], "steps": [], "source": "none", "cut": False}
    shown = ask(client, "runs/other/config")
    assert shown["config"] == {"steps": 9, "model": {"name": "large"}, "seed": "NaN"}
    assert shown["environment"] == {"starts": [start]}
    assert ask(client, "runs/run/config")["environment"] is None
    assert ask(client, "compare", a="run", b="other") == {
        "differences": [
            {"key": "environment.packages.torch", "a": None, "b": "2"},
            {"key": "model.name", "a": "tiny", "b": "large"},
            {"key": "seed", "a": None, "b": "NaN"},
        ],
        "same": 1,
    }
    assert client.get("/api/compare", params={"a": "run", "b": "../run"}).status_code == 404


def test_numbers_that_json_lacks_are_null(serve: Serve, run: Path) -> None:
    (run / "summary.json").write_text('{"status": "finished", "eval": {"before": NaN, "after": [Infinity, 1]}}')
    (run / "run.json").write_text('{"recipe": "x", "overrides": [-Infinity]}')
    client = serve(run)
    (found,) = ask(client, "runs")["runs"]
    assert (found["eval"], found["status"]) == ({"before": None, "after": [None, 1]}, "finished")
    assert ask(client, "runs/run/config")["run"]["overrides"] == [None]


def test_explain_is_that_of_the_command(serve: Serve, run: Path) -> None:
    (run / "metrics.jsonl").write_text('{"step": 1, "critic/rewards/mean": 0.5}\n')
    client = serve(run)
    found = ask(client, "runs/run/explain")
    assert set(found) == {"status", "verdict", "findings"}
    assert "1 of 9 steps" in found["verdict"]["facts"]
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "critic/rewards/mean": 0.5}\n')
    assert "2 of 9 steps" in ask(client, "runs/run/explain")["verdict"]["facts"]
