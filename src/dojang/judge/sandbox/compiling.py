"""Compiling a program inside the jail: the compiler works on hostile text and is trusted as little.

Processor time, memory and the size of what it writes are limited; nothing outside the toolchain is there to be
included. Where files outside cannot be hidden, the compiler's own list of what it read is checked afterwards.
"""

import os
import re
import resource
import signal
from collections.abc import Sequence
from contextlib import suppress

from dojang.judge.sandbox.bpf import Filter
from dojang.judge.sandbox.jail import Jail, wipe
from dojang.judge.sandbox.limits import Bounds, Watcher
from dojang.judge.sandbox.start_process import (
    Broken,
    Setting,
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
"""What the preprocessor and the assembler say they have read."""
COMPILER_MEMORY = 2 << 30
_STACK = 64 << 20
_FILE = 64 << 20
_LOG = 4000
_PROOF_S = 60.0
_PATIENCE = 20
"""Wall time is no measure of a program, but a compiler that takes this many times its limit is stuck."""


_FIRST_ERROR = re.compile(r" error: (.*)")
_UNKNOWN = re.compile(r"'(\w+)' (?:was not declared|has not been declared|does not name a type)")
_SYNTAX = re.compile(
    r"expected (?:'[^\w']+'(?: or '[^\w']+')?|primary-expression) (?:before '[^\w']+' token|at end of input)"
)


class CompileFailed(Exception):
    """The program does not compile; the message is the compiler's."""


class Compiler:
    """Turns sources into programs."""

    def __init__(
        self, jail: Jail, watcher: Watcher, filter: Filter | None, *, allowed: Sequence[str], audit: bool
    ) -> None:
        self._jail = jail
        self._watcher = watcher
        self._filter = filter
        self._allowed = (*allowed, jail.scratch)
        self._audit = audit
        self._proven = False
        self._log = memory_file()
        self._mark = os.urandom(8).hex()
        """Part of the name the compiler goes by, so that a program cannot put words into its mouth."""
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)

    def compile(
        self, source: bytes, name: str, commands: Sequence[Sequence[str]], strange: Sequence[str], cpu_s: float
    ) -> int:
        """A descriptor of the finished program. The first command that works decides; if none does, the last speaks.

        Commands differ in the headers, which know none of the `strange` words: an error about these is final.
        """
        try:
            for command in commands:
                self._write(name, source)
                if self._run(command, cpu_s):
                    program = self._take()
                    self._proven = True
                    return program
                words = self._words(name)
                wipe(self._jail.scratch)
                if is_final(words, strange):
                    break
            self._prove(name, command)
            raise CompileFailed(words or "the program includes what is not part of the toolchain")
        finally:
            wipe(self._jail.scratch)

    def _prove(self, name: str, command: Sequence[str]) -> None:
        """Before a program is blamed for the first time: a compiler that compiles nothing is the judge's failure."""
        if self._proven:
            return
        self._write(name, b"int main() { return 0; }\n")
        if not self._run(command, _PROOF_S):
            raise Broken(f"the compiler does not work here: {self._words('')}")
        self._proven = True

    def _write(self, name: str, source: bytes) -> None:
        with open(os.path.join(self._jail.scratch, name), "wb") as file:
            file.write(source)

    def _run(self, command: Sequence[str], cpu_s: float) -> bool:
        os.ftruncate(self._log, 0)
        os.lseek(self._log, 0, os.SEEK_SET)
        limits = process_limits(memory=COMPILER_MEMORY, stack=_STACK, size=_FILE, cpu_s=max(1, round(cpu_s)))
        limits[resource.RLIMIT_NOFILE] = 256
        setting = Setting(
            limits,
            directory=self._jail.scratch,
            filter=self._filter,
            ruleset=self._jail.ruleset,
            environment={"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C", "TMPDIR": self._jail.scratch},
            own_group=True,
        )
        arguments = [f"{command[0]}-{self._mark}", *command[1:]]
        pid = spawn(command[0], arguments, Streams(self._null, self._null, self._log), setting)
        patience = Bounds(cpu_s=cpu_s + 10, idle_s=_PATIENCE * cpu_s + 60, memory=COMPILER_MEMORY)
        end = self._watcher.wait(pid, patience)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        if end.killed == "idle" or self._was_killed():
            raise Broken("the compiler was stuck or killed from outside")
        return end.status == 0 and not end.killed

    def _was_killed(self) -> bool:
        return f"-{self._mark}: fatal error: Killed signal terminated".encode() in read_end(self._log, _LOG)

    def _take(self) -> int:
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

    def _words(self, name: str) -> str:
        words = read_all(self._log, _LOG).decode(errors="replace")
        words = words.replace(self._jail.scratch + "/", "").replace(f"-{self._mark}", "").strip()
        if self._audit:  # what is said about other files may quote them
            words = "\n".join(line for line in words.splitlines() if line.startswith(name))
        return words


def is_final(words: str, strange: Sequence[str]) -> bool:
    """Whether other headers cannot help: the first error, of which others may follow, is in the program itself."""
    error = _FIRST_ERROR.search(words)
    if error is None:
        return False
    unknown = _UNKNOWN.match(error[1])
    return unknown[1] in strange if unknown else bool(_SYNTAX.match(error[1]))
