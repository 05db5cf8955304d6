"""Where a run stands: everything besides weights and optimizer that a checkpoint must hold."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dojang.core.errors import RunDirError
from dojang.core.run_dir import ACCURACY, write_atomic
from dojang.loop.health_check import HealthGate
from dojang.loop.pending_groups import Batches, dump, load
from dojang.types import Metrics, Problem

__all__ = ["State", "load_figures", "load_state", "write_state"]

FILE = "state.json"
PENDING = "pending.json"


@dataclass(frozen=True, slots=True)
class State:
    """Where a run stands; saved with every checkpoint."""

    step: int = 0
    """Steps completed."""
    ordinal: int = 0
    """Problems posed: the data position, and the counter every random stream starts from."""
    scores: dict[int, float] = field(default_factory=dict)
    """Evaluation score by step."""
    benchmarks: dict[str, dict[int, float]] = field(default_factory=dict)
    """Accuracy by benchmark and step."""
    figures: Metrics = field(default_factory=dict, compare=False)
    """What metrics.jsonl says of this step: of training, and of the evaluation if there was one."""
    seconds: float = field(default=0.0, compare=False)
    """Time spent, over all resumptions."""
    pending: Batches = field(default=(), compare=False)
    """Credited groups that wait to be learned from."""

    def evaluated(self) -> dict[str, int]:
        """Last step evaluated on the held-out split (under "") and on each benchmark."""
        return {name: max(scores) for name, scores in {"": self.scores, **self.benchmarks}.items() if scores}


def write_state(path: Path, state: State, gate: HealthGate) -> None:
    """Put the state into a checkpoint directory."""
    figures = asdict(replace(state, pending=()))
    del figures["pending"]
    saved = {**figures, "health": gate.state()}
    write_atomic(path / FILE, json.dumps(saved, default=float).encode())  # figures may be numbers of numpy's
    if state.pending:
        write_atomic(path / PENDING, dump(state.pending))


def load_state(path: Path, gate: HealthGate, problem: Callable[[int], Problem]) -> State:
    """The state saved in a checkpoint; the gate gets its memory back. `problem` says which one an ordinal is."""
    try:
        saved: dict[str, Any] = json.loads((path / FILE).read_text())
        gate.restore(saved.pop("health"))
        saved["figures"] = _figures(saved)
        scores = _by_step(saved.pop("scores"))
        benchmarks = {name: _by_step(found) for name, found in saved.pop("benchmarks", {}).items()}
        waiting = load((path / PENDING).read_bytes(), problem) if (path / PENDING).exists() else ()
        return State(**saved, scores=scores, benchmarks=benchmarks, pending=waiting)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunDirError(f"checkpoint {path} cannot be read ({error!r}); delete it to fall back") from error


def load_figures(path: Path) -> Metrics:
    """What a checkpoint says of its own step; nothing if it cannot be read."""
    try:
        return _figures(json.loads((path / FILE).read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _by_step(scores: dict[str, float]) -> dict[int, float]:
    """JSON has only string keys."""
    return {int(step): score for step, score in scores.items()}


def _figures(saved: dict[str, Any]) -> Metrics:
    """Older checkpoints have the score alone."""
    score = saved["scores"].get(str(saved["step"]))
    figures: Metrics = saved.get("figures") or ({} if score is None else {ACCURACY: score})
    return figures
