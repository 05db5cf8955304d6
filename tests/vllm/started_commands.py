"""Commands of dojang in process groups of their own, whose processes can be counted."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from vllm_servers import ENVIRONMENT

__all__ = ["PATIENCE", "left", "members", "start"]

HERE = Path(__file__).parent
PATIENCE = 900.0
"""Seconds for a run: vLLM takes most of a minute to start, more on a busy machine."""


def start(log: Path, *arguments: str, script: Sequence[str] = ("-m", "dojang")) -> "subprocess.Popen[bytes]":
    """Starts a dojang command; its processes are one group."""
    own = {"DOJANG_ROLLOUT_TOKEN": "secret", "PYTHONPATH": str(HERE)}
    with log.open("wb") as out:
        return subprocess.Popen(
            [sys.executable, *script, *arguments],
            stdout=out,
            stderr=out,
            env={**os.environ, **ENVIRONMENT, **own},
            start_new_session=True,
        )


def members(group: int) -> dict[int, dict[str, str]]:
    """Processes of a group, each with its status."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(path.name)) == group:
                lines = (path / "status").read_text().splitlines()
                found[int(path.name)] = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        except OSError:
            continue
    return {pid: status for pid, status in found.items() if not status["State"].startswith("Z")}


def left(group: int, limit_s: float = 10.0) -> list[str]:
    """Names of the processes of a group that do not end. Python's resource tracker ends a moment after the process that
    started it."""
    deadline = time.monotonic() + limit_s
    while (found := members(group)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [status["Name"] for status in found.values()]
