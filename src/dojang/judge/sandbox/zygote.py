"""A warm Python interpreter from which judged programs are forked.

This file is run as a script by whatever interpreter judges programs, which need not have dojang installed: it
imports the standard library only. A request names a role:

    program     run the source as __main__, input on stdin, output on stdout
    candidate   run the source as a module, then serve calls to its functions (calls.py)
    examiner    run assertions; the functions they call are the candidate's, in the other process (calls.py)
"""

from __future__ import annotations

import _thread
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
import mmap
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
_LEARN_OWN_ID: Any = vars(threading)["_main_thread"]._set_native_id
_THREADS = _thread._count
_AT_END_OF_THREADS: Any = vars(threading).get("_threading_atexits", True)
_STREAMS: list[Any] = []
"""Standard output and error as they were."""
_PID = struct.Struct("<i")
_CLONE_PARENT, _SIGCHLD, _SIGKILL, _PR_SET_PDEATHSIG = 0x8000, 17, 9, 1
_FILTER_MODE, _SPEC_ALLOW = 1, 4
_STEP = struct.Struct("<10q")
_FAILED, _NOT_ZERO = -1 << 63, -1


class _Forks:
    """Makes children that are held by all that holds a program before any Python runs in them.

    Python touches, and so copies, a page for nearly everything it does, and that is paid for every test. So what a
    child must do first is written down as a list of system calls, beginning with the one that makes the child, and a
    few instructions (launch.py) work through it.
    """

    def __init__(self, setup: Any) -> None:
        self._numbers = setup["numbers"]
        # Private: a program can reach this page, and must not change it for the programs after it.
        self._code = mmap.mmap(
            -1,
            mmap.PAGESIZE,
            flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
            prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC,
        )
        self._code.write(bytes.fromhex(setup["walk"]))
        # A PYFUNCTYPE keeps the interpreter's lock: a child need not ask for it.
        self._walk = ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(_address(self._code))
        self._filters = [_Filter(*each) for each in setup["filters"]]
        self._steps = self._limits = ctypes.create_string_buffer(1)
        self._first = 0

    def prepare(self, limits: list[tuple[int, tuple[int, int]]], files: list[int]) -> None:
        """Write the list for children with these limits and files."""
        self._limits = ctypes.create_string_buffer(b"".join(struct.pack("<QQ", *pair) for _, pair in limits))
        steps = [self._step("clone", _CLONE_PARENT | _SIGCHLD, unless=_NOT_ZERO)]
        for number, file in enumerate(files[:3]):
            steps += [self._step("dup3", file, number), self._step("close", file)]
        steps.append(self._step("close", CONTROL))
        for index, (kind, _) in enumerate(limits):
            steps.append(self._step("prlimit64", 0, kind, _address(self._limits) + 16 * index))
        steps.append(self._step("prctl", _PR_SET_PDEATHSIG, _SIGKILL))
        for last in self._filters[1:]:
            steps += self._confine(last)
        self._steps = _listed(steps)
        self._first = _address(self._steps)

    def confine_itself(self) -> None:
        """What its children inherit, they need not do."""
        for first in self._filters[:1]:
            steps = _listed(self._confine(first))
            if error := self._walk(_address(steps)):
                raise OSError(-error, "seccomp")

    def _confine(self, filter: _Filter) -> list[bytes]:
        own_id = [self._step("getpid", copy_to=at) for at in filter.self_at]
        return [*own_id, self._step("seccomp", _FILTER_MODE, _SPEC_ALLOW, _address(filter.program))]

    def _step(self, name: str, *arguments: int, copy_to: int = 0, unless: int = _FAILED) -> bytes:
        padded = [*arguments, *[0] * (6 - len(arguments))]
        return _STEP.pack(self._numbers[name], *padded, 0, copy_to, unless)

    def make(self) -> int:
        """0 in the child. Below that, an error: of the call that makes the child, or in the child of a later one."""
        return int(self._walk(self._first))


class _Filter:
    """A filter of system calls as the kernel reads it."""

    def __init__(self, code: str, self_at: list[int]) -> None:
        self._code = ctypes.create_string_buffer(bytes.fromhex(code), len(code) // 2)
        self.program = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(code) // 16, _address(self._code)), 16)
        self.self_at = [_address(self._code) + 8 * index + 4 for index in self_at]


def _listed(steps: list[bytes]) -> Any:
    return ctypes.create_string_buffer(b"".join(steps) + _STEP.pack(-1, *[0] * 9))


def _address(buffer: Any) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


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
    forks, own = _Forks(setup), os.getpid()
    _open_streams()
    os.chdir(setup["directory"])
    os.environ.pop("LD_BIND_NOW", None)  # it was meant for this process
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    random.seed(0)
    known, request, places = b"", {}, [-1]
    gc.collect()
    gc.freeze()  # the collector would touch, and so copy, every page the programs share with this process
    forks.confine_itself()
    control.send(b"ready")
    while True:
        message, files = _received(control, 1 << 14)
        if not message:
            os._exit(0)
        if message != known:  # one test is like the other
            known, request, places = message, json.loads(message), [-1]
        if files != places:
            places = files
            forks.prepare(request["limits"], files)
            gc.freeze()  # so that at its end a program has only its own things to look through
        # The child's parent is the one who asked: it supervises programs in every language alike. There is one thread
        # and nobody holds a lock, so the interpreter need not be told that it was forked. That would take long, and
        # reseed the random numbers; as it is, a program gets the same ones in every run, and so the same verdict.
        pid = forks.make()
        if pid == 0:
            _run(request, files[3:], report, calls)
        if pid < 0 and os.getpid() != own:
            _tell(report, f"broken a program cannot be confined: {os.strerror(-pid)}")
            os._exit(127)
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


def _run(request: Any, files: list[int], report: int, calls: Any) -> None:
    """Never returns. `files` are the source, and perhaps another: for a program, a file for the code it compiles to;
    otherwise the channel between candidate and examiner. `report` is a pipe to the judge."""
    try:
        source, other = [*files, -1][:2]
        text = _read_source(source, request["size"])
        _LEARN_OWN_ID()
        sys.argv = ["main.py", *request["arguments"]]
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


def _read_source(file: int, size: int) -> bytes:
    data = os.pread(file, size, 0)
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
    for finish in (_end_threads, atexit._run_exitfuncs, _flush):
        try:
            finish()
        except BaseException:
            status = status or 120
    return status & 255


def _end_threads() -> None:
    """Wait for threads the program left running, if it has begun any."""
    if _THREADS() or _AT_END_OF_THREADS:
        vars(threading)["_shutdown"]()


def _flush() -> None:
    """What an interpreter does when it ends: files the program has left open are written out."""
    stream: Any
    for stream in (getattr(sys, "stdout", None), getattr(sys, "stderr", None)):
        if type(stream) not in _WRITERS and hasattr(stream, "flush") and not getattr(stream, "closed", False):
            stream.flush()
    things = gc.get_objects()
    if not _WRITERS.isdisjoint(map(type, things)):  # a large program has so many that only C is fast enough to look
        for stream in things:
            if type(stream) in _WRITERS:
                _flush_if_open(stream)
    for stream in (*_STREAMS, getattr(sys, "stdout", None), getattr(sys, "stderr", None)):
        if type(stream) in _WRITERS:
            _flush_if_open(stream)


def _flush_if_open(stream: Any) -> None:
    try:  # noqa: SIM105  # what is meant to be nicer is one more thing for every program to copy
        stream.flush()
    except ValueError:  # closed, or taken apart
        pass


def _exit_status(code: object) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    sys.stderr.write(f"{code}\n")
    return 1


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
