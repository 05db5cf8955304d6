"""Forks children of the warm interpreter. Part of zygote.py: imports the standard library only."""

from __future__ import annotations

import ctypes
import mmap
import struct
import threading
from typing import Any

__all__ = ["Forks"]

_CLONE_PARENT, _CLONE_CHILD_SETTID, _SIGCHLD, _SIGKILL = 0x8000, 0x01000000, 17, 9
_PR_SET_PDEATHSIG, _PR_GET_TID_ADDRESS = 1, 40
_FILTER_MODE, _SPEC_ALLOW = 1, 4
_STEP = struct.Struct("<10q")
_FAILED, _NOT_ZERO = -1 << 63, -1


class Forks:
    """Forks children that are confined before any Python runs in them.

    Python writes to, and so copies, a page for nearly everything it does, at a cost for every test. So the child's
    first system calls are prepared as a list that starts with the fork itself, and a few machine instructions
    (vfork_exec.py) execute it.
    """

    def __init__(self, setup: Any) -> None:
        self._numbers = setup["numbers"]
        # A private mapping: a program can write to this page, and must not change it for later programs.
        self._code = mmap.mmap(
            -1,
            mmap.PAGESIZE,
            flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
            prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC,
        )
        self._code.write(bytes.fromhex(setup["walk"]))
        # PYFUNCTYPE keeps the GIL, so the child need not acquire it.
        self._walk = ctypes.PYFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(_address(self._code))
        self._filters = [_Filter(*each) for each in setup["filters"]]
        self._steps = self._limits = ctypes.create_string_buffer(1)
        self._first = 0
        self._thread_id = _thread_id_address()

    def prepare(self, limits: list[tuple[int, tuple[int, int]]], streams: list[int], control: int) -> None:
        """Prepare the list for children with these limits and standard streams. They close `control`."""
        self._limits = ctypes.create_string_buffer(b"".join(struct.pack("<QQ", *pair) for _, pair in limits))
        flags, tid = _CLONE_PARENT | _SIGCHLD, self._thread_id
        if tid:  # the C library reads the main thread's id there when it sends signals
            flags |= _CLONE_CHILD_SETTID
        # The address is the fourth argument on one architecture and the fifth on another; the other one is ignored.
        steps = [self._step("clone", flags, 0, 0, tid, tid, unless=_NOT_ZERO)]
        for number, file in enumerate(streams):
            steps += [self._step("dup3", file, number), self._step("close", file)]
        steps.append(self._step("close", control))
        for index, (kind, _) in enumerate(limits):
            steps.append(self._step("prlimit64", 0, kind, _address(self._limits) + 16 * index))
        steps.append(self._step("prctl", _PR_SET_PDEATHSIG, _SIGKILL))
        for last in self._filters[1:]:
            steps += self._confine(last)
        self._steps = _listed(steps)
        self._first = _address(self._steps)

    def confine_itself(self) -> None:
        """Confine this process once; its children inherit that."""
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
        """Fork. Returns 0 in the child; negative for an error, of the fork or in the child of a later call."""
        return int(self._walk(self._first))


def _thread_id_address() -> int:
    """Address at which the C library keeps this thread's id; 0 if the kernel does not tell."""
    address = ctypes.c_size_t()
    found = ctypes.CDLL(None).prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0)
    if found or not address.value or ctypes.c_int.from_address(address.value).value != threading.get_native_id():
        return 0
    return address.value


class _Filter:
    """A seccomp filter as the kernel reads it."""

    def __init__(self, code: str, self_at: list[int]) -> None:
        self._code = ctypes.create_string_buffer(bytes.fromhex(code), len(code) // 2)
        self.program = ctypes.create_string_buffer(struct.pack("<HxxxxxxQ", len(code) // 16, _address(self._code)), 16)
        self.self_at = [_address(self._code) + 8 * index + 4 for index in self_at]


def _listed(steps: list[bytes]) -> Any:
    return ctypes.create_string_buffer(b"".join(steps) + _STEP.pack(-1, *[0] * 9))


def _address(buffer: Any) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))
