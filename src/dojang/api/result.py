"""The result of a run, read from its directory."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dojang.config import recipe as recipes
from dojang.config.run_config import RunConfig
from dojang.core.errors import RunDirError
from dojang.core.run_dir import ACCURACY, RunDir

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.figure import Figure

    from dojang.viewer.records import RunRecords

__all__ = ["RunResult"]


@dataclass(frozen=True)
class RunResult:
    """A run directory. Everything is read when it is first used, so a run of another process can be opened, too."""

    run_dir: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "run_dir", Path(self.run_dir))  # text is accepted, too
        if not RunDir(self.run_dir).config.exists():
            raise RunDirError(f"{self.run_dir} holds no run; give the directory of a run, such as runs/quickstart-1")

    @cached_property
    def config(self) -> RunConfig:
        """The configuration of the run."""
        return recipes.load(str(RunDir(self.run_dir).config))

    @cached_property
    def metrics(self) -> list[dict[str, float]]:
        """Metrics, one dict per step or evaluation (metrics.jsonl); `pandas.DataFrame(result.metrics)` is a table."""
        return self._records.metrics()

    @cached_property
    def rollouts(self) -> "pa.Table":
        """Every sample of every step: prompt, response, reward and its parts, tokens, log-probs, advantage. A pyarrow
        Table; `result.rollouts.to_pandas()` and `.to_pylist()` convert it."""
        return self._samples(("train",))

    @cached_property
    def eval_rollouts(self) -> "pa.Table":
        """Every sample of every evaluation, in the same columns: held-out problems, then benchmarks."""
        return self._samples([kind for kind in self._records.kinds if kind != "train"])

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the last evaluation on held-out problems; None without one."""
        return next((row[ACCURACY] for row in reversed(self.metrics) if ACCURACY in row), None)

    @property
    def status(self) -> str:
        """finished, interrupted or failed; "running" if the run has not ended."""
        summary = self._records.summary
        return "running" if summary is None else str(summary["status"])

    @property
    def best_model(self) -> Path | None:
        """The best checkpoint (checkpoint.metric), a Hugging Face directory; None if no step was saved."""
        return self._checkpoint("best") or self.last_model

    @property
    def last_model(self) -> Path | None:
        """The last checkpoint, a Hugging Face directory; None if no step was saved."""
        return self._checkpoint("last")

    def plot(self) -> "Figure":
        """Draws rewards and held-out accuracy over steps. Returns a matplotlib Figure, which a notebook shows."""
        from dojang.track.chart import plot

        return plot(self.metrics, self.run_dir.name)

    def _checkpoint(self, name: str) -> Path | None:
        path = RunDir(self.run_dir).checkpoints / name
        return path.resolve() if path.exists() else None

    @cached_property
    def _records(self) -> "RunRecords":
        from dojang.viewer.records import RunRecords

        return RunRecords(self.run_dir)

    def _samples(self, kinds: Sequence[str]) -> "pa.Table":
        import pyarrow as pa

        from dojang.core.rollout_schema import rollout_schema
        from dojang.viewer.records import RunRecords

        records = RunRecords(self.run_dir)
        batches = [batch for kind in kinds for batch in records.rollouts(kind, columns=records.columns)]
        for note in records.notes:
            warnings.warn(f"{note}; its samples are left out", stacklevel=4)
        return pa.Table.from_batches(batches, schema=rollout_schema())
