"""Seccomp policies: the system calls that native programs, Python programs and the compiler may make.

A native program needs no files: it is linked statically, and its input and output are open when it starts. Calls that
no honest program makes (new processes, sockets, tracing) kill it with SIGSYS. An interpreter makes calls that an
honest program never asked for, so there the same calls fail with an error instead.

Paths are not checked here: a filter cannot read memory. Namespaces and Landlock restrict paths.
"""

import errno
from collections.abc import Mapping

from dojang.judge.sandbox.bpf import ALLOW, KILL, SELF, Clause, Filter, Rule, assemble, refuse

__all__ = ["EXEC_FD", "compiler_filter", "native_filter", "python_filters", "shell_filter"]

EXEC_FD = 1000
"""Descriptor a native program is executed from. It closes on exec, so the permission works once. It lies above the
descriptor limit of a program, so a program cannot create it again."""

_ALL = 0xFFFFFFFF
_EVERY = 0xFFFFFFFF_FFFFFFFF
_NO_EFFECT = refuse(0)
"""Action that makes a call return 0 without effect."""


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_HARMLESS = _names(
    """
    read write readv writev pread64 pwrite64 preadv pwritev close fstat lseek mmap mprotect munmap mremap madvise brk
    rt_sigaction rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigpending rt_sigtimedwait sigaltstack nanosleep
    clock_nanosleep clock_gettime clock_getres gettimeofday getpid gettid getppid getuid geteuid getgid getegid
    getgroups getpgid getpgrp getsid exit exit_group futex set_tid_address set_robust_list get_robust_list getrusage
    times uname getrandom sched_yield sched_getaffinity sched_getparam sched_getscheduler sched_get_priority_max
    sched_get_priority_min dup dup2 dup3 poll ppoll select pselect6 restart_syscall getitimer setitimer alarm pause
    sysinfo membarrier msync mincore getcpu rseq getrlimit time
    arch_prctl fsync fdatasync fadvise64 pipe pipe2 eventfd eventfd2 epoll_create epoll_create1 epoll_ctl epoll_wait
    epoll_pwait
    """
)

_PATHS = _names(
    """
    open openat openat2 creat access faccessat faccessat2 stat lstat readlink readlinkat getcwd chdir fchdir
    getdents getdents64 statfs unlink unlinkat mkdir mkdirat rmdir rename renameat renameat2 link linkat symlink
    symlinkat mknod mknodat truncate chmod fchmodat chown lchown fchownat utime utimes utimensat futimesat
    """
)

_FILES = _names(
    """
    creat access faccessat faccessat2 stat lstat newfstatat statx readlink readlinkat getcwd chdir fchdir getdents
    getdents64 statfs fstatfs unlink unlinkat mkdir mkdirat rmdir rename renameat renameat2 ftruncate symlink symlinkat
    link linkat umask flock fallocate fchmod copy_file_range sendfile close_range
    """
)
"""File calls that Landlock checks. Excludes truncate, chmod and utime by path, which not every version checks."""

_FORBIDDEN = _names(
    """
    fork vfork execve execveat socket socketpair bind listen accept accept4 connect sendto sendmsg recvfrom recvmsg
    ptrace process_vm_readv process_vm_writev process_madvise kcmp mount umount2 pivot_root chroot unshare setns
    move_mount fsopen fsmount open_tree mount_setattr bpf perf_event_open userfaultfd keyctl add_key request_key
    shmget shmat shmctl msgget msgsnd semget semop mq_open setuid setgid setreuid setregid setresuid setresgid
    setfsuid setfsgid setgroups capset reboot init_module finit_module delete_module kexec_load open_by_handle_at
    name_to_handle_at personality pidfd_open pidfd_getfd pidfd_send_signal setsid setpgid setpriority
    sched_setaffinity sched_setscheduler sched_setparam sched_setattr ioprio_set fanotify_init inotify_init
    inotify_init1 io_uring_setup io_uring_enter io_uring_register io_setup memfd_create memfd_secret sethostname
    setdomainname swapon swapoff acct quotactl settimeofday clock_settime adjtimex seccomp landlock_create_ruleset
    splice tee vmsplice migrate_pages move_pages mbind set_mempolicy modify_ldt iopl ioperm
    """
)

