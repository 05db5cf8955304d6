"""Imports an agent's modules and answers a verifier's calls of them. The program of a sandbox for untrusted code."""

import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

from dojang.judge.sandbox import function_calls

__all__ = ["main"]

_CHANNEL = 3


class _Frames:
    @staticmethod
    def without(call: Any, *arguments: Any) -> Any:
        return call(*arguments)


class _Modules:
    @staticmethod
    def find(_: ModuleType, target: str) -> Any:
        """Import the module `NAME\\nFILE`; with a third line, list its names."""
        name, file, *listed = target.split("\n")
        if listed:
            return list(vars(sys.modules[name]))
        if name in sys.modules and getattr(sys.modules[name], "__file__", None) == file:
            return sys.modules[name]
        home = os.path.dirname(file)
        package = os.path.basename(file) == "__init__.py"
        for folder in (os.path.dirname(home) if package else home, os.getcwd()):
            if folder not in sys.path:
                sys.path.append(folder)
        spec = importlib.util.spec_from_file_location(
            name, file, submodule_search_locations=[home] if package else None
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"{file} is no Python module")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            sys.modules.pop(name, None)
            raise
        return sys.modules.get(name, module)


class _Parts:
    frames = _Frames
    names = _Modules


def main() -> None:
    """Serve the connection at descriptor 3."""
    function_calls.serve(ModuleType("modules"), compile("", "modules", "exec"), _CHANNEL, _Parts)
