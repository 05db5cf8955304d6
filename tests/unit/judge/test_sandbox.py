"""Parts of the sandbox in isolation: seccomp filters, messages, wiping, limits, encoding of values."""

import asyncio
import errno
import json
import math
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from dojang.core.paths import cache_root
from dojang.judge.execution import Execution
from dojang.judge.pool import JudgePool
from dojang.judge.sandbox import function_calls, messages
from dojang.judge.sandbox.bpf import ALLOW, KILL, SELF, Clause, Filter, Rule, assemble, refuse
from dojang.judge.sandbox.jail import wipe
from dojang.judge.sandbox.limits import Interrupted, LimitsWatcher, PoolDisconnected, ProcessEnd, ResourceLimits
from dojang.judge.sandbox.run_test import RunLimits, _outcome, loaded_size
from dojang.judge.sandbox.syscall_policy import EXEC_FD, compiler_filter, native_filter, python_filters
from dojang.judge.sandbox.syscalls import ARCHITECTURES
from dojang.programs import CallTest, Judgement, Limits, Submission, TestSuite
from dojang.types import Outcome

ARCHES = ("x86_64", "aarch64")
AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
PID = 4711
PATIENCE = 60.0
"""Timeout in seconds for things that must not hang; not a measurement."""

CLONE_VM, CLONE_THREAD, CLONE_NEWUSER, CLONE_NEWTIME = 0x100, 0x10000, 0x10000000, 0x80
NO = {name: refuse(getattr(errno, name)) for name in ("EACCES", "EPERM", "ENOENT", "ENOSYS", "ENOTTY")}


# Filters ------------------------------------------------------------------------------------------------------------


@cache
def read(code: bytes) -> list[tuple[int, int, int, int]]:
    """Instructions as (operation, jump if true, jump if false, value)."""
    return list(struct.iter_unpack("<HBBI", code))