_SHELL = """
    fork vfork execve execveat recvfrom recvmsg setsid setpgid setpriority sched_setaffinity inotify_init inotify_init1
    memfd_create splice tee vmsplice personality pidfd_open pidfd_send_signal setuid setgid setreuid setregid setresuid
    setresgid setgroups shmget shmat shmctl msgget msgsnd semget semop mq_open
"""
"""Calls that are harmless where processes, files and network are separate."""

_MAKING_CHILDREN = ("clone", "prctl", "prlimit64", "recvmsg", "seccomp")

_SIGNALS = {"kill": 1, "tkill": 1, "tgkill": 2, "rt_sigqueueinfo": 1, "rt_tgsigqueueinfo": 2}
"""Index of the signal number among the arguments."""

_CLONE_THREAD, _CLONE_NEW = 0x00010000, 0x7E020080
_AT_EMPTY_PATH, _SIGKILL, _AF_UNIX = 0x1000, 9, 1
_O_ACCMODE, _O_TRUNC = 0x3, 0x200
_MAP_TYPE, _MAP_ANONYMOUS, _SHARED_ANONYMOUS = 0x0F, 0x20, (0x21, 0x23)
_IOCTL = (0x5401, 0x541B, 0x5421, 0x5450, 0x5451)  # TCGETS, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
_FCNTL = (0, 1, 2, 3, 4, 1030)  # duplicate, get and set flags; not those that send signals or take leases
_RLIMIT_STACK = 3
_PRCTL = (15, 16, 0x53564D41)  # name of the thread, names of mappings


def native_filter(architecture: str, *, files: bool = False) -> Filter:
    """Policy of a compiled program. `files`: it must open files such as shared libraries, and paths are restricted
    elsewhere."""
    once = Rule(KILL, (Clause(((0, _ALL, EXEC_FD),), ALLOW),))
    rules = {**_shared(KILL), **_paths(files=files), "execveat": once}
    return assemble(architecture, rules, refuse(errno.ENOSYS))


def python_filters(architecture: str, *, files: bool) -> tuple[Filter, Filter]:
    """Policies of a Python program. `files`: it may open files, and paths are restricted elsewhere.

    The interpreter installs the first filter once. Its children add the second, which forbids the calls it needs to
    fork them. Both together are one policy. A long filter costs a tenth of a small program.
    """
    rules = {**_shared(refuse(errno.EACCES)), **_paths(files=files)}
    # asyncio uses a socket pair for itself; without an address it reaches no other process.
    rules["socketpair"] = _one_of(0, (_AF_UNIX,), refuse(errno.EACCES))
    rules["sendto"] = Rule(refuse(errno.EACCES), (Clause(((4, _EVERY, 0),), ALLOW),))
    rules["recvfrom"] = rules["shutdown"] = Rule(ALLOW)
    late = {name: rules[name] for name in (*_MAKING_CHILDREN, *_SIGNALS)}
    early = {**rules, **dict.fromkeys(late, Rule(ALLOW))}
    return assemble(architecture, early, refuse(errno.ENOSYS)), assemble(architecture, late, ALLOW)


def compiler_filter(architecture: str) -> Filter:
    """Policy of a compiler: it starts its parts and writes files, nothing else."""
    needed = {"fork", "vfork", "execve", "execveat", "setpriority"}
    rules = {name: Rule(refuse(errno.EPERM)) for name in _FORBIDDEN if name not in needed}
    rules["clone"] = Rule(refuse(errno.EPERM), (Clause(((0, _CLONE_NEW, 0),), ALLOW),))
    rules["clone3"] = Rule(refuse(errno.ENOSYS))
    return assemble(architecture, rules, ALLOW)


