"""Zygote: a warm Python interpreter that is forked for every run of a judged program.

The judging interpreter runs this file as a script. It need not have dojang installed, so the file imports the
standard library only. A request names a role:

    program     run the source as __main__, input on stdin, output on stdout
    candidate   run the source as a module, then serve calls to its functions (function_calls.py)
    assertions  run assertions that call the candidate's functions in the other process (function_calls.py)
"""

from __future__ import annotations

import _socket
import array
import builtins
import contextlib
import ctypes
import gc
import io
import json
import marshal
import os
import random
import resource
import struct
import sys
import traceback
import types
from typing import Any

__all__ = ["CONTROL", "main"]

CONTROL = 3
"""Descriptor on which requests arrive."""
PRELOADED = """
    abc array bisect cmath collections collections.abc copy decimal enum fractions functools heapq itertools json math
    numbers operator queue random re string struct textwrap threading time typing
"""
"""Modules that programs often import. Every fork costs 45 us more per megabyte of them. A module of one megabyte that
takes 10 ms to import pays off if half a percent of the programs use it. dataclasses, datetime and statistics do not:
0 to 1 of the 1,138 solutions of MBPP and HumanEval import them."""
PRELOADED_WITHOUT_FILES = """
    _pylong _strptime argparse ast asyncio base64 bz2 cProfile calendar codecs colorsys concurrent.futures.process
    concurrent.futures.thread configparser csv ctypes dataclasses datetime difflib dis fileinput fnmatch getopt glob
    graphlib gzip hashlib hmac html inspect keyword locale logging lzma mmap multiprocessing optparse pathlib pickle
    platform plistlib pprint reprlib sched secrets select selectors shlex shutil signal socket sqlite3 stat
    statistics stringprep subprocess symtable sysconfig tarfile tempfile timeit token tokenize tomllib traceback
    tracemalloc types unicodedata unittest urllib.parse uuid warnings weakref xml.dom.expatbuilder xml.dom.minidom
    xml.etree.ElementTree zipfile zlib zoneinfo
    encodings.ascii encodings.cp1252 encodings.idna encodings.latin_1 encodings.utf_16 encodings.utf_8_sig
    encodings.unicode_escape
"""
"""Modules that programs import now and then, preloaded where programs may open no files."""

_COMMON_CODE = """
import sys, math
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from functools import lru_cache
from heapq import heappop, heappush
from itertools import accumulate
def main():
    n, m = map(int, input().split())
    a = list(map(int, sys.stdin.readline().split()))
    b = [int(word) for word in sys.stdin.read().strip().split()]
    count, seen, rows = {}, set(), []
    for i, x in enumerate(a):
        count[x] = count.get(x, 0) + 1
        seen.add(x)
        rows.append((x, i))
    for i in range(m):
        if b[i] % 2 == 0 and b[i] in seen:
            rows[0] = (max(a), min(b))
    rows.sort(key=lambda row: (-row[0], row[1]))
    graph, queue, heap = defaultdict(list), deque([n]), []
    graph[queue.popleft()].append(math.gcd(n, m))
    heappush(heap, (bisect_left(a, m), Counter(a).most_common(1)))
    queue.append(heappop(heap))
    least = lru_cache(maxsize=None)(lambda k: k if k < 2 else least(k - 1) + 1)
    rows.append((least(n), list(accumulate(a))[-1]))
    print(sum(a), len(count), *sorted(seen)[:3])
    print(f"{n / m:.2f}", " ".join(map(str, b)))
    sys.stdout.write("\\n".join(str(x) for x, _ in rows))
if __name__ == "__main__":
    main()
"""
"""A program with common operations, run to warm up the interpreter."""
_WARM_UP_RUNS = 20
"""Repetitions until the interpreter has specialized its bytecode."""
_FILLINGS: list[bytes] = []
_HOLES, _FRESH = 500, 4
"""Maximum number of free blocks per size to look for, and number of adjacent blocks that indicates fresh memory."""
_PID = struct.Struct("<i")