def verdict(code: bytes, number: int, arguments: Sequence[int] = (), arch: int = AUDIT["x86_64"]) -> int:
    """Interpret a BPF filter: the kernel's verdict on a system call."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number & 0xFFFFFFFF, arch, 0, *(each & (1 << 64) - 1 for each in padded))
    steps = read(code)
    at, loaded = 0, 0
    for _ in range(len(steps)):
        op, yes, no, value = steps[at]
        at += 1
        if op == 0x20:
            loaded = struct.unpack_from("<I", data, value)[0]
        elif op == 0x54:
            loaded &= value
        elif op == 0x05:
            at += value
        elif op == 0x15:
            at += yes if loaded == value else no
        elif op == 0x35:
            at += yes if loaded >= value else no
        elif op == 0x06:
            return int(value)
        else:
            raise AssertionError(f"instruction {op:#x}")
    raise AssertionError("the filter does not end")


def asked(filters: Filter | Sequence[Filter], arch: str, name: str, *arguments: int) -> int:
    """Verdict of several filters: the kernel takes the strictest, the smallest as a signed number."""
    each = [filters] if isinstance(filters, Filter) else filters
    codes = [bytes(filter.for_process(PID)) for filter in each]
    verdicts = [verdict(code, ARCHITECTURES[arch][name], arguments, AUDIT[arch]) for code in codes]
    return min(verdicts, key=lambda action: action - (1 << 32) if action >> 31 else action)


def fits(clause: Clause, arguments: Sequence[int]) -> bool:
    return all((arguments[at] & mask) == (PID if value == SELF else value) for at, mask, value in clause.tests)


def random_rule(random: Random) -> Rule:
    clauses = []
    for _ in range(random.randrange(4)):
        tests = []
        for _ in range(random.randrange(1, 3)):
            mask = random.choice([0xFFFFFFFF, (1 << 64) - 1, 0x7, 0xF0000000F, 1 << 63])
            value = random.choice([random.getrandbits(64), 0, 1, 7, PID]) & mask
            tests.append((random.randrange(6), mask, value))
        clauses.append(Clause(tuple(tests), random.choice([ALLOW, KILL, refuse(1)])))
    if random.random() < 0.2:
        clauses.append(Clause(((random.randrange(6), 0xFFFFFFFF, SELF),), ALLOW))
    return Rule(random.choice([ALLOW, KILL, refuse(2), refuse(38)]), tuple(clauses))


@pytest.mark.parametrize("seed", range(10))
def test_filter_follows_its_table(seed: int) -> None:
    random = Random(seed)
    arch = ARCHES[seed % 2]
    names = random.sample(sorted(ARCHITECTURES[arch]), random.choice([0, 1, 2, 40, 200]))
    rules = {name: random_rule(random) for name in names}
    default = refuse(99)
    code = bytes(assemble(arch, rules, default).for_process(PID))
    by_number = {ARCHITECTURES[arch][name]: rule for name, rule in rules.items()}
    numbers = [*range(500), 0x3FFFFFFF]
    for number in numbers:
        rule = by_number.get(number, Rule(default))
        for _ in range(4):
            arguments = [random.choice([0, 1, 7, PID, random.getrandbits(64), 1 << 63]) for _ in range(6)]
            if rule.clauses and random.random() < 0.7:
                for at, mask, value in random.choice(rule.clauses).tests:
                    arguments[at] = PID if value == SELF else value | (random.getrandbits(64) & ~mask)
            decided = next((each.action for each in rule.clauses if fits(each, arguments)), rule.otherwise)
            assert verdict(code, number, arguments, AUDIT[arch]) == decided


def test_other_call_tables_are_killed() -> None:
    filter = native_filter("x86_64").code
    read = ARCHITECTURES["x86_64"]["read"]
    assert verdict(filter, read) == ALLOW
    assert verdict(filter, read, arch=0x40000003) == KILL  # 32-bit calls by int 0x80
    assert verdict(filter, read | 0x40000000) == KILL  # x32
    assert verdict(filter, -1) == KILL


def every_filter() -> Iterator[tuple[str, Filter]]:
    for arch in ARCHES:
        yield f"{arch} native", native_filter(arch)
        yield f"{arch} native with files", native_filter(arch, files=True)
        for files in (False, True):
            for place, filter in zip(("early", "late"), python_filters(arch, files=files), strict=True):
                yield f"{arch} python {place} {files}", filter
        yield f"{arch} compiler", compiler_filter(arch)


@pytest.mark.parametrize("filter", [pytest.param(filter, id=name) for name, filter in every_filter()])
def test_filters_are_small_and_jump_inside_themselves(filter: Filter) -> None:
    steps = read(filter.code)
    assert len(steps) < 4096
    for at, (op, yes, no, value) in enumerate(steps):
        reach = value if op == 0x05 else max(yes, no) if op in (0x15, 0x35) else -1
        assert at + 1 + reach < len(steps)
    assert steps[-1][0] == 0x06


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("files", [False, True])
def test_forbidden_calls(arch: str, files: bool) -> None:
    native, python = native_filter(arch, files=files), python_filters(arch, files=files)
    never = (
        "execve ptrace process_vm_readv process_vm_writev mount unshare setns bpf userfaultfd keyctl io_uring_setup "
        "connect bind setuid memfd_create perf_event_open pidfd_getfd seccomp personality chroot shmget msgget semget "
        "setsid setpgid pidfd_open process_madvise move_mount fsopen open_tree name_to_handle_at"
    )
    for name in never.split():
        if name in ARCHITECTURES[arch]:
            assert asked(native, arch, name) == KILL, name
            assert asked(python, arch, name) == NO["EACCES"], name
    for filter in (native, python):
        for name in ("truncate", "chmod", "fchmodat", "utimensat", "mknodat", "fchown", "fchownat", "setxattr"):
            if name in ARCHITECTURES[arch]:
                assert asked(filter, arch, name) != ALLOW, name


@pytest.mark.parametrize("arch", ARCHES)
def test_threads_but_no_processes(arch: str) -> None:
    thread = CLONE_VM | CLONE_THREAD
    for filter, otherwise in ((native_filter(arch), KILL), (python_filters(arch, files=True), NO["EACCES"])):
        assert asked(filter, arch, "clone", thread) == ALLOW
        for flags in (17, CLONE_VM | 17, thread | CLONE_NEWUSER, thread | CLONE_NEWTIME, CLONE_NEWUSER):
            assert asked(filter, arch, "clone", flags) == otherwise
        assert asked(filter, arch, "clone3") == NO["ENOSYS"]


@pytest.mark.parametrize("arch", ARCHES)
def test_zygote_may_fork_and_its_children_may_not(arch: str) -> None:
    early, late = python_filters(arch, files=False)
    for name, arguments in (
        ("clone", (0x8000 | 17,)),
        ("seccomp", (1, 4, 4096)),
        ("prlimit64", (0, 7, 4096)),
        ("prctl", (1, 9)),
        ("recvmsg", (3, 4096)),
    ):
        assert asked(early, arch, name, *arguments) == ALLOW
        assert asked(late, arch, name, *arguments) != ALLOW
    assert asked(late, arch, "read", 3) == ALLOW  # all else is up to the first
    assert asked(early, arch, "execve") == NO["EACCES"]


@pytest.mark.parametrize("arch", ARCHES)
def test_signals_to_itself_only(arch: str) -> None:
    for filter in (native_filter(arch), python_filters(arch, files=True)):
        assert asked(filter, arch, "kill", PID, signal.SIGTERM) == ALLOW
        assert asked(filter, arch, "tgkill", PID, PID + 1, signal.SIGABRT) == ALLOW
        for target in (0, -1, 1, PID + 1, -PID):
            assert asked(filter, arch, "kill", target, signal.SIGTERM) == KILL
            assert asked(filter, arch, "tgkill", target, PID, signal.SIGTERM) == KILL
        assert asked(filter, arch, "kill", PID, signal.SIGKILL) == KILL
        assert asked(filter, arch, "tgkill", PID, PID, signal.SIGKILL) == KILL


@pytest.mark.parametrize("arch", ARCHES)
def test_native_program_is_executed_once(arch: str) -> None:
    filter = native_filter(arch)
    assert asked(filter, arch, "execveat", EXEC_FD) == ALLOW
    for descriptor in (0, 3, EXEC_FD - 1, EXEC_FD + 1, -100):
        assert asked(filter, arch, "execveat", descriptor) == KILL


@pytest.mark.parametrize("arch", ARCHES)
def test_rlimits_are_read_only(arch: str) -> None:
    for filter in (native_filter(arch), python_filters(arch, files=True)):
        assert asked(filter, arch, "prlimit64", 0, 7, 0, 4096) == ALLOW
        for new in (4096, 1 << 32, 1 << 63):  # a pointer whose lower half is zero, too
            assert asked(filter, arch, "prlimit64", 0, 7, new) == NO["EPERM"]


@pytest.mark.parametrize("arch", ARCHES)
def test_setting_the_stack_limit_succeeds_without_effect(arch: str) -> None:
    for filter in (native_filter(arch), python_filters(arch, files=True)):
        assert asked(filter, arch, "prlimit64", 0, resource.RLIMIT_STACK, 4096) == refuse(0)
        assert asked(filter, arch, "prlimit64", 0, resource.RLIMIT_STACK, 0, 4096) == ALLOW
        if "setrlimit" in ARCHITECTURES[arch]:
            assert asked(filter, arch, "setrlimit", resource.RLIMIT_STACK, 4096) == refuse(0)
            assert asked(filter, arch, "setrlimit", resource.RLIMIT_AS, 4096) == NO["EPERM"]


def test_asking_for_an_unlimited_stack() -> None:
    """Many recursive solutions do."""
    source = """
