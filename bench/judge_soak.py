"""A long siege of the judge: thousands of programs, half of them hostile, and then a look at what is left.

Every submission is new (so no verdict comes from a cache), and has an outcome that is known beforehand. At intervals
the figures of the pool's process and of its workers are noted. Exit status 1 if

    a verdict was wrong,
    anything was left behind after closing: processes, temporary files, control groups, System V objects, names,
    or anything grew between the end of the warm-up and the end: descriptors or threads by more than SLACK, memory
    by more than GROWTH_MB. The warm-up lasts until the pool's memory of verdicts is full, or for half of the run.

Short runs never fill that memory, so they allow for what it may still take.
"""

import asyncio
import ctypes
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

from dojang.judge.pool import JudgePool
from dojang.programs import CallTest, IoTest, Limits, Submission, TestSuite
from dojang.types import Outcome
from machine import arguments, machine

PRIVATE_UIDS = range(60706, 60706 + 477)
"""Users that judged programs run as, where the pool is root's."""
VERDICTS, VERDICT_MB = 4096, 0.01
SLACK, GROWTH_MB = 2, 24.0
AHEAD = 8
"""Submissions in flight per worker."""


# What is left behind ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Process:
    """One line of the process list."""

    pid: int
    parent: int
    state: str
    started: int
    command: str


def adopt_orphans() -> None:
    """What loses its parent becomes a child of this process, and so is seen by `descendants`."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def descendants(of: int | None = None) -> list[Process]:
    """Every process below this one, zombies included."""
    known = {process.pid: process for process in _processes()}
    below = {of or os.getpid()}
    found: list[Process] = []
    while more := [each for each in known.values() if each.parent in below and each.pid not in below]:
        below |= {each.pid for each in more}
        found += more
    return sorted(found, key=lambda each: (each.started, each.pid))


def _processes() -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with suppress(OSError, IndexError):
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            command = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            yield Process(int(name), int(fields[1]), fields[0], int(fields[19]), command)


@dataclass(frozen=True, slots=True)
class Traces:
    """What a judge could leave on a machine, beside processes."""

    names: frozenset[str]
    in_use: frozenset[str]
    """Those that belong to other pools, which are at work."""

    @classmethod
    def now(cls) -> "Traces":
        folders = dict(_scratch_folders())
        names = {*folders, *_control_groups(), *_system_v(), *_shared_memory(), *_sockets()}
        others = {name for name, in_use in folders.items() if in_use}
        return cls(frozenset(names), frozenset(others))

    def since(self, earlier: "Traces") -> list[str]:
        return sorted(self.names - self.in_use - earlier.names)


def left_behind(earlier: Traces, *, within: float = 0.0) -> list[str]:
    """Processes and traces that were not there before, and are still there after so many seconds."""
    deadline = time.monotonic() + within
    while True:
        left = [f"process {each}" for each in descendants()] + Traces.now().since(earlier)
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


def _scratch_folders() -> Iterator[tuple[str, bool]]:
    """Each, and whether its user is reserved at the moment."""
    reserved = set(_sockets(own=False))
    for path in Path(tempfile.gettempdir()).glob("dojang-judge-*"):
        with suppress(OSError):
            yield f"file {path}", f"socket @dojang-judge-uid-{path.stat().st_uid}" in reserved


def _control_groups() -> Iterator[str]:
    """Below our own, where supervisors make theirs; those of other sessions lie elsewhere, as a rule."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        for place in names.split(",") if names else ("", "unified"):
            for group in Path("/sys/fs/cgroup", place, path.lstrip("/")).glob("dojang-judge-*"):
                if not os.path.exists(f"/proc/{group.name.removeprefix('dojang-judge-')}"):
                    yield f"control group {group}"


