"""Commands of dojang in process groups of their own, whose processes can be counted."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from vllm_servers import ENVIRONMENT

__all__ = ["PATIENCE", "members", "start"]

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
