"""`dojang track`: tell trackers what they have missed of a run that has ended, or tell others all of it."""

import json
import shlex
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rich.console import Console

from dojang.config import recipe as recipes
from dojang.core.errors import RunDirError
from dojang.core.run_dir import RunDir
from dojang.track.console import speaker

__all__ = ["deliver"]


def deliver(path: Path, overrides: Sequence[str]) -> bool:
    """Whether all trackers have been told everything now."""
    directory = RunDir(path)
    if not directory.config.exists():
        raise RunDirError(f"there is no run in {path}; give the directory of one")
    config = recipes.load(str(directory.config), overrides)
    say = speaker(Console())
    if config.track.mlflow_settings() is None and directory.delivered("mlflow").exists():
        say("mlflow: this run was told to a server before; set MLFLOW_TRACKING_URI or track.mlflow.uri to go on there")
    directory.lock()  # a run that goes on tells them itself
    try:
        again = shlex.join(["dojang", "track", str(path), *overrides])
        with closing(config.track.open(directory, say, again, steps=config.steps, live=False)) as couriers:
            couriers.start()
            return couriers.finish(_status(directory))
    finally:
        directory.unlock()


def _status(directory: RunDir) -> str:
    """How the run ended; one that was killed could not say so."""
    if not directory.summary.exists():
        return "failed"
    return str(json.loads(directory.summary.read_bytes())["status"])