import resource, sys
resource.setrlimit(resource.RLIMIT_STACK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
sys.setrecursionlimit(10**6)
def depth(n):
    return 0 if n == 0 else 1 + depth(n - 1)
print(depth(20_000))
"""

    async def run() -> Execution:
        async with JudgePool(cache=cache_root(), workers=1) as pool:
            return await pool.run("python3", source, "", Limits())

    execution = asyncio.run(run())
    assert (execution.stdout, execution.stderr) == (b"20000\n", b"")


@pytest.mark.parametrize("arch", ARCHES)
def test_no_file_calls_without_files(arch: str) -> None:
    for filter in (native_filter(arch), python_filters(arch, files=False)):
        assert asked(filter, arch, "openat", -100, 4096, os.O_RDONLY) == NO["ENOENT"]
        assert asked(filter, arch, "statx", 3, 4096, 0x1000) == ALLOW
        assert asked(filter, arch, "statx", 3, 4096, 0) == NO["ENOENT"]
    opened = python_filters(arch, files=True)
    assert asked(opened, arch, "openat", -100, 4096, os.O_RDONLY) == ALLOW
    assert asked(opened, arch, "openat", -100, 4096, os.O_WRONLY | os.O_TRUNC) == ALLOW
    assert asked(opened, arch, "openat", -100, 4096, os.O_RDONLY | os.O_TRUNC) == NO["EACCES"]


@pytest.mark.parametrize("arch", ARCHES)
def test_python_sockets_have_no_address(arch: str) -> None:
    filter = python_filters(arch, files=True)
    assert asked(filter, arch, "socketpair", socket.AF_UNIX) == ALLOW
    assert asked(filter, arch, "socketpair", socket.AF_INET) == NO["EACCES"]
    assert asked(filter, arch, "sendto", 3, 4096, 1, 0, 0) == ALLOW
    assert asked(filter, arch, "sendto", 3, 4096, 1, 0, 1 << 40) == NO["EACCES"]
    assert asked(filter, arch, "socket", socket.AF_UNIX) == NO["EACCES"]


@pytest.mark.parametrize("arch", ARCHES)
def test_compiler_policy(arch: str) -> None:
    filter = compiler_filter(arch)
    assert asked(filter, arch, "execve") == asked(filter, arch, "openat") == ALLOW
    assert asked(filter, arch, "clone", 17) == ALLOW
    assert asked(filter, arch, "clone", CLONE_NEWUSER | 17) == NO["EPERM"]
    for name in ("socket", "ptrace", "mount", "unshare", "setns", "bpf", "shmget", "kexec_load", "setsid", "setpgid"):
        assert asked(filter, arch, name) == NO["EPERM"], name


# Messages -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(PATIENCE)
        theirs.settimeout(PATIENCE)
        yield ours, theirs


@pytest.mark.parametrize("seed", range(5))
def test_messages_round_trip(pair: tuple[socket.socket, socket.socket], seed: int) -> None:
    random = Random(seed)
    sent: list[tuple[dict[str, Any], list[bytes]]] = []
    for number in range(20):
        header = {"number": number, "text": "".join(map(chr, random.choices(range(0xD7FF), k=9))) + "\ud800\0"}
        sent.append((header, [random.randbytes(random.choice([0, 1, 7, 1 << 18])) for _ in range(random.randrange(4))]))
    thread = threading.Thread(target=lambda: [messages.send(pair[0], *each) for each in sent])
    thread.start()
    assert [messages.receive(pair[1]) for _ in sent] == sent
    thread.join()


def test_messages_in_fragments(pair: tuple[socket.socket, socket.socket]) -> None:
    text = json.dumps({"a": 1, "pieces": [3, 0]}).encode()
    data = struct.pack("<II", len(text), 3) + text + b"xyz"
    thread = threading.Thread(target=lambda: [pair[0].send(data[at : at + 1]) for at in range(len(data))])
    thread.start()
    assert messages.receive(pair[1]) == ({"a": 1}, [b"xyz", b""])
    thread.join()


@pytest.mark.parametrize("data", [b"", b"\1", struct.pack("<II", 9, 9) + b"{}", struct.pack("<II", 1 << 30, 1)])
def test_end_of_stream_raises_closed(pair: tuple[socket.socket, socket.socket], data: bytes) -> None:
    pair[0].sendall(data)
    pair[0].close()
    with pytest.raises(messages.Closed):
        messages.receive(pair[1])


def test_send_to_closed_socket_raises_closed(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].close()
    with pytest.raises(messages.Closed):
        messages.send(pair[0], {}, [bytes(1 << 20)])


# Wiping -------------------------------------------------------------------------------------------------------------


def test_wipe_empties_a_directory(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("stays")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    for name in (b"-rf", b"a\nb", b" ", b"\xff\xfe", b"x" * 255, b"*"):
        Path(os.fsdecode(bytes(scratch) + b"/" + name)).write_text("x")
    (scratch / "link").symlink_to(outside)
    (scratch / "loop").symlink_to("loop")
    (scratch / "broken").symlink_to("nowhere")
    os.link(outside / "file", scratch / "hard")
    os.mkfifo(scratch / "pipe")
    (scratch / "locked").mkdir()
    (scratch / "locked" / "file").write_text("x")
    (scratch / "locked").chmod(0)
    here = os.open(scratch, os.O_RDONLY)
    for _ in range(1500):  # deeper than a path can name, and than Python can recurse
        os.mkdir("d" * 100, dir_fd=here)
        deeper = os.open("d" * 100, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    wipe(str(scratch))
    assert list(scratch.iterdir()) == []
    assert (outside / "file").read_text() == "stays"
    wipe(str(scratch))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user, to whom permissions matter")
def test_wipe_unreadable_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "folder").mkdir()
    (scratch / "folder" / "file").write_text("x")
    for path in (scratch / "folder" / "file", scratch / "folder", scratch):
        os.chown(path, 65534, 65534)
        path.chmod(0)
    root = Path(sys.modules["dojang"].__file__ or "").parents[1]
    code = (
        f"import os, sys; sys.path.insert(0, {str(root)!r}); from dojang.judge.sandbox.jail import wipe; "
        f"os.setgroups([]); os.setgid(65534); os.setuid(65534); wipe({str(scratch)!r})"
    )
    result = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert list(scratch.iterdir()) == []


# Watching -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def watcher() -> Iterator[LimitsWatcher]:
    proc = os.open("/proc", os.O_RDONLY)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield LimitsWatcher(proc, ours.fileno())
    os.close(proc)


def started(code: str) -> int:
    return os.posix_spawn(sys.executable, [sys.executable, "-I", "-S", "-c", code], {})


WIDE = ResourceLimits(cpu_s=PATIENCE, idle_s=PATIENCE, memory=1 << 40)


def test_end_of_a_process_is_reported(watcher: LimitsWatcher) -> None:
    assert os.waitstatus_to_exitcode(watcher.wait(started("raise SystemExit(3)"), WIDE).status) == 3
    end = watcher.wait(started("import os; os.kill(os.getpid(), 11)"), WIDE)
    assert (os.waitstatus_to_exitcode(end.status), end.killed) == (-signal.SIGSEGV, "")
    assert end.cpu_s > 0
    assert end.memory > 1 << 20


def test_cpu_limit(watcher: LimitsWatcher) -> None:
    end = watcher.wait(started("while True: pass"), ResourceLimits(cpu_s=0.3, idle_s=PATIENCE, memory=1 << 40))
    assert end.killed == "cpu"
    assert 0.3 <= end.cpu_s < 1.0


def test_idle_limit(watcher: LimitsWatcher) -> None:
    end = watcher.wait(
        started("import time; time.sleep(600)"), ResourceLimits(cpu_s=PATIENCE, idle_s=0.3, memory=1 << 40)
    )
    assert (end.killed, os.waitstatus_to_exitcode(end.status)) == ("idle", -signal.SIGKILL)


def test_wall_limit_despite_run_delay(watcher: LimitsWatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run delays of many threads together exceed wall time, so they never look idle."""
    monkeypatch.setattr(watcher, "_run_delay", lambda pid: 1e9)
    started_at = time.monotonic()
    end = watcher.wait(started("import time; time.sleep(600)"), ResourceLimits(cpu_s=0.04, idle_s=0.01, memory=1 << 40))
    assert end.killed == "idle"
    assert time.monotonic() - started_at >= 100 * 0.05


def test_signal_to_the_worker_raises_interrupted(watcher: LimitsWatcher) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
    handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        watcher.record_signals()
        assert watcher.wait(started("pass"), WIDE).killed == ""
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted, match="SIGTERM"):
            watcher.wait(started("pass"), WIDE)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def test_memory_limit(watcher: LimitsWatcher) -> None:
    code = "import time; x = b'x' * (200 << 20); time.sleep(600)"
    assert (
        watcher.wait(started(code), ResourceLimits(cpu_s=PATIENCE, idle_s=PATIENCE, memory=100 << 20)).killed
        == "memory"
    )


