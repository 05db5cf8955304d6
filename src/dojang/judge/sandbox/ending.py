"""Runs a program and ends it as the interpreter would.

Part of zygote.py: imports the standard library only.
"""

from __future__ import annotations

import _thread
import atexit
import contextlib
import ctypes
import gc
import io
import operator
import os
import signal
import sys
import threading
import types
from typing import Any

__all__ = ["flush", "prepare", "run"]

_WRITERS = {io.TextIOWrapper, io.BufferedWriter}
_SUSPENDED = {types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType}
"""Suspended objects: closing one runs its `finally` blocks."""
_THREADS = _thread._count
_AT_END_OF_THREADS: Any = vars(threading).get("_threading_atexits", True)
_STREAMS: list[Any] = []
"""Standard output and error and their buffers at the start, which a program may detach."""
_KINDS: list[Any] = []
"""The unnamed type of the argument of sys.unraisablehook."""
_FLUSH_FAILED = 120
_OUR_FILES = ("ending.py", "frames.py")
_call: Any = vars(operator).get("call") or (lambda function, *arguments: function(*arguments))


def prepare() -> None:
    """Record the standard streams and the type that sys.unraisablehook receives."""
    _STREAMS[:] = [sys.stdout, sys.stderr, sys.stdout.buffer, sys.stderr.buffer]

    class Failing:
        def __del__(self) -> None:
            raise ValueError

    known: Any = sys
    known.unraisablehook = lambda told: _KINDS.append(type(told))
    try:
        Failing()
    finally:
        known.unraisablehook = sys.__unraisablehook__


def run(
    code: types.CodeType, main: Any, frames: Any, *, raised: int, finalizers: bool = False, warms_up: bool = False
) -> int:
    """Run a program as a new `__main__` and return its exit status; `raised` is the status of an uncaught exception.

    `finalizers`: objects alive at the end have a `__del__` that must run. `warms_up`: the interpreter goes on, so
    thread shutdown and atexit handlers do not run.
    """
    status, error = 0, None
    try:
        frames.without(exec, code, main.take())
    except SystemExit as end:
        status = _exit_status(end.code)
    except BaseException as uncaught:
        error = uncaught
    if error is not None:
        status = _show(error, frames, raised)
    interrupted = isinstance(error, KeyboardInterrupt)
    error = None
    if (_THREADS() or _AT_END_OF_THREADS) and not warms_up:
        _finish(frames, vars(threading)["_shutdown"])
    if atexit._ncallbacks() and not warms_up:
        _finish(frames, atexit._run_exitfuncs)
    flushed, suspended = frames.without(_call, flush)
    if finalizers or suspended:
        flushed = _take_apart(frames) and flushed
    if "ctypes" in sys.modules:  # the program may have printed through the C library
        ctypes.CDLL(None).fflush(None)
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    return status & 255 if flushed else _FLUSH_FAILED


def _exit_status(code: object) -> int:
    if code is None or isinstance(code, int):
        if code and not -1 << 63 <= code < 1 << 63:
            if sys.version_info >= (3, 12):
                _write_error("OverflowError: Python int too large to convert to C long\n")
            return -1
        return code or 0
    _write_error(f"{code}\n")
    return 1


def _write_error(text: str) -> None:
    if getattr(sys, "stderr", None) is not None:
        with contextlib.suppress(BaseException):
            sys.stderr.write(text)


def _show(error: BaseException, frames: Any, raised: int) -> int:
    """Show an uncaught exception through sys.excepthook or whatever replaced it."""
    trace = error.__traceback__ = _without_ours(error.__traceback__)
    known: Any = sys
    if sys.version_info >= (3, 12):
        known.last_exc = error
    known.last_type, known.last_value, known.last_traceback = type(error), error, trace
    second: BaseException | None = None
    try:
        frames.without(_call, sys.excepthook, type(error), error, trace)
    except SystemExit as end:
        return _exit_status(end.code)
    except BaseException as failure:
        second = failure
    if second is not None:
        with contextlib.suppress(BaseException):
            sys.stderr.write("Error in sys.excepthook:\n")
            second.__traceback__ = _without_ours(second.__traceback__)
            sys.__excepthook__(type(second), second, second.__traceback__)
            sys.stderr.write("\nOriginal exception was:\n")
            sys.__excepthook__(type(error), error, error.__traceback__)
    return raised


def _without_ours(trace: types.TracebackType | None) -> types.TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename in _OUR_FILES:
        trace = trace.tb_next
    return trace


def _finish(frames: Any, function: Any) -> None:
    with contextlib.suppress(BaseException):
        frames.without(function)


def flush() -> tuple[bool, bool]:
    """Flush open streams and files, as the interpreter does at its end.

    Returns whether standard output and error could be written, and whether a `finally` block is still to run.
    """
    flushed = _flush_standard()
    things = gc.get_objects()
    kinds = set(map(type, things))  # in C: a large program has too many objects for a Python loop
    if not _WRITERS.isdisjoint(kinds):
        for stream in things:
            if type(stream) in _WRITERS:
                _flush_if_open(stream)
    for stream in _STREAMS:
        _flush_if_open(stream)
    return flushed, not _SUSPENDED.isdisjoint(kinds)


def _flush_standard() -> bool:
    """Flush standard output and error, which a program may have replaced by anything."""
    out, error = getattr(sys, "stdout", None), getattr(sys, "stderr", None)
    flushed = True
    if out is not None and not _is_closed(out):
        try:
            out.flush()
        except BaseException as problem:
            flushed = False
            with contextlib.suppress(BaseException):
                sys.unraisablehook(_KINDS[0]((type(problem), problem, None, None, out)))
    if error is not None and not _is_closed(error):
        try:
            error.flush()
        except BaseException:
            flushed = False
    return flushed


def _is_closed(stream: Any) -> bool:
    try:
        return bool(stream.closed)
    except BaseException:
        return False


def _flush_if_open(stream: Any) -> None:
    try:  # noqa: SIM105  # contextlib.suppress is one more object for every program to copy
        stream.flush()
    except (ValueError, OSError):  # closed or detached
        pass


def _take_apart(frames: Any) -> bool:
    """Release everything the program created, so that finalizers run. Returns whether the streams could be written."""
    known: Any = sys
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        if hasattr(sys, name):
            setattr(known, name, None)
    sys.modules.pop("__main__", None)
    with contextlib.suppress(BaseException):
        frames.without(gc.collect)
    return bool(flush()[0])
