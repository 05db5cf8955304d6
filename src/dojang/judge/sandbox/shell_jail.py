"""The root file system of a shell sandbox: this machine's /usr, a Python interpreter, and private writable folders.

All writable folders share one tmpfs of limited size. Roles: `agent` runs the commands of a policy, `verifier` runs a
task's verifier beside the agent's files, `untrusted` runs the agent's files for a verifier.
"""

import fcntl
import glob
import os
import shlex
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dojang.judge.sandbox import linux
from dojang.judge.sandbox.jail import MOUNT_POINT, READ_ONLY, bind_device, bind_read_only, map_identity, show

__all__ = [
    "LIBRARY",
    "LOGS",
    "SYSTEM",
    "TESTS",
    "UNTRUSTED_SOCKET",
    "ShellJail",
    "enter_shell_jail",
    "shell_environment",
]

TESTS, LOGS, UNTRUSTED_SOCKET = "/tests", "/logs/verifier", "/run/untrusted/socket"
LIBRARY = "/opt/dojang"
SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/alternatives",
    "/etc/ld.so.cache",
    "/etc/ssl/certs",
)
"""Files of this machine that commands can read."""
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/urandom", "/dev/random")
_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
_PRIVATE = linux.MS_NOSUID | linux.MS_NODEV
_DISK = "/.disk"
_GUARD = """\
# Has agents' scripts run in the sandbox for untrusted programs: a verifier's shell must not read them.
# The script is $0, if that is a word of the command. Else $0 is the shell, or the name that -c gives.
__script=$0
case $- in *c*) __script= ;; *)
    if mapfile -d '' -t __words < "/proc/$$/cmdline" && __at=$((${#__words[@]} - $# - 1)); then
        [ "$__at" -gt 0 ] && [ "${__words[__at]}" = "$0" ] || __script=
    fi ;;
esac
if [ -n "$__script" ] && __script=$(/usr/bin/realpath -e -- "$__script" 2> /dev/null); then
    case "$__script" in "$DOJANG_WORKDIR"/*) exec run-untrusted bash "$0" "$@" ;; esac
fi
unset __script __words __at
"""
_LAUNCHER = """\
#!/bin/bash -p
# Starts Python with the rules of verifiers (sitecustomize). Options that would switch them off are dropped.
options=()
while [[ $1 == -?* && $1 != --* ]]; do
    word=${{1#-}} head=${{1#-}}
    head=${{head%%[cmWX]*}}
    rest=${{word#"$head"}} head=${{head//[EIS]/}}
    [[ -n $head$rest ]] && options+=("-$head$rest")
    shift
    case $rest in c | m | W | X) options+=("$1") && shift ;; esac
    case $rest in c* | m*) break ;; esac
done
unset PYTHONHOME PYTHONSTARTUP
export PYTHONPATH={library}/lib${{PYTHONPATH:+:$PYTHONPATH}} PYTHONSAFEPATH=1 PYTHONNOUSERSITE=1
export PYTHONDONTWRITEBYTECODE=1 DOJANG_WORKDIR={workdir}
exec -a {python} {library}/real/bin/python "${{options[@]}}" "$@"
"""
_REAL = f"{LIBRARY}/real"
_CLIENT, _SITE = "dojang.judge.sandbox.untrusted_client", "dojang.judge.sandbox.verifier_site"
_PROJECT_TOOLS = (
    "git",
    "make",
    "cmake",
    "ninja",
    "npm",
    "npx",
    "cargo",
    "go",
    "gcc",
    "g++",
    "cc",
    "c++",
    "clang",
    "rustc",
)
"""Programs that run commands of the files they find (hooks, settings, rules), or make programs of them."""
_SHELLS = ("dash", "ash", "ksh", "ksh93", "mksh", "zsh", "yash", "posh")
"""Further shells: bash, which has the guard, runs in their place."""
_INTERPRETERS = ("/usr/bin/python*[0-9]", "/usr/local/bin/python*[0-9]", "/usr/bin/pypy*")


