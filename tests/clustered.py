"""A Ray cluster for tests: several machines that are all this one, started once and always ended."""

import os
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dojang.programs import Judgement, Submission
from serving import once

if TYPE_CHECKING:
    from dojang.runtime.ray.judges import Juror, RayJudge

__all__ = ["NEEDS_RAY", "TestCluster", "cluster", "judging"]

OWN = Path(__file__).parent / "with_ray"


def installed() -> bool:
    try:
        return bool(version("ray"))
    except PackageNotFoundError:
        return False


NEEDS_RAY = (
    pytest.mark.skipif(not installed(), reason="Ray is not installed here; make test-ray has it"),
    pytest.mark.filterwarnings("ignore"),  # those of Ray and what it imports
)


class TestCluster:
    """Machines that come and go. The first has two processors and stays."""

    __test__ = False

    def __init__(self) -> None:
        import ray
        from ray.cluster_utils import Cluster

        # Names of sockets must be short.
        self._folder = tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True)
        os.environ.setdefault("RAY_raylet_start_wait_time_s", "150")
        # So that its processes find what tests bring along.
        os.environ["PYTHONPATH"] = os.pathsep.join([str(OWN), *filter(None, [os.environ.get("PYTHONPATH")])])
        options = {"num_cpus": 2, "include_dashboard": False, "temp_dir": self._folder.name}
        with warnings.catch_warnings(action="ignore"):
            self._cluster = Cluster(initialize_head=True, head_node_args=options)
            ray.init(address=self._cluster.address, log_to_driver=False, configure_logging=False)

    def add(self, **options: Any) -> Any:
        """Another machine."""
        return self._cluster.add_node(**options)

    def remove(self, node: Any) -> None:
        """At once, as if its power had failed."""
        self._cluster.remove_node(node, allow_graceful=False)

    def end(self) -> None:
        import ray

        ray.shutdown()
        self._cluster.shutdown()
        with suppress(OSError):
            self._folder.cleanup()


def cluster(config: pytest.Config) -> TestCluster:
    """The one of this session."""
    return once(config, "ray", TestCluster, TestCluster.end)


def judging(log: Path | None = None, patience_s: float = 120.0) -> "RayJudge":
    """A judge of the whole cluster. Its processes write down in the folder `log` what each has judged."""
    from dojang.runtime.ray.judges import RayJudge

    return RayJudge(lambda seats: _juror(seats, log), patience_s=patience_s)


def _juror(seats: int, log: Path | None) -> "Callable[[], Juror]":
    """By value: the processes of the cluster cannot import this file."""

    def make() -> "Juror":
        from dojang.judge.pool import JudgePool
        from dojang.places import cache_root
        from dojang.runtime.ray.judges import Juror

        class Noting(JudgePool):
            async def judge(self, submission: "Submission") -> "Judgement":  # names of this file are not there
                judgement = await super().judge(submission)
                if log is not None and judgement.outcome != "judge_error":
                    with (log / str(os.getpid())).open("a") as file:
                        file.write(f"{submission.source.splitlines()[-1]}\n")
                return judgement

        return Juror(Noting(cache=cache_root(), workers=seats), None)

    return make
