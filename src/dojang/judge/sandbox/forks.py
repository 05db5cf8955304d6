"""How the warm interpreter makes children. A part of zygote.py, and like that it imports the standard library only."""

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
    """Makes children that are held by all that holds a program before any Python runs in them.

    Python touches, and so copies, a page for nearly everything it does, and that is paid for every test. So what a
    child must do first is written down as a list of system calls, beginning with the one that makes the child, and a
    few instructions (vfork_exec.py) work through it.
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
        self._thread_id = _thread_id_address()

    def prepare(self, limits: list[tuple[int, tuple[int, int]]], streams: list[int], control: int) -> None:
        """Write the list for children with these limits and standard streams; where requests come from they close."""
        self._limits = ctypes.create_string_buffer(b"".join(struct.pack("<QQ", *pair) for _, pair in limits))
        flags, tid = _CLONE_PARENT | _SIGCHLD, self._thread_id
        if tid:  # the C library sends signals to the first thread by what it has noted there
            flags |= _CLONE_CHILD_SETTID
        # The fourth argument is that address on one architecture, and the fifth on another; the other is not used.
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


def _thread_id_address() -> int:
    """Where the C library keeps the id of this thread; 0 if the kernel does not tell."""
    address = ctypes.c_size_t()
    found = ctypes.CDLL(None).prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0)
    if found or not address.value or ctypes.c_int.from_address(address.value).value != threading.get_native_id():
        return 0
    return address.value


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