@dataclass(frozen=True, slots=True)
class ShellJail:
    """Folders and descriptors of a shell sandbox."""

    workdir: str
    proc: int
    role: str
    python: str


def enter_shell_jail(
    spec: Mapping[str, Any], outer_uid: int, outer_gid: int, private_uid: int | None, *, user_namespace: bool
) -> ShellJail:
    """Build the new root and move into it. Called in a process cloned into NAMESPACES."""
    if user_namespace:
        map_identity(outer_uid, outer_gid)
    uid = 1000 if user_namespace else private_uid or outer_uid
    workdir, role = str(spec["workdir"]), str(spec["role"])
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount("tmpfs", MOUNT_POINT, "tmpfs", _PRIVATE, "size=4m,mode=755")
    for path in (*SYSTEM, *spec["readable"]):
        if os.path.exists(path):
            show(path)
    _write_library(spec, role)
    _write("/etc/passwd", f"root:x:0:0::/:/bin/sh\nagent:x:{uid}:{uid}::/home/agent:/bin/bash\n")
    _write("/etc/group", f"root:x:0:\nagent:x:{uid}:\n")
    _write("/etc/hosts", "127.0.0.1 localhost\n")
    os.makedirs(f"{MOUNT_POINT}/dev", exist_ok=True)
    for path in _DEVICES:
        bind_device(path)
    for name, target in _LINKS.items():
        os.symlink(target, f"{MOUNT_POINT}/dev/{name}")
    folders = {workdir: 0, "/tmp": 0, "/dev/shm": 0, "/home/agent": 0}
    if role == "verifier":
        # Agents' programs do not start here: only the sandbox for untrusted programs runs them.
        folders |= {workdir: linux.MS_NOEXEC, TESTS: 0, LOGS: 0, os.path.dirname(UNTRUSTED_SOCKET): 0}
    _mount_folders(folders, int(spec["disk"]), uid)
    target = f"{MOUNT_POINT}/proc"
    os.makedirs(target, exist_ok=True)
    linux.mount("proc", target, "proc", _PRIVATE | linux.MS_NOEXEC)
    _loopback_up()
    linux.pivot_root(MOUNT_POINT)
    linux.mount("none", "/", flags=READ_ONLY)
    os.umask(0o022)
    return ShellJail(workdir, os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), role, str(spec["python"]))


def shell_environment(jail: ShellJail) -> dict[str, str]:
    """Environment variables of commands; nothing of the machine's."""
    found = {
        "PATH": f"{LIBRARY}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/home/agent",
        "USER": "agent",
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "PWD": jail.workdir,
    }
    if jail.role == "verifier":
        found |= {"BASH_ENV": f"{LIBRARY}/lib/bash_guard", "DOJANG_WORKDIR": jail.workdir}
    return found


def _write(path: str, text: str, mode: int = 0o644) -> None:
    os.makedirs(os.path.dirname(MOUNT_POINT + path), exist_ok=True)
    with open(MOUNT_POINT + path, "w") as file:
        file.write(text)
    os.chmod(MOUNT_POINT + path, mode)


