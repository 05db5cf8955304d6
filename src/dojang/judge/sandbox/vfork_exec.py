"""Starts a program by vfork and exec, with a list of system calls in between.

A fork copies page tables and then pages, and costs a Python process ten times as much as vfork. But between vfork and
exec no Python may run, because parent and child share one interpreter. So the child's system calls are prepared as a
list, and a few machine instructions execute it:

    for each entry:  result = syscall(number, six arguments)
                     if requested: copy the result to an address    (the process's id, into the filter)
                     if it failed and may not fail: exit

The parent sleeps meanwhile and then finds the failed call in the list, if any.
"""

import ctypes
import errno
import mmap
import os
import struct
from collections.abc import Mapping, Sequence

from dojang.judge.sandbox.syscalls import number

__all__ = ["Launch", "StepFailed", "walk"]

_CODE = {
    "aarch64": bytes.fromhex(
        "e90300aa"  # mov x9, x0                 the first entry
        "280140f9"  # next: ldr x8, [x9]         the number
        "c801f8b7"  # tbnz x8, #63, ended        a negative one ends the list
        "208540a9228d41a9249542a9"  # ldp x0, x1 ... x4, x5, [x9, #8]
        "010000d4"  # svc #0
        "201d00f9"  # str x0, [x9, #56]          the result
        "2a2140f94a0000b4400100b9"  # ldr x10, [x9, #64]; cbz x10, checked; str w0, [x10]
        "6000f8b6"  # checked: tbz x0, #63, fine
        "2a2540f96a0000b4"  # ldr x10, [x9, #72]; cbz x10, ended
        "29410191f2ffff17"  # fine: add x9, x9, #80; b next
        "e00f80d2c80b80d2010000d4"  # ended: exit_group(127)
    ),
    "x86_64": bytes.fromhex(
        "4889fb"  # mov rbx, rdi
        "488b034885c0783b"  # next: mov rax, [rbx]; test rax, rax; js ended
        "488b7b08488b7310488b53184c8b53204c8b43284c8b4b30"  # mov rdi, rsi, rdx, r10, r8, r9, [rbx+8...]
        "0f05"  # syscall
        "48894338"  # mov [rbx+56], rax
        "488b4b404885c974028901"  # mov rcx, [rbx+64]; test rcx, rcx; jz checked; mov [rcx], eax
        "4885c0790748837b48007406"  # checked: test rax, rax; jns fine; cmp qword ptr [rbx+72], 0; je ended
        "4883c350ebbd"  # fine: add rbx, 80; jmp next
        "bf7f000000b8e70000000f05"  # ended: exit_group(127)
    ),
}
_WALK = {
    "aarch64": bytes.fromhex(
        "e90300aa"  # mov x9, x0                 the first entry
        "280140f9"  # next: ldr x8, [x9]         the number
        "a801f8b7"  # tbnz x8, #63, done         a negative one ends the list
        "208540a9228d41a9249542a9"  # ldp x0, x1 ... x4, x5, [x9, #8]
        "010000d4"  # svc #0
        "2a2140f94a0000b4400100b9"  # ldr x10, [x9, #64]; cbz x10, checked; str w0, [x10]
        "2a2540f91f000aea81000054"  # checked: ldr x10, [x9, #72]; tst x0, x10; b.ne out
        "29410191f3ffff17"  # add x9, x9, #80; b next
        "000080d2c0035fd6"  # done: mov x0, #0; out: ret
    ),
    "x86_64": bytes.fromhex(
        "534889fb"  # push rbx; mov rbx, rdi
        "488b034885c07831"  # next: mov rax, [rbx]; test rax, rax; js done
        "488b7b08488b7310488b53184c8b53204c8b43284c8b4b30"  # mov rdi, rsi, rdx, r10, r8, r9, [rbx+8...]
        "0f05"  # syscall
        "488b4b404885c974028901"  # mov rcx, [rbx+64]; test rcx, rcx; jz checked; mov [rcx], eax
        "488543487508"  # checked: test [rbx+72], rax; jnz out
        "4883c350ebc7"  # add rbx, 80; jmp next
        "31c05bc3"  # done: xor eax, eax; out: pop rbx; ret
    ),
}
_ENTRY = struct.Struct("<10q")
_PENDING = 1  # no listed call returns it on success, except a few whose success does not matter
_END = _ENTRY.pack(-1, *[0] * 9)
_CLONE_VM, _CLONE_VFORK, _SIGCHLD = 0x100, 0x4000, 17
_STACK = 1 << 16

