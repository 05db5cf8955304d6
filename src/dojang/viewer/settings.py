"""Configuration and environment of a run, and the differences between two runs."""

import json
from typing import Any

from dojang.core.errors import RunDirError
from dojang.core.run_files import RunFiles
from dojang.core.section import flatten
from dojang.viewer.run_status import read_config, read_object

__all__ = ["compare", "config_reply"]


def config_reply(files: RunFiles) -> dict[str, Any]:
    """Resolved configuration, recipe with overrides, and where the run was started."""
    config = json.loads(json.dumps(read_config(files), default=str, allow_nan=True), parse_constant=str)
    return {"config": config, "run": read_object(files, "run.json"), "environment": _environment(files)}


def compare(first: RunFiles, second: RunFiles) -> dict[str, Any]:
    """Settings and versions in which two runs differ."""
    sides = [dict(flatten(config_reply(files)["config"])) for files in (first, second)]
    for side, files in zip(sides, (first, second), strict=True):
        side |= {f"environment.{key}": value for key, value in flatten(_last_start(files))}
    keys = sorted({*sides[0], *sides[1]})
    differences = [
        {"key": key, "a": sides[0].get(key), "b": sides[1].get(key)}
        for key in keys
        if sides[0].get(key) != sides[1].get(key) or (key in sides[0]) != (key in sides[1])
    ]
    return {"differences": differences, "same": len(keys) - len(differences)}


def _environment(files: RunFiles) -> Any:
    """Object of environment.json; None if it was not recorded."""
    try:
        return json.loads(files.read("environment.json") or b"null", parse_constant=str)
    except (RunDirError, ValueError, RecursionError):
        return None


def _last_start(files: RunFiles) -> dict[str, Any]:
    """Versions and machine of the last start, without its time and command."""
    environment = _environment(files)
    starts = environment.get("starts") if isinstance(environment, dict) else None
    last = starts[-1] if isinstance(starts, list) and starts and isinstance(starts[-1], dict) else {}
    return {name: value for name, value in last.items() if name not in ("time", "step", "command")}
