"""A real Prometheus watches a real run: the dashboard has something to show, and a run does not care who watches."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge, start_http_server

import commands
import other_tokenizer
from dojang.track.grafana import dashboard

HERE = Path(__file__).parent
SMALL = ["steps=3", "rollout.prompts_per_step=4", "rollout.group_size=4", "eval.every=3", "eval.problems=4"]
LONGER = ["steps=16", "eval.every=2"]
"""Long enough on a quick machine for Prometheus to see the figures of a first evaluation."""
SLOW = "task.rewards.slow_reward:patient=0.1"
"""Makes each step last long enough for Prometheus to see it."""
RECIPE = [
    *("quickstart", *SMALL, SLOW),
    *("algo.kl_coef=0.001", "algo.entropy.coef=0.001"),
    "distillation={teacher: policy, hint: 'The answer is {reference}.'}",
    *("eval.benchmarks.sums.data.name=arithmetic", "eval.benchmarks.sums.every=3", "eval.benchmarks.sums.problems=4"),
]
OTHERS = {
    "critic": [
        *("quickstart", *SMALL, "algo.name=ppo", "train.critic.lr=1e-4", "algo.kl_in_reward=0.001"),
        *("algo.old_logprobs=trainer", "algo.corrections=[{name: token_tis, cap: 2}]"),
        *("rollout.engine.weight_sync=delta", *LONGER),
    ],
    "workers": [
        *("quickstart", *SMALL, "algo.name=m2po", "loop.mode=stream", "loop.workers=1", "rollout.group_size=2"),
        *("algo.max_resample_rounds=2", "task.rewards={correct: 1.0}"),
    ],
    "turns": [
        *("quickstart", *SMALL, "workflow.name=custom", "workflow.make_with=second_try:SecondTry"),
        *("workflow.max_turns=2", "rollout.curriculum_keep=0.5", SLOW),
    ],
    "completions": ["quickstart-sft", *SMALL, *LONGER],
    "teacher": ["quickstart-distill", *SMALL, *LONGER],
}
"""Runs with the metrics that the first one does not have."""
NOT_IN_THESE_RUNS = {
    "dojang_episodes_tool_errors_mean",
    "dojang_perf_max_memory_allocated_gb",
    "dojang_perf_max_memory_reserved_gb",
    "dojang_weights_bytes",
}
"""Those of models that call tools, of GPUs, and of weights sent to vLLM."""

pytestmark = pytest.mark.slow


def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def training(directory: Path, *more: str, recipe: Sequence[str] = RECIPE) -> "Iterator[subprocess.Popen[str]]":
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    run = commands.Popen(
        [sys.executable, "-m", "dojang", "train", *recipe, *more, "--run-dir", str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    try:
        yield run
    finally:
        run.kill()
        run.communicate()


def finish(run: "subprocess.Popen[str]") -> str:
    said, _ = run.communicate(timeout=300)
    assert run.returncode == 0, said
    return said


def ledger(directory: Path) -> list[dict[str, float]]:
    """What a run has to say, but for what the clock says."""
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [{name: row[name] for name in row if not name.startswith(("timing_s/", "perf/"))} for row in rows]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    """What a run says that nobody watches."""
    directory = tmp_path_factory.mktemp("alone") / "run"
    with training(directory) as run:
        finish(run)
    return ledger(directory)


def test_every_query_of_the_dashboard_finds_data_of_real_runs(
    serve: Callable[[str], Any], tmp_path: Path, alone: list[dict[str, float]]
) -> None:
    began, exporter = time.time(), port()
    server = serve(f"127.0.0.1:{exporter}")
    with training(tmp_path / "run-7", f"track.prometheus.port={exporter}") as run:
        finish(run)
    teacher = other_tokenizer.save_other_tiny(tmp_path / "model")
    for name, recipe in OTHERS.items():
        more = [f"distillation.teacher={teacher}"] if name == "teacher" else []
        with training(tmp_path / name, f"track.prometheus.port={exporter}", *more, recipe=recipe) as run:
            finish(run)

    def seen(expr: str, runs: str = "run-7") -> list[Any]:
        span = {"start": began, "end": time.time(), "step": "250ms"}
        return list(server.ask("query_range", query=expr.replace("$run", runs), **span)["result"])

    queries = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", [])]
    selected = "|".join(["run-7", *OTHERS])  # as Grafana writes several values of a variable
    assert {expr.partition("{")[0] for expr in queries if not seen(expr, selected)} == NOT_IN_THESE_RUNS
    (reward,) = seen('dojang_critic_rewards_mean{run=~"$run"}')
    known = {row["critic/rewards/mean"] for row in alone if "critic/rewards/mean" in row}
    values = {float(value) for _, value in reward["values"]}
    assert values <= known
    assert len(values) > 1
    assert server.ask("label/run/values") == sorted(["run-7", *OTHERS])
    assert not [alert for alert in server.ask("alerts")["alerts"] if alert["state"] == "firing"]
    assert ledger(tmp_path / "run-7") == alone


def test_a_prometheus_that_dies_costs_a_run_nothing(
    serve: Callable[[str], Any], tmp_path: Path, alone: list[dict[str, float]]
) -> None:
    exporter = port()
    server = serve(f"127.0.0.1:{exporter}")
    with training(tmp_path / "run", f"track.prometheus.port={exporter}") as run:
        while run.poll() is None and not server.ask("query", query="dojang_step >= 1")["result"]:
            time.sleep(0.1)
        assert run.poll() is None, "it ended before it was seen"
        server.kill()
        said = finish(run)
    assert "Prometheus did not scrape the last" in said
    assert ledger(tmp_path / "run") == alone
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "finished"


def test_a_run_on_ray_is_seen_by_the_same_names(serve: Callable[..., Any]) -> None:
    registry = CollectorRegistry()
    Gauge("ray_dojang_step", "As tests/on_ray sees it.", ["run", "WorkerId"], registry=registry).labels("r", "1").set(3)
    Gauge("ray_node_cpu_count", "One of Ray's own.", registry=registry).set(2)
    exporter, thread = start_http_server(0, "127.0.0.1", registry)
    server = serve(f"127.0.0.1:{port()}", [f"127.0.0.1:{exporter.server_port}"])
    deadline = time.monotonic() + 60
    while not (found := server.ask("query", query="dojang_step")["result"]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [(each["metric"]["run"], each["metric"]["job"], each["value"][1]) for each in found] == [("r", "ray", "3")]
    assert server.ask("query", query="ray_node_cpu_count")["result"]
    assert not server.ask("query", query="ray_dojang_step")["result"]
    exporter.shutdown()
    exporter.server_close()
    thread.join()
