"""Linux system calls that the standard library lacks, with errors as OSError."""

import ctypes
import os
import struct
import sys
from collections.abc import Iterable

from dojang.judge.sandbox.syscalls import number

__all__ = [
    "CLONE_NEWCGROUP",
    "CLONE_NEWIPC",
    "CLONE_NEWNET",
    "CLONE_NEWNS",
    "CLONE_NEWPID",
    "CLONE_NEWUSER",
    "CLONE_NEWUTS",
    "FILTER_SPEC_ALLOW",
    "MS_BIND",
    "MS_NODEV",
    "MS_NOEXEC",
    "MS_NOSUID",
    "MS_PRIVATE",
    "MS_RDONLY",
    "MS_REC",
    "MS_REMOUNT",
    "PR_SET_PDEATHSIG",
    "clone",
    "die_with_parent",
    "drop_capabilities",
    "install_filter",
    "landlock_restrict",
    "landlock_ruleset",
    "landlock_version",
    "mount",
    "no_new_privileges",
    "pivot_root",
    "set_undumpable",
    "subreaper",
    "unmount",
]

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE, _MNT_DETACH = 4096, 16384, 1 << 18, 2

_SIGKILL, _SIGCHLD = 9, 17
PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
FILTER_SPEC_ALLOW = 4  # no speculation mitigations: a program has no secrets in its own address space
_CAPABILITY_VERSION_3 = 0x20080522

# Landlock access rights by ABI version: an older kernel refuses the rights of a newer one.
_FILE_RIGHTS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_NO_TCP, _SCOPED = 3, 3

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_after_fork = ctypes.pythonapi.PyOS_AfterFork_Child
_after_fork.restype = None


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def _call(name: str, *arguments: object) -> int:
    return _checked(name, _syscall(ctypes.c_long(number(name)), *map(_native, arguments)))


def _native(argument: object) -> object:
    return ctypes.c_long(argument) if isinstance(argument, int) else argument


def _checked(name: str, result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return int(result)


def _prctl(option: int, value: int, pointer: object = 0) -> None:
    _call("prctl", option, value, pointer, 0, 0)


def die_with_parent() -> None:
    """Send this process SIGKILL when the thread that created it ends."""
    _prctl(PR_SET_PDEATHSIG, _SIGKILL)


def subreaper() -> None:
    """Become the parent of orphaned descendants."""
    _prctl(_PR_SET_SUBREAPER, 1)


def set_undumpable() -> None:
    """Forbid other processes of the same user to inspect this one."""
    _prctl(_PR_SET_DUMPABLE, 0)


def no_new_privileges() -> None:
    """Set no_new_privs: programs started from now on gain no privileges."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def install_filter(code: bytearray) -> None:
    """Install a seccomp filter for this thread and its children."""
    buffer = (ctypes.c_char * len(code)).from_buffer(code)
    program = _Program(len(code) // 8, ctypes.addressof(buffer))
    _call("seccomp", 1, FILTER_SPEC_ALLOW, ctypes.byref(program))


def drop_capabilities() -> None:
    """Drop all capabilities for good: with no_new_privs they cannot come back."""
    header = struct.pack("<Ii", _CAPABILITY_VERSION_3, 0)
    _call("capset", ctypes.c_char_p(header), ctypes.c_char_p(bytes(24)))


def clone(flags: int) -> int:
    """Fork with clone flags, such as new namespaces for the child."""
    pid = _call("clone", flags | _SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        _after_fork()
    return pid


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    texts = [ctypes.c_char_p(os.fsencode(text) if text else None) for text in (source, target, kind)]
    _call("mount", *texts, flags, ctypes.c_char_p(os.fsencode(options) if options else None))


def unmount(target: str) -> None:
    """Detach a mount; files open in it stay open."""
    _call("umount2", ctypes.c_char_p(os.fsencode(target)), _MNT_DETACH)


def pivot_root(directory: str) -> None:
    """Make `directory` the root and detach the old one."""
    os.chdir(directory)
    _call("pivot_root", ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
    unmount(".")
    os.chdir("/")


def landlock_version() -> int:
    """Landlock ABI version; 0 if the kernel lacks it or it is disabled."""
    if sys.platform != "linux":
        return 0
    try:
        return _call("landlock_create_ruleset", 0, 0, 1)
    except (OSError, KeyError):
        return 0


def landlock_ruleset(readable: Iterable[str], writable: Iterable[str], listable: Iterable[str] = ()) -> int:
    """Create a ruleset for `landlock_restrict`: opens these trees only, and no network."""
    version = landlock_version()
    rights = _FILE_RIGHTS[min(version, 5)]
    attributes = struct.pack("<QQQ", rights, _NO_TCP if version >= 4 else 0, _SCOPED if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _call("landlock_create_ruleset", ctypes.c_char_p(attributes), size, 0)
    os.set_inheritable(ruleset, False)
    for path in listable:
        _landlock_allow(ruleset, path, _READ_DIR)
    for path in readable:
        _landlock_allow(ruleset, path, _EXECUTE | _READ_FILE | _READ_DIR)
    for path in writable:
        _landlock_allow(ruleset, path, rights)
    return ruleset


def _landlock_allow(ruleset: int, path: str, rights: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            device = not os.path.isfile(path)
            rights &= _EXECUTE | _READ_FILE | _WRITE_FILE
            rights |= _WRITE_FILE if device else 0  # /dev/null may be written to
        _call("landlock_add_rule", ruleset, 1, ctypes.c_char_p(struct.pack("<Qi", rights, opened)), 0)
    finally:
        os.close(opened)


def landlock_restrict(ruleset: int) -> None:
    """Apply the ruleset to this process and its children."""
    _call("landlock_restrict_self", ruleset, 0)