def test_process_is_stopped_when_until_ends(watcher: LimitsWatcher) -> None:
    other = started("pass")
    assert watcher.wait(started("import time; time.sleep(600)"), WIDE, until=other).killed == "stopped"
    assert watcher.wait(other, WIDE).killed == ""


def test_idle_time_of_two_processes(watcher: LimitsWatcher) -> None:
    """A process that waits for another one that works is not idle."""
    other = started("import time\nwhile time.process_time() < 1.0: pass")
    bounds = ResourceLimits(cpu_s=PATIENCE, idle_s=0.7, memory=1 << 40)
    assert watcher.wait(started("import time; time.sleep(600)"), bounds, until=other).killed == "stopped"
    os.waitpid(other, 0)


def test_closed_pool_raises_pool_disconnected(watcher: LimitsWatcher) -> None:
    ours, theirs = socket.socketpair()
    pid = started("import time; time.sleep(600)")
    timer = threading.Timer(0.2, theirs.close)
    timer.start()
    with ours, pytest.raises(PoolDisconnected):
        LimitsWatcher(None, ours.fileno()).wait(pid, WIDE)
    timer.join()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_idle_limit_is_longer_without_proc(watcher: LimitsWatcher) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        begun = time.monotonic()
        end = LimitsWatcher(None, ours.fileno()).wait(
            started("import time; time.sleep(600)"), ResourceLimits(PATIENCE, 0.1, 1 << 40)
        )
        assert end.killed == "idle"
        assert time.monotonic() - begun > 0.9


