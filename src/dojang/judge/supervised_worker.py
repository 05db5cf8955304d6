"""A worker process under its supervisor (sandbox/supervisor.py): starts it, exchanges messages, ends it."""

import os
import socket
import struct
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from dojang.judge.host_capabilities import bare_python
from dojang.judge.sandbox import messages
from dojang.judge.sandbox.cleanup import sweep

__all__ = ["SupervisedWorker", "WorkerFailed"]


class WorkerFailed(Exception):
    """The worker, not the program, failed."""


class SupervisedWorker:
    """One worker process. The caller must close it; after WorkerFailed it cannot be used again."""

    def __init__(self, spec: Mapping[str, Any], timeout_s: float, connection: int | None = None) -> None:
        """`timeout_s`: longest time until the next message. `connection`: a socket that the worker inherits."""
        self._timeout_s = timeout_s
        self.channel, theirs = socket.socketpair()
        inherited = [theirs.fileno(), *([] if connection is None else [connection])]
        arguments = [str(inherited[0]), str(os.getpid()), *map(str, inherited[1:])]
        try:
            # Popen uses vfork. A fork would copy the page tables of a process as large as a trainer.
            self._process = subprocess.Popen(
                bare_python("dojang.judge.sandbox.supervisor:main", *arguments),
                pass_fds=inherited,
                stdin=subprocess.PIPE,  # closed to end the supervisor: a stopped worker reads no channel
                stdout=subprocess.DEVNULL,
                cwd="/",
                env={name: os.environ[name] for name in ("TMPDIR",) if name in os.environ},
                process_group=0,  # a Ctrl-C in the terminal is for the trainer, not for judged programs
            )
        except OSError as error:
            self.channel.close()
            raise WorkerFailed(f"a worker could not be started: {error}") from error
        finally:
            theirs.close()
        self.channel.settimeout(timeout_s)
        try:
            messages.send(self.channel, spec)
            self.receive()
        except BaseException as error:
            self.close()
            if isinstance(error, messages.Closed | OSError):
                raise WorkerFailed(f"a worker could not be started: {error}") from error
            raise

    def receive(self) -> tuple[dict[str, Any], list[bytes]]:
        """Return the worker's next message. Raises WorkerFailed if it has failed or is gone."""
        try:
            answer, pieces = messages.receive(self.channel)
        except messages.Closed as error:
            raise WorkerFailed(f"the worker died: {error}") from error
        except (ValueError, struct.error) as error:
            raise WorkerFailed(f"the worker sent an invalid message: {error}") from error
        except TimeoutError as error:
            raise WorkerFailed(f"the worker sent nothing for {self._timeout_s:g} s") from error
        if "broken" in answer:
            raise WorkerFailed(answer["broken"])
        return answer, pieces

    def close(self) -> None:
        """Disconnect and wait until the supervisor has removed everything."""
        self.disconnect()  # closing is not enough if a child of this process inherited the channel
        self.channel.close()
        if self._process.stdin:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.returncode:  # killed, so it could not clean up
            sweep(self._process.pid)

    def disconnect(self) -> None:
        """Interrupt a thread that waits for this worker. May be called from another thread."""
        with suppress(OSError):
            self.channel.shutdown(socket.SHUT_RDWR)
