"""Ray clusters of several nodes, all on this machine."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from ray_cluster import folder, settle_environment

MakeCluster = Callable[..., Any]
settle_environment()


@pytest.fixture
def make_cluster() -> Iterator[MakeCluster]:
    """Makes clusters with so many processors on each node, the first of which is the head; they end with the test."""
    pytest.importorskip("ray", reason="Ray is not installed here; make test-ray has it")
    from ray.cluster_utils import Cluster

    with ExitStack() as running:

        def make(*cpus: int) -> Any:
            head = {"num_cpus": cpus[0], "include_dashboard": False, "temp_dir": running.enter_context(folder())}
            cluster = Cluster(initialize_head=True, head_node_args=head)
            running.callback(cluster.shutdown)
            for each in cpus[1:]:
                cluster.add_node(num_cpus=each)
            return cluster

        yield make


@pytest.fixture
def environment() -> dict[str, str]:
    """For programs that the tests start."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "PATH": path}
