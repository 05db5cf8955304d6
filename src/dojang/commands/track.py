"""`dojang track`: sends the remaining metrics of an ended run to its trackers, or all of them to other trackers."""

import json
import shlex
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rich.console import Console

from dojang.config import recipe as recipes
from dojang.core.errors import RunDirError
from dojang.core.run_dir import RunDir
from dojang.track.console import console_printer

__all__ = ["deliver"]


def deliver(path: Path, overrides: Sequence[str]) -> bool:
    """Exports the metrics of a run. Returns whether all trackers have received everything."""
    directory = RunDir(path)
    if not directory.config.exists():
        raise RunDirError(f"no run in {path}; give a run directory")
    config = recipes.load(str(directory.config), overrides)
    log = console_printer(Console())
    if config.track.mlflow_settings() is None and directory.delivered("mlflow").exists():
        log("mlflow: this run was exported to a server before; set MLFLOW_TRACKING_URI or track.mlflow.uri to continue")
    directory.lock()  # a running run exports its metrics itself
    try:
        again = shlex.join(["dojang", "track", str(path), *overrides])
        with closing(config.track.open(directory, log, again, steps=config.steps, live=False)) as exporters:
            if not exporters:
                log("this run has no tracker; name one, such as track.mlflow.uri=http://HOST:5000")
            exporters.start()
            return exporters.finish(_status(directory))
    finally:
        directory.unlock()


def _status(directory: RunDir) -> str:
    """Status of an ended run; failed if it was killed before it wrote its summary."""
    if not directory.summary.exists():
        return "failed"
    return str(json.loads(directory.summary.read_bytes())["status"])
