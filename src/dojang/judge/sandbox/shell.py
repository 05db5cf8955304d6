"""The worker of a shell sandbox: process 1 of its PID namespace. Copies files in and out, and runs commands.

Whatever processes a command leaves behind are killed when it ends, so nothing runs between two commands, and nothing
while files are copied. Commands run as the worker's user, but can neither trace nor signal process 1.
"""

import os
import resource
import select
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from dojang.judge.sandbox import linux, messages
from dojang.judge.sandbox.file_tree import FileTree, TooLarge, TreeLimits, read_tree, write_tree
from dojang.judge.sandbox.output_ends import OutputEnds
from dojang.judge.sandbox.process_group import GroupLimits, ProcessGroup, kill_all
from dojang.judge.sandbox.shell_jail import UNTRUSTED_SOCKET, ShellJail, shell_environment
from dojang.judge.sandbox.start_process import ProcessOptions, SandboxFailure, Streams, process_limits, spawn
from dojang.judge.sandbox.syscall_policy import shell_filter

__all__ = ["CommandEnd", "ShellWorker"]

_POLL_S = 0.05
_POLLRDHUP = 0x2000
_PIECE = 1 << 16
_STACK, _ADDRESS_SLACK, _GROUP_SLACK = 8 << 20, 2 << 30, 1 << 30
_DESCRIPTORS = 1024


@dataclass(frozen=True, slots=True)
class CommandEnd:
    """How a command ended."""

    status: int
    """Exit code; a signal is negative."""
    killed: str
    """Limit it was killed for; empty if it ended."""


