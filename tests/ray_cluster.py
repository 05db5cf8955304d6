"""Ray for tests: a cluster of this machine alone, in a folder of its own, that always ends."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from dojang.cluster.ray.judges import JudgeActor, RayJudge
    from dojang.programs import Judgement, Submission

SOURCES = str(Path(__file__).resolve().parents[1] / "src")
NEEDS_RAY = (
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed here; make test-ray has it"),
    pytest.mark.filterwarnings("ignore"),  # those of Ray and what it imports
)


def settle_environment() -> None:
    """What Ray's processes are to find, wherever the tests are run."""
    os.environ.update(
        RAY_raylet_start_wait_time_s="150",  # a busy machine takes longer than Ray's 30
        RAY_AUTH_MODE="disabled",  # or else it depends on what is in the home directory
        RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",  # it would warn that this will change
    )
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [SOURCES, os.environ.get("PYTHONPATH")]))


@contextmanager
def folder() -> Iterator[str]:
    """For Ray's files; short, since paths of sockets must be."""
    Path("/tmp/ray").mkdir(exist_ok=True)  # Ray notes the cluster's address there, wherever its folder is
    path = tempfile.mkdtemp(prefix="dr", dir="/tmp")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def alone(cpus: int) -> Iterator[None]:
    """A cluster of one node."""
    import ray

    settle_environment()
    with folder() as path:
        ray.init(num_cpus=cpus, include_dashboard=False, _temp_dir=path, log_to_driver=False)
        try:
            yield
        finally:
            ray.shutdown()


def judging(log: Path | None = None, timeout_s: float = 120.0) -> "RayJudge":
    """A judge of the whole cluster. Its processes write down in the folder `log` what each has judged."""
    from dojang.cluster.ray.judges import RayJudge

    return RayJudge(lambda concurrency: _judge_actor(concurrency, log), timeout_s=timeout_s)


def _judge_actor(concurrency: int, log: Path | None) -> "Callable[[], JudgeActor]":
    """By value: the processes of the cluster cannot import this file."""

    def make() -> "JudgeActor":
        from dojang.cluster.ray.judges import JudgeActor
        from dojang.core.paths import cache_root
        from dojang.judge.pool import JudgePool

        class Noting(JudgePool):
            async def judge(self, submission: "Submission") -> "Judgement":  # names of this file are not there
                judgement = await super().judge(submission)
                if log is not None and judgement.outcome != "judge_error":
                    with (log / str(os.getpid())).open("a") as file:
                        file.write(f"{submission.source.splitlines()[-1]}\n")
                return judgement

        return JudgeActor(Noting(cache=cache_root(), workers=concurrency), None)

    return make
