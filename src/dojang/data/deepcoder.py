"""DeepCoder-Preview: programming problems in Python, with tests of text in and text out or of a function.

Reads the subsets `primeintellect` (rows of problem, solutions and tests) and `codeforces` (tests without a type). The
tests of a row have to be of one kind.
"""

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any, ClassVar

from dojang.data.prepare import Known, Unusable, split_of
from dojang.data.python_tests import LIMITS, call, text
from dojang.settings import Section
from dojang.types import Message, Problem

__all__ = ["Codeforces", "DeepCoder", "ask"]

STDIN = "Solve this problem with a Python program that reads standard input and writes standard output."
FUNCTION = "Solve this problem with a Python function called {name}."
BLOCK = "Answer with the whole program, in one ```python block."

_BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


class DeepCoder(Section):
    """Programs and functions in Python."""

    ability: ClassVar[str] = "code"
    source: ClassVar[str] = "deepcoder"

    def split(self, file: str, row: Mapping[str, Any]) -> str:
        return split_of(file)

    def problem(self, row: Mapping[str, Any], where: str) -> Problem:
        statement = (row["problem"] or "").strip()
        if not statement:
            raise Unusable("it has no statement")
        tests = _parsed(row["tests"])
        kinds = {each.get("type", "stdin_stdout") for each in tests}
        names = {each.get("fn_name") or "" for each in tests}
        if len(kinds) != 1 or len(names) != 1:
            raise Unusable("its tests are of several kinds")
        (kind,), (name,) = kinds, names
        if kind == "function_call" and name:
            private = [call(name, each["input"], _result(each["output"])) for each in tests]
        elif kind == "stdin_stdout" and not name:
            private = [text(each["input"], each["output"]) for each in tests]
        else:
            raise Unusable("its tests are of a kind that is not known")
        return Problem(
            # The rows have no names; what is asked is one.
            id=f"{self.source}/{sha256(statement.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}",
            source=self.source,
            messages=ask(statement, name),
            reference={"private": private, "limits": LIMITS, "language": "python3"},
        )

    def known(self, row: Mapping[str, Any]) -> Known:
        return Known(tuple(_program(each) for each in row.get("solutions") or ()))


class Codeforces(DeepCoder):
    """DeepCoder's problems of Codeforces, for evaluation."""

    source: ClassVar[str] = "codeforces"

    def split(self, file: str, row: Mapping[str, Any]) -> str:
        return "test"


def ask(statement: str, function: str, starter: str = "") -> tuple[Message, ...]:
    """For a program, or for a function of this name."""
    how = FUNCTION.format(name=function) if function else STDIN
    begun = f"\n\nBegin with this:\n\n```python\n{starter.rstrip()}\n```" if starter.strip() else ""
    return (Message("user", f"{how} {BLOCK}\n\n{statement}{begun}"),)


def _program(solution: str) -> str:
    """Some are published in a block of Markdown."""
    found = _BLOCK.search(solution)
    return found[1] if found else solution


def _parsed(tests: object) -> list[Mapping[str, Any]]:
    found = json.loads(tests) if isinstance(tests, str) else tests
    if not isinstance(found, list) or not found:
        raise Unusable("it has no tests")
    return found


def _result(output: Any) -> Any:
    """Results are published as a list of one."""
    return output[0] if isinstance(output, list) and len(output) == 1 else output
