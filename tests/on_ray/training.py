"""Runs in processes of their own, on a test cluster."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from dojang.core.run_dir import RunDir
from run_records import ALIKE

__all__ = ["Training", "learned_prompts", "rows", "train"]


@dataclass
class Training:
    """A run in a process of its own."""

    process: "subprocess.Popen[bytes]"
    log: Path

    def ends_well(self, seconds: float) -> None:
        assert self.process.wait(seconds) == 0, self.log.read_text()

    def wait_until(self, condition: Callable[[], object], seconds: float = 240) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.2)


@contextmanager
def train(
    directory: Path, environment: dict[str, str], *settings: str, recipe: Sequence[str] = ALIKE
) -> Iterator[Training]:
    """Into a file: Ray has much to say of what is killed, more than a pipe holds that nobody reads."""
    command = [sys.executable, "-m", "dojang", "train", *recipe, *settings, "--run-dir", str(directory)]
    log = directory.with_suffix(".log")
    with log.open("ab") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, cwd=directory.parent)
    try:
        yield Training(process, log)
    finally:
        process.kill()
        process.wait()


def rows(directory: Path) -> list[dict[str, Any]]:
    """Metrics of a run so far."""
    try:
        return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    except OSError:
        return []


def learned_prompts(directory: Path, steps: int) -> list[list[int]]:
    """Indices of the prompts of each step."""
    tables = [pq.read_table(RunDir(directory).rollouts("train", at + 1)) for at in range(steps)]
    return [list(dict.fromkeys(table["prompt_index"].to_pylist())) for table in tables]
