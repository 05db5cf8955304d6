"""A warm Python interpreter from which judged programs are forked.

This file is run as a script by whatever interpreter judges programs, which need not have dojang installed: it
imports the standard library only. A request names a role:

    program     run the source as __main__, input on stdin, output on stdout
    candidate   run the source as a module, then serve calls to its functions (calls.py)
    examiner    run assertions; the functions they call are the candidate's, in the other process (calls.py)
"""

from __future__ import annotations

import array
import atexit
import builtins
import contextlib
import ctypes
import gc
import importlib
import io
import json
import marshal
import os
import random
import resource
import signal
import socket
import struct
import sys
import threading
import traceback
import types
from typing import Any

__all__ = ["CONTROL", "main"]

CONTROL = 3
"""The descriptor on which requests arrive."""
PRELOADED = """
    abc array bisect cmath collections collections.abc copy dataclasses datetime decimal enum fractions functools heapq
    itertools json math numbers operator queue random re statistics string struct textwrap threading time typing
"""
"""What programs like to import. Whatever is here makes every fork a little dearer."""
ALSO = """
    _pylong argparse ast asyncio base64 bz2 cProfile calendar codecs colorsys concurrent.futures.process
    concurrent.futures.thread configparser csv ctypes difflib dis fileinput fnmatch getopt glob graphlib gzip hashlib
    hmac html inspect keyword locale logging lzma mmap multiprocessing optparse pathlib pickle platform plistlib pprint
    reprlib sched secrets select selectors shlex shutil signal socket sqlite3 stat stringprep subprocess symtable
    sysconfig tarfile tempfile timeit token tokenize tomllib traceback types unicodedata unittest urllib.parse uuid
    warnings weakref xml.dom.expatbuilder xml.dom.minidom xml.etree.ElementTree zipfile zlib zoneinfo
"""
"""What they import now and then, which must be there beforehand where they may open no file."""

_WRITERS = {io.TextIOWrapper, io.BufferedWriter}
_STREAMS: list[Any] = []
"""Standard output and error as they were."""
_PID = struct.Struct("<i")
_CLONE_PARENT, _SIGCHLD = 0x8000, 17
_CLONE = {"x86_64": 56, "aarch64": 220}
_SECCOMP = {"x86_64": 317, "aarch64": 277}


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


class _Guard:
    """What holds a child, made ready before the fork: what the child does on its own is paid for every test."""

    def __init__(self, setup: Any, libc: ctypes.CDLL) -> None:
        code = bytes.fromhex(setup["filter"])
        self._length = len(code) // 8
        self._code = ctypes.create_string_buffer(code, len(code))
        self._program = _Filter(self._length, ctypes.addressof(self._code))
        self._self_at = [8 * index + 4 for index in setup["self_at"]]
        self._arguments = (ctypes.c_long(_SECCOMP[os.uname().machine]), ctypes.c_long(1), ctypes.c_long(4))
        self._pointer = ctypes.byref(self._program)
        self._die_with_the_judge = (ctypes.c_long(1), ctypes.c_long(signal.SIGKILL), 0, 0, 0)
        self._libc = libc

    def install(self) -> None:
        self._libc.prctl(*self._die_with_the_judge)
        if not self._length:
            return
        own = os.getpid()
        for offset in self._self_at:
            struct.pack_into("<I", self._code, offset, own)
        if self._libc.syscall(*self._arguments, self._pointer):
            raise OSError(ctypes.get_errno(), "seccomp")


def main() -> None:
    """Wait for requests and fork a child for each."""
    control = socket.socket(fileno=CONTROL)
    first, (report,) = _received(control, 1 << 20)
    setup = json.loads(first)
    calls = types.ModuleType("calls")
    exec(compile(setup["calls"], "calls.py", "exec"), calls.__dict__)
    for name in (PRELOADED if setup["files"] else PRELOADED + ALSO).split():
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    _make_like_a_console()
    libc = ctypes.CDLL(None, use_errno=True)
    guard = _Guard(setup, libc)
    _open_streams()
    os.chdir(setup["directory"])
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    random.seed(0)
    clone = (ctypes.c_long(_CLONE[os.uname().machine]), ctypes.c_long(_CLONE_PARENT | _SIGCHLD), 0, 0, 0, 0)
    known, request = b"", {}
    gc.collect()
    gc.freeze()  # the collector would touch, and so copy, every page the programs share with this process
    control.send(b"ready")
    while True:
        message, files = _received(control, 1 << 14)
        if not message:
            os._exit(0)
        if message != known:  # one test is like the other
            known, request = message, json.loads(message)
        # The child's parent is the one who asked: it supervises programs in every language alike. There is one thread
        # and nobody holds a lock, so the interpreter need not be told that it was forked. That would take long, and
        # reseed the random numbers; as it is, a program gets the same ones in every run, and so the same verdict.
        pid = libc.syscall(*clone)
        if pid == 0:
            _run(request, files, report, calls, guard)
        for file in files:
            os.close(file)
        control.send(_PID.pack(pid))


