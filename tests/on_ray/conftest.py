"""Ray clusters of several nodes, all on this machine."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

SOURCES = str(Path(__file__).resolve().parents[2] / "src")
os.environ.update(
    RAY_raylet_start_wait_time_s="150",  # a busy machine takes longer than Ray's 30
    RAY_AUTH_MODE="disabled",  # or else it depends on what is in the home directory
)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [SOURCES, os.environ.get("PYTHONPATH")]))

MakeCluster = Callable[..., Any]


@pytest.fixture
def make_cluster() -> Iterator[MakeCluster]:
    """Makes clusters with so many processors on each node, the first of which is the head; they end with the test."""
    pytest.importorskip("ray", reason="needs Ray, which `make test-ray` installs")
    from ray.cluster_utils import Cluster

    with ExitStack() as running:

        def make(*cpus: int) -> Any:
            folder = tempfile.mkdtemp(prefix="dr", dir="/tmp")  # short: paths of sockets must be
            running.callback(shutil.rmtree, folder, ignore_errors=True)
            head = {"num_cpus": cpus[0], "include_dashboard": False, "temp_dir": folder}
            cluster = Cluster(initialize_head=True, head_node_args=head)
            running.callback(cluster.shutdown)
            for each in cpus[1:]:
                cluster.add_node(num_cpus=each)
            return cluster

        yield make


@pytest.fixture
def environment() -> dict[str, str]:
    """For programs that the tests start."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PATH": _path()}


def _path() -> str:
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
