"""Run state: everything in a checkpoint besides weights and optimizer."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dojang.core.errors import RunDirError
from dojang.core.run_dir import ACCURACY, write_atomic
from dojang.loop.group_codec import Batches, decode_batches, encode_batches
from dojang.loop.health_check import HealthCheck
from dojang.types import Metrics, Problem

__all__ = ["State", "load_figures", "load_state", "write_state"]

FILE = "state.json"
PENDING = "pending.groups"


@dataclass(frozen=True, slots=True)
class State:
    """Progress of a run, saved with every checkpoint."""

    step: int = 0
    """Steps completed."""
    prompt_index: int = 0
    """Prompts drawn so far: the data position, and the counter that seeds every random stream."""
    scores: dict[int, float] = field(default_factory=dict)
    """Held-out accuracy by step."""
    benchmarks: dict[str, dict[int, float]] = field(default_factory=dict)
    """Accuracy by benchmark and step."""
    figures: Metrics = field(default_factory=dict, compare=False)
    """Metrics of this step in metrics.jsonl: of training, and of the evaluation if one ran."""
    seconds: float = field(default=0.0, compare=False)
    """Wall-clock seconds of the run, over all resumptions."""
    pending: Batches = field(default=(), compare=False)
    """Groups that wait for their update: of whole batches, or with a ledger all groups that are ready."""
    visits: Mapping[str, Sequence[float]] = field(default_factory=dict, compare=False)
    """Statistics of each problem's visits, if there is a curriculum (curriculum.py)."""
    ledger: dict[str, Any] | None = field(default=None, compare=False)
    """Snapshot of the ledger, if the run streams (stream_producer.py)."""

    def evaluated(self) -> dict[str, int]:
        """Last step evaluated on the held-out split (under "") and on each benchmark."""
        return {name: max(scores) for name, scores in {"": self.scores, **self.benchmarks}.items() if scores}


def write_state(path: Path, state: State, health: HealthCheck) -> None:
    """Writes the state into a checkpoint directory."""
    figures = asdict(replace(state, pending=()))
    del figures["pending"]
    saved = {**figures, "health": health.state()}
    write_atomic(path / FILE, json.dumps(saved, default=float).encode())  # metrics may be numpy numbers
    if state.pending:
        write_atomic(path / PENDING, encode_batches(state.pending))


def load_state(path: Path, health: HealthCheck, problem: Callable[[int], Problem]) -> State:
    """Reads the state of a checkpoint and restores the health check. `problem` maps a prompt index to its problem."""
    try:
        saved: dict[str, Any] = json.loads((path / FILE).read_text())
        health.restore(saved.pop("health"))
        saved["figures"] = _figures(saved)
        saved.pop("pass_rates", None)  # of older checkpoints: their curriculum begins anew
        scores = _by_step(saved.pop("scores"))
        benchmarks = {name: _by_step(found) for name, found in saved.pop("benchmarks", {}).items()}
        waiting = decode_batches((path / PENDING).read_bytes(), problem) if (path / PENDING).exists() else ()
        return State(**saved, scores=scores, benchmarks=benchmarks, pending=waiting)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunDirError(f"checkpoint {path} cannot be read ({error!r}); delete it to fall back") from error


def load_figures(path: Path) -> Metrics:
    """Metrics of a checkpoint's own step; empty if it cannot be read."""
    try:
        return _figures(json.loads((path / FILE).read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _by_step(scores: dict[str, float]) -> dict[int, float]:
    """Converts step keys back to integers: JSON has only string keys."""
    return {int(step): score for step, score in scores.items()}


def _figures(saved: dict[str, Any]) -> Metrics:
    """Metrics of the step; older checkpoints have the score only."""
    score = saved["scores"].get(str(saved["step"]))
    figures: Metrics = saved.get("figures") or ({} if score is None else {ACCURACY: score})
    return figures
