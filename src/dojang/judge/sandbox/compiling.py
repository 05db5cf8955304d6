"""Compiles a program inside the jail. The compiler reads hostile text, so it is trusted no more than a program.

CPU time, memory and file size are limited, and the jail shows nothing outside the toolchain. At isolation levels that
cannot hide other files, the compiler's dependency list is checked afterwards.
"""

import os
import re
import resource
import signal
from collections.abc import Sequence
from contextlib import suppress

from dojang.judge.sandbox.bpf import Filter
from dojang.judge.sandbox.jail import Jail, wipe
from dojang.judge.sandbox.limits import LimitsWatcher, ResourceLimits
from dojang.judge.sandbox.start_process import (
    ProcessOptions,
    SandboxFailure,
    Streams,
    memory_file,
    process_limits,
    read_all,
    read_end,
    spawn,
)

__all__ = ["BINARY", "COMPILER_MEMORY", "DEPENDENCIES", "CompileFailed", "Compiler", "is_final"]

BINARY = "a.out"
DEPENDENCIES = ("a.d", "a.s.d")
"""Dependency files written by the preprocessor and the assembler."""
COMPILER_MEMORY = 2 << 30
_STACK = 64 << 20
_FILE = 64 << 20
_LOG = 4000
_CHECK_S = 60.0
_PATIENCE = 20
"""Factor on the CPU limit: wall time after which the compiler counts as stuck."""


_FIRST_ERROR = re.compile(r" error: (.*)")
_UNKNOWN = re.compile(r"'(\w+)' (?:was not declared|has not been declared|does not name a type)")
_SYNTAX = re.compile(
    r"expected (?:'[^\w']+'(?: or '[^\w']+')?|primary-expression) (?:before '[^\w']+' token|at end of input)"
)


class CompileFailed(Exception):
    """The program does not compile; the message is the compiler's."""


class Compiler:
    """Compiles sources to binaries."""

    def __init__(
        self, jail: Jail, watcher: LimitsWatcher, filter: Filter | None, *, allowed: Sequence[str], audit: bool
    ) -> None:
        self._jail = jail
        self._watcher = watcher
        self._filter = filter
        self._allowed = (*allowed, jail.scratch)
        self._audit = audit
        self._proven = False
        self._log = memory_file()
        self._mark = os.urandom(8).hex()
        """Random part of the compiler's name in messages, so that a program cannot forge them."""
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)

    def compile(
        self, source: bytes, name: str, commands: Sequence[Sequence[str]], undeclared: Sequence[str], cpu_s: float
    ) -> int:
        """Return a descriptor of the binary. Commands are tried in turn; if all fail, the last error counts.

        Commands differ in their precompiled headers, which know none of the `undeclared` names: an error about those is
        final.
        """
        try:
            for command in commands:
                self._write(name, source)
                if self._run(command, cpu_s):
                    program = self._open_binary()
                    self._proven = True
                    return program
                messages = self._messages(name)
                wipe(self._jail.scratch)
                if is_final(messages, undeclared):
                    break
            self._check_compiler(name, command)
            raise CompileFailed(messages or "the program includes a file that is not part of the toolchain")
        finally:
            wipe(self._jail.scratch)

    def _check_compiler(self, name: str, command: Sequence[str]) -> None:
        """Compile a trivial program before the first program is blamed: if that fails, the judge is broken."""
        if self._proven:
            return
        self._write(name, b"int main() { return 0; }\n")
        if not self._run(command, _CHECK_S):
            raise SandboxFailure(f"the compiler does not work here: {self._messages('')}")
        self._proven = True

    def _write(self, name: str, source: bytes) -> None:
        with open(os.path.join(self._jail.scratch, name), "wb") as file:
            file.write(source)

    def _run(self, command: Sequence[str], cpu_s: float) -> bool:
        os.ftruncate(self._log, 0)
        os.lseek(self._log, 0, os.SEEK_SET)
        limits = process_limits(memory=COMPILER_MEMORY, stack=_STACK, size=_FILE, cpu_s=max(1, round(cpu_s)))
        limits[resource.RLIMIT_NOFILE] = 256
        options = ProcessOptions(
            limits,
            directory=self._jail.scratch,
            filter=self._filter,
            ruleset=self._jail.ruleset,
            environment={"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C", "TMPDIR": self._jail.scratch},
            own_group=True,
        )
        arguments = [f"{command[0]}-{self._mark}", *command[1:]]
        pid = spawn(command[0], arguments, Streams(self._null, self._null, self._log), options)
        patience = ResourceLimits(cpu_s=cpu_s + 10, idle_s=_PATIENCE * cpu_s + 60, memory=COMPILER_MEMORY)
        end = self._watcher.wait(pid, patience)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        if end.killed == "idle" or self._was_killed():
            raise SandboxFailure("the compiler was stuck or killed from outside")
        return end.status == 0 and not end.killed

    def _was_killed(self) -> bool:
        return f"-{self._mark}: fatal error: Killed signal terminated".encode() in read_end(self._log, _LOG)

    def _open_binary(self) -> int:
        if self._audit:
            self._check_what_was_read()
        try:
            with open(os.path.join(self._jail.scratch, BINARY), "rb") as file:
                return memory_file(file.read(), sealed=True)
        except FileNotFoundError:
            raise CompileFailed("the compiler produced no program") from None

    def _check_what_was_read(self) -> None:
        for name in DEPENDENCIES:
            with suppress(FileNotFoundError), open(os.path.join(self._jail.scratch, name), errors="replace") as file:
                for word in re.split(r"(?<!\\)\s+", file.read().replace("\\\n", " ")):
                    path = os.path.realpath(os.path.join(self._jail.scratch, word.replace("\\ ", " ")))
                    if word and not word.endswith(":") and not self._may_read(path):
                        raise CompileFailed(f"the program includes {word}, which is not part of the toolchain")

    def _may_read(self, path: str) -> bool:
        return any(path == place or path.startswith(place.rstrip("/") + "/") for place in self._allowed)

    def _messages(self, name: str) -> str:
        messages = read_all(self._log, _LOG).decode(errors="replace")
        messages = messages.replace(self._jail.scratch + "/", "").replace(f"-{self._mark}", "").strip()
        if self._audit:  # messages about other files may quote them
            messages = "\n".join(line for line in messages.splitlines() if line.startswith(name))
        return messages


def is_final(messages: str, undeclared: Sequence[str]) -> bool:
    """Whether other headers cannot help: the first error is in the program itself."""
    error = _FIRST_ERROR.search(messages)
    if error is None:
        return False
    unknown = _UNKNOWN.match(error[1])
    return unknown[1] in undeclared if unknown else bool(_SYNTAX.match(error[1]))
