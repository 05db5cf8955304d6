"""Resolves names: of a program's functions, and of the globals in a test that calls them.

Part of zygote.py: imports the standard library only.
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
"""Name of the program's module."""


def find(module: types.ModuleType, name: str) -> Any:
    """Find a function by name, or a method of the class Solution, as on LeetCode.

    Definitions of the program take precedence over imports: `from heapq import *` imports a `merge`. A method takes
    precedence over what cannot be called: `f = None` beside `Solution.f`.
    """
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
    """Whether this is a module, or is defined in another module under its own name or this one."""
    if isinstance(thing, types.ModuleType):
        return True
    home = sys.modules.get(str(getattr(thing, "__module__", None)))
    if home is None or home.__name__ == _PROGRAM:
        return False
    return any(vars(home).get(each) is thing for each in (getattr(thing, "__name__", name), name))


def of_test(code: types.CodeType, function: str, ask: Callable[[str, str], Any]) -> dict[str, Any]:
    """Globals of a test: the candidate's names it uses, but none that replace Python's builtins."""
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
        with contextlib.suppress(NameError):  # perhaps never executed; if it is, Python raises NameError
            names[name] = ask("name", name)
    return names


def _collect(code: types.CodeType, used: set[str], made: set[str], whole: set[str]) -> None:
    """Collect the global names that code reads, those it assigns, and those it uses for more than attributes.

    A module is only used for its attributes. So a test that calls `bisect(...)` means a function of the program.
    """
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
