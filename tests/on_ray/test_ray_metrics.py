"""Figures of a run through the exporter of a local Ray: the same gauges as through one of its own."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from dojang.track.registry import GAUGES, describe, gauge_name, metrics

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray, which `make test-ray` installs"),
]

CHILD = """
import json, sys, time, urllib.request
from pathlib import Path
import ray
from dojang.core.run_dir import RunDir
from dojang.track.config import TrackConfig
from dojang.track.ray import RaySink

directory, folder, port, said = RunDir(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3]), []
try:
    RaySink("run", 1).start({}, lambda: None)
except RuntimeError as error:
    said.append(str(error))
ray.init(
    num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000, _temp_dir=folder,
    _metrics_export_port=port, _system_config={"metrics_report_interval_ms": 500},
)
told = []
for _ in range(2):  # a run that has lost its trainers begins again in the same process
    exporters = TrackConfig().open(directory, said.append, "later", steps=40, on_ray=True)
    exporters.start()
    told.append(exporters.finish("finished"))
    exporters.close()
text, deadline = "", time.monotonic() + 60
while "ray_dojang_val_test_score_a_b" not in text and time.monotonic() < deadline:
    time.sleep(0.3)
    try:
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
    except OSError:
        pass
ray.shutdown()
print(json.dumps({"told": told, "said": said, "text": text}))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What Ray exports of a run of two steps, with every metric there is."""
    run = tmp_path_factory.mktemp("runs") / "run-7"
    run.mkdir()
    row = {"step": 1, **{metric.name: float(at) for at, metric in enumerate(metrics()) if not metric.is_family}}
    last = {"step": 2, "critic/rewards/mean": 0.5, "val/test_score/a-b": 0.1, "val/test_score/a_b": 0.2}
    (run / "metrics.jsonl").write_text(json.dumps(row) + "\n" + json.dumps(last) + "\n")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="r", dir="/tmp")  # Ray's sockets are in it, and their names may not be long
    settings = {
        "HOME": folder,  # otherwise Ray keeps a password there, and other clusters of this user find it
        "RAY_AUTH_MODE": "disabled",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "150",
    }
    command = [sys.executable, "-c", CHILD, str(run), folder, str(port)]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=300, env={**os.environ, **settings}, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
        yield json.loads(result.stdout.splitlines()[-1])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def values(text: str) -> dict[tuple[str, str], float]:
    """By gauge and metric, of this run."""
    lines = re.findall(r'^ray_(dojang_\w+)\{(.*run="run-7".*)\} (\S+)$', text, re.MULTILINE)
    return {(name, "".join(re.findall(r'metric="([^"]*)"', labels))): float(value) for name, labels, value in lines}


def test_every_figure_is_exported_under_its_name(seen: dict[str, Any]) -> None:
    assert seen["told"] == [True, True]
    found = values(seen["text"])
    for at, metric in enumerate(metrics()):
        if not metric.is_family and metric.name != "critic/rewards/mean":
            assert found[gauge_name(metric.name), metric.name] == at
    assert found["dojang_critic_rewards_mean", "critic/rewards/mean"] == 0.5
    assert found["dojang_val_test_score_a_b", "val/test_score/a-b"] == 0.1
    assert found["dojang_val_test_score_a_b", "val/test_score/a_b"] == 0.2
    assert (found["dojang_step", ""], found["dojang_steps", ""]) == (2, 40)
    assert {name for name, metric in found if not metric} == set(GAUGES)


def test_help_texts_are_those_of_the_registry(seen: dict[str, Any]) -> None:
    assert f"# HELP ray_dojang_actor_kl_loss {describe('actor/kl_loss')}" in seen["text"]


def test_without_a_cluster_it_says_so(seen: dict[str, Any]) -> None:
    assert seen["said"] == ["this process does not belong to a Ray cluster (yet)"]
