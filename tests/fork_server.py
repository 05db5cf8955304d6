"""The server of `commands.py`: imports the modules it is given, then forks a process for each command."""

import atexit
import gc
import importlib
import json
import os
import runpy
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

ARROW_THREAD = "jemalloc_bg_thd"  # jemalloc starts it again after a fork


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    sys.path.pop(0)  # the folder of this file
    for module in sys.argv[2:]:
        with suppress(ModuleNotFoundError):  # some come with extras
            importlib.import_module(module)
    if "transformers.models.llama.modeling_llama" in sys.modules:
        fill_caches()
    channel.sendall(os.getpid().to_bytes(8, "big"))
    run_commands(channel)


def fill_caches() -> None:
    """Computes what transformers computes once in a process, before it loads a first model: 0.1 s."""
    with suppress(ImportError):
        from transformers.conversion_mapping import get_checkpoint_conversion_mapping

        get_checkpoint_conversion_mapping("llama")


def run_commands(channel: socket.socket) -> None:
    """Fork a process for each command. This returns in the server, in the end, and in each of them."""
    gc.freeze()  # collecting the modules' objects would copy them into every process
    threads = sorted(path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm"))
    lost = [name for name in threads if name != ARROW_THREAD]
    assert len(lost) == 1, f"threads that a fork loses run after the imports: {lost}"
    while (command := serve(channel)) is not None:
        if command:
            # From here on this is the command's process, which ends as one of a new Python would.
            try:
                run_program(command["program"])
            except SystemExit as end:
                if not isinstance(end.code, int | None):
                    raise  # Python prints it
                finish(end.code or 0)
            else:
                finish(0)
            return


def run_program(program: list[str]) -> None:
    first, *arguments = program
    if first == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *arguments]
        runpy.run_path(first, run_name="__main__")


def finish(code: int) -> None:
    """End this process as Python does: wait for threads, run what is to run at the end, write what is printed. Only the
    objects of all modules are not freed one by one, a third of the time of a short command."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code & 0xFF)


def serve(channel: socket.socket) -> dict[str, Any] | None:
    """Wait for a command and fork. Returns the command in the new process, {} in the server, None at the end."""
    header, streams, _, _ = socket.recv_fds(channel, 8, 3)
    if not header:
        return None
    command: dict[str, Any] = json.loads(channel.recv(int.from_bytes(header, "big"), socket.MSG_WAITALL))
    ready, started = os.pipe()
    if between := os.fork():
        os.close(started)
        os.waitpid(between, 0)
        channel.sendall(os.read(ready, 8))
        for each in (ready, *streams):
            os.close(each)
        return {}
    if os.fork():
        # In another session: if the command's group has a stopped process, the end of a parent in this session would
        # hang up the whole group, the tests included.
        os.setsid()
        os._exit(0)  # so that the command's process is an orphan, which the tests' process adopts
    channel.close()
    settle(command, streams)
    os.write(started, os.getpid().to_bytes(8, "big"))
    for each in (ready, started):
        os.close(each)
    return command


def settle(command: dict[str, Any], streams: list[int]) -> None:
    """Give this process the streams, group, environment, folders and random numbers of the command."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdout.reconfigure(line_buffering=os.isatty(1), write_through=command["unbuffered"])  # type: ignore[union-attr]
    if command["session"]:
        os.setsid()
    else:
        os.setpgid(0, command["group"])
    os.environ.clear()
    os.environ.update(command["environment"])
    os.chdir(command["cwd"])
    np.random.seed()
    first = command["program"][0]
    sys.path[:0] = [os.getcwd() if first == "-m" else str(Path(first).resolve().parent), *command["import_from"]]


if __name__ == "__main__":
    main()
