"""Whether a run goes on or how it ended."""

import json
import os
import time
from typing import Any

import yaml

from dojang.core.errors import RunDirError
from dojang.core.run_files import RunFiles
from dojang.core.run_lock import LOCK

__all__ = ["read_config", "read_object", "status_of"]

_QUIET_S = 600.0
"""A run without a summary that has written nothing for longer may have been killed."""
_ENDINGS = ("finished", "interrupted", "failed")


def read_object(files: RunFiles, name: str) -> dict[str, Any]:
    """A JSON object; empty if the file is missing or damaged."""
    try:
        found = json.loads(files.read(name) or b"{}")
    except (RunDirError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def read_config(files: RunFiles) -> dict[str, Any]:
    """The resolved configuration as plain values; empty if the file is missing or damaged."""
    try:
        found = yaml.safe_load(files.read("config.yaml") or b"{}")
    except (RunDirError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


def status_of(files: RunFiles, summary: dict[str, Any]) -> str:
    """running, finished, interrupted, failed or unknown."""
    if summary:
        status = str(summary.get("status"))
        return status if status in _ENDINGS else "unknown"
    if not files.is_remote and _is_locked(files):
        return "running"
    infos = (files.info("metrics.jsonl"), files.info("rollouts"), files.info("config.yaml"))
    newest = max((each.modified_ns for each in infos if each), default=0)
    return "running" if time.time() - newest / 1e9 < _QUIET_S else "unknown"


def _is_locked(files: RunFiles) -> bool:
    """Reports whether a process of this machine holds the run's lock. Asks the kernel's list: trying to take the lock
    could make a run that starts at this moment fail."""
    try:
        inode = os.stat(files.path / LOCK).st_ino
        with open("/proc/locks") as locks:
            return any(f":{inode} " in line for line in locks if "FLOCK" in line)
    except OSError:
        return False
