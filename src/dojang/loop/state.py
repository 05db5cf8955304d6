"""Where a run stands: everything besides weights and optimiser that a checkpoint must hold."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from dojang.errors import RunDirError
from dojang.loop.health import HealthGate
from dojang.loop.pending import Batches, dump, load
from dojang.rundir import write_atomic
from dojang.types import Problem

__all__ = ["State", "load_state", "write_state"]

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
    seconds: float = field(default=0.0, compare=False)
    """Time spent, over all resumptions."""
    pending: Batches = field(default=(), compare=False)
    """Credited groups that wait to be learned from."""

    @property
    def best_step(self) -> int:
        """The step with the best score; of equals the earliest."""
        return max(self.scores, key=lambda step: (self.scores[step], -step))


def write_state(path: Path, state: State, gate: HealthGate) -> None:
    """Put the state into a checkpoint directory."""
    figures = asdict(replace(state, pending=()))
    del figures["pending"]
    write_atomic(path / FILE, json.dumps({**figures, "health": gate.state()}).encode())
    if state.pending:
        write_atomic(path / PENDING, dump(state.pending))


def load_state(path: Path, gate: HealthGate, problem: Callable[[int], Problem]) -> State:
    """The state saved in a checkpoint; the gate gets its memory back. `problem` says which one an ordinal is."""
    try:
        saved: dict[str, Any] = json.loads((path / FILE).read_text())
        gate.restore(saved.pop("health"))
        scores = {int(step): score for step, score in saved.pop("scores").items()}  # JSON has only string keys
        waiting = load((path / PENDING).read_bytes(), problem) if (path / PENDING).exists() else ()
        return State(**saved, scores=scores, pending=waiting)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunDirError(f"checkpoint {path} cannot be read ({error!r}); delete it to fall back") from error