def test_wait_leaks_no_descriptor(watcher: LimitsWatcher) -> None:
    before = os.listdir("/proc/self/fd")
    for _ in range(5):
        watcher.wait(started("import time; time.sleep(600)"), ResourceLimits(PATIENCE, 0.05, 1 << 40))
    assert os.listdir("/proc/self/fd") == before


# Ends ---------------------------------------------------------------------------------------------------------------

RUN_LIMITS = RunLimits(
    cpu_s=1, idle_s=2, memory=1 << 28, output=1 << 20, processes=1, file=0, stack=1 << 20, compile_s=1
)


def test_every_signal_has_an_outcome() -> None:
    for number in range(1, 65):
        if number != signal.SIGKILL:
            outcome, detail = _outcome(ProcessEnd(number, 0.1, 0.1, 0), RUN_LIMITS, 0, 0)
            assert outcome in (Outcome.RUNTIME_ERROR, Outcome.TIME_LIMIT, Outcome.OUTPUT_LIMIT)
            assert detail


def test_every_exit_code_has_an_outcome() -> None:
    for code in range(256):
        outcome, _ = _outcome(ProcessEnd(code << 8, 0.1, 0.1, 0), RUN_LIMITS, 0, 0)
        assert outcome is (Outcome.RUNTIME_ERROR if code else Outcome.ACCEPTED)