def _write_library(spec: Mapping[str, Any], role: str) -> None:
    """Make /opt/dojang: commands of the interpreter, and for a verifier those that run untrusted code."""
    python, package = str(spec["python"]), f"{LIBRARY}/lib/dojang"
    launcher = f'#!/bin/sh\nexec {shlex.quote(python)} "$@"\n'
    if role == "verifier":
        launcher = _LAUNCHER.format(library=LIBRARY, workdir=shlex.quote(spec["workdir"]), python=shlex.quote(python))
    for name in ("python", "python3"):
        _write(f"{LIBRARY}/bin/{name}", launcher, 0o755)
    _write(f"{LIBRARY}/bin/pytest", '#!/bin/sh\nexec python3 -m pytest "$@"\n', 0o755)
    if role == "agent":
        return
    for name in ("", "/judge"):
        _write(f"{package}{name}/__init__.py", "")
    bind_read_only(str(spec["code"]), f"{MOUNT_POINT}{package}/judge/sandbox")
    if role == "verifier":
        run = f'import sys; sys.path.insert(0, "{LIBRARY}/lib"); from {_CLIENT} import main; main()'
        _write(f"{LIBRARY}/bin/run-untrusted", f"#!/bin/sh\nexec {_REAL}/bin/python -I -S -c '{run}' \"$@\"\n", 0o755)
        for name in _PROJECT_TOOLS:
            _write(f"{LIBRARY}/bin/{name}", f'#!/bin/bash -p\nexec run-untrusted {name} "$@"\n', 0o755)
        _write(f"{LIBRARY}/bin/sh", '#!/bin/bash -p\nexec /bin/bash "$@"\n', 0o755)
        _write(f"{LIBRARY}/lib/bash_guard", _GUARD)
        _write(f"{LIBRARY}/lib/sitecustomize.py", f"from {_SITE} import install\n\ninstall()\n")
        _replace_interpreters(os.path.realpath(python))
        _replace_shells()


def _replace_interpreters(real: str) -> None:
    """Put the verifier's launcher in the place of every Python interpreter, so that none starts without its rules."""
    os.makedirs(f"{MOUNT_POINT}{_REAL}/bin")
    bind_read_only(real, f"{MOUNT_POINT}{_REAL}/bin/python")
    os.symlink(
        os.path.join(os.path.dirname(os.path.dirname(real)), "lib"), f"{MOUNT_POINT}{_REAL}/lib"
    )  # $ORIGIN/../lib
    found = {real, *(os.path.realpath(each) for place in _INTERPRETERS for each in glob.glob(place))}
    for path in found:
        if os.path.isfile(path) and os.path.exists(MOUNT_POINT + path):
            linux.mount(f"{MOUNT_POINT}{LIBRARY}/bin/python", MOUNT_POINT + path, flags=linux.MS_BIND)


def _replace_shells() -> None:
    """Put bash in the place of every other shell, so that none reads the agent's scripts."""
    bash = os.path.realpath("/bin/bash")
    for path in {os.path.realpath(f"{folder}/{name}") for folder in ("/bin", "/usr/bin") for name in ("sh", *_SHELLS)}:
        if path != bash and os.path.isfile(path) and os.path.exists(MOUNT_POINT + path):
            linux.mount(f"{MOUNT_POINT}{LIBRARY}/bin/sh", MOUNT_POINT + path, flags=linux.MS_BIND)


def _mount_folders(folders: Mapping[str, int], size: int, uid: int) -> None:
    """Mount writable folders, all on one tmpfs; values are further mount flags."""
    disk = MOUNT_POINT + _DISK
    os.makedirs(disk)
    linux.mount("tmpfs", disk, "tmpfs", _PRIVATE, f"size={size},nr_inodes={max(4096, size >> 13)},mode=700")
    for number, (path, flags) in enumerate(folders.items()):
        inside, there = f"{disk}/{number}", MOUNT_POINT + path
        os.makedirs(there, exist_ok=True)
        os.mkdir(inside, 0o755)
        os.chown(inside, uid, uid)
        linux.mount(inside, there, flags=linux.MS_BIND)
        linux.mount("none", there, flags=linux.MS_BIND | linux.MS_REMOUNT | _PRIVATE | flags)
    linux.unmount(disk)
    os.rmdir(disk)


def _loopback_up() -> None:
    """Activate the loopback interface of the private network, so that programs of one command can talk."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        fcntl.ioctl(asking, 0x8914, struct.pack("16sH14x", b"lo", 0x1 | 0x40))  # SIOCSIFFLAGS: IFF_UP, IFF_RUNNING
