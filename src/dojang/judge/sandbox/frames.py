"""Hides the judge's stack frames from a program.

`python3 main.py` runs a program as the first frame of its thread, with the whole recursion limit left. The warm
interpreter calls it from functions of the judge, which a program would see in `sys._getframe(1)`, in stack traces and
in its recursion depth. The interpreter keeps the current frame and the remaining recursion depth in its thread state.
This module finds both there by their values and changes them for the duration of a call. Where they are not found
(before Python 3.11), programs see the frames.

Part of zygote.py: imports the standard library only.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Frames"]

_INTERPRETER_FRAME = 24
"""Offset of the interpreter frame's address in a frame object."""
_BYTES = 1024
"""Bytes of the thread state searched for the recursion limit."""
_BEYOND = 96
"""Bytes after the limit searched for the current frame."""
_MARK = 31_337
_OWN_CALLS = 2
"""C calls below a program that `python3 main.py` does not have."""


class _Place(NamedTuple):
    """Address in the thread state that holds the current frame, or with an offset a pointer to it."""

    address: int
    offset: int | None


class Frames:
    """Addresses of the current frame and of the remaining recursion depth."""

    def __init__(self) -> None:
        self._left: ctypes.c_int | None = None
        self._left_in_c = ctypes.c_int()
        self._place = _Place(0, None)
        self._spent = 1 if sys.version_info < (3, 12) else 0
        """Recursion depth that the call into C takes."""
        thread_state: Any = ctypes.pythonapi.PyThreadState_Get
        thread_state.restype = ctypes.c_void_p
        state = thread_state()
        with _Copies() as copies:
            left = _find_left(copies, state)
            found = left and _find_current(copies, state, left)
        if found:
            self._left = ctypes.c_int.from_address(left)
            if (3, 12) <= sys.version_info < (3, 14):  # these versions count C calls separately, after the limit
                self._left_in_c = ctypes.c_int.from_address(left + 8)
            self._place = found

    def without(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a C function as if it had no caller."""
        left = self._left
        if left is None:
            return function(*arguments)
        address, offset = self._place
        if offset is not None:
            address = ctypes.c_size_t.from_address(address).value + offset
        current = ctypes.c_size_t.from_address(address)
        frame = current.value
        more = sys.getrecursionlimit() + self._spent - left.value
        left.value += more
        self._left_in_c.value += _OWN_CALLS
        current.value = 0
        try:
            return function(*arguments)
        finally:
            current.value = frame
            left.value -= more
            self._left_in_c.value -= _OWN_CALLS


def _find_left(copies: _Copies, state: int) -> int:
    """Find the address of the remaining depth: it is next to the limit, which is set to a unique number."""
    before = sys.getrecursionlimit()
    try:
        sys.setrecursionlimit(_MARK)
        words = _words(copies.of(state, _BYTES))
        sys.setrecursionlimit(_MARK + 1)
        changed = _words(copies.of(state, _BYTES))
    finally:
        sys.setrecursionlimit(before)
    found = [
        state + 4 * (at - 1)
        for at in range(1, len(words))
        if (words[at], changed[at]) == (_MARK, _MARK + 1) and 0 < _MARK - words[at - 1] < 200
    ]
    return found[0] if len(found) == 1 else 0


def _words(data: bytes) -> list[int]:
    return [int.from_bytes(data[at : at + 4], "little") for at in range(0, len(data), 4)]


def _find_current(copies: _Copies, state: int, left: int) -> _Place | None:
    found = _places(copies, state, left) & _places_seen_from_deeper(copies, state, left)
    return found.pop() if len(found) == 1 else None


def _places_seen_from_deeper(copies: _Copies, state: int, left: int) -> set[_Place]:
    return _places(copies, state, left)


def _places(copies: _Copies, state: int, left: int) -> set[_Place]:
    """Find the addresses that hold this function's frame, the current one while it calls a C function."""
    write, read, to, back = copies.write, os.read, copies.to, copies.back
    own = copies.of(id(sys._getframe()) + _INTERPRETER_FRAME, 8)
    start = left // 8 * 8
    size = start - state + _BEYOND
    data = read(back, size) if write(to, state, size) == size else b""
    places: set[_Place] = set()
    for at in range(0, len(data), 8):
        word = data[at : at + 8]
        if word == own:
            places.add(_Place(state + at, None))
        elif state + at >= start:
            address = int.from_bytes(word, "little")
            there = read(back, 16) if write(to, address, 16) == 16 else b""
            places.update(_Place(state + at, each) for each in (0, 8) if there[each : each + 8] == own)
    return places


class _Copies:
    """Copies memory of this process through a pipe: the kernel rejects invalid addresses."""

    def __enter__(self) -> _Copies:
        self.back, self.to = os.pipe()
        self.write: Any = ctypes.CDLL(None).write
        self.write.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
        self.write.restype = ctypes.c_ssize_t
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.back)
        os.close(self.to)

    def of(self, address: int, size: int) -> bytes:
        return os.read(self.back, size) if self.write(self.to, address, size) == size else b""