def _system_v() -> Iterator[str]:
    for kind in ("shm", "msg", "sem"):
        with suppress(OSError):
            head, *lines = Path(f"/proc/sysvipc/{kind}").read_text().splitlines()
            for line in lines:
                values = dict(zip(head.split(), line.split(), strict=False))
                if _a_program(int(values.get("uid", 0))):
                    yield f"System V {kind} {' '.join(line.split()[:2])}"


def _shared_memory() -> Iterator[str]:
    for folder in ("/dev/shm", "/dev/mqueue"):
        with suppress(OSError):
            for entry in os.scandir(folder):
                if _a_program(entry.stat(follow_symlinks=False).st_uid):
                    yield f"file {entry.path}"


def _sockets(*, own: bool = True) -> Iterator[str]:
    """Names that reserve users. A socket is held by a process; those of other pools at work do not count."""
    if own and any("dojang.judge.sandbox.supervisor" in each.command for each in _processes()):
        return
    with suppress(OSError):
        for line in Path("/proc/net/unix").read_text().splitlines():
            name = line.split()[-1]
            if name.startswith("@dojang-judge-uid-"):
                yield f"socket {name}"


def _a_program(uid: int) -> bool:
    return uid in PRIVATE_UIDS if os.geteuid() == 0 else uid == os.geteuid()


# Figures ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Figures:
    """How large everything is. Of several workers, the largest."""

    judged: int
    seconds: float
    pool_mb: float
    pool_descriptors: int
    pool_threads: int
    workers: int
    worker_mb: float
    worker_descriptors: int
    interpreter_mb: float
    interpreter_descriptors: int
    supervisor_mb: float
    supervisor_descriptors: int


def figures(judged: int, seconds: float) -> Figures:
    everybody = descendants()
    supervisors = [each.pid for each in everybody if each.parent == os.getpid()]
    workers = [each.pid for each in everybody if each.parent in supervisors]
    # Programs come and go; the interpreter is the worker's oldest child that is one.
    interpreters = []
    for worker in workers:
        mine = [each.pid for each in everybody if each.parent == worker and " -c " in each.command]
        interpreters += mine[:1]
    return Figures(
        judged,
        round(seconds, 1),
        _memory(os.getpid()),
        _descriptors(os.getpid()),
        len(os.listdir("/proc/self/task")),
        len(workers),
        max(map(_memory, workers), default=0.0),
        max(map(_descriptors, workers), default=0),
        max(map(_memory, interpreters), default=0.0),
        max(map(_descriptors, interpreters), default=0),
        max(map(_memory, supervisors), default=0.0),
        max(map(_descriptors, supervisors), default=0),
    )


def _memory(pid: int) -> float:
    with suppress(OSError, IndexError):
        return round(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 2**20, 1)
    return 0.0


def _descriptors(pid: int) -> int:
    with suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd"))
    return 0


def growth(warm: list[Figures], end: list[Figures], verdicts: int) -> list[str]:
    """What grew, in words. Of several figures the smallest: at any one moment a program may be in passing."""
    grown = []
    for name in Figures.__slots__:
        if not name.endswith(("_mb", "_descriptors", "_threads")):
            continue
        before, after = (min(getattr(each, name) for each in part) for part in (warm, end))
        allowed = GROWTH_MB + VERDICT_MB * verdicts * name.startswith("pool") if name.endswith("_mb") else SLACK
        if after > before + allowed:
            grown.append(f"{name} grew from {before:g} to {after:g}")
    return grown


# Programs -----------------------------------------------------------------------------------------------------------

QUICK = Limits(cpu_s=0.1, wall_s=0.2, memory_mb=128, output_mb=0.25)
ROOMY = Limits(cpu_s=10.0, memory_mb=128, output_mb=0.25)
"""For programs that are quick: a busy machine must not make them late."""
SUM_PY = "print(sum(map(int, input().split())))\n"
SUM_CPP = "#include <iostream>\nint main() { long a, b; std::cin >> a >> b; std::cout << a + b << '\\n'; }\n"

