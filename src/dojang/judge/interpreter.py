"""Which Python runs judged programs, and which files it needs for that."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dojang.errors import ConfigError

__all__ = ["Python", "find_python", "is_public", "libraries_of"]

_SCRIPTS = tuple(str(Path(__file__).parent / "sandbox" / name) for name in ("zygote.py", "calls.py", "forks.py"))
_ASK = """
import json, marshal, os, sys, sysconfig
def code(path):
    with open(path, encoding="utf-8") as file:
        return marshal.dumps(compile(file.read(), os.path.basename(path), "exec", optimize=2)).hex()
dynload = [path for path in sys.path if path.endswith("lib-dynload")]
names = sysconfig.get_paths()
print(json.dumps({
    "version": sys.version_info[:3],
    "paths": [names["stdlib"], names["platstdlib"], *sys.path],
    "extensions": [os.path.join(path, name) for path in dynload for name in os.listdir(path)],
    "home": sys.prefix,
    "scripts": {os.path.basename(path)[:-3]: code(path) for path in sys.argv[1:]},
}))
"""
_OLDEST = (3, 10)


@dataclass(frozen=True, slots=True)
class Python:
    """An interpreter."""

    command: tuple[str, ...]
    readable: tuple[str, ...]
    """Files and folders it must be able to read."""
    version: str
    scripts: Mapping[str, str]
    """The code of zygote.py and its parts for this interpreter. Compiling them where programs are forked from would
    leave holes in its memory, for which every fork pays."""


def find_python(chosen: str, *, private_user: bool) -> Python:
    """The interpreter at the path `chosen`, with its packages; or, if none is, the one dojang runs on, without any.

    `private_user`: it will be run by a user who can only reach what everybody can."""
    if chosen:
        return _describe(chosen, packages=True)
    candidates = [str(getattr(sys, "_base_executable", sys.executable)), "/usr/bin/python3", "/usr/local/bin/python3"]
    reachable = [path for path in candidates if os.access(path, os.X_OK) and (not private_user or is_public(path))]
    if not reachable:
        raise ConfigError(
            f"no interpreter among {', '.join(candidates)} can be reached by the user judged programs run as; "
            "name one with judge.python"
        )
    return _describe(reachable[0], packages=False)


def _describe(path: str, *, packages: bool) -> Python:
    flags = ("-s",) if packages else ("-S", "-s")
    try:
        result = subprocess.run(
            [path, *flags, "-E", "-c", _ASK, *_SCRIPTS], capture_output=True, text=True, timeout=60, check=True, cwd="/"
        )
        answer = json.loads(result.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ConfigError(f"the interpreter {path!r} for judged programs does not run: {error}") from error
    version = tuple(answer["version"])
    if version < _OLDEST:
        raise ConfigError(f"{path!r} is Python {version[0]}.{version[1]}; judged programs need 3.10 or newer")
    real = os.path.realpath(path)
    readable = [path, real, *answer["paths"], *libraries_of([real, *answer["extensions"]])]
    if packages:
        readable.append(os.path.join(answer["home"], "pyvenv.cfg"))
    found = tuple(sorted({each for each in readable if each and os.path.exists(each)}))
    if hidden := [each for each in found if each.startswith("/tmp/")]:
        raise ConfigError(f"{hidden[0]} cannot be shown to judged programs, whose /tmp is their own; move it")
    return Python((path, *flags), found, ".".join(map(str, version)), answer["scripts"])


def is_public(path: str) -> bool:
    """Whether any user may get there, by the path as written and where its links lead; or as far as it exists."""
    way = [place for start in (Path(path).absolute(), Path(path).resolve()) for place in (start, *start.parents)]
    return all(place.stat().st_mode & 0o001 for place in way if place.exists())


def libraries_of(programs: list[str]) -> list[str]:
    """The folders of the shared libraries these programs need, and the loader."""
    try:
        result = subprocess.run(["ldd", *programs], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"ldd, which tells the libraries a program needs, does not run: {error}") from error
    paths = [word for line in result.stdout.splitlines() if ":" not in line for word in line.split() if word[0] == "/"]
    loaders = [path for path in paths if os.path.basename(path).startswith("ld-")]
    return sorted({os.path.dirname(path) for path in paths if path not in loaders} | set(loaders))
