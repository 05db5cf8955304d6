"""Tasks of a taskset of verifiers, read in a process with another interpreter (verifiers_tasks.py)."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator

from dojang.core.errors import DataError
from dojang.data.section import DataSection, number_of
from dojang.types import Message, Problem

__all__ = ["PACKAGE", "VerifiersDataConfig", "VerifiersTask", "install_hint"]

PACKAGE = "verifiers==0.4.0"
_PROGRAM = str(Path(__file__).parent / "verifiers_tasks.py")
_COLUMN = "verifiers"
"""Column of a problem with its task."""


def install_hint() -> str:
    """Returns what to do without the package. Its harnesses run scripts with uv."""
    return (
        "install it into a virtual environment, with the package of the taskset (python -m venv .venv-verifiers && "
        f".venv-verifiers/bin/pip install {PACKAGE} uv), and set data.python=.venv-verifiers/bin/python"
    )


@dataclass(frozen=True, slots=True)
class VerifiersTask:
    """Task of a problem: the interpreter and settings of its taskset, and the data of the task."""

    python: str
    taskset: Mapping[str, Any]
    data: Mapping[str, Any]

    @classmethod
    def of(cls, problem: Problem) -> Self | None:
        """Returns the task of a problem; None if it comes from other data."""
        found = problem.columns.get(_COLUMN)
        return cls(**found) if isinstance(found, Mapping) else None


class VerifiersDataConfig(DataSection):
    """Tasks of a taskset of verifiers."""

    name: Literal["verifiers"] = "verifiers"
    taskset: dict[str, Any] = Field(default_factory=dict)
    """The taskset and its settings, by verifiers' names: {id: gsm8k, split: train}. The id is that of an installed
    package."""
    test_taskset: dict[str, Any] = Field(default_factory=dict)
    """Settings that differ for held-out tasks, such as {split: test}. Empty: test_fraction of the tasks."""
    test_fraction: float = Field(default=0.125, gt=0, lt=1)
    """Share of tasks that are held out, and at least one, if test_taskset is empty; their content decides which."""
    max_tasks: int = Field(default=10_000, ge=1)
    """Largest number of tasks that are read: the first ones. An infinite taskset ends there."""
    python: str = ""
    """Path to an interpreter with verifiers and the taskset's package installed, such as .venv-verifiers/bin/python.
    Empty: dojang's interpreter."""
    timeout_s: float = Field(default=600.0, gt=0)
    """Time limit in seconds for reading the tasks."""

    @field_validator("taskset")
    @classmethod
    def _has_id(cls, taskset: dict[str, Any]) -> dict[str, Any]:
        if not isinstance(taskset.get("id"), str) or not taskset["id"]:
            raise ValueError("set data.taskset.id: the name of a taskset's package")
        return taskset

    def read(self, split: str) -> list[Problem]:
        """Returns the problems of the `train` or `test` split, in the order of the taskset."""
        if split not in ("train", "test"):
            raise DataError(f"data.name=verifiers has no split {split!r}; use 'train' or 'test'")
        if self.test_taskset:
            taskset = self.taskset if split == "train" else {**self.taskset, **self.test_taskset}
            return [self._problem(each, taskset, split) for each in self._tasks(taskset)]
        tasks = self._tasks(self.taskset)
        if len(tasks) < 2:
            raise DataError(
                f"the taskset {self.taskset['id']} has {len(tasks)} task: none would be left for training; set "
                "data.test_taskset"
            )
        order = sorted(range(len(tasks)), key=lambda at: number_of(tasks[at]["key"]))
        held_out = set(order[: max(1, round(self.test_fraction * len(tasks)))])
        return [
            self._problem(each, self.taskset, split)
            for at, each in enumerate(tasks)
            if (at in held_out) == (split == "test")
        ]

    def _tasks(self, taskset: Mapping[str, Any]) -> list[dict[str, Any]]:
        order = json.dumps({"taskset": taskset, "most": self.max_tasks}, sort_keys=True)
        tasks = _read_tasks(self.python or sys.executable, order, self.timeout_s)
        if not tasks:
            raise DataError(f"the taskset {taskset['id']} has no tasks with the settings {dict(taskset)}")
        return tasks

    def _problem(self, task: Mapping[str, Any], taskset: Mapping[str, Any], split: str) -> Problem:
        where = f"{taskset['id']}/test" if self.test_taskset and split == "test" else taskset["id"]
        return Problem(
            id=f"{where}/{task['data']['idx']}",
            source=str(taskset["id"]),
            messages=tuple(Message(role, content) for role, content in task["messages"]),
            reference="",
            columns={_COLUMN: {"python": self.python, "taskset": dict(taskset), "data": task["data"]}},
        )


@lru_cache(maxsize=4)  # both splits need the tasks
def _read_tasks(python: str, order: str, timeout_s: float) -> list[dict[str, Any]]:
    try:
        ended = subprocess.run(
            [python, "-I", _PROGRAM], input=order.encode(), capture_output=True, timeout=timeout_s, process_group=0
        )
    except subprocess.TimeoutExpired:
        raise DataError(
            f"reading the tasks took longer than data.timeout_s={timeout_s:g}; lower data.max_tasks, or allow more time"
        ) from None
    except OSError as error:
        raise DataError(f"data.python={python} does not run: {error.strerror}; {install_hint()}") from error
    try:
        found: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        said = ended.stderr.decode(errors="replace").strip().rpartition("\n")[2][:300]
        raise DataError(f"the process that reads the taskset exited with {ended.returncode}: {said}") from None
    if "missing" in found:
        raise DataError(f"data.python={python} has no {PACKAGE} ({found['missing']}); {install_hint()}")
    if "error" in found:
        raise DataError(f"the taskset cannot be read: {found['error']}")
    tasks: list[dict[str, Any]] = found["tasks"]
    return tasks
