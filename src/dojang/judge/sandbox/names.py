"""Which name means what: in a program whose functions are called, and in the test that calls them.

A part of zygote.py, and like that it imports the standard library only.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

__all__ = ["find", "of_test"]

_PROGRAM = "solution"
"""The name of the program's module."""


def find(module: types.ModuleType, name: str) -> Any:
    """A function by its name; or a method of the class Solution, as LeetCode has them.

    What the program defines comes before what it imports: `from heapq import *` brings a `merge`. A method comes
    before what cannot be called: `f = None` beside `Solution.f`."""
    names = vars(module)
    owner = names.get("Solution")
    has_method = callable(getattr(owner, name, None))
    if name in names and not _is_imported(names[name], name) and (callable(names[name]) or not has_method):
        return names[name]
    if owner is not None and hasattr(owner, name):
        return getattr(owner(), name)
    if name in names:
        return names[name]
    raise NameError(f"name {name!r} is not defined")


def _is_imported(thing: Any, name: str) -> bool:
    """Whether this is a module, or something that another module has by its own name or by this one."""
    if isinstance(thing, types.ModuleType):
        return True
    home = sys.modules.get(str(getattr(thing, "__module__", None)))
    if home is None or home.__name__ == _PROGRAM:
        return False
    return any(vars(home).get(each) is thing for each in (getattr(thing, "__name__", name), name))


def of_test(code: types.CodeType, function: str, ask: Callable[[str, str], Any]) -> dict[str, Any]:
    """The globals of a test: those of the candidate's names it uses, but none that could stand in for Python's own."""
    names: dict[str, Any] = {"__name__": "test", "__builtins__": builtins}
    used: set[str] = set()
    made: set[str] = set()
    whole: set[str] = set()
    _collect(code, used, made, whole)
    if function:
        names["candidate"] = names[function] = ask("name", function)
    for name in used - made - set(names) - set(dir(builtins)):
        if name in sys.stdlib_module_names and name not in whole:
            names[name] = importlib.import_module(name)
            continue
        with contextlib.suppress(NameError):  # perhaps it is never reached; if it is, Python will say so
            names[name] = ask("name", name)
    return names


def _collect(code: types.CodeType, used: set[str], made: set[str], whole: set[str]) -> None:
    """The global names some code reads, and those it makes itself; and those it does more with than ask for attributes.

    A module is good for its attributes only. So a test that calls `bisect(...)` means a function of the program."""
    steps = list(dis.get_instructions(code))
    for step, after in zip(steps, [*steps[1:], steps[-1]], strict=True):
        if step.opname in ("LOAD_NAME", "LOAD_GLOBAL"):
            used.add(step.argval)
            if after.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                whole.add(step.argval)
        elif step.opname in ("STORE_NAME", "STORE_GLOBAL"):
            made.add(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _collect(constant, used, made, whole)