def shell_filter(architecture: str) -> Filter:
    """Policy of the commands of a shell sandbox, which has separate processes, files and network. They may start
    processes, use sockets and send signals within it; not change namespaces, trace, or use rare kernel interfaces."""
    allowed = {*_names(_SHELL), *_names("socket socketpair bind listen accept accept4 connect sendto sendmsg")}
    rules = {name: Rule(refuse(errno.EPERM)) for name in _FORBIDDEN if name not in allowed}
    rules["clone"] = Rule(refuse(errno.EPERM), (Clause(((0, _CLONE_NEW, 0),), ALLOW),))
    rules["clone3"] = Rule(refuse(errno.ENOSYS))
    # Limits of the process itself only: process 1, which enforces the others, has the same user.
    rules["prlimit64"] = Rule(refuse(errno.EPERM), (Clause(((0, _ALL, 0),), ALLOW), Clause(((0, _ALL, SELF),), ALLOW)))
    return assemble(architecture, rules, ALLOW)


def _shared(forbidden: int) -> Mapping[str, Rule]:
    rules = {name: Rule(forbidden) for name in _FORBIDDEN}
    rules |= {name: Rule(ALLOW) for name in _HARMLESS}
    # Signals to itself only, but not SIGKILL: that would look like a kill by the judge or for lack of memory.
    rules |= {
        name: Rule(KILL, (Clause(((at, _ALL, _SIGKILL),), KILL), Clause(((0, _ALL, SELF),), ALLOW)))
        for name, at in _SIGNALS.items()
    }
    rules["clone"] = Rule(
        forbidden, (Clause(((0, _CLONE_THREAD | _CLONE_NEW, _CLONE_THREAD),), ALLOW),)
    )  # threads only
    rules["clone3"] = Rule(refuse(errno.ENOSYS))  # its flags are in memory; the C library then falls back to clone
    # Limits are read-only. Setting the stack limit succeeds without effect: many solutions ask for an unlimited stack
    # before they recurse, and `stack_mb` is all they get.
    rules["prlimit64"] = Rule(
        refuse(errno.EPERM), (Clause(((2, _EVERY, 0),), ALLOW), Clause(((1, _ALL, _RLIMIT_STACK),), _NO_EFFECT))
    )
    # Shared anonymous memory is charged to no process once it is unmapped.
    nowhere = tuple(Clause(((3, _MAP_TYPE | _MAP_ANONYMOUS, kind),), refuse(errno.EPERM)) for kind in _SHARED_ANONYMOUS)
    rules["mmap"] = Rule(ALLOW, nowhere)
    rules["setrlimit"] = Rule(refuse(errno.EPERM), (Clause(((0, _ALL, _RLIMIT_STACK),), _NO_EFFECT),))
    rules["ioctl"] = _one_of(1, _IOCTL, refuse(errno.ENOTTY))
    rules["fcntl"] = _one_of(1, _FCNTL, refuse(errno.EPERM))
    rules["prctl"] = _one_of(0, _PRCTL, refuse(errno.EPERM))
    return rules


def _paths(*, files: bool) -> Mapping[str, Rule]:
    if files:
        # Older Landlock versions do not check O_TRUNC on files opened for reading.
        rules = {
            name: Rule(ALLOW, (Clause(((at, _O_ACCMODE | _O_TRUNC, _O_TRUNC),), refuse(errno.EACCES)),))
            for name, at in (("open", 1), ("openat", 2))
        }
        return {**rules, **{name: Rule(ALLOW) for name in _FILES}}
    nowhere = refuse(errno.ENOENT)
    rules = {name: Rule(nowhere) for name in _PATHS}
    for name, flags in (("newfstatat", 3), ("statx", 2)):  # fstat of an open file is one of these
        rules[name] = Rule(nowhere, (Clause(((flags, _AT_EMPTY_PATH, _AT_EMPTY_PATH),), ALLOW),))
    return rules


def _one_of(argument: int, values: tuple[int, ...], otherwise: int) -> Rule:
    return Rule(otherwise, tuple(Clause(((argument, _ALL, value),), ALLOW) for value in values))
