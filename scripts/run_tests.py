"""Runs the tests in groups, two at a time. With a time limit, heavy groups that do not fit are left out, and named.

    python scripts/run_tests.py                # all tests that need no other environment
    python scripts/run_tests.py --quick        # tests of single parts, without the slow ones
    python scripts/run_tests.py --minutes 24   # tests of single parts, then the heavy groups that fit

A group is one pytest process, as most tests keep one core busy. Files are not spread over processes freely: tests of a
group share what is costly to make, and some look for processes that others leave running on purpose. The output of a
group is printed when it ends.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

__all__ = ["GROUPS", "Group", "next_group"]

LANES = 2
"""Groups at a time."""
_PATIENCE_S = 30.0
"""Time for tests to end their processes after Ctrl-C."""


@dataclass(frozen=True)
class Group:
    """Tests that run in one process."""

    name: str
    seconds: float
    """Usual time beside another group. How much longer groups take on this machine follows from those that ended."""
    paths: Sequence[str]
    heavy: bool = False
    """Whether it is no test of a single part: left out if it does not fit."""
    environment: str = ".venv"
    kills_judges: bool = False
    """Whether it kills judges, or looks for what they leave behind: such groups do not run at the same time."""

    @property
    def has_environment(self) -> bool:
        """Whether make has set its environment up to the end."""
        return Path(self.environment, ".ready").exists()


def unit(*packages: str) -> list[str]:
    return [f"tests/unit/{package}" for package in packages]


def corpus(*names: str) -> list[str]:
    return [f"tests/corpus/test_{name}.py" for name in names]


RAY = [
    *(f"tests/on_ray/test_{name}.py" for name in ("lost_judges", "ray_judge")),
    *(f"tests/sagemaker/test_{name}.py" for name in ("sagemaker_jobs", "runs_in_s3")),
]
# Tests of single parts first, the longest of them first, so that both lanes end together. The heavy ones are in the
# order of what they are likely to find.
GROUPS = (
    Group("loop", 270, unit("loop", "diagnosis", "evaluation", "viewer", "runs")),
    Group("data", 240, unit("data", "bench", "build", "config", "models")),
    Group("judge", 220, unit("judge", "audit", "environments"), kills_judges=True),
    Group("trainer", 220, [*unit("trainer", "algos", "tasks"), "tests/unit/test_instruction_sets.py"]),
    Group("engine", 200, [*unit("engine"), "tests/contracts"]),
    Group(
        "others",
        220,
        [
            *("tests/architecture", "tests/golden", "tests/vllm"),
            *unit("commands", "cluster", "api", "planning", "core", "rollout_service", "inference", "integrations"),
            *unit("track", "tool_calls", "weight_sync", "workflows"),
            *("tests/unit/test_types.py", "tests/unit/test_fork_server.py"),
        ],
    ),
    Group("recipes and resuming", 240, ["tests/recipes", "tests/resume"], heavy=True),
    Group("corpus", 200, corpus("corpus", "datasets", "plain_datasets", "audit"), heavy=True),
    Group("attacks", 220, corpus("cheats", "fuzz", "headers", "leftovers", "plain"), heavy=True, kills_judges=True),
    Group("docs", 240, ["tests/docs", "tests/examples", "tests/packaging"], heavy=True),
    Group("Ray and SageMaker", 150, RAY, heavy=True, environment=".venv-sagemaker", kills_judges=True),
    Group("browser", 100, ["tests/browser"], heavy=True),
    Group("Prometheus", 80, ["tests/prometheus"], heavy=True),
)


def next_group(waiting: Sequence[Group], running: Sequence[Group], left: float, pace: float) -> Group | None:
    """Chooses the group to start with this many seconds left: the first that must run or that fits, and that may run
    beside those that do."""
    killing = any(group.kills_judges for group in running)
    may = (group for group in waiting if not (killing and group.kills_judges))
    return next((group for group in may if not group.heavy or group.seconds * pace <= left), None)


class Runs:
    """Groups that run."""

    def __init__(self, options: Sequence[str]) -> None:
        self._options = options
        self._running: dict[subprocess.Popen[bytes], tuple[Group, float, IO[bytes]]] = {}
        self.failed: list[str] = []
        self._taken = self._usual = 0.0

    def __len__(self) -> int:
        return len(self._running)

    @property
    def groups(self) -> list[Group]:
        return [group for group, _, _ in self._running.values()]

    @property
    def pace(self) -> float:
        """Seconds that the groups that ended took for each of their usual seconds."""
        return self._taken / self._usual if self._usual else 1.0

    def start(self, group: Group) -> None:
        output = tempfile.TemporaryFile()  # noqa: SIM115 -- closed when the group has ended
        slowest = ("--durations=10", "--durations-min=5")
        command = [f"{group.environment}/bin/python", "-m", "pytest", *slowest, *self._options, *group.paths]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C in a terminal would reach it as well as the signal of `stop`, which would cut its teardown short.
            start_new_session=True,
        )
        self._running[process] = group, time.monotonic(), output
        print(f"---- tests: {group.name}, about {group.seconds * self.pace:.0f} s", flush=True)

    def collect(self) -> None:
        """Prints the output of the groups that have ended."""
        for process in [each for each in self._running if each.poll() is not None]:
            group, began, output = self._running.pop(process)
            seconds = time.monotonic() - began
            self._taken, self._usual = self._taken + seconds, self._usual + group.seconds
            if process.returncode:
                self.failed.append(group.name)
            print(f"\n==== tests: {group.name}, {seconds:.0f} s, exit code {process.returncode}", flush=True)
            with output:
                output.seek(0)
                sys.stdout.buffer.write(output.read())
                sys.stdout.buffer.flush()

    def stop(self) -> None:
        """Ends what runs as Ctrl-C does, so that fixtures stop the processes they started, and prints its output. Kills
        what has not ended in time or before another Ctrl-C, with the processes it started."""
        for process in self._running:
            process.send_signal(signal.SIGINT)
        end = time.monotonic() + _PATIENCE_S
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            for process in self._running:
                process.wait(max(0.0, end - time.monotonic()))
        for process in self._running:
            with suppress(ProcessLookupError):  # also what tests left behind
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.collect()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="only tests of single parts, without the slow ones")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="leave out heavy groups that take longer")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    runs = Runs(["-m", "not slow and not soak" if options.quick else "not soak"])
    asked = [group for group in GROUPS if not (options.quick and group.heavy)]
    waiting = [group for group in asked if group.has_environment]
    without = [group for group in asked if not group.has_environment]
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupted)
    try:
        while waiting or len(runs):
            while len(runs) < LANES and (group := next_group(waiting, runs.groups, end - time.monotonic(), runs.pace)):
                waiting.remove(group)
                runs.start(group)
            if not len(runs):
                break
            time.sleep(0.2)
            runs.collect()
    except KeyboardInterrupt:
        runs.stop()
        print("stopped", flush=True)
        return 130
    for group in waiting:
        print(f"left out: tests of {group.name}, which take about {group.seconds * runs.pace:.0f} s here")
    for group in without:
        print(
            f"left out: tests of {group.name}, since {group.environment} is not set up: make {group.environment}/.ready"
        )
    if len(without) == len(asked):
        print("no tests were run", flush=True)
        return 1
    print(f"failed: {', '.join(runs.failed)}" if runs.failed else "all groups passed", flush=True)
    return bool(runs.failed)


def _interrupted(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
