"""Functions and classes given as Python objects, under names that a configuration can hold.

A configuration is text, so a reward function in it is a name, package.module:function. A lambda, a closure, or a
function of a notebook has no such name: `register` gives it one of this module, valid in this process only.
"""

import re
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Annotated, Any

from pydantic import BeforeValidator

__all__ = ["ObjectName", "function_name", "in_process", "register", "register_again"]

ObjectName = Annotated[str, BeforeValidator(lambda value: register(value) if callable(value) else value)]
"""Setting with the name of a function or a class. From Python, the object itself may be given."""
_registered: dict[str, Callable[..., Any]] = {}


def register(function: Callable[..., Any]) -> str:
    """Returns a name of the form package.module:function that `load_object` finds in this process: the function's own
    name where importing gives the same object, else a name of this module, with a number if another function has it."""
    own = _importable_name(function)
    if own:
        return own
    label = function_name(function)
    name, count = label, 1
    while _registered.get(name, function) is not function:
        count += 1
        name = f"{label}_{count}"
    _registered[name] = function
    return f"{__name__}:{name}"


def register_again(function: Callable[..., Any], names: Iterable[str]) -> str:
    """Registers a function under the first of these names that `register` may have given it, in this process or in an
    earlier one, and returns that name; empty if it is none of them."""
    own, label = _importable_name(function), re.escape(function_name(function))
    for name in names:
        if name == own:
            return name
        if re.fullmatch(rf"{re.escape(__name__)}:{label}(_\d+)?", name):
            _registered[name.rpartition(":")[2]] = function
            return name
    return ""


def function_name(function: str | Callable[..., Any]) -> str:
    """Name of a function, also of one that was registered; "reward" if it has none, such as a lambda."""
    if isinstance(function, str):
        label = function.rpartition(":")[2]
        return function_name(_registered[label]) if label in _registered and in_process(function) else label
    label = getattr(function, "__name__", type(function).__name__)
    return label if label.isidentifier() else "reward"


def in_process(spec: str) -> bool:
    """Whether a name is valid in one process only."""
    return spec.startswith((f"{__name__}:", "__main__:"))


def __getattr__(name: str) -> Callable[..., Any]:
    try:
        return _registered[name]
    except KeyError:
        raise AttributeError(
            f"{name!r}: it was given as a Python object by the program that started the run. If it is a reward "
            "function, call dojang.resume(RUN_DIR, reward_funcs=[...]) with it again. Other objects cannot be found "
            "again: put them into a module, and start a run that names them package.module:object"
        ) from None


def _importable_name(function: Callable[..., Any]) -> str:
    module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    if not module or not name.isidentifier() or module == "__main__":
        return ""
    try:
        found = getattr(sys.modules.get(module) or import_module(module), name, None)
    except ImportError:
        return ""
    return f"{module}:{name}" if found is function else ""
