"""HumanEval: Python functions to complete, each with a test that calls it. For evaluation only."""

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from dojang.data.prepare_rows import Dataset, KnownAnswers
from dojang.types import Message, Problem

__all__ = ["HumanEval"]

_CPU_S = 3.0
"""CPU seconds of a problem, as in the authors' harness, which counts wall time. Their solutions take at most 0.4."""
INSTRUCTION = "Complete this Python function. Answer with the whole function, in one ```python block."


class HumanEval(Dataset):
    """Functions to complete."""

    evaluation_only: ClassVar[bool] = True

    def problem(self, row: Mapping[str, Any], where: str) -> Problem:
        prompt, name = row["prompt"], row["entry_point"]
        return Problem(
            id=row["task_id"],
            source="humaneval",
            messages=(Message("user", f"{INSTRUCTION}\n\n```python\n{prompt.rstrip()}\n```"),),
            reference={
                "private": [{"code": f"{row['test']}\ncheck(candidate)", "function": name}],
                "limits": {"cpu_s": _CPU_S, "memory_mb": 512},
                "language": "python3",
                # Imports and helpers before the function, which an answer need not repeat.
                "prefix": prompt[: re.search(rf"^def {re.escape(name)}\b", prompt, re.MULTILINE).start()],  # type: ignore[union-attr]
            },
        )

    def known(self, row: Mapping[str, Any]) -> KnownAnswers:
        return KnownAnswers((row["prompt"] + row["canonical_solution"],))