CALL = "assert candidate({a}, {b}) == {c}\n"
THREAD = "import threading\nt = threading.Thread(target=print, args=('',))\nt.start(); t.join()\n"
A, W, R = Outcome.ACCEPTED, Outcome.WRONG, Outcome.RUNTIME_ERROR
T, M, F, C = Outcome.TIME_LIMIT, Outcome.MEMORY_LIMIT, Outcome.OUTPUT_LIMIT, Outcome.COMPILE_ERROR


@dataclass(frozen=True, slots=True)
class Kind:
    """Programs that all end alike."""

    name: str
    body: str
    expect: Outcome
    limits: Limits = ROOMY
    call: str = ""
    """For tests by function call: the code."""


HONEST_PY = (
    Kind("sum", SUM_PY, A),
    Kind("by numbers", "import sys\na, b = map(int, sys.stdin.read().split())\nprint(a + b)\n", A),
    Kind("late answer", "import time\ntime.sleep(0.001)\n" + SUM_PY, A),
    Kind("file of its own", "with open('note', 'w') as file: file.write('x')\n" + SUM_PY, A),
    Kind(
        "threads", "import threading\nt = threading.Thread(target=print, args=('',))\nt.start(); t.join()\n" + SUM_PY, A
    ),
    Kind("wrong", "a, b = map(int, input().split())\nprint(a - b - 1)\n", W),
    Kind("silent", "input()\n", W),
    Kind("function", "def add(a, b):\n    return a + b\n", A, call=CALL),
    Kind("wrong function", "def add(a, b):\n    return a - b - 1\n", W, call=CALL),
)
HOSTILE_PY = (
    Kind("fork", "import os\nos.fork()\n", R),
    Kind("command", "import subprocess\nsubprocess.run(['true'])\n", R),
    Kind("socket", "import socket\nsocket.socket()\n", R),
    Kind("passwords", "print(open('/etc/passwd').read())\n", R),
    Kind("outside", "open('/etc/note', 'w')\n", R),
    Kind("kill parent", "import os\nos.kill(os.getppid(), 9)\n", R),
    Kind("abort", "import os\nos.abort()\n", R),
    Kind("exit", "import os\nprint(1)\nos._exit(7)\n", R),
    Kind("raise", "raise ValueError('no')\n", R),
    Kind("crash", "import ctypes\nctypes.string_at(0)\n", R),
    Kind("recursion", "def f(n): return f(n + 1) + 1\nf(0)\n", R),
    Kind("memory", "x = bytearray(400 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint(len(x))\n", M),
    Kind("flood", "print('x' * (1 << 20))\n", F),
    Kind("spin", "while True: pass\n", T, QUICK),
    Kind("sleep", "import time\ntime.sleep(60)\n", T, QUICK),
    Kind("no Python", "def f(:\n", C),
    Kind("NUL", "print(1)\0\n", C),
    Kind("many files", "for i in range(300): open(f'f{i}', 'w').close()\nraise SystemExit(3)\n", R),
    Kind("deep folders", "import os\nfor _ in range(60): os.mkdir('d'); os.chdir('d')\nraise SystemExit(3)\n", R),
    Kind(
        "exit in function",
        "def add(a, b):\n    import os; os._exit(0)\n",
        R,
        call=CALL,
    ),
    Kind(
        "spin in function",
        "def add(a, b):\n    while True: pass\n",
        T,
        QUICK,
        call=CALL,
    ),
    Kind("no function", "def add(:\n", C, call=CALL),
    Kind(
        "liar",
        "class L:\n    def __eq__(s, o): return True\ndef add(a, b): return L()\n",
        W,
        call=CALL,
    ),
)
HONEST_CPP = (
    Kind("sum", SUM_CPP, A),
    Kind("C", '#include <cstdio>\nint main() { long a, b; scanf("%ld%ld", &a, &b); printf("%ld", a + b); }\n', A),
    Kind("wrong", '#include <cstdio>\nint main() { puts("never"); }\n', W),
)
HOSTILE_CPP = (
    Kind("fork", "#include <unistd.h>\nint main() { for (;;) fork(); }\n", R),
    Kind("exec", "#include <unistd.h>\nint main() { execl(\"/bin/sh\", \"sh\", (char*)0); pause(); }\n", R),
    Kind("socket", "#include <sys/socket.h>\nint main() { return socket(AF_INET, SOCK_STREAM, 0) * 0; }\n", R),
    Kind("passwords", "#include <cstdio>\nint main() { return !fopen(\"/etc/passwd\", \"r\"); }\n", R),
    Kind("kill", "#include <signal.h>\n#include <unistd.h>\nint main() { kill(getppid(), SIGKILL); }\n", R),
    Kind("trace", "#include <sys/ptrace.h>\nint main() { ptrace(PTRACE_TRACEME, 0, 0, 0); }\n", R),
    Kind("segment", "#include <sys/shm.h>\nint main() { shmget(7, 4096, IPC_CREAT | 0600); }\n", R),
    Kind("crash", "int main() { *(volatile int*)8 = 1; }\n", R),
    Kind("abort", "#include <cstdlib>\nint main() { abort(); }\n", R),
    Kind("exit", "int main() { return 3; }\n", R),
    Kind("memory", "#include <cstdlib>\nint main() { for (;;) *(volatile char*)malloc(4000) = 1; }\n", M),
    Kind("flood", "#include <cstdio>\nint main() { for (;;) puts(\"flood\"); }\n", F),
    Kind("spin", "int main() { for (volatile int i = 0;; i = i + 1); }\n", T, QUICK),
    Kind("sleep", "#include <unistd.h>\nint main() { sleep(60); }\n", T, QUICK),
)  # fmt: skip
BROKEN_CPP = Kind("no C++", "int main() { return nothing; }\n", C)
FAMILY = 2
"""Variants of each C++ program that are used over and over: they are compiled once."""
FRESH = 0.015
"""The share of C++ programs that are compiled anew."""