@pytest.mark.parametrize("seed", range(20))
def test_loaded_size_of_random_bytes(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    path = tmp_path / "program"
    real = Path("/proc/self/exe").read_bytes()[:4096]
    path.write_bytes(random.randbytes(random.randrange(200)) if seed % 2 else real[: random.randrange(4096)])
    with path.open("rb") as file:
        assert loaded_size(file.fileno()) >= 0


# Values in transit --------------------------------------------------------------------------------------------------


def plain(random: Random, depth: int = 0) -> Any:
    leaves = [
        lambda: None,
        lambda: random.random() < 0.5,
        lambda: random.choice([0, 1, -1, 2**63, -(2**63), 2**200, random.getrandbits(80)]),
        lambda: random.choice([0.0, -0.0, 1e308, 5e-324, math.inf, -math.inf, random.random()]),
        lambda: complex(random.random(), -0.0),
        lambda: "".join(map(chr, random.choices([0, 10, 34, 92, 0xD800, 0xDBFF, 0x10FFFF, 65], k=5))),
        lambda: random.randbytes(4),
        lambda: bytearray(random.randbytes(4)),
    ]
    if depth > 3 or random.random() < 0.5:
        return random.choice(leaves)()
    several = [plain(random, depth + 1) for _ in range(random.randrange(4))]
    hashable = [leaves[random.randrange(7)]() for _ in range(random.randrange(4))]
    return random.choice(
        [several, tuple(several), set(hashable), frozenset(hashable), dict.fromkeys(hashable, several)]
    )


def nothing(_: Any) -> Any:
    raise AssertionError("plain data need no handle")


@pytest.mark.parametrize("seed", range(20))
def test_encode_decode_round_trip(seed: int) -> None:
    random = Random(seed)
    for _ in range(50):
        value = plain(random)
        sent = json.loads(json.dumps(function_calls.encode(value, nothing)))
        assert (
            repr(function_calls.decode(sent, nothing)) == repr(value) or function_calls.decode(sent, nothing) == value
        )


def test_lying_subclasses_are_reduced_to_base_types() -> None:
    class Liar(int):
        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 0

        def __index__(self) -> int:
            return 42

    class Mute(str):
        def __str__(self) -> str:
            return "other"

    class Endless(list[int]):
        def __iter__(self) -> Iterator[int]:
            while True:
                yield 1

    sent = [json.dumps(function_calls.encode(each, nothing)) for each in (Liar(5), Mute("a"), Endless([7]))]
    got = [function_calls.decode(json.loads(each), nothing) for each in sent]
    assert got == [5, "a", [7]]
    assert [type(each) for each in got] == [int, str, list]


def test_numpy_scalars_become_numbers() -> None:
    value = [np.int64(3), np.uint8(4), np.float32(0.5), np.float64(0.1), np.bool_(True), np.array(7)]
    got = function_calls.decode(json.loads(json.dumps(function_calls.encode(value, nothing))), nothing)
    assert got == [3, 4, 0.5, 0.1, True, 7]
    assert [type(each) for each in got] == [int, int, float, float, bool, int]
    assert (
        function_calls.encode(np.array([1, 2]), lambda _: 5)
        == function_calls.encode(np.longdouble(1), lambda _: 5)
        == ["h", 5]
    )


def test_changes_to_arguments_reach_the_test() -> None:
    source = "def f(a, b):\n    a.append(1)\n    b.append(2)\n"
    test = """
from collections import deque
first, second = [], []
candidate(first, b=second)
assert (first, second) == ([1], [2])
queue = deque([0])
candidate(b=second, a=queue)
assert (queue, second) == (deque([0, 1]), [2, 2])
"""

    async def judge() -> Judgement:
        async with JudgePool(cache=cache_root(), workers=1) as pool:
            return await pool.judge(Submission("python3", source, TestSuite((CallTest(test, "f"),))))

    judgement = asyncio.run(judge())
    assert judgement.outcome is Outcome.ACCEPTED, judgement


def test_other_objects_become_handles() -> None:
    things: list[Any] = []

    def handle(thing: Any) -> int:
        things.append(thing)
        return len(things) - 1

    sent = function_calls.encode([len, {"f": print}], handle)
    assert things == [len, print]
    assert function_calls.decode(sent, things.__getitem__) == [len, {"f": print}]