_libc = ctypes.CDLL(None, use_errno=True)
_libc.clone.restype = ctypes.c_int


class StepFailed(OSError):
    """A listed call failed; `step` is its name."""

    def __init__(self, code: int, step: str) -> None:
        super().__init__(code, f"{step}: {os.strerror(code)}")
        self.step = step


class Launch:
    """A list of system calls for the child; the last must be an exec."""

    def __init__(self) -> None:
        self._names: list[str] = []
        self._entries: list[bytes] = []
        self._buffers: list[object] = []

    def step(self, name: str, *arguments: int, copy_to: int = 0, may_fail: bool = False) -> None:
        padded = [*arguments, *[0] * (6 - len(arguments))]
        self._names.append(name)
        self._entries.append(_ENTRY.pack(number(name), *padded, _PENDING, copy_to, int(may_fail)))

    def address(self, data: bytes | bytearray) -> int:
        """Address of the data, valid as long as this list exists."""
        buffer = ctypes.create_string_buffer(bytes(data), len(data))
        self._buffers.append(buffer)
        return ctypes.addressof(buffer)

    def strings(self, texts: Sequence[str]) -> int:
        """Address of a null-terminated array of strings."""
        pointers = [self.address(os.fsencode(text) + b"\0") for text in texts]
        return self.address(struct.pack(f"<{len(pointers) + 1}Q", *pointers, 0))

    def go(self) -> int:
        """Start the child and return its process id once exec has succeeded."""
        table = ctypes.create_string_buffer(b"".join(self._entries) + _END)
        flags = _CLONE_VM | _CLONE_VFORK | _SIGCHLD
        pid: int = _libc.clone(
            ctypes.c_void_p(_code()), ctypes.c_void_p(_stack()), ctypes.c_int(flags), ctypes.byref(table)
        )
        if pid < 0:
            raise StepFailed(ctypes.get_errno(), "clone")
        for index, name in enumerate(self._names):
            *_, result, _, may_fail = _ENTRY.unpack_from(table, index * _ENTRY.size)
            if result < 0 and not may_fail:
                os.waitpid(pid, 0)
                raise StepFailed(-result, name)
        return pid


def walk() -> bytes:
    """Machine code for the zygote (zygote.py), which forks: long walk(entry *first).

    It executes such a list too, but returns: the first result that shares bits with the last word of its entry, or 0
    at the end. So the first entry can be the fork itself, where the parent returns with the child's id.
    """
    return _for_this_machine(_WALK)


def _for_this_machine(codes: Mapping[str, bytes]) -> bytes:
    machine = os.uname().machine
    if machine not in codes:
        raise StepFailed(errno.ENOSYS, f"starting programs on {machine}")
    return codes[machine]


def _mapped(size: int, *, code: bytes = b"") -> mmap.mmap:
    protection = mmap.PROT_READ | mmap.PROT_WRITE | (mmap.PROT_EXEC if code else 0)
    area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=protection)
    area[: len(code)] = code
    return area


_areas: dict[str, mmap.mmap] = {}


def _code() -> int:
    if "code" not in _areas:
        _areas["code"] = _mapped(mmap.PAGESIZE, code=_for_this_machine(_CODE))
    return ctypes.addressof(ctypes.c_char.from_buffer(_areas["code"]))


def _stack() -> int:
    """Top of the child's stack, which is hardly used."""
    if "stack" not in _areas:
        _areas["stack"] = _mapped(_STACK)
    return ctypes.addressof(ctypes.c_char.from_buffer(_areas["stack"])) + _STACK - 64