def programs(seed: int) -> Iterator[tuple[str, Submission, Outcome]]:
    """Without end: a name, a submission like no other, and what must become of it; every second one is hostile."""
    random = Random(seed)
    number = 0
    while True:
        number += 1
        hostile = number % 2 == 0
        native = random.random() < 0.35
        if native and random.random() < 3 * FRESH:
            kind = BROKEN_CPP if hostile else HONEST_CPP[0]
            yield _submission("cpp17", kind, f"// {seed} {number}\n", random, number)
        elif native:
            kind = random.choice(HOSTILE_CPP if hostile else HONEST_CPP)
            yield _submission("cpp17", kind, f"// {random.randrange(FAMILY)}\n", random, number)
        else:
            kind = random.choice(HOSTILE_PY if hostile else HONEST_PY)
            yield _submission("python3", kind, f"# {seed} {number}\n", random, number)


def _submission(language: str, kind: Kind, mark: str, random: Random, number: int) -> tuple[str, Submission, Outcome]:
    tests: list[IoTest | CallTest] = []
    for place in range(2):
        a, b = random.randrange(10**6), 2 * number + place
        code = kind.call.format(a=a, b=b, c=a + b)
        tests.append(CallTest(code, "add") if code else IoTest(f"{a} {b}\n", f"{a + b}\n"))
    return (
        f"{language} {kind.name}",
        Submission(language, kind.body + mark, TestSuite(tuple(tests), kind.limits)),
        kind.expect,
    )


# The siege ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Siege:
    """What came of it."""

    count: int
    seconds: float = 0.0
    noted: list[Figures] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    grown: list[str] = field(default_factory=list)
    workers_started: int = 0

    @property
    def judged(self) -> int:
        return self.outcomes.total()

    @property
    def bad(self) -> bool:
        return bool(self.wrong or self.left or self.grown)


