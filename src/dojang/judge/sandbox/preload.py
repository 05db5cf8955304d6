"""Imports modules before the fork and hides them until a program imports them.

A program must find the same modules in `sys.modules` as `python3 main.py`, and no more: `import importlib` does not
load `importlib.util`. So preloaded modules are removed from `sys.modules` again. For a module missing there, the
interpreter calls `importlib._bootstrap._find_and_load`. Here that function restores a preloaded module, together with
all modules that importing it loads.

The first script the warm interpreter runs. It imports nothing, so that every later import is recorded.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import types
    from collections.abc import Iterable
    from typing import Any

__all__ = ["Preloaded"]

_FIND_AND_LOAD = """
def make(hidden, reveal, load):
    def _find_and_load(name, import_):
        return reveal(name, import_) if name in hidden else load(name, import_)
    return _find_and_load
"""
_FILE = "<frozen importlib._bootstrap>"
"""File name of that function: the interpreter omits its frames from tracebacks."""


class Preloaded:
    """Records imports from its creation on, and hides the imported modules before programs run."""

    def __init__(self, plain: frozenset[str]) -> None:
        self._plain = plain
        """Modules that `python3 main.py` has loaded."""
        self._hidden: dict[str, types.ModuleType] = {}
        self._brings: dict[str, list[str]] = {}
        """Module -> other modules that importing it loads."""
        self._attributes: dict[str, tuple[types.ModuleType, str]] = {}
        """Submodules that importing their package does not load: the package and the attribute."""
        self._loading: set[str] = set()
        self._again = False
        self._bootstrap: Any = sys.modules["_frozen_importlib"]
        self._load = self._bootstrap._find_and_load
        self._patch(_Everything(), self._record)

    def load(self, names: Iterable[str]) -> None:
        """Import these modules, except those that cannot be imported."""
        for name in names:
            try:  # noqa: SIM105  # contextlib would have to be imported
                __import__(name)
            except ImportError:
                pass

    def hide(self, *, again: bool) -> None:
        """Hide the imported modules. `again`: a module that a program deletes can be imported again, from its file."""
        self._again = again
        self._hide_all()
        if self._attributes:  # already hidden once
            for parent, child in self._attributes.values():
                vars(parent).pop(child, None)
            return
        for name, module in list(self._hidden.items()):
            package, _, child = name.rpartition(".")
            owner = self._hidden.get(package) or sys.modules.get(package)
            if owner is not None and name not in self._brings.get(package, ()) and vars(owner).get(child) is module:
                delattr(owner, child)
                self._attributes[name] = (owner, child)
        self._patch(self._hidden, self._reveal)

    def reveal_all(self) -> None:
        """Restore all modules, for the judge's code, which may need any of them."""
        sys.modules.update(self._hidden)
        for name, (parent, child) in self._attributes.items():
            setattr(parent, child, self._hidden[name])

    def _patch(self, hidden: Any, reveal: Any) -> None:
        names: dict[str, Any] = {}
        exec(compile(_FIND_AND_LOAD, _FILE, "exec"), names)
        self._bootstrap._find_and_load = names["make"](hidden, reveal, self._load)

    def _hide_all(self) -> list[str]:
        names = [name for name in sys.modules if name not in self._plain and name not in self._loading]
        for name in names:
            self._hidden[name] = sys.modules.pop(name)
        return names

    def _record(self, name: str, import_: Any) -> Any:
        """Load a module with all others hidden except those being loaded, so that everything it needs is recorded."""
        if name in self._brings:
            return self._reveal(name, import_)
        visible, outer = self._hide_all(), set(self._loading)
        begun = {each for each in outer if each in sys.modules}
        self._loading.add(name)
        try:
            module = self._load(name, import_)
        finally:
            self._loading = outer
            loaded = [each for each in sys.modules if each not in self._plain and each not in begun]
            for each in visible:
                sys.modules.setdefault(each, self._hidden[each])
        self._brings[name] = [each for each in loaded if each != name]
        return module

    def _reveal(self, name: str, import_: Any) -> Any:
        """Restore a module in sys.modules, with the modules it loads."""
        modules, hidden = sys.modules, self._hidden
        package = name.rpartition(".")[0]
        if package and package not in modules:
            import_(package)
            if name in modules:
                return modules[name]
        for each in (*self._brings.get(name, ()), name):
            if each not in modules and each in hidden:
                modules[each] = hidden[each]
                if each in self._attributes:
                    setattr(*self._attributes[each], hidden[each])
                if self._again:
                    del hidden[each]
        return modules[name]


class _Everything:
    """Contains every name."""

    def __contains__(self, _: object) -> bool:
        return True