def main(preloaded: Any) -> None:
    """Prepare the interpreter for programs, then serve requests."""
    control = _socket.socket(fileno=CONTROL)
    first, (report,) = _receive(control, 1 << 20)
    setup = json.loads(first)
    scripts = {name: _script(name, code) for name, code in setup["scripts"].items()}
    parts = types.SimpleNamespace(preloaded=preloaded, **scripts)
    preloaded.load(PRELOADED.split() if setup["files"] else [*PRELOADED.split(), *PRELOADED_WITHOUT_FILES.split()])
    parts.startup.begin(setup)
    if not setup["files"]:
        preloaded.load(file.partition(".")[0] for files in setup["packages"].values() for file in files)
    children, own = parts.forks.Forks(setup), os.getpid()
    parts.ending.prepare()
    parts.frames, parts.main = parts.frames.Frames(), parts.startup.Main(setup["directory"])
    _warm_up(parts, again=setup["files"])
    random.seed(0)
    gc.collect()
    _trim()
    _fill_holes()
    gc.freeze()  # the collector would write to, and so copy, every page shared with the programs
    children.confine_itself()
    control.send(b"ready")
    try:
        _serve(control, report, children, parts)
    except BaseException as error:
        if os.getpid() == own:
            if isinstance(error, KeyboardInterrupt | ConnectionError):  # the judge is gone
                return
            raise
        # A child before its program started; errors of the program are handled in ending.py.
        _send_report(report, f"broken {type(error).__name__}: {error}")
        os._exit(127)


def _script(name: str, code: str) -> Any:
    """Load a part of the zygote as a module that programs cannot see."""
    module = types.ModuleType(name)
    exec(marshal.loads(bytes.fromhex(code)), module.__dict__)
    return module


def _serve(control: _socket.socket, report: int, children: Any, parts: Any) -> None:
    """Fork a child for each request."""
    own = os.getpid()
    known, request, places = b"", {}, [-1]
    while True:
        message, files = _receive(control, 1 << 14)
        if not message:
            os._exit(0)
        if message != known:  # tests of one program have equal requests
            known, request, places = message, json.loads(message), [-1]
            sys.argv = ["main.py", *request["arguments"]]
        if files != places:
            places = files
            children.prepare(request["limits"], files[:3], CONTROL)
            gc.freeze()  # so that at its end a program traverses only its own objects
            parts.main.make()
        # CLONE_PARENT: the child's parent is the worker, which supervises programs of every language. This process
        # has one thread and no lock is held, so Python's after-fork hooks are not needed. They take long and reseed
        # the random numbers; without them a program gets the same numbers, and so the same verdict, in every run.
        pid = children.make()
        if pid == 0:
            # Read the program in the child only: later programs could find it in the memory of this process.
            os._exit(_run_role(request, files[3:], report, parts))
        if pid < 0 and os.getpid() != own:
            raise OSError(-pid, "a program cannot be confined")
        for file in files:
            os.close(file)
        control.send(_PID.pack(pid))


