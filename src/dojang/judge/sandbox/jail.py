"""The jail of a worker: a root file system with the toolchain only, no network, no other processes.

With namespaces, the worker and its children see a private root, and the scratch directory is a tmpfs that vanishes
with the last of them. Without, the scratch directory is an ordinary one that the supervisor removes, and Landlock
(where available) is applied to each child, because the worker itself still needs /proc.
"""

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass

from dojang.judge.sandbox import linux

__all__ = [
    "HEADERS",
    "MOUNT_POINT",
    "NAMESPACES",
    "READ_ONLY",
    "Jail",
    "bind_device",
    "bind_read_only",
    "enter_namespaces",
    "map_identity",
    "open_peak",
    "show",
    "wipe",
]

HEADERS = "/headers"
"""Mount point of the precompiled headers: their real path may be under /tmp, which belongs to the program."""
NAMESPACES = (
    linux.CLONE_NEWNS
    | linux.CLONE_NEWPID
    | linux.CLONE_NEWNET
    | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUTS
    | linux.CLONE_NEWCGROUP
)
MOUNT_POINT = "/sys"
"""Directory at which a new root is built: it exists everywhere, and holds nothing a toolchain needs."""
_SCRATCH_OPTIONS = "size=256m,nr_inodes=4096,mode=700"
READ_ONLY = linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY | linux.MS_NOSUID | linux.MS_NODEV
_DEVICES = ("/dev/null", "/dev/urandom", "/dev/random")
_KEPT = {  # mount flags that an unprivileged user may not clear, by their statvfs names
    os.ST_NOSUID: linux.MS_NOSUID,
    os.ST_NODEV: linux.MS_NODEV,
    os.ST_NOEXEC: linux.MS_NOEXEC,
    os.ST_NOATIME: 1 << 10,
    os.ST_NODIRATIME: 1 << 11,
    os.ST_RELATIME: 1 << 21,
}


@dataclass(frozen=True, slots=True)
class Jail:
    """Directories and descriptors a worker has in its jail."""

    scratch: str
    """Private directory, emptied between programs."""
    proc: int | None
    """Descriptor of /proc, which has no path in the jail."""
    peak: int | None
    """Descriptor to which writing "5" resets the worker's peak memory."""
    ruleset: int | None = None
    """Landlock ruleset for children, if Landlock isolates them."""


def enter_namespaces(
    readable: Iterable[str], headers: str, outer_uid: int, outer_gid: int, *, user_namespace: bool
) -> Jail:
    """Build the new root and move into it. Called in a process cloned into NAMESPACES."""
    if user_namespace:
        map_identity(outer_uid, outer_gid)
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", MOUNT_POINT, "tmpfs", linux.MS_NOSUID | linux.MS_NODEV, "size=4m,mode=755")
    for path in readable:
        show(path)
    if headers:
        bind_read_only(headers, MOUNT_POINT + HEADERS)
    os.makedirs(f"{MOUNT_POINT}/dev", exist_ok=True)
    for path in _DEVICES:
        bind_device(path)
    os.makedirs(f"{MOUNT_POINT}/tmp", exist_ok=True)
    linux.mount(
        "tmpfs", f"{MOUNT_POINT}/tmp", "tmpfs", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC, _SCRATCH_OPTIONS
    )
    proc = _private_proc()
    linux.pivot_root(MOUNT_POINT)
    linux.mount("none", "/", flags=READ_ONLY)
    return Jail("/tmp", proc, open_peak(proc))


def open_peak(proc: int | None) -> int | None:
    """Open it early: later the worker may not write to its /proc files."""
    if proc is None:
        return None
    try:
        return os.open("self/clear_refs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=proc)
    except OSError:
        return None


def map_identity(uid: int, gid: int) -> None:
    """Map the user of this process to user 1000 of its new user namespace."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {uid} 1"), ("gid_map", f"1000 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def show(path: str) -> None:
    """Mount `path` in the new root, including symbolic links on the way."""
    done = "/"
    parts = [part for part in path.split("/") if part]
    while parts:
        here = os.path.join(done, parts.pop(0))
        there = MOUNT_POINT + here
        if os.path.islink(here):
            target = os.readlink(here)
            if not os.path.lexists(there):
                os.symlink(target, there)
            rest = os.path.normpath(os.path.join(os.path.dirname(here), target, *parts))
            show(rest)
            return
        if not parts:
            bind_read_only(here, there)
        elif not os.path.isdir(there):
            os.mkdir(there)
        done = here


def bind_read_only(here: str, there: str) -> None:
    """Mount a file or folder read-only, unless a mounted folder contains it already."""
    if not os.path.exists(here) or (os.path.lexists(there) and _covered(there)):
        return
    _make_target(there, directory=os.path.isdir(here))
    _bind(here, there)
    kept = sum(flag for given, flag in _KEPT.items() if os.statvfs(here).f_flag & given)
    linux.mount("none", there, flags=READ_ONLY | kept)


def _covered(there: str) -> bool:
    """Whether a mounted directory already contains it; only directories created here are writable."""
    return bool(os.statvfs(there).f_flag & os.ST_RDONLY)


def _make_target(there: str, *, directory: bool) -> None:
    if directory:
        os.makedirs(there, exist_ok=True)
    else:
        os.close(os.open(there, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def _bind(here: str, there: str) -> None:
    try:
        linux.mount(here, there, flags=linux.MS_BIND)
    except OSError:  # the tree contains mounts that this user may not uncover
        linux.mount(here, there, flags=linux.MS_BIND | linux.MS_REC)


def bind_device(path: str) -> None:
    """Mount a character device in the new root."""
    if os.path.exists(path) and stat.S_ISCHR(os.stat(path).st_mode):
        _make_target(MOUNT_POINT + path, directory=False)
        _bind(path, MOUNT_POINT + path)


def _private_proc() -> int | None:
    """Open this namespace's /proc without giving it a path. None where a container forbids the mount."""
    target = f"{MOUNT_POINT}/proc"
    os.makedirs(target, exist_ok=True)
    try:
        linux.mount("proc", target, "proc", linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC)
    except OSError:
        return None
    opened = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    linux.unmount(target)
    return opened


def wipe(directory: str) -> None:
    """Empty a directory, whatever a program did in it, such as nesting deeper than a path can name."""
    top = _open(directory)
    try:
        while names := os.listdir(top):
            for name in names:
                _remove(top, name)
    finally:
        os.close(top)


def _open(directory: str) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        top = os.open(directory, flags)
    except PermissionError:  # made unreadable by a program
        os.chmod(directory, 0o700)
        top = os.open(directory, flags)
    os.fchmod(top, 0o700)
    return top


def _remove(top: int, name: str) -> None:
    if not stat.S_ISDIR(os.lstat(name, dir_fd=top).st_mode):
        os.unlink(name, dir_fd=top)
        return
    os.chmod(name, 0o700, dir_fd=top)
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=top)
    try:
        # Move subdirectories up instead of descending: works at any depth, without recursion.
        for child in os.listdir(inner):
            if stat.S_ISDIR(os.lstat(child, dir_fd=inner).st_mode):
                os.chmod(child, 0o700, dir_fd=inner)  # moving a directory writes to it
                os.rename(child, os.urandom(12).hex(), src_dir_fd=inner, dst_dir_fd=top)
            else:
                os.unlink(child, dir_fd=inner)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)