class ShellWorker:
    """Serves one host process, one request at a time."""

    def __init__(self, channel: socket.socket, jail: ShellJail, memory_limit: int | None) -> None:
        self._channel = channel
        self._jail = jail
        self._memory_limit = memory_limit
        self._filter = shell_filter(os.uname().machine)
        linux.subreaper()

    def serve(self, connection: socket.socket | None) -> None:
        """Answer requests until the host closes the channel."""
        messages.send(self._channel, {"ready": True})
        while True:
            request, pieces = messages.receive(self._channel)
            answer, found = self._answer(request, pieces, connection)
            messages.send(self._channel, answer, found)
            if request["verb"] == "listen":
                self._send_listener()

    def _answer(
        self, request: Mapping[str, Any], pieces: Sequence[bytes], connection: socket.socket | None
    ) -> tuple[dict[str, Any], Sequence[bytes]]:
        match request["verb"]:
            case "put":
                write_tree(request["folder"], FileTree(request["entries"], pieces))
                return {}, ()
            case "run":
                limits = GroupLimits(**request["limits"])
                ends = OutputEnds(request["output"])
                argv, variables = request["argv"], request["environment"]
                end = self.run(argv, variables, request["folder"], limits, {1: ends}, self._channel.fileno())
                return {"status": end.status, "killed": end.killed, "total": ends.total}, (
                    bytes(ends.head),
                    bytes(ends.tail),
                )
            case "get":
                kill_all()
                try:
                    tree = read_tree(request["folder"], TreeLimits(**request["limits"]))
                except TooLarge as error:
                    return {"too_large": str(error)}, ()
                return {"entries": tree.entries, "left_out": tree.left_out}, tree.contents
            case "listen":
                return {}, ()
            case "serve_untrusted":
                from dojang.judge.sandbox.untrusted_server import serve_connection

                assert connection is not None
                serve_connection(self, self._jail, connection, request)
                return {}, ()
            case verb:
                raise SandboxFailure(f"a shell sandbox has no request {verb!r}")

    def _send_listener(self) -> None:
        """Send the host a listening socket at which this sandbox's processes ask for runs of untrusted programs."""
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(UNTRUSTED_SOCKET)
            listener.listen(64)
            socket.send_fds(self._channel, [b"\0"], [listener.fileno()])

    def run(
        self,
        argv: Sequence[str],
        variables: Mapping[str, str],
        folder: str,
        limits: GroupLimits,
        outputs: Mapping[int, OutputEnds],
        control: int,
        *,
        stdin: bytes = b"",
        kept: int | None = None,
    ) -> CommandEnd:
        """Run a command until it ends or exceeds a limit, then kill all it left behind. `outputs` has standard output
        and error, or both under 1. Stops if the other side of `control` is closed. `kept`: its descriptor 3."""
        if self._memory_limit is not None:
            with suppress(OSError):
                os.pwrite(self._memory_limit, str(limits.memory + _GROUP_SLACK).encode(), 0)
        pipes = {number: os.pipe2(os.O_CLOEXEC) for number in outputs}
        source = os.memfd_create("stdin", os.MFD_CLOEXEC)
        opened = [source, *(end for pair in pipes.values() for end in pair)]
        try:
            _write_all(source, stdin)
            os.lseek(source, 0, os.SEEK_SET)
            group = ProcessGroup(self._jail.proc)
            null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
            opened.append(null)
            out = pipes[1][1] if 1 in pipes else null
            streams = Streams(source if stdin else null, out, pipes[2][1] if 2 in pipes else out)
            pid = self._spawn(argv, variables, folder, limits, streams, kept)
            for pair in pipes.values():
                os.close(pair[1])
                opened.remove(pair[1])
            return self._watch(
                pid, group, limits, {pipes[number][0]: ends for number, ends in outputs.items()}, control
            )
        finally:
            kill_all()
            for each in opened:
                os.close(each)

    def _spawn(
        self,
        argv: Sequence[str],
        variables: Mapping[str, str],
        folder: str,
        limits: GroupLimits,
        streams: Streams,
        kept: int | None,
    ) -> int:
        memory = limits.memory + _ADDRESS_SLACK
        most = process_limits(memory, _STACK, limits.file, int(limits.cpu_s) + 1)
        most |= {resource.RLIMIT_NOFILE: _DESCRIPTORS, resource.RLIMIT_NPROC: limits.processes + 1}
        environment = {**shell_environment(self._jail), **variables}
        options = ProcessOptions(most, folder, self._filter, None, environment, kept, own_group=True)
        return spawn(argv[0], argv, streams, options)

    def _watch(
        self, pid: int, group: ProcessGroup, limits: GroupLimits, outputs: Mapping[int, OutputEnds], control: int
    ) -> CommandEnd:
        handle = os.pidfd_open(pid)
        poller = select.poll()
        for each in (handle, *outputs):
            poller.register(each, select.POLLIN)
            if each != handle:
                os.set_blocking(each, False)
        poller.register(control, _POLLRDHUP)
        try:
            killed = _wait(poller, handle, control, outputs, lambda: limits.exceeded(group.used()))
        finally:
            os.close(handle)
        if killed:
            return CommandEnd(-signal.SIGKILL, killed)
        _, status = os.waitpid(pid, 0)
        kill_all()  # the pipes end here, whichever process held them
        for each, ends in outputs.items():
            while _drain(each, ends):
                pass
        code = os.waitstatus_to_exitcode(status)
        if code == -signal.SIGXCPU:
            return CommandEnd(code, f"it ran for more than {limits.cpu_s:g} s of CPU time")
        return CommandEnd(code, "")


def _wait(
    poller: select.poll, handle: int, control: int, outputs: Mapping[int, OutputEnds], exceeded: Callable[[], str]
) -> str:
    """Read outputs until the process `handle` ends. Returns the limit that was exceeded before."""
    while True:
        ready = {each for each, _ in poller.poll(1000 * _POLL_S)}
        if control in ready:
            raise messages.Closed("the other side of the sandbox is gone")
        for each in ready & set(outputs):
            if not _drain(each, outputs[each]):
                poller.unregister(each)
        if handle in ready:
            return ""
        if killed := exceeded():
            return killed


def _drain(file: int, ends: OutputEnds) -> bool:
    """Read one piece of what has arrived; False at the end, or if nothing has."""
    try:
        piece = os.read(file, _PIECE)
    except BlockingIOError:
        return False
    ends.add(piece)
    return bool(piece)


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