def _receive(control: _socket.socket, most: int) -> tuple[bytes, list[int]]:
    """Receive a message and the descriptors sent with it."""
    message, ancillary, _, _ = control.recvmsg(most, _socket.CMSG_SPACE(4 * 8))
    files = array.array("i")
    for _, _, piece in ancillary:
        files.frombytes(piece[: len(piece) // 4 * 4])
    return message, list(files)


def _run_role(request: Any, files: list[int], report: int, parts: Any) -> int:
    """Run a role in a child and return the exit status.

    `files` are the source and perhaps another: for a program, a file for its bytecode; otherwise the channel between
    candidate and assertions. `report` is a pipe to the judge.
    """
    source, other = files[0], files[1] if len(files) > 1 else -1
    data = os.pread(source, request["size"], 0)
    while len(data) < request["size"]:
        data += os.pread(source, request["size"] - len(data), len(data))
    os.close(source)
    if request["role"] == "assertions":
        parts.preloaded.reveal_all()
        del sys.path[0]  # a program could put modules there
        return int(parts.function_calls.run_assertions(data, request["function"], report, other, parts))
    code = marshal.loads(data) if request["compiled"] else _compile(data, parts, report)
    if request["role"] == "candidate":
        os.close(report)
        return int(parts.function_calls.serve(_module("solution", parts.main.file), code, other, parts))
    if not request["compiled"]:
        _save_bytecode(code, other)
    os.close(report)
    finalizers = b"__del__" in data
    return int(parts.ending.run(code, parts.main, parts.frames, raised=request["raised"], finalizers=finalizers))


def _send_report(report: int, words: str) -> None:
    with contextlib.suppress(OSError):
        os.write(report, words.encode("utf-8", "replace")[:2000])


def _compile(text: bytes, parts: Any, report: int) -> types.CodeType:
    """Compile the program. If that fails, report the error to the judge and exit."""
    file = parts.main.file
    try:
        return compile(text, file, "exec", dont_inherit=True)
    except BaseException as error:  # deep nesting, NUL bytes, a wrong encoding: all are the program's errors
        parts.preloaded.reveal_all()
        if isinstance(error, SyntaxError) and error.filename == file:
            error.filename = os.path.basename(file)
        _send_report(report, "syntax " + "".join(traceback.format_exception_only(type(error), error)))
        os._exit(1)


def _save_bytecode(code: types.CodeType, file: int) -> None:
    """Write the bytecode to a file for the next run, unless it is too large or compiling it gave warnings."""
    if file >= 0:
        if _survives_marshal(code) and os.lseek(2, 0, os.SEEK_CUR) == 0:
            with contextlib.suppress(ValueError, MemoryError, RecursionError):  # nested too deeply
                data = marshal.dumps(code)
                if len(data) <= resource.getrlimit(resource.RLIMIT_FSIZE)[0]:
                    os.write(file, data)
        os.close(file)


def _survives_marshal(code: types.CodeType) -> bool:
    """Whether unmarshalled bytecode behaves the same: sets among constants change their order, which a program can
    see."""
    try:
        return not any(
            isinstance(each, frozenset) or (isinstance(each, types.CodeType) and not _survives_marshal(each))
            for each in code.co_consts
        )
    except RecursionError:
        return False


def _warm_up(parts: Any, *, again: bool) -> None:
    """Run common code before the fork, so that caches of the interpreter are filled once and not in every program."""
    streams, usual = (sys.stdin, sys.stdout), compile(_COMMON_CODE, "main.py", "exec")
    try:
        for _ in range(_WARM_UP_RUNS):
            parts.preloaded.hide(again=again)
            sys.stdin, sys.stdout = io.TextIOWrapper(io.BytesIO(b"3 2\n1 2 3\n4 5\n")), io.TextIOWrapper(io.BytesIO())
            parts.main.make()
            parts.ending.run(usual, parts.main, parts.frames, raised=1, warms_up=True)
    finally:
        sys.stdin, sys.stdout = streams
    for _ in range(_WARM_UP_RUNS):
        parts.ending.flush()
    parts.preloaded.hide(again=again)


def _trim() -> None:
    """Return unused memory to the kernel: a fork copies an entry for every page."""
    with contextlib.suppress(AttributeError):  # not in every C library
        ctypes.CDLL(None).malloc_trim(0)


def _fill_holes() -> None:
    """Allocate the free blocks between used ones: a program that used them would have to copy those pages."""
    for size in range(48, 513, 16):  # larger objects are elsewhere, and a page holds many smaller ones
        last = beside = 0
        for _ in range(_HOLES):
            filling = bytes(size - sys.getsizeof(b""))
            beside = beside + 1 if id(filling) - last == size else 0
            last = id(filling)
            _FILLINGS.append(filling)
            if beside == _FRESH:
                break


def _module(name: str, file: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(__builtins__=builtins, __file__=file)
    sys.modules[name] = module
    return module
