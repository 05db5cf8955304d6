"""`subprocess.run` and `subprocess.Popen` for `python -m MODULE` and `python FILE`, without the time imports take.

The process is forked from a server that has already imported what most commands import. It is a real process, and a
child of this one: signals, exit codes, output, its process group and `os.wait` are those of any other. Use it for
commands that train, evaluate or export. Tests of start-up, of imports and of the console script start Python itself.

Environment variables that libraries read when they are imported cannot change in a fork: a command for which one of
them differs gets a new Python, and so does one with options that a fork cannot have. All forks have the hash seed of
their server: a test that compares runs starts one of them with `subprocess`.
"""

import atexit
import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fork_server

TORCHRUN = str(Path(__file__).with_name("torchrun.py"))
"""`[sys.executable, TORCHRUN, ...]` is torchrun, with ranks that import nothing anew."""

MODULES = (
    "bitsandbytes",
    "dojang.commands",
    "dojang.build.assemble",
    "dojang.build.distiller",
    "dojang.build.vocabulary",
    "dojang.diagnosis.diagnose",
    "dojang.diagnosis.report",
    "dojang.engine.generate_engine",
    "dojang.engine.torch_engine",
    "dojang.evaluation",
    "dojang.loop.stream_producer",
    "dojang.loop.train",
    "dojang.runs.export",
    "dojang.runs.training",
    "dojang.track.chart",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "peft",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "torch.distributed.checkpoint._fsspec_filesystem",
    "torch.distributed.run",
    "transformers.models.llama.modeling_llama",
)
READ_AT_IMPORT = (
    "ATEN_",
    "CUDA_",
    "GOMP_",
    "HF_",
    "HUGGINGFACE_",
    "KMP_",
    "LC_",
    "LD_",
    "MKL_",
    "MPL",
    "NUMEXPR_",
    "OMP_",
    "OPENBLAS_",
    "PYTHON",
    "TOKENIZERS_",
    "TORCH_",
    "TRANSFORMERS_",
)
READ_LATER = {"PYTHONPATH", "TORCH_NCCL_ASYNC_ERROR_HANDLING"}
PR_SET_CHILD_SUBREAPER = 36


class Popen(subprocess.Popen[Any]):
    """A `subprocess.Popen` that forks `[sys.executable, "-m", MODULE, ...]` and `[sys.executable, FILE, ...]`."""

    def _execute_child(self, *options: Any) -> None:
        (args, executable, before, _, passed, cwd, environment, _, _, shell, *pipes) = options[:16]
        _, *who, new_session, process_group = options[16:]
        wanted = dict(os.environ) if environment is None else {str(k): str(v) for k, v in environment.items()}
        ordinary = not (executable or before or passed or shell) and who == [None, None, None, -1]
        if not (ordinary and _is_program(args) and _server.can_serve(wanted)):
            super()._execute_child(*options)  # type: ignore[misc]
            return
        streams = [given if given != -1 else number for number, given in enumerate((pipes[0], pipes[3], pipes[5]))]
        command = {
            "unbuffered": args[1] == "-u",
            "program": [os.fspath(each) for each in args[1 + (args[1] == "-u") :]],
            "import_from": _server.added_paths(wanted),
            "cwd": os.fspath(cwd or os.getcwd()),
            "environment": wanted,
            "session": new_session,
            "group": os.getpgrp() if process_group in (None, -1) else process_group,
        }
        self.pid = _server.fork(command, streams)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def run(
    args: Sequence[str],
    *,
    input: str | None = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run`, with the `Popen` of this module."""
    if input is not None:
        options["stdin"] = subprocess.PIPE
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(args, **options) as process:
        try:
            output, errors = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(args, process.returncode, output, errors)
    if check:
        done.check_returncode()
    return done


def fork_from_here() -> None:
    """Fork commands from a copy of this process, which has one thread, and no longer from a server."""
    _server.fork_from_here()


class _Server:
    """The process that commands are forked from. It starts with the first of them, and ends with this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._environment = dict(os.environ)

    def can_serve(self, environment: dict[str, str]) -> bool:
        same = _read_at_import(environment) == _read_at_import(self._environment)
        return same and sys.platform == "linux" and self.added_paths(environment) is not None

    def added_paths(self, environment: dict[str, str]) -> list[str] | None:
        """Folders that PYTHONPATH has before those of the server; None if it does not end with those."""
        wanted, own = (_entries(each.get("PYTHONPATH")) for each in (environment, self._environment))
        place = len(wanted) - len(own)
        return wanted[:place] if place >= 0 and wanted[place:] == own else None

    def fork(self, command: dict[str, Any], streams: Sequence[int]) -> int:
        """Start the command and return its process id."""
        with self._lock:
            channel = self._channel or self._start()
            libc = ctypes.CDLL(None)
            # The server's child leaves the command behind as an orphan: this process adopts it.
            libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
            try:
                message = json.dumps(command).encode()
                socket.send_fds(channel, [len(message).to_bytes(8, "big")], streams)
                channel.sendall(message)
                return self._receive()
            finally:
                libc.prctl(PR_SET_CHILD_SUBREAPER, 0)

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        with theirs:
            # A process group of its own: Ctrl-C is for the commands, not for the server.
            self._process = subprocess.Popen(
                [sys.executable, fork_server.__file__, str(theirs.fileno()), *MODULES],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        self._channel = ours
        atexit.register(self._stop)
        self._receive()  # it is ready
        return ours

    def fork_from_here(self) -> None:
        """Use a copy of this process as the server."""
        self._channel, theirs = socket.socketpair()
        if os.fork() == 0:
            self._channel.close()
            fork_server.run_commands(theirs)
            sys.exit()
        theirs.close()

    def _receive(self) -> int:
        assert self._channel is not None
        answer = self._channel.recv(8, socket.MSG_WAITALL)
        if len(answer) < 8:
            raise RuntimeError("the fork server has ended; its standard error says why")
        return int.from_bytes(answer, "big")

    def _stop(self) -> None:
        assert self._channel is not None
        assert self._process is not None
        self._channel.close()
        self._process.wait()


def _read_at_import(environment: Any) -> dict[str, str]:
    names = {name for name in environment if name.startswith(READ_AT_IMPORT)} - READ_LATER
    return {name: environment[name] for name in names}


def _entries(path: str | None) -> list[str]:
    return path.split(os.pathsep) if path else []


def _is_program(args: Sequence[Any]) -> bool:
    first = next((str(each) for each in args[1:] if each != "-u"), "-")
    return args[0] == sys.executable and (first == "-m" or not first.startswith("-"))


_server = _Server()