async def besiege(siege: Siege, pool: JudgePool, *, seconds: float, seed: int, tell: Callable[[Figures], None]) -> None:
    started = time.monotonic()
    supply = programs(seed)
    seen: set[int] = set()

    async def one_after_another() -> None:
        for name, submission, expect in supply:
            if siege.judged >= siege.count or time.monotonic() - started > seconds:
                return
            judgement = await pool.judge(submission)
            siege.outcomes[judgement.outcome] += 1
            if judgement.outcome is not expect and len(siege.wrong) < 50:
                siege.wrong.append(f"{name}: expected {expect}, got {judgement.outcome}: {judgement.detail[:200]}")

    async def note() -> None:
        every = max(1.0, min(30.0, siege.count / 400))
        while True:
            await asyncio.sleep(every)
            now = figures(siege.judged, time.monotonic() - started)
            seen.update(each.pid for each in descendants() if each.parent == os.getpid())
            siege.noted.append(now)
            tell(now)

    watching = asyncio.create_task(note())
    await asyncio.gather(*(one_after_another() for _ in range(AHEAD * pool.workers)))
    watching.cancel()
    siege.noted.append(figures(siege.judged, time.monotonic() - started))
    siege.seconds = time.monotonic() - started
    siege.workers_started = len(seen)
    end = siege.noted[-max(1, len(siege.noted) // 10) :]
    warm = [each for each in siege.noted if each.judged >= min(VERDICTS * 1.1, siege.judged / 2)]
    warm = warm[: len(end)]
    siege.grown = growth(warm, end, max(0, VERDICTS - warm[0].judged))


def show(figures: Figures) -> None:
    print(
        f"{figures.judged:6} judged, {figures.seconds:6.0f} s; pool {figures.pool_mb:g} MB, "
        f"{figures.pool_descriptors} descriptors, {figures.pool_threads} threads; {figures.workers} workers of "
        f"{figures.worker_mb:g} MB, {figures.worker_descriptors} descriptors; interpreters of "
        f"{figures.interpreter_mb:g} MB, {figures.interpreter_descriptors} descriptors",
        file=sys.stderr,
        flush=True,
    )


async def soak(count: int, seconds: float, seed: int, workers: int, isolation: str) -> Siege:
    adopt_orphans()
    before = Traces.now()
    siege = Siege(count)
    with tempfile.TemporaryDirectory(prefix="soak-cache-") as cache:
        async with JudgePool(cache=Path(cache), workers=workers, isolation=isolation) as pool:
            await pool.judge(Submission("cpp17", SUM_CPP, TestSuite((IoTest("1 2", "3"),))))
            await besiege(siege, pool, seconds=seconds, seed=seed, tell=show)
        siege.left = left_behind(before, within=3.0)
    return siege


def main() -> int:
    parser = arguments("judge thousands of programs, half of them hostile, and look for what is left or grows")
    parser.add_argument("--count", type=int, default=10_000, help="submissions (default: 10000)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after this long")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=0, help="default: one per core")
    parser.add_argument("--isolation", default="auto")
    options = parser.parse_args()
    siege = asyncio.run(soak(options.count, options.seconds, options.seed, options.workers, options.isolation))
    if options.json:
        told = {name: getattr(siege, name) for name in Siege.__slots__} | {"judged": siege.judged, "bad": siege.bad}
        told["noted"] = [asdict(each) for each in siege.noted]
        print(json.dumps({"bench": "judge_soak", "machine": machine(), **told}))
    else:
        print(f"{siege.judged} judged in {siege.seconds:.0f} s, {siege.judged / siege.seconds:.1f} a second")
        print("outcomes:", ", ".join(f"{name} {number}" for name, number in siege.outcomes.most_common()))
        print(f"workers started: {siege.workers_started}")
        for what, found in (("wrong", siege.wrong), ("left", siege.left), ("grown", siege.grown)):
            print(f"{what}: {len(found)}", *found, sep="\n  ")
    return int(siege.bad)


if __name__ == "__main__":
    raise SystemExit(main())
