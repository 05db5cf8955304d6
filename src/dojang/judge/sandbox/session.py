"""An interactive session: one Python process in the sandbox that runs pieces of code and keeps its variables.

The process is stopped (SIGSTOP) between two pieces, so threads it left behind cost nothing. A piece that exceeds a
limit ends it; the next piece starts a new one. That is the code's own doing and told to the caller; everything else
that goes wrong is a SandboxFailure.
"""

import os
import signal
import struct
from contextlib import closing, suppress

from dojang.judge.sandbox.limits import LimitsWatcher, ResourceLimits, Usage
from dojang.judge.sandbox.run_test import RunLimits, Runner, Script
from dojang.judge.sandbox.start_process import SandboxFailure

__all__ = ["Session"]

_LENGTH = struct.Struct("<I")
_MOST_ANSWER = 1 << 20
_REASONS = {
    "cpu": "it ran for more than {limits.cpu_s:g} s of CPU time",
    "idle": "it waited for more than {limits.idle_s:g} s",
    "memory": "it used more than {megabytes} MB of memory",
}


class _Ended(Exception):
    """The process ended, or was killed at a limit; the message says why."""


class Session:
    """At most one process at a time; started on first use, and again after it ended."""

    def __init__(self, runner: Runner, watcher: LimitsWatcher, driver: bytes) -> None:
        self._runner = runner
        self._watcher = watcher
        self._driver = driver
        self._pid = 0
        self._requests = self._answers = -1

    def run(self, code: bytes, limits: RunLimits) -> tuple[bytes, str]:
        """Run a piece of code. Returns its output, and why the process ended, if it did."""
        if not self._pid:
            self._start(limits)
        try:
            return self._ask(code, limits), ""
        except _Ended as error:
            return b"", str(error)

    def _start(self, limits: RunLimits) -> None:
        theirs_in, self._requests = os.pipe2(os.O_CLOEXEC)
        self._answers, theirs_out = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._requests, False)
        try:
            with closing(Script(self._driver)) as script:
                self._pid = self._runner.start(script, theirs_in, theirs_out, limits)
        finally:
            os.close(theirs_in)
            os.close(theirs_out)

    def _ask(self, code: bytes, limits: RunLimits) -> bytes:
        since = self._watcher.usage(self._pid)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGCONT)
        request = _LENGTH.pack(len(code)) + code
        try:
            if os.write(self._requests, request) < len(request):
                raise BlockingIOError
        except (BlockingIOError, BrokenPipeError):  # it does not read its requests any more
            raise self._end("it does not answer", killed=True) from None
        size = _LENGTH.unpack(self._read(_LENGTH.size, limits, since))[0]
        if size > _MOST_ANSWER:
            raise self._end("it does not answer", killed=True)
        answer = self._read(size, limits, since)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGSTOP)
        return answer

    def _read(self, size: int, limits: RunLimits, since: Usage) -> bytes:
        data = b""
        most = ResourceLimits(limits.cpu_s, limits.idle_s, limits.memory)
        while len(data) < size:
            if exceeded := self._watcher.wait_for(self._pid, self._answers, most, since):
                reason = _REASONS[exceeded].format(limits=limits, megabytes=limits.memory >> 20)
                raise self._end(reason, killed=True)
            if not (piece := os.read(self._answers, size - len(data))):
                raise self._end("it ended", killed=False)
            data += piece
        return data

    def _end(self, reason: str, *, killed: bool) -> _Ended:
        """End the process and say why it had to, or how it ended itself."""
        if killed:
            os.kill(self._pid, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        os.close(self._requests)
        os.close(self._answers)
        self._pid = 0
        code = os.waitstatus_to_exitcode(status)
        if not killed:
            self._runner.check_report()
            if code == -signal.SIGKILL:  # not by us: the kernel was out of memory, and any process may have caused it
                raise SandboxFailure("an interpreter was killed from outside")
            reason += f" with exit code {code}" if code >= 0 else f" with signal {-code} ({signal.strsignal(-code)})"
        return _Ended(reason)
