"""Finds the Python interpreter for judged programs and the files it needs."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dojang.core.errors import ConfigError
from dojang.judge.libraries import shared_libraries

__all__ = ["Python", "find_python", "is_public"]

_PARTS = ("preload", "zygote", "startup", "frames", "forks", "ending", "names", "handles", "function_calls")
_SCRIPTS = tuple(str(Path(__file__).parent / "sandbox" / f"{name}.py") for name in _PARTS)
_ASK = """
import glob, json, marshal, os, site, sys, sysconfig
from importlib.machinery import PathFinder
asked = json.loads(sys.argv[1])
def code(path):
    with open(path, encoding="utf-8") as file:
        return marshal.dumps(compile(file.read(), os.path.basename(path), "exec", optimize=2)).hex()
del sys.path[0]
standard, names = list(sys.path), sysconfig.get_paths()
if sys.flags.no_site:
    site.addpackage = site.execsitecustomize = site.execusercustomize = lambda *_: None
    site.main()
same = asked["version"] == list(sys.version_info[:2])
elsewhere = [path for path in asked["folders"] if same and path not in sys.path]
found = {}
for name in asked["packages"]:
    spec = None if name in sys.stdlib_module_names else PathFinder.find_spec(name, sys.path + elsewhere)
    if spec is not None:
        inside = list(spec.submodule_search_locations or [spec.origin])
        folder = os.path.dirname(inside[0])
        inside += glob.glob(os.path.join(folder, name + ".libs"))
        found[name] = {"folder": folder, "inside": inside}
dynload = [path for path in sys.path if path.endswith("lib-dynload")]
extensions = [os.path.join(path, name) for path in dynload for name in os.listdir(path)]
for each in found.values():
    for path in each["inside"]:
        extensions += glob.glob(os.path.join(path, "**", "*.so*"), recursive=True) if os.path.isdir(path) else [path]
customize = getattr(sys.modules.get("sitecustomize"), "__file__", None)
print(json.dumps({
    "customize": customize and os.path.realpath(customize),
    "version": sys.version_info[:3],
    "paths": [names["stdlib"], names["platstdlib"], *standard],
    "path": sys.path,
    "added": [path for path in sys.path if path not in standard],
    "found": found,
    "extensions": [path for path in extensions if ".so" in os.path.basename(path)],
    "home": sys.prefix,
    "scripts": {os.path.basename(path)[:-3]: code(path) for path in asked["scripts"]},
}))
"""
_OLDEST = (3, 10)
_LOCALES = ("/usr/lib/locale/C.utf8", "/usr/lib/locale/C.UTF-8")
"""Files that the C library reads for the locale C.UTF-8, in which programs run."""


@dataclass(frozen=True, slots=True)
class Python:
    """An interpreter for judged programs."""

    command: tuple[str, ...]
    readable: tuple[str, ...]
    """Files and folders it must be able to read."""
    version: str
    scripts: Mapping[str, str]
    """Bytecode of zygote.py and its parts for this interpreter. Compiling them in the zygote would fragment its
    memory, at a cost for every fork."""
    path: tuple[str, ...]
    """`sys.path` of its programs, after their directory."""
    packages: Mapping[str, Sequence[str]]
    """Folder -> files of the packages that programs may import from it; other folders are unrestricted."""


def find_python(chosen: str, *, private_user: bool, packages: Sequence[str] = (), section: str = "judge") -> Python:
    """Find the interpreter at path `chosen` with all its packages, or by default dojang's interpreter with
    `packages`.

    `private_user`: a user runs it who can only read public files. `section`: of the recipe that has the settings.
    """
    if chosen:
        return _describe(chosen, packages, every=True, private_user=private_user, section=section)
    candidates = [str(getattr(sys, "_base_executable", sys.executable)), "/usr/bin/python3", "/usr/local/bin/python3"]
    reachable = [path for path in candidates if os.access(path, os.X_OK) and (not private_user or is_public(path))]
    if not reachable:
        raise ConfigError(
            f"no interpreter among {', '.join(candidates)} can be reached by the user judged programs run as; "
            f"name one with {section}.python"
        )
    return _describe(reachable[0], packages, every=False, private_user=private_user, section=section)


def _describe(path: str, packages: Sequence[str], *, every: bool, private_user: bool, section: str) -> Python:
    """Describe an interpreter. `every`: its programs may import all of its packages."""
    flags = ("-s",) if every else ("-S", "-s")
    # Package folders of dojang's interpreter, for example those of a virtual environment.
    own = [folder for folder in sys.path if os.path.basename(folder) in ("site-packages", "dist-packages")]
    folders = [] if every else own
    asked = {"scripts": _SCRIPTS, "packages": packages, "folders": folders, "version": sys.version_info[:2]}
    try:
        result = subprocess.run(
            [path, *flags, "-E", "-c", _ASK, json.dumps(asked)],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            cwd="/",
        )
        answer = json.loads(result.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        setting = f"{section}.python: " if every else ""
        raise ConfigError(f"{setting}the interpreter {path!r} for judged programs does not run: {error}") from error
    version = tuple(answer["version"])
    if version < _OLDEST:
        raise ConfigError(f"{path!r} is Python {version[0]}.{version[1]}; judged programs need 3.10 or newer")
    real = os.path.realpath(path)
    shown = _shown(path, packages, answer["found"], version, private_user=private_user, section=section)
    readable = [path, real, *answer["paths"], *shared_libraries([real, *answer["extensions"]]), *shown, *_LOCALES]
    if every:
        readable += [os.path.join(answer["home"], "pyvenv.cfg"), answer["customize"]]
    found = tuple(sorted({each for each in readable if each and os.path.exists(each)}))
    if hidden := [each for each in found if each.startswith("/tmp/")]:
        raise ConfigError(f"{hidden[0]} cannot be used by judged programs, which have a private /tmp; move it")
    allowed: dict[str, list[str]] = {} if every else {folder: [] for folder in answer["added"]}
    for each in answer["found"].values():
        if not every:
            allowed.setdefault(each["folder"], []).append(os.path.basename(each["inside"][0]))
    import_path = (*answer["path"], *(folder for folder in allowed if folder not in answer["path"]))
    command = (path, *flags)
    return Python(command, found, ".".join(map(str, version)), answer["scripts"], import_path, allowed)


def _shown(
    path: str,
    packages: Sequence[str],
    found: Mapping[str, Any],
    version: tuple[int, ...],
    *,
    private_user: bool,
    section: str,
) -> list[str]:
    """Files of the packages that programs may import. Raises ConfigError if one is missing."""
    places = path if path == sys.executable or version[:2] != sys.version_info[:2] else f"{path} or {sys.executable}"
    if missing := [name for name in packages if name not in found]:
        raise ConfigError(
            f"{section}.packages: {', '.join(map(repr, missing))} not found among the packages of {places} (the "
            "standard library needs no permission); install what is missing there, and use the name programs import"
        )
    shown = [each for name in packages for each in found[name]["inside"]]
    if private_user and (hidden := [each for each in shown if not is_public(each)]):
        raise ConfigError(
            f"{section}.packages: {hidden[0]} cannot be read by the user judged programs run as; install the package "
            "where every user can read it, or use isolation namespaces"
        )
    return shown


def is_public(path: str) -> bool:
    """Whether every user can read the path, as written and after following links, as far as it exists."""
    way = [place for start in (Path(path).absolute(), Path(path).resolve()) for place in (start, *start.parents)]
    return all(place.stat().st_mode & 0o001 for place in way if place.exists())
