"""DeepCoder-Preview: programming problems in Python, with input/output tests or function calls.

The dataset has four subsets. `primeintellect` and `taco` are for training. `lcbv5` (LiveCodeBench) and `codeforces` are
evaluation sets: they are read only if named, as the test split.
"""

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

from dojang.data.prepare_rows import Dataset, KnownAnswers, Unusable
from dojang.data.python_tests import judge_settings, read_tests
from dojang.types import Message, Problem

__all__ = ["Codeforces", "DeepCoder", "make_prompt"]

STDIN = "Solve this problem with a Python program that reads standard input and writes standard output."
FUNCTION = "Solve this problem with a Python function called {name}."
BLOCK = "Answer with the whole program, in one ```python block."

_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


class DeepCoder(Dataset):
    """Programs and functions in Python."""

    source: ClassVar[str] = "deepcoder"
    only_if_named: ClassVar[tuple[str, ...]] = ("lcbv5", "codeforces")

    def split(self, file: str, row: Mapping[str, Any]) -> str:
        return "test" if set(Path(file).parts) & set(self.only_if_named) else super().split(file, row)

    def problem(self, row: Mapping[str, Any], where: str) -> Problem:
        statement = (row["problem"] or "").strip()
        if not statement:
            raise Unusable("it has no statement")
        name, private = read_tests(row["tests"], _function(row))
        return Problem(
            # The rows have no ids; hash the statement.
            id=f"{self.source}/{sha256(statement.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}",
            source=self.source,
            messages=make_prompt(statement, name, row.get("starter_code") or ""),
            reference={"private": private, **judge_settings(name)},
        )

    def known(self, row: Mapping[str, Any]) -> KnownAnswers:
        return KnownAnswers(tuple(_program(each) for each in row.get("solutions") or ()))


class Codeforces(DeepCoder):
    """DeepCoder's Codeforces problems, for evaluation."""

    source: ClassVar[str] = "codeforces"
    preferred: ClassVar[str] = "codeforces"
    evaluation_only: ClassVar[bool] = True


def make_prompt(statement: str, function: str, starter: str = "") -> tuple[Message, ...]:
    """Makes the prompt for a program, or for a function of this name."""
    how = FUNCTION.format(name=function) if function else STDIN
    begun = f"\n\nBegin with this:\n\n```python\n{starter.rstrip()}\n```" if starter.strip() else ""
    return (Message("user", f"{how} {BLOCK}\n\n{statement}{begun}"),)


def _program(solution: str) -> str:
    """Extracts the program from a Markdown block, if it is in one."""
    found = _BLOCK.search(solution)
    return found[1] if found else solution


def _function(row: Mapping[str, Any]) -> str:
    """Returns the function that the tests of a `lcbv5` row call."""
    about = row.get("metadata")
    about = json.loads(about) if isinstance(about, str) and about else about
    return str((about or {}).get("func_name") or "")
