"""Makes the warm interpreter look as `python3 main.py` does when it starts.

Part of zygote.py: imports the standard library only.
"""

from __future__ import annotations

import builtins
import ctypes
import io
import os
import signal
import site
import sys
import threading
import types
from importlib.machinery import FileFinder, SourceFileLoader
from typing import Any

__all__ = ["Main", "begin"]

_FLAGS = {"dont_write_bytecode": 0, "no_user_site": 0, "no_site": 0, "hash_randomization": 1}
"""Flags that differ because the warm interpreter starts without site packages and with a fixed hash seed."""
_FLAGS_AT = 24
"""Offset of a tuple's first item."""
_OWN_VARIABLES = ("LD_BIND_NOW", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED")
_PTR_SIZE = ctypes.sizeof(ctypes.c_void_p)


def begin(setup: Any) -> None:
    """Set `sys`, `site`, the environment and the signals as `python3 main.py` has them."""
    for name in _OWN_VARIABLES:
        os.environ.pop(name, None)
    os.environ["HOME"] = os.environ["TMPDIR"] = setup["directory"]
    os.chdir(setup["directory"])
    for name, value in _FLAGS.items():
        at = sys.flags.__match_args__.index(name)
        ctypes.c_void_p.from_address(id(sys.flags) + _FLAGS_AT + _PTR_SIZE * at).value = id(value)
    _open_stderr()
    sys.dont_write_bytecode = False
    sys.orig_argv = [setup["command"], "main.py"]
    _run_site(setup["packages"])
    sys.path[:] = [setup["directory"], *setup["path"]]
    # SIGXFSZ ends a program, although Python believes, as everywhere, that it is ignored.
    ctypes.CDLL(None).signal(signal.SIGXFSZ, None)
    main = threading.main_thread()
    main.__class__ = _main_thread(type(main))


def _open_stderr() -> None:
    """Create sys.stderr while descriptor 2 is a file, as a program's is; this process's may be anything."""
    known: Any = sys
    before, kept = known.stderr, os.dup(2)
    os.dup2(0, 2)
    try:
        binary: Any = open(2, "wb", closefd=False)  # noqa: SIM115
        binary.raw.name = "<stderr>"
        stream: Any = io.TextIOWrapper(binary, before.encoding, before.errors, "\n", line_buffering=True)
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    stream.mode = "w"
    known.stderr = known.__stderr__ = stream


def _run_site(packages: Any) -> None:
    """Run the module site as the interpreter does, without reading the files of packages."""
    nothing: Any = lambda *_: None  # noqa: E731
    own: Any = site
    if sys.flags.no_site == 0 and hasattr(builtins, "exit"):  # the interpreter was started with its packages
        own.ENABLE_USER_SITE = sys.prefix == sys.base_prefix
    else:
        own.addpackage = own.execsitecustomize = own.execusercustomize = nothing
        own.main()
    own.USER_BASE = own.USER_SITE = None
    own.getusersitepackages()
    for folder, names in packages.items():
        sys.path_importer_cache[folder] = _Allowed(folder, names)


class _Allowed:
    """Finds the packages of one folder that programs may import."""

    def __init__(self, folder: str, files: list[str]) -> None:
        self._folder = folder
        self._files = set(files)
        self._names = {file.partition(".")[0] for file in files}
        self._finder: Any = None

    def find_spec(self, name: str, target: types.ModuleType | None = None) -> Any:
        if name not in self._names:
            return None
        if self._finder is None:
            self._finder = _file_finder(self._folder)
            self._finder._fill_cache = lambda: None  # programs may not be able to read the folder
            self._finder._path_cache = self._finder._relaxed_path_cache = self._files
        return self._finder.find_spec(name, target)

    def invalidate_caches(self) -> None:
        self._finder = None


def _file_finder(folder: str) -> Any:
    hooks: list[Any] = sys.path_hooks
    for hook in hooks:
        try:
            finder = hook(folder)
        except ImportError:
            continue
        if isinstance(finder, FileFinder):
            return finder
    raise ImportError(f"{folder} cannot be read")


def _main_thread(base: type) -> Any:
    """Main thread object that looks up its native id on demand: a forked child has another one."""
    named = {"native_id": property(lambda _: os.getpid()), "__module__": base.__module__}
    return type(base.__name__, (base,), named)


class Main:
    """Creates new `__main__` modules, which the program's garbage collector tracks."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.file = os.path.join(directory, "main.py")
        self._loader = SourceFileLoader("__main__", self.file)
        self._annotations = "__annotations__" in vars(sys.modules["__main__"])
        self._next: list[dict[str, Any]] = []

    def make(self) -> None:
        """Create `__main__` for the next program: before the fork, so that a program need not copy its memory, and
        after `gc.freeze`, so that the garbage collector tracks it."""
        self._next = [self.new()]

    def take(self) -> dict[str, Any]:
        """Hand over the names of the prepared `__main__`. Only the program holds them, so they end with it."""
        return self._next.pop()

    def new(self) -> dict[str, Any]:
        """Names of a new `__main__`."""
        module = types.ModuleType("__main__")
        names = module.__dict__
        names["__loader__"] = self._loader
        if self._annotations:
            names["__annotations__"] = {}
        names["__builtins__"] = builtins
        names["__file__"] = self.file
        names["__cached__"] = None
        sys.modules["__main__"] = module
        return names
