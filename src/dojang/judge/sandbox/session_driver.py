"""Runs pieces of code one after the other in one namespace: the program of an interactive session (session.py).

The judging interpreter runs this file in the sandbox, so it imports the standard library only. Requests arrive on
stdin and answers leave on stdout, each with its length first. Code that tampers with them can only change what its own
session is told.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import io
import linecache
import os
import struct
import sys
import traceback
import types
from typing import Any

__all__ = ["main"]

_LENGTH = struct.Struct("<I")
_HALF = 10_000
"""Characters of an output that are kept at its beginning and at its end."""


class _Output(io.TextIOBase):
    """Keeps the beginning and the end of what is printed."""

    def __init__(self) -> None:
        self._head, self._tail, self._left_out = "", "", 0

    def write(self, text: str) -> int:
        room = _HALF - len(self._head)
        self._head += text[:room]
        self._tail += text[room:] if room < len(text) else ""
        if len(self._tail) > 2 * _HALF:
            self._left_out += len(self._tail) - _HALF
            self._tail = self._tail[-_HALF:]
        return len(text)

    def text(self) -> str:
        middle = f"\n... {self._left_out} characters left out ...\n" if self._left_out else ""
        return self._head + middle + self._tail


def main() -> None:
    """Serve requests until the other side is gone."""
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # text that C libraries write is no answer
    module = types.ModuleType("__main__")
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = module
    number = 0
    while (size := _exactly(requests, _LENGTH.size)) is not None:
        code = _exactly(requests, _LENGTH.unpack(size)[0])
        number += 1
        data = _run((code or b"").decode(), vars(module), number).encode("utf-8", "replace")
        data = _LENGTH.pack(len(data)) + data
        while data:
            data = data[os.write(answers, data) :]


def _exactly(file: int, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        piece = os.read(file, size - len(data))
        if not piece:
            return None
        data += piece
    return data


def _run(source: str, names: dict[str, Any], number: int) -> str:
    """Run code; return what it printed, the value of its last expression, or its exception."""
    file = f"<cell {number}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    output = _Output()
    sys.stdin, sys.stdout, sys.stderr = io.StringIO(""), output, output
    try:
        _execute(source, file, names)
    except BaseException as error:
        with contextlib.suppress(BaseException):
            output.write("".join(traceback.format_exception(type(error), error, _own(error, file))))
    with contextlib.suppress(BaseException):
        return output.text()
    return "error: the output was lost"


def _own(error: BaseException, file: str) -> types.TracebackType | None:
    """Traceback from the code on; none for code that is not valid."""
    trace = error.__traceback__
    if isinstance(error, SyntaxError) and error.filename == file:
        return None
    while trace is not None and trace.tb_frame.f_globals is globals():
        trace = trace.tb_next
    return trace


def _execute(source: str, file: str, names: dict[str, Any]) -> None:
    """Execute statements; print the value of a last expression, as notebooks do."""
    tree = ast.parse(source, file)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, file, "exec"), names)
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), file, "eval"), names)
        if value is not None:
            sys.stdout.write(f"{value!r}\n")


if __name__ == "__main__":
    main()
