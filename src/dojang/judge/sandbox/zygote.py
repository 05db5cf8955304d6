"""A warm Python interpreter from which judged programs are forked.

This file is run as a script by whatever interpreter judges programs, which need not have dojang installed: it
imports the standard library only. A request names a role:

    program     run the source as __main__, input on stdin, output on stdout
    candidate   run the source as a module, then serve calls to its functions (function_calls.py)
    examiner    run assertions; the functions they call are the candidate's, in the other process (function_calls.py)
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
"""The descriptor on which requests arrive."""
PRELOADED = """
    abc array bisect cmath collections collections.abc copy decimal enum fractions functools heapq itertools json math
    numbers operator queue random re string struct textwrap threading time typing
"""
"""What programs like to import. Every fork costs 45 us more per megabyte of it, so that a module of one megabyte which
takes 10 ms to import must be used by half a percent of the programs; dataclasses, datetime and statistics are not (by
0 to 1 of the 1,138 solutions of MBPP and HumanEval)."""
ALSO = """
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
"""What they import now and then, which must be there beforehand where they may open no file."""

_USUAL = """
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
"""What programs usually do."""
_TIMES = 20
"""Often enough for the interpreter to have settled how it does something."""
_FILLINGS: list[bytes] = []
_HOLES, _FRESH = 500, 4
"""The most of one size to look for, and how many beside each other are in memory that was not used before."""
_PID = struct.Struct("<i")


def main(preloaded: Any) -> None:
    """Become an interpreter that is ready for programs, and wait for requests."""
    control = _socket.socket(fileno=CONTROL)
    first, (report,) = _received(control, 1 << 20)
    setup = json.loads(first)
    scripts = {name: _script(name, code) for name, code in setup["scripts"].items()}
    parts = types.SimpleNamespace(preloaded=preloaded, **scripts)
    preloaded.load(PRELOADED.split() if setup["files"] else [*PRELOADED.split(), *ALSO.split()])
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
    gc.freeze()  # the collector would touch, and so copy, every page the programs share with this process
    children.confine_itself()
    control.send(b"ready")
    try:
        _serve(control, report, children, parts)
    except BaseException as error:
        if os.getpid() == own:
            if isinstance(error, KeyboardInterrupt | ConnectionError):  # nobody wants anything of it any more
                return
            raise
        # A child, whose program has not begun: what that raises is dealt with elsewhere.
        _tell(report, f"broken {type(error).__name__}: {error}")
        os._exit(127)


def _script(name: str, code: str) -> Any:
    """A file that belongs to this one, as a module that programs do not see."""
    module = types.ModuleType(name)
    exec(marshal.loads(bytes.fromhex(code)), module.__dict__)
    return module


def _serve(control: _socket.socket, report: int, children: Any, parts: Any) -> None:
    """Fork a child for each request."""
    own = os.getpid()
    known, request, places = b"", {}, [-1]
    while True:
        message, files = _received(control, 1 << 14)
        if not message:
            os._exit(0)
        if message != known:  # one test is like the other
            known, request, places = message, json.loads(message), [-1]
            sys.argv = ["main.py", *request["arguments"]]
        if files != places:
            places = files
            children.prepare(request["limits"], files[:3], CONTROL)
            gc.freeze()  # so that at its end a program has only its own things to look through
            parts.main.make()
        # The child's parent is the one who asked: it supervises programs in every language alike. There is one thread
        # and nobody holds a lock, so the interpreter need not be told that it was forked. That would take long, and
        # reseed the random numbers; as it is, a program gets the same ones in every run, and so the same verdict.
        pid = children.make()
        if pid == 0:
            # Only here is the program read: what has been in the memory of the process above, later programs might
            # find there.
            os._exit(_play(request, files[3:], report, parts))
        if pid < 0 and os.getpid() != own:
            raise OSError(-pid, "a program cannot be confined")
        for file in files:
            os.close(file)
        control.send(_PID.pack(pid))


def _received(control: _socket.socket, most: int) -> tuple[bytes, list[int]]:
    """A message and the files that came with it."""
    message, ancillary, _, _ = control.recvmsg(most, _socket.CMSG_SPACE(4 * 8))
    files = array.array("i")
    for _, _, piece in ancillary:
        files.frombytes(piece[: len(piece) // 4 * 4])
    return message, list(files)


def _play(request: Any, files: list[int], report: int, parts: Any) -> int:
    """Play a role in a child, and return the exit status.

    `files` are the source, and perhaps another: for a program, a file for the code it compiles to; otherwise the
    channel between candidate and examiner. `report` is a pipe to the judge."""
    source, other = files[0], files[1] if len(files) > 1 else -1
    data = os.pread(source, request["size"], 0)
    while len(data) < request["size"]:
        data += os.pread(source, request["size"] - len(data), len(data))
    os.close(source)
    if request["role"] == "examiner":
        parts.preloaded.reveal_all()
        del sys.path[0]  # a program could put modules in its way
        return int(parts.function_calls.examine(data, request["function"], report, other, parts))
    code = marshal.loads(data) if request["compiled"] else _compiled(data, parts, report)
    if request["role"] == "candidate":
        os.close(report)
        return int(parts.function_calls.serve(_module("solution", parts.main.file), code, other, parts))
    if not request["compiled"]:
        _keep(code, other)
    os.close(report)
    finalizers = b"__del__" in data
    return int(parts.ending.run(code, parts.main, parts.frames, raised=request["raised"], finalizers=finalizers))


def _tell(report: int, words: str) -> None:
    with contextlib.suppress(OSError):
        os.write(report, words.encode("utf-8", "replace")[:2000])


def _compiled(text: bytes, parts: Any, report: int) -> types.CodeType:
    """The program as code. One that is not Python ends here, and the judge is told why."""
    file = parts.main.file
    try:
        return compile(text, file, "exec", dont_inherit=True)
    except BaseException as error:  # deep nesting, NUL bytes, a foreign encoding: all are the program's doing
        parts.preloaded.reveal_all()
        if isinstance(error, SyntaxError) and error.filename == file:
            error.filename = os.path.basename(file)
        _tell(report, "syntax " + "".join(traceback.format_exception_only(type(error), error)))
        os._exit(1)


def _keep(code: types.CodeType, file: int) -> None:
    """Leave the code in a file for the next run, if files may be so large and compiling it has warned of nothing."""
    if file >= 0:
        if _is_the_same_when_read(code) and os.lseek(2, 0, os.SEEK_CUR) == 0:
            with contextlib.suppress(ValueError, MemoryError, RecursionError):  # nested too deeply
                data = marshal.dumps(code)
                if len(data) <= resource.getrlimit(resource.RLIMIT_FSIZE)[0]:
                    os.write(file, data)
        os.close(file)


def _is_the_same_when_read(code: types.CodeType) -> bool:
    """Sets among the constants come back in another order, which a program would show that walks through one."""
    try:
        return not any(
            isinstance(each, frozenset) or (isinstance(each, types.CodeType) and not _is_the_same_when_read(each))
            for each in code.co_consts
        )
    except RecursionError:
        return False


def _warm_up(parts: Any, *, again: bool) -> None:
    """Whatever an interpreter notes down when it does something for the first time, every program would for itself."""
    streams, usual = (sys.stdin, sys.stdout), compile(_USUAL, "main.py", "exec")
    try:
        for _ in range(_TIMES):
            parts.preloaded.hide(again=again)
            sys.stdin, sys.stdout = io.TextIOWrapper(io.BytesIO(b"3 2\n1 2 3\n4 5\n")), io.TextIOWrapper(io.BytesIO())
            parts.main.make()
            parts.ending.run(usual, parts.main, parts.frames, raised=1, warms_up=True)
    finally:
        sys.stdin, sys.stdout = streams
    for _ in range(_TIMES):
        parts.ending.flush()
    parts.preloaded.hide(again=again)


def _trim() -> None:
    """Give memory back that is not in use: a fork copies a note for every page."""
    with contextlib.suppress(AttributeError):  # not every C library can
        ctypes.CDLL(None).malloc_trim(0)


def _fill_holes() -> None:
    """Take what is free between things in use: a program that put its own there would have to copy all these pages."""
    for size in range(48, 513, 16):  # larger things are elsewhere, and of smaller ones a page holds many
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