def _received(control: socket.socket, most: int) -> tuple[bytes, list[int]]:
    """A message and the files that came with it."""
    message, ancillary, _, _ = control.recvmsg(most, socket.CMSG_SPACE(4 * 8))
    files = array.array("i")
    for _, _, piece in ancillary:
        files.frombytes(piece[: len(piece) // 4 * 4])
    return message, list(files)


def _make_like_a_console() -> None:
    import _sitebuiltins

    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
    sys.path[:] = [path for path in sys.path if path]


def _run(request: Any, files: list[int], report: int, calls: Any, guard: _Guard) -> None:
    """Never returns. `files` are stdin, stdout, stderr, the source, and perhaps another: for a program, a file for the
    code it compiles to; otherwise the channel between candidate and examiner. `report` is a pipe to the judge."""
    try:
        for number, file in enumerate(files[:3]):
            os.dup2(file, number)
            os.close(file)
        os.close(CONTROL)
        source, other = [*files[3:], -1][:2]
        for kind, pair in request["limits"]:
            resource.setrlimit(kind, pair)
        text = _read_source(source)
        vars(threading)["_main_thread"]._set_native_id()
        sys.argv = ["main.py", *request["arguments"]]
        guard.install()
        if request["role"] == "program":
            program = marshal.loads(text) if request["compiled"] else _compiled(text, report)
            code = _run_program(_kept(program, other), report, _raised_status(request))
        elif request["role"] == "candidate":
            program = _compiled(text, report)
            os.close(report)
            code = calls.serve(_module("solution"), program, other)
        else:
            code = calls.examine(text, request["function"], report, other)
    except BaseException as error:
        _tell(report, f"broken {type(error).__name__}: {error}")
        code = 127
    os._exit(code)


def _read_source(file: int) -> bytes:
    size = os.fstat(file).st_size
    data = b""
    while len(data) < size:
        data += os.pread(file, size - len(data), len(data))
    os.close(file)
    return data


def _open_streams() -> None:
    """Before the fork: they name descriptors 0 to 2, whatever these will be in a child."""

    def binary(number: int, mode: str) -> Any:
        raw = io.FileIO(number, mode, closefd=False)
        return io.BufferedReader(raw, 1 << 16) if mode == "r" else io.BufferedWriter(raw, 1 << 16)

    sys.stdin = io.TextIOWrapper(binary(0, "r"), "utf-8", "surrogateescape")
    sys.stdout = io.TextIOWrapper(binary(1, "w"), "utf-8", "surrogateescape")
    sys.stderr = io.TextIOWrapper(binary(2, "w"), "utf-8", "backslashreplace", line_buffering=True)
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))
    _STREAMS.extend((sys.stdout, sys.stderr))


def _tell(report: int, words: str) -> None:
    with contextlib.suppress(OSError):
        os.write(report, words.encode("utf-8", "replace")[:2000])


def _compiled(text: bytes, report: int) -> types.CodeType:
    """The program as code. One that is not Python ends here, and the judge is told why."""
    try:
        code = compile(text, "main.py", "exec", dont_inherit=True)
    except BaseException as error:  # deep nesting, NUL bytes, a foreign encoding: all are the program's doing
        _tell(report, "syntax " + "".join(traceback.format_exception_only(type(error), error)))
        os._exit(1)
    return code


def _kept(code: types.CodeType, file: int) -> types.CodeType:
    """Leave the code in a file for the next run, if there is one and files may be so large."""
    if file >= 0:
        if _is_the_same_when_read(code):
            with contextlib.suppress(ValueError, MemoryError, RecursionError):  # nested too deeply
                data = marshal.dumps(code)
                if len(data) <= resource.getrlimit(resource.RLIMIT_FSIZE)[0]:
                    os.write(file, data)
        os.close(file)
    return code


def _is_the_same_when_read(code: types.CodeType) -> bool:
    """Sets among the constants come back in another order, which a program would show that walks through one."""
    try:
        return not any(
            isinstance(each, frozenset) or (isinstance(each, types.CodeType) and not _is_the_same_when_read(each))
            for each in code.co_consts
        )
    except RecursionError:
        return False


def _module(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__["__builtins__"] = builtins
    sys.modules[name] = module
    return module


def _raised_status(request: Any) -> int:
    """What an uncaught exception ends with. A checker, which has arguments, has refused nothing by raising one."""
    return 3 if request["arguments"] else 1


def _run_program(code: types.CodeType, report: int, raised: int) -> int:
    module = _module("__main__")
    os.close(report)
    status = 0
    try:
        exec(code, module.__dict__)
    except SystemExit as error:
        status = _exit_status(error.code)
    except BaseException as error:
        status = raised
        with contextlib.suppress(BaseException):
            traceback.print_exception(type(error), error, error.__traceback__ and error.__traceback__.tb_next)
    finish: Any
    threads_end: Any = vars(threading)["_shutdown"]  # waits for threads the program left running
    for finish in (threads_end, atexit._run_exitfuncs, _flush):
        try:
            finish()
        except BaseException:
            status = status or 120
    return status & 255


def _flush() -> None:
    """What an interpreter does when it ends: files the program has left open are written out."""
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name, None)
        if type(stream) not in _WRITERS and hasattr(stream, "flush") and not getattr(stream, "closed", False):
            stream.flush()
    things = gc.get_objects()
    if _WRITERS.isdisjoint(map(type, things)):  # a large program has so many that only C is fast enough to look
        things = []
    for thing in (*things, *_STREAMS, *map(vars(sys).get, ("stdout", "stderr"))):
        if type(thing) in _WRITERS:
            with contextlib.suppress(ValueError):  # closed, or taken apart
                thing.flush()


def _exit_status(code: object) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    sys.stderr.write(f"{code}\n")
    return 1


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
