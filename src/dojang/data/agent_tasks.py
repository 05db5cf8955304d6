"""Tasks for agents with a terminal: a folder of task folders (agent_task.py)."""

import warnings
from pathlib import Path
from typing import Literal

from pydantic import Field

from dojang.core.errors import DataError
from dojang.data.agent_task import RefusedTask, read_agent_task
from dojang.data.rows import hash_fraction
from dojang.data.section import DataSection
from dojang.data.verifier_rules import risky_lines
from dojang.types import Message, Problem

__all__ = ["AgentTasksConfig"]

_SHOWN = 10


class AgentTasksConfig(DataSection):
    """Task folders for agents with a terminal."""

    name: Literal["agent_tasks"] = "agent_tasks"
    path: str
    """Folder of task folders, each with instruction.md, files/ and tests/; Harbor's layout is read as well."""
    test_path: str = ""
    """Folder of held-out task folders. Empty: a share of the tasks of path (held_out)."""
    held_out: float = Field(default=0.1, gt=0, lt=1)
    """Share of the tasks that is held out if test_path is empty, chosen by their names."""

    def read(self, split: str) -> list[Problem]:
        """Returns the tasks of the `train` or `test` split, by name."""
        if split not in ("train", "test"):
            raise DataError(f"agent tasks have no split {split!r}; use 'train' or 'test'")
        if self.test_path:
            return _read(self.test_path if split == "test" else self.path)
        problems = _read(self.path)
        if len(problems) < 2:
            if split == "train":
                return problems
            raise DataError(f"{self.path} has one task, so none can be held out; add tasks, or set data.test_path")
        hashes = [hash_fraction(each.id) for each in problems]
        smallest, largest = min(hashes), max(hashes)
        held = [each == smallest or (each < self.held_out and each != largest) for each in hashes]
        return [each for each, out in zip(problems, held, strict=True) if out == (split == "test")]


def _read(path: str) -> list[Problem]:
    """Reads all tasks of a folder. Raises DataError with every task that is refused."""
    root = Path(path).expanduser().resolve()
    if not root.is_dir():
        raise DataError(f"data.path={path}: no such folder")
    folders = sorted(each for each in root.iterdir() if each.is_dir() and not each.name.startswith("."))
    problems, refused, risky = [], [], list[str]()
    for folder in folders:
        try:
            task = read_agent_task(folder)
        except (RefusedTask, OSError) as error:
            refused.append(f"{folder.name}: {error}")
            continue
        contents = {name: file.content for name, file in task.tests.items()}
        risky += [f"{folder.name}: {each}" for each in risky_lines(contents)]
        problems.append(
            Problem(
                id=f"agent_tasks/{task.name}",
                source="agent_tasks",
                messages=(Message("user", task.instruction),),
                reference={"path": str(folder), "digest": task.digest},
            )
        )
    if refused:
        listed = "\n".join(f"  {each}" for each in refused)
        raise DataError(
            f"{path}: {len(refused)} of {len(folders)} tasks cannot be used here; move them elsewhere or change them:\n"
            f"{listed}"
        )
    if not problems:
        raise DataError(f"{path} has no task folders; each needs instruction.md and tests/")
    if risky:
        listed = "\n".join(f"  {each}" for each in risky[:_SHOWN])
        more = f"\n  and {len(risky) - _SHOWN} more" if len(risky) > _SHOWN else ""
        warnings.warn(
            f"{path}: if the agent can write these files, it can forge its reward; run its files with python3, bash or "
            f"run-untrusted:\n{listed}{more}",
            stacklevel=3,
        )
    return problems
