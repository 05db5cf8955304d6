"""MBPP: small Python functions, described in a sentence, with assertions.

Reads the whole set (JSON lines) and the hand-sanitized one (JSON). The prompt shows the first assertion, because
nothing else names the function; it is public, all others are private. The authors' split: 601 and up for training,
511 to 600 for validation, 11 to 510 for tests, the first ten for prompts.
"""

import ast
import warnings
from collections.abc import Mapping
from typing import Any

from dojang.data.prepare_rows import Dataset, KnownAnswers, Unusable
from dojang.types import Message, Problem

__all__ = ["Mbpp"]

_SPLITS = ((601, "train"), (511, "validation"), (11, "test"))
_CPU_S = 3.0
"""CPU seconds of a test, as in HumanEval: published solutions take 10 ms, and a training step waits for endless
programs."""
_SLOW = {123: 60.0}
"""CPU seconds of the problem (of the test split) whose published solution takes 5 to 25, depending on the machine."""


class Mbpp(Dataset):
    """Small functions."""

    def split(self, file: str, row: Mapping[str, Any]) -> str:
        number = row["task_id"]
        for first, split in _SPLITS:
            if number >= first:
                return split
        raise Unusable("it is reserved for prompts")

    def problem(self, row: Mapping[str, Any], where: str) -> Problem:
        text = row["text"] if "text" in row else row["prompt"]
        before = [row.get("test_setup_code") or "", *(row.get("test_imports") or ())]
        assertions = [*row["test_list"], *(row.get("challenge_test_list") or ())]
        if len(assertions) < 2:
            raise Unusable("it has a single test, which would have to be shown")
        tests = [
            {"code": "\n".join([*before, each]).strip(), "function": _called(each, row["code"])} for each in assertions
        ]
        return Problem(
            id=f"mbpp/{row['task_id']}",
            source="mbpp",
            messages=(
                Message(
                    "user",
                    f"{text.strip()} It must pass this test, and others:\n\n```python\n{assertions[0]}\n```\n\n"
                    "Answer with the whole function, in one ```python block.",
                ),
            ),
            reference={
                "private": tests[1:],
                "public": tests[:1],
                "limits": {"cpu_s": _SLOW.get(row["task_id"], _CPU_S), "memory_mb": 512},
                "language": "python3",
            },
        )

    def known(self, row: Mapping[str, Any]) -> KnownAnswers:
        return KnownAnswers((row["code"],))


def _called(test: str, code: str) -> str:
    """Returns the function that a test calls. Needed because one is named `sum`, like Python's built-in."""
    with warnings.catch_warnings(action="ignore"):  # invalid escapes in published code
        trees = ast.parse(code), ast.parse(test)
    made = {node.name for node in trees[0].body if isinstance(node, ast.FunctionDef)}
    used = [node.id for node in ast.walk(trees[1]) if isinstance(node, ast.Name) and node.id in made]
    return used[0] if used else ""
