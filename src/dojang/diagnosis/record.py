"""Metrics, settings and rollouts of a run, as far as they exist: a missing file or metric is no error."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import yaml

from dojang.core.errors import RunDirError
from dojang.core.run_dir import ACCURACY, RunDir, evaluation_name
from dojang.core.run_files import RunFiles
from dojang.diagnosis.findings import Example
from dojang.loop.endings import MAIN_ROLES

__all__ = ["Row", "RunRecord"]

Row = Mapping[str, float]
Sample = dict[str, Any]

_SCAN_STEPS = 5
"""Training steps whose rollouts are searched for examples: enough for three, and read in less than a second."""
_EXAMPLES = 3
_EXCERPT = 160
"""Characters of a completion in an example."""


@dataclass(frozen=True)
class RunRecord:
    """A run, or a part of it if it is still going on. With `role`, metrics are those of that second model."""

    rows: Sequence[Row]
    config: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    files: RunFiles | None = None
    role: str = ""

    @classmethod
    def read(cls, directory: RunDir | RunFiles) -> "RunRecord":
        """Reads a run, of this machine or in S3; raises RunDirError if there is none."""
        files = directory if isinstance(directory, RunFiles) else RunFiles(directory.path)
        there = files.listing()
        if not {"config.yaml", "metrics.jsonl"} & there.keys():
            raise RunDirError(f"{files.location} is no run: it has neither config.yaml nor metrics.jsonl")
        return cls(list(_rows(files)), _mapping(files, "config.yaml"), _mapping(files, "summary.json"), files)

    @property
    def status(self) -> str:
        return str(self.summary.get("status", "running"))

    @property
    def error(self) -> Mapping[str, str]:
        """Type and message of the error that ended the run; empty without one."""
        found = self.summary.get("error")
        return found if isinstance(found, dict) else {}

    @cached_property
    def steps(self) -> list[Row]:
        """Lines of training steps."""
        return [row for row in self.rows if evaluation_name(row) is None]

    @cached_property
    def evaluations(self) -> list[Row]:
        """Lines of evaluations on the held-out split."""
        return [row for row in self.rows if _finite(row.get(ACCURACY))]

    @property
    def trains_on_rewards(self) -> bool:
        """Whether rewards are what the run learns from: neither SFT nor distillation."""
        names = {name for row in self.steps for name in row}
        return not (
            self.setting("distillation")
            or self.setting("algo.name") == "sft"
            or "distillation/reverse_kl" in names
            or ("actor/loss" in names and "actor/pg_loss" not in names)
        )

    def of_role(self, role: str) -> "RunRecord":
        """The same run, with the metrics of a second model."""
        return RunRecord(self.rows, self.config, self.summary, self.files, role)

    @property
    def second_models(self) -> list[str]:
        """Roles whose metrics have a prefix."""
        names = {name for row in self.steps for name in row if name.endswith("/groups/total")}
        return sorted(name.removesuffix("/groups/total") for name in names)

    def setting(self, key: str, default: Any = None) -> Any:
        """Value of a setting; the default if it is missing or null."""
        found: Any = self.config
        for part in key.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        return default if found is None else found

    def points(self, name: str, default: float | None = None) -> list[tuple[int, float]]:
        """Step and value of a metric in the training steps that have it. A `default` stands for its absence in steps
        with rewards (an outcome that did not occur)."""
        prefix = f"{self.role}/" if self.role else ""
        present = f"{prefix}critic/rewards/mean"
        found = []
        for row in self.steps:
            value = row.get(prefix + name, default if present in row else None)
            if value is not None and _finite(value):
                found.append((int(row["step"]), float(value)))
        return found

    def values(self, name: str, default: float | None = None) -> list[float]:
        """Values of a metric in the training steps."""
        return [value for _, value in self.points(name, default)]

    @property
    def accepted(self) -> list[float]:
        """Share of accepted samples in each training step."""
        return self.values("judge/outcome/accepted", 0.0)

    def parts(self) -> dict[str, list[float]]:
        """Values of each part of the reward by step."""
        start, end = f"{self.role}/critic/rewards/" if self.role else "critic/rewards/", "/mean"
        names = dict.fromkeys(
            name.removeprefix(start).removesuffix(end)
            for row in self.steps
            for name in row
            if name.startswith(start) and name.endswith(end) and len(name) > len(start) + len(end)
        )
        return {name: self.values(f"critic/rewards/{name}/mean") for name in names if name not in _TURNS}

    def samples(self, split: str, step: int, columns: Sequence[str]) -> list[Sample]:
        """Rollouts of the diagnosed model in one file; empty if there are none, they cannot be read, or they lack a
        column (files of another version)."""
        if self.files is None:
            return []
        import pyarrow as pa  # slow to import

        try:
            with self.files.open_parquet(f"rollouts/{split}-{step:06d}.parquet") as file:
                if not set(columns) <= set(file.schema_arrow.names):
                    return []
                rows: list[Sample] = file.read(columns=[*columns, "role"]).to_pylist()
        except (OSError, pa.ArrowException):  # missing, being written, or damaged
            return []
        return [row for row in rows if self._is_mine(row.get("role") or MAIN_ROLES[0])]

    def first_samples(self, columns: Sequence[str], steps: int = _SCAN_STEPS) -> list[Sample]:
        """Rollouts of the first training steps."""
        found = [int(row["step"]) for row in self.steps[:steps]]
        return [sample for step in found for sample in self.samples("train", step, columns)]

    def last_samples(self, columns: Sequence[str], steps: int = _SCAN_STEPS) -> list[Sample]:
        """Rollouts of the last training steps."""
        found = [int(row["step"]) for row in self.steps[-steps:]]
        return [sample for step in found for sample in self.samples("train", step, columns)]

    def examples(self, *, outcome: str = "", finish: str = "", part: str = "") -> list[Example]:
        """Up to three samples of the last steps, of different problems: with this outcome or end, and those for which
        a part of the reward pays most."""
        chosen: dict[str, Sample] = {}
        for step in (int(row["step"]) for row in self.steps[: -_SCAN_STEPS - 1 : -1]):
            found = self.samples("train", step, _SHOWN)
            if part:
                found.sort(key=lambda sample: -_part(sample, part))
            for sample in found:
                if (outcome and sample["outcome"] != outcome) or (finish and sample["finish"] != finish):
                    continue
                chosen.setdefault(sample["problem"], sample)
                if len(chosen) == _EXAMPLES:
                    return [_example(each) for each in chosen.values()]
        return [_example(each) for each in chosen.values()]

    def _is_mine(self, role: str) -> bool:
        return role == self.role if self.role else role in MAIN_ROLES


_TURNS = ("turn_0", "turn_1")
"""Whole rewards of a coder's turns, under the name of a part."""
_SHOWN = ("step", "problem", "index", "response", "outcome", "finish", "reward", "reward_parts", "detail")


def _part(sample: Sample, name: str) -> float:
    return float(dict(sample["reward_parts"] or ()).get(name) or 0.0)


def _example(sample: Sample) -> Example:
    text = " ".join(str(sample["response"]).split())
    if len(text) > _EXCERPT:
        text = f"{text[: _EXCERPT // 2]} ... {text[-_EXCERPT // 2 :]}"
    reward = sample["reward"]
    remark = f"{sample['outcome']}, reward {reward:.3g}" if reward is not None else f"{sample['outcome']}"
    if sample["outcome"] == "judge_error" and sample["detail"]:
        remark += f": {str(sample['detail'])[:_EXCERPT]}"
    return Example(f"step {sample['step']}, {sample['problem']} #{sample['index']}", text, remark)


def _rows(files: RunFiles) -> Iterator[Row]:
    """Complete lines of the metrics; the last one may still be being written."""
    for line in (files.read("metrics.jsonl") or b"").splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            yield row


def _mapping(files: RunFiles, name: str) -> Mapping[str, Any]:
    try:
        found = yaml.safe_load(files.read(name) or b"{}")  # JSON is YAML
    except (RunDirError, ValueError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
