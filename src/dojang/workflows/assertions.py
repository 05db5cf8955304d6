"""Parses assertions about a function, `assert f(1, [2]) == 3`: the test cases of problems whose tests call one.

Arguments and results must be literals. A test is code that the judge runs outside of the tested program, so nothing
that a model wrote may reach it but values; and `assert f(1) == f(1)` would pass whatever f does.
"""

import ast
import warnings
from typing import Any

__all__ = ["Assertion", "find_assertions"]

Assertion = tuple[list[Any], Any]
"""Arguments of a call, and its result."""


def find_assertions(code: str, function: str) -> list[Assertion]:
    """Returns the assertions at the top level of the code; its other statements are ignored.

    Raises ValueError with the reason if the code cannot be parsed, or if an assertion is not a call of the function
    compared with a literal.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # invalid escapes, `is` with a literal
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"the block is not Python: {error}") from None
    return [_read(each.test, function) for each in tree.body if isinstance(each, ast.Assert)]


def _read(test: ast.expr, function: str) -> Assertion:
    wrong = ValueError(f"an assertion does not have the form {function}(...) == ..., with literals")
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq | ast.Is):
        raise wrong
    call = test.left
    if not isinstance(call, ast.Call) or call.keywords or _name(call.func) != function:
        raise wrong
    try:
        found = [ast.literal_eval(each) for each in call.args], ast.literal_eval(test.comparators[0])
        ast.literal_eval(repr(found))  # refuses `...`, 1e999 and others that no test can be written with
    except (ValueError, TypeError, RecursionError, MemoryError):  # TypeError: a list in a set
        raise wrong from None
    return found


def _name(called: ast.expr) -> str:
    """Returns the name of a called function, also of `Solution().function`."""
    if isinstance(called, ast.Attribute) and isinstance(made := called.value, ast.Call):
        return called.attr if isinstance(made.func, ast.Name) and made.func.id == "Solution" else ""
    return called.id if isinstance(called, ast.Name) else ""
