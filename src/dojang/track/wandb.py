"""Exports a run to Weights & Biases: settings as config, metrics as history over the run's step.

The client keeps everything it was given in `RUN_DIR/wandb` and uploads it from its own process, so an outage costs the
run nothing; `wandb sync` uploads what is left, and all of it in offline mode.
"""

import os
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Literal

import yaml

from dojang.core.run_dir import RunDir
from dojang.core.section import Section
from dojang.track.exporter import Row, Sink

__all__ = ["WandbConfig", "WandbSink"]

STEP = "step"
"""Metric that is the x axis. Not W&B's own step, which never goes back: a resumed run repeats steps."""
INIT_S, FINISH_S = 30.0, 15.0
"""Seconds to wait for W&B at the start of each attempt, and for the last uploads."""


class WandbConfig(Section):
    """Export to a run of Weights & Biases."""

    project: str = ""
    """Name of the project; created if missing. Empty: WANDB_PROJECT, or dojang."""
    entity: str = ""
    """User or team that owns the project. Empty: WANDB_ENTITY, or the account's default."""
    name: str = ""
    """Name of the W&B run. Empty: the name of the run directory."""
    group: str = ""
    """Group of the W&B run. Empty: WANDB_RUN_GROUP, or none."""
    tags: tuple[str, ...] = ()
    """Tags of the W&B run."""
    mode: Literal["online", "offline", "disabled"] = "online"
    """online: upload during the run; offline: write files into the run directory, for `wandb sync`, which needs neither
    a network nor a login; disabled: no export."""


class WandbSink(Sink):
    """A Sink that writes to one W&B run; a resumed run continues the same W&B run."""

    name = "wandb"

    def __init__(self, directory: RunDir, config: WandbConfig) -> None:
        self._directory = directory
        self._options = {
            "project": config.project or os.environ.get("WANDB_PROJECT") or "dojang",
            "entity": config.entity or None,
            "name": config.name or directory.path.resolve().name,
            "mode": config.mode,
            "group": config.group or None,
            "tags": list(config.tags) or None,
        }
        self.address = f"{config.mode} {config.entity}/{self._options['project']}"
        self._run: Any = None

    def start(self, state: dict[str, Any], save_state: Callable[[], None]) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")  # else it asks for a key on a terminal, and prints over ours
        import wandb

        if "run" not in state:
            state["run"] = uuid.uuid4().hex[:8]
            save_state()
        settings = wandb.Settings(
            console="off", init_timeout=INIT_S, finish_timeout=FINISH_S, finish_timeout_raises=True
        )
        tree = yaml.safe_load(self._directory.config.read_text())
        self._run = wandb.init(
            id=state["run"],
            resume="allow",
            reinit="create_new",  # leaves a run that the user has open in this process alone
            dir=self._directory.path,
            config={key: value for key, value in tree.items() if key != "track"},
            settings=settings,
            **self._options,
        )
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric("*", step_metric=STEP)

    def write_rows(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._run.log({**row.values, STEP: row.step})

    def finish(self, status: str) -> str:
        run = self._run
        command = f"wandb sync {self._directory.path}/wandb/*-{run.id}"
        try:
            run.finish(exit_code=0 if status == "finished" else 1)
        except TimeoutError:
            return f"not everything was uploaded within {FINISH_S:g} s; to upload the rest: {command}"
        return f"to upload the run: {command}" if run.offline else f"all of it is in {run.url}"
