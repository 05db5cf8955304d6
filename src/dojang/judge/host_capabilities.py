"""Capabilities of this machine as a judge: isolation levels, C++ toolchain, Python interpreter."""

import compileall
import json
import os
import resource
import secrets
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import dojang
from dojang.core.errors import ConfigError
from dojang.judge.interpreter import Python, find_python, is_public
from dojang.judge.languages import check_language, language
from dojang.judge.sandbox.jail import HEADERS
from dojang.judge.sandbox.syscall_policy import EXEC_FD
from dojang.judge.toolchain import Toolchain, find_toolchain
from dojang.programs import Isolation, Submission

__all__ = ["REMEDIES", "HostCapabilities", "bare_python", "probe"]

_ROOT = str(Path(dojang.__file__).parents[1])
_STRONGEST_FIRST = (Isolation.NAMESPACES, Isolation.LANDLOCK, Isolation.SECCOMP)
REMEDIES: Mapping[str, str] = {
    "namespaces": "allow user namespaces (sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces > 0; "
    "in a container: run it with CAP_SYS_ADMIN, or without the default seccomp profile)",
    "landlock": "a kernel from 5.13 on with landlock in its lsm= list",
    "seccomp": "a Linux kernel with CONFIG_SECCOMP_FILTER on x86-64 or aarch64",
    "cgroups": "optional: a writable cgroup adds a second memory limit",
}


def bare_python(entry: str, *arguments: str) -> list[str]:
    """Return a command that runs `module:function` of dojang in an interpreter with nothing else loaded."""
    _compile_sandbox()
    module, _, function = entry.partition(":")
    code = f"import sys; sys.path.insert(0, {_ROOT!r}); from {module} import {function}; {function}()"
    return [sys.executable, "-I", "-S", "-B", "-c", code, *arguments]


@cache
def _compile_sandbox() -> None:
    """Write the bytecode of the sandbox's modules, where it is missing and may be written. Otherwise each sandbox would
    compile them again, half of the time of its start: no other process imports them, and sandboxes write nothing."""
    if not sys.dont_write_bytecode:
        compileall.compile_dir(Path(__file__).parent / "sandbox", quiet=2)


def probe() -> dict[str, str]:
    """Try each isolation feature. Maps its name to an empty string, or to the reason it does not work."""
    command = bare_python("dojang.judge.sandbox.isolation_probe:main")
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        found: dict[str, str] = json.loads(result.stdout)
        return found
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return dict.fromkeys(("namespaces", "landlock", "seccomp", "cgroups"), f"cannot be tried: {error}")


@dataclass(frozen=True)
class HostCapabilities:
    """Everything the pool needs to know about its machine. Found on first use: judging Python needs no compiler."""

    requested: str
    chosen_python: str
    cache: Path
    packages: tuple[str, ...] = ()
    section: str = "judge"
    """Section of a recipe that has these settings, for errors."""

    @cached_property
    def features(self) -> dict[str, str]:
        return probe()

    @cached_property
    def isolation(self) -> Isolation:
        """The requested isolation, or with "auto" the strongest available. Never `none` unless requested."""
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if hard != resource.RLIM_INFINITY and hard <= EXEC_FD:
            raise ConfigError(
                f"the judge needs {EXEC_FD + 1} open files per process, but ulimit -Hn is {hard}; raise it"
            )
        if self.requested == Isolation.NONE:
            return Isolation.NONE
        if self.requested == "auto":
            for each in _STRONGEST_FIRST:
                if not self.features[each]:
                    return each
            remote = "Judge on another machine (`dojang judge serve` there, judge.url here)"
            elsewhere = remote if self.section == "judge" else "Use another machine"
            raise ConfigError(
                "this machine has no isolation for judged programs: "
                + "; ".join(f"{name}: {self.features[name]}" for name in _STRONGEST_FIRST)
                + f". {elsewhere}, or, if you trust every "
                f"program, set {self.section}.isolation=none"
            )
        wanted = Isolation(self.requested)
        if why := self.features[wanted]:
            raise ConfigError(
                f"{self.section}.isolation={wanted} is not available here: {why}. Remedy: {REMEDIES[wanted]}. "
                f"{self.section}.isolation=auto takes the strongest available"
            )
        return wanted

    @cached_property
    def toolchain(self) -> Toolchain | None:
        # As root, programs run under other user ids, which must be able to read the cache; namespaces mount it before.
        inside = self.isolation is Isolation.NAMESPACES
        usable = inside or os.geteuid() != 0 or is_public(str(self.cache))
        return find_toolchain(self.cache if usable else Path("/var/cache/dojang"))

    @cached_property
    def python(self) -> Python:
        private = os.geteuid() == 0 and self.isolation is not Isolation.NAMESPACES
        return find_python(self.chosen_python, private_user=private, packages=self.packages, section=self.section)

    @cached_property
    def key(self) -> bytes:
        """Secret key of the digests of expected outputs: without it a digest does not help to guess an output."""
        return secrets.token_bytes(32)

    @cached_property
    def spec(self) -> dict[str, Any]:
        """Settings sent to a worker when it starts."""
        tools = self.toolchain
        return {
            "isolation": self.isolation,
            "readable": [*(tools.readable if tools else ()), *self.python.readable],
            "listable": tools.listable if tools else (),
            "headers": _made(tools.headers) if tools else "",
            "python": self.python.command,
            "scripts": self.python.scripts,
            "paths": {"path": self.python.path, "packages": self.python.packages},
            "key": self.key.hex(),
            "cgroup": not self.features["cgroups"],
        }

    def check_supported(self, submission: Submission) -> None:
        """Raise ConfigError if this machine cannot judge the submission, whatever the program does."""
        suite = submission.test_suite
        check_language(submission.language, suite)
        if suite.checker.source and self.isolation is Isolation.SECCOMP:
            raise ConfigError(
                "a checker program reads files, which isolation seccomp forbids; judge on a machine with "
                "namespaces or Landlock"
            )

    def launch_spec(self, name: str, source: str) -> dict[str, Any]:
        """Build the settings a worker needs to compile and run a program in this language."""
        row = language(name)
        if row.kind == "python":
            return asdict(row)
        if self.toolchain is None:
            raise ConfigError(f"judging {name} needs g++, which is not on the path (Debian: apt install g++)")
        if self.toolchain.static is None and self.isolation is Isolation.SECCOMP:
            raise ConfigError(
                f"judging {name} with isolation seccomp needs static libraries (libc.a, libstdc++.a), "
                "because its programs may open no files; install them"
            )
        shared = self.toolchain.is_shared(source) and self.isolation is not Isolation.SECCOMP
        inside = self.isolation is Isolation.NAMESPACES
        commands, undeclared = self.toolchain.commands(
            source,
            row.standard,
            HEADERS if inside else self.toolchain.headers,
            shared=shared,
            audit=self.isolation in (Isolation.SECCOMP, Isolation.NONE),
        )
        return {**asdict(row), "commands": commands, "undeclared": undeclared, "shared": shared}


def _made(folder: str) -> str:
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the judge cannot write to its cache {folder}: {error.strerror}; set DOJANG_CACHE for another"
        ) from error
    return folder
