"""Rules of Python processes of a verifier: no code of the agent runs in them.

    python /app/main.py, python -m module_of_the_agent   the program runs in another sandbox
    import module_of_the_agent                           the module is imported in another sandbox, and called there
    import json                                          never the agent's: its folder comes last
    exec(open("/app/main.py").read()), runpy, conftest   refused

Loaded by sitecustomize in every interpreter of a verifier's sandbox; slow imports are made when they are needed.
"""

import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

__all__ = ["install"]

bootstrap: Any = importlib.import_module("importlib._bootstrap_external")
_RUN = "/opt/dojang/bin/run-untrusted"
_TESTS = "/tests"
_PYTEST_FILES = ("pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "pyproject.toml", "tox.ini", "setup.cfg")
_ARGUMENT = "cmWX"
"""Options of Python with an argument."""
_REMEDY = "run the agent's code with run-untrusted, or import its module by name"


def _is_copy_of_test(path: str) -> bool:
    """Whether the verifier copied this file from its tests: many run them in the working directory."""
    name = os.path.basename(path)
    for top, _, files in os.walk(_TESTS):
        if name in files:
            with open(path, "rb") as file, open(os.path.join(top, name), "rb") as test:
                if file.read() == test.read():
                    return True
    return False


def _plain(text: bytes) -> bytes:
    """A text as it is after it was read in text mode and stripped."""
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").strip()


class _Rules:
    """The rules for one working directory."""

    def __init__(self, workdir: str) -> None:
        self._workdir = workdir
        self._runner: Any = None
        self._texts: set[int] | None = None
        self._load = bootstrap._LoaderBasics.exec_module

    def is_agents(self, path: object) -> bool:
        """Whether a path, such as that of a code object, is in the agent's folder."""
        if not isinstance(path, str) or (path.startswith("<") and not os.path.exists(path)):
            return False
        real = os.path.realpath(path)
        return real.startswith(self._workdir + "/") and not _is_copy_of_test(real)

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> Any:
        """Find modules in other folders first, wherever the agent's is on sys.path (a finder of sys.meta_path)."""
        if path is not None:
            return None
        others = [each for each in sys.path if each and not self.is_agents(os.path.join(each, "module"))]
        return bootstrap.PathFinder.find_spec(name, others)

    def exec_module(self, loader: Any, module: ModuleType) -> None:
        """Import a module; one of the agent's becomes a view of that module in another sandbox."""
        path = getattr(loader, "path", "")
        if not self.is_agents(path):
            self._load(loader, module)
            return
        runner = self._connected()
        where = f"{module.__name__}\n{os.path.realpath(path)}"
        remote = runner.ask("name", where)
        names = runner.ask("name", f"{where}\nnames")
        public = [name for name in names if isinstance(name, str) and not name.startswith("_")]
        module.__dict__.update(__getattr__=lambda name: runner.ask("get", remote, (name,)), __all__=public)

    def _connected(self) -> Any:
        if self._runner is None:
            from dojang.judge.sandbox import function_calls, handles, untrusted_client

            self._connection = untrusted_client.connect({"modules": True})
            self._runner = function_calls.AssertionRunner(self._connection.fileno(), handles)
        return self._runner

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Refuse to execute code of the agent in this process (an audit hook, which cannot be removed)."""
        if event == "exec" and self.is_agents(getattr(arguments[0], "co_filename", "")):
            raise ImportError(f"{arguments[0].co_filename} may not run in a verifier's process; {_REMEDY}")
        if event == "compile" and arguments[1] == "<string>" and self._is_copied(arguments[0]):
            raise ImportError(f"a file of the agent may not run in a verifier's process; {_REMEDY}")

    def _is_copied(self, source: object) -> bool:
        """Whether a source text is the whole of one of the agent's files, but for line ends and white space around."""
        data = source.encode("utf-8", "surrogateescape") if isinstance(source, str) else source
        if not isinstance(data, bytes) or not data.strip():
            return False
        if self._texts is None:
            self._texts = set()
            for top, _, files in os.walk(self._workdir):
                for path in (os.path.join(top, name) for name in files):
                    if os.path.isfile(path):
                        with open(path, "rb") as file:
                            self._texts.add(hash(_plain(file.read())))
        return hash(_plain(data)) in self._texts

    def hand_over_program(self) -> None:
        """Run the program of this process in another sandbox, if it is the agent's. Does not return then."""
        words = sys.orig_argv[1:]
        while words and words[0].startswith("-") and len(words[0]) > 1:
            option, *words = words
            letter = next((each for each in option[1:] if each in _ARGUMENT), "")
            if not option.startswith("--") and letter:
                given = option.partition(letter)[2] or (words.pop(0) if words else "")
                if letter == "m":
                    self._hand_over_module(given)
                if letter in "cm":
                    return
        if not words or words[0] == "-":
            return
        if self.is_agents(words[0]) or os.path.realpath(words[0]) == self._workdir:
            os.execv(_RUN, [_RUN, "python3", *sys.orig_argv[1:]])
        sys.path.insert(0, os.path.dirname(os.path.realpath(words[0])))  # as without PYTHONSAFEPATH

    def _hand_over_module(self, name: str) -> None:
        top = name.partition(".")[0]
        if self.find_spec(top) is None and top not in sys.builtin_module_names:
            spec = bootstrap.PathFinder.find_spec(top)
            places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
            if any(self.is_agents(each) or each == self._workdir for each in places):
                os.execv(_RUN, [_RUN, "python3", *sys.orig_argv[1:]])


def _ignore_pytest_files(workdir: str) -> None:
    """Have pytest take its settings from the tests, or from nowhere, if the agent's folder has some."""
    if any(name in files for _, _, files in os.walk(workdir) for name in _PYTEST_FILES):
        own = [path for name in _PYTEST_FILES if os.path.exists(path := os.path.join(_TESTS, name))]
        given = os.environ.get("PYTEST_ADDOPTS", "")
        os.environ["PYTEST_ADDOPTS"] = f"-c {(own or ['/dev/null'])[0]} --rootdir {os.getcwd()} {given}"


def install() -> None:
    """Install the rules in this process."""
    rules = _Rules(os.path.realpath(os.environ["DOJANG_WORKDIR"]))
    sys.path.append(os.environ["DOJANG_WORKDIR"])
    sys.meta_path.insert(sys.meta_path.index(bootstrap.PathFinder), rules)
    bootstrap._LoaderBasics.exec_module = lambda loader, module: rules.exec_module(loader, module)
    sys.addaudithook(rules.audit)
    rules.hand_over_program()
    _ignore_pytest_files(os.environ["DOJANG_WORKDIR"])
