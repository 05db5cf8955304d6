"""Judging leaves nothing behind, whatever is judged and however it ends.

Orphaned processes become children of the test, so that none can hide. Everything else is compared with its state
before: temporary files, control groups, System V objects, shared memory, names that reserve user ids.
"""

import asyncio
import ctypes
import fcntl
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

from corpus import Entry, entries
from dojang.core.paths import cache_root
from dojang.judge.pool import JudgePool
from dojang.judge.sandbox.cgroups import PREFIX
from dojang.judge.sandbox.cleanup import sweep
from dojang.programs import IoTest, Judgement, Limits, Submission, TestSuite
from dojang.types import Outcome

sys.path.insert(0, str(Path(__file__).parents[2] / "bench"))
from judge_soak import Process, Traces, descendants, left_behind, programs

T = TypeVar("T")
PATIENCE = 120.0
GONE_WITHIN = 20.0
"""Timeout in seconds until nothing is left of a pool whose owner was killed. An idle machine takes under one."""
SUM = (IoTest("1 2\n", "3\n"),)
RIGHT = "print(sum(map(int, input().split())))\n"
SLOW = "import time\nwhile time.process_time() < 0.6: pass\n" + RIGHT
ROOMY = Limits(cpu_s=20.0, wall_s=60.0)
ISOLATIONS = ("namespaces", "landlock", "seccomp")


def run(waiting: Awaitable[T]) -> T:
    async def bounded() -> T:
        return await asyncio.wait_for(waiting, PATIENCE)

    return asyncio.run(bounded())


def submitted(source: str, limits: Limits = ROOMY) -> Submission:
    return Submission("python3", source, TestSuite(SUM, limits))


@pytest.fixture(scope="module", autouse=True)
def _adopt() -> Iterator[None]:
    libc = ctypes.CDLL(None)
    libc.prctl(36, 1, 0, 0, 0)
    yield
    libc.prctl(36, 0, 0, 0, 0)


@pytest.fixture
def before() -> Iterator[Traces]:
    assert [each for each in descendants() if "supervisor" in each.command] == []
    traces = Traces.now()
    yield traces
    reap()
    for left in Traces.now().since(traces):  # already reported; the next test must not find it again
        with suppress(OSError):
            os.rmdir(left.split(" ", left.startswith("control") + 1)[-1])


@pytest.fixture(scope="module")
def cache() -> Path:
    return cache_root()  # usually has precompiled headers already


@pytest.fixture
def make(cache: Path) -> Iterator[Callable[..., JudgePool]]:
    made: list[JudgePool] = []

    def one(isolation: str = "auto", workers: int = 2) -> JudgePool:
        made.append(JudgePool(cache=cache, workers=workers, isolation=isolation))
        if isolation != "auto" and (why := made[-1].host.features[isolation]):
            pytest.skip(why)
        return made[-1]

    yield one
    for pool in made:
        run(pool.close())


async def together(pool: JudgePool, submissions: list[Submission]) -> list[Judgement]:
    return list(await asyncio.gather(*map(pool.judge, submissions)))


def supervisors() -> list[Process]:
    return [each for each in descendants() if each.parent == os.getpid() and each.state != "Z"]


def workers() -> list[Process]:
    parents = {each.pid for each in supervisors()}
    return [each for each in descendants() if each.parent in parents and each.state != "Z"]


def reap() -> None:
    """Reap orphans that became our children and have ended; elsewhere, init does that."""
    for each in descendants():
        if each.parent == os.getpid() and each.state == "Z":
            with suppress(ChildProcessError):
                os.waitpid(each.pid, os.WNOHANG)


def left_of_the_killed(before: Traces, within: float = GONE_WITHIN) -> list[str]:
    deadline = time.monotonic() + within
    while True:
        reap()
        if not (left := left_behind(before)) or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


# After a batch ------------------------------------------------------------------------------------------------------

LONG = {"calls/memory_bomb", "calls/endless_answer", "compile/giant_data", "hostile/memory_bomb"}


def quick_entries() -> list[Entry]:
    """A sample of the corpus: Python programs that need no compiler and do not take long."""
    arch = "aarch64" if platform.machine() == "aarch64" else "x86_64"
    python = [each for each in entries(arch) if each.language == "python3" and each.test_suite.limits == Limits()]
    words = ("spin", "sleep", "bomb", "flood", "wait", "endless", "recursion", "nest")
    return [each for each in python if each.name not in LONG and not any(word in each.name for word in words)]


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_nothing_is_left_after_a_batch(make: Callable[..., JudgePool], before: Traces, isolation: str) -> None:
    pool = make(isolation)
    random = Random(isolation)
    supply = programs(seed=random.randrange(1 << 30))
    mixed = [next(supply) for _ in range(24)]
    chosen = random.sample(quick_entries(), 15)
    judgements = run(together(pool, [each for _, each, _ in mixed] + [entry(each) for each in chosen]))
    for (name, _, expected), judgement in zip(mixed, judgements[: len(mixed)], strict=True):
        assert judgement.outcome is expected or isolation == "seccomp", (
            name,
            judgement,
        )  # programs have no files there
    assert [each for each in judgements if each.outcome is Outcome.JUDGE_ERROR] == []
    assert len(supervisors()) == len(workers()) == 2, "no worker was lost on the way, or left over"
    run(pool.close())
    assert left_behind(before, within=3.0) == []


def entry(each: Entry) -> Submission:
    return Submission(each.language, each.source, each.test_suite)


def test_between_batches_only_the_workers_remain(make: Callable[..., JudgePool]) -> None:
    pool = make()
    supply = programs(seed=5)
    for _ in range(2):
        run(together(pool, [next(supply)[1] for _ in range(20)]))
        parents = {each.pid for each in workers()}
        below = [each for each in descendants() if each.parent in parents]
        assert len(below) <= len(parents), "an interpreter each"
        assert [each for each in descendants() if each.state == "Z"] == []


def test_nothing_grows_from_batch_to_batch(make: Callable[..., JudgePool]) -> None:
    pool = make()
    supply = programs(seed=6)
    figures: list[tuple[int, int, int]] = []
    for _ in range(4):
        run(together(pool, [next(supply)[1] for _ in range(15)]))
        of_workers = max(len(os.listdir(f"/proc/{each.pid}/fd")) for each in workers())
        figures.append((len(os.listdir("/proc/self/fd")), threading.active_count(), of_workers))
    assert figures[-1][0] <= figures[0][0] + 1, figures
    assert figures[-1][1] <= figures[0][1] + 1, figures


def test_descriptors_of_workers_do_not_grow(make: Callable[..., JudgePool]) -> None:
    pool = make(workers=1)
    supply = programs(seed=7)
    calls = [submission for name, submission, _ in (next(supply) for _ in range(400)) if "function" in name]
    run(together(pool, calls[:10]))
    first = len(os.listdir(f"/proc/{workers()[0].pid}/fd"))
    run(together(pool, calls[10:40]))
    assert len(os.listdir(f"/proc/{workers()[0].pid}/fd")) <= first + 1


def test_pools_open_and_close(make: Callable[..., JudgePool], before: Traces) -> None:
    sizes = []
    for _ in range(4):
        pool = make()
        assert run(pool.judge(submitted(RIGHT))).outcome is Outcome.ACCEPTED
        run(pool.close())
        sizes.append(len(os.listdir("/proc/self/fd")))
    assert left_behind(before, within=3.0) == []
    assert sizes[-1] <= sizes[0]


def test_close_while_judging(make: Callable[..., JudgePool], before: Traces) -> None:
    bad = "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')\nwhile True: pass\n"

    async def cut_short(pool: JudgePool) -> None:
        tasks = [
            asyncio.create_task(pool.judge(submitted(f"{source}#{n}"))) for n in range(3) for source in (bad, SLOW)
        ]
        await asyncio.sleep(1.0)
        await pool.close()
        await asyncio.gather(*tasks)

    for isolation in ISOLATIONS:
        run(cut_short(make(isolation)))
        assert left_behind(before, within=3.0) == [], isolation


# After killing ------------------------------------------------------------------------------------------------------

OWNER = """
import asyncio, sys
from pathlib import Path
from dojang.judge.pool import JudgePool
from dojang.judge.sandbox.cgroups import PREFIX
from dojang.judge.sandbox.cleanup import sweep
from dojang.programs import TestSuite, IoTest, Limits, Submission
from judge_soak import programs

BOMB = (
    "template<unsigned long long N, int D> struct S {"
    " static const unsigned long long v = S<2*N, D-1>::v + S<2*N+1, D-1>::v; };"
    "template<unsigned long long N> struct S<N, 0> { static const unsigned long long v = 1; };"
    "int main() { return S<1, 24>::v; } // %d"
)
WIDE = TestSuite((IoTest("", ""),), Limits(cpu_s=30, wall_s=60))


async def stream(pool, seed):
    supply = programs(seed)
    for number, (_, submission, _) in enumerate(supply):
        extra = ("python3", "while True: pass # %d"), ("python3", "import time; time.sleep(50) # %d"), ("cpp17", BOMB)
        if number % 4 == 0:
            language, source = extra[(number // 4 + seed) % 3]
            submission = Submission(language, source % (100 * seed + number), WIDE)
        await pool.judge(submission)


async def main():
    pool = JudgePool(cache=Path(sys.argv[1]), workers=3, isolation=sys.argv[2])
    await pool.judge(Submission("python3", "print()", WIDE))
    print("ready", flush=True)
    await asyncio.gather(*(stream(pool, int(sys.argv[3]) * 10 + number) for number in range(3)))

asyncio.run(main())
"""


def owner(cache: Path, isolation: str, seed: int) -> "subprocess.Popen[str]":
    paths = [str(Path(sys.modules[name].__file__ or "").parents[up]) for name, up in (("dojang", 1), ("judge_soak", 0))]
    command = [sys.executable, "-c", OWNER, str(cache), isolation, str(seed)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.parametrize("seed", range(6))
def test_nothing_is_left_when_the_owner_is_killed(cache: Path, before: Traces, make: Any, seed: int) -> None:
    isolation = ISOLATIONS[seed % 3]
    make(isolation)
    random = Random(seed)
    with owner(cache, isolation, seed) as process:
        assert process.stdout is not None
        if seed:  # otherwise at once, while it starts
            assert process.stdout.readline() == "ready\n"
        time.sleep(random.choice((0.05, 0.3, 1.0, 2.0)))
        process.kill()
    assert left_of_the_killed(before) == []


def test_nothing_is_left_when_the_owner_gets_sigterm(cache: Path, before: Traces) -> None:
    with owner(cache, "auto", 17) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.7)
        process.terminate()
    assert left_of_the_killed(before) == []


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_nothing_is_left_when_all_processes_get_sigterm(cache: Path, before: Traces, make: Any, isolation: str) -> None:
    make(isolation)
    with owner(cache, isolation, 18) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.7)
        for each in descendants(process.pid):
            if "supervisor" in each.command:
                os.kill(each.pid, signal.SIGTERM)
        process.terminate()
    assert left_of_the_killed(before, within=8.0) == []


# Killing parts of the judge -----------------------------------------------------------------------------------------


EXPECTED = [Outcome.ACCEPTED, Outcome.TIME_LIMIT, Outcome.WRONG, Outcome.RUNTIME_ERROR]


async def while_killing(
    pool: JudgePool, victims: Callable[[], list[Process]], number: signal.Signals = signal.SIGKILL
) -> list[Judgement]:
    """Judge programs that end as EXPECTED; twice meanwhile, send the victims a signal."""
    await pool.judge(submitted(RIGHT))
    sources = [SLOW.replace("0.6", "0.4"), "while True: pass\n", "print(0)\n", "raise SystemExit(1)\n"]
    limits = Limits(cpu_s=0.6, wall_s=30.0)
    tasks = [asyncio.create_task(pool.judge(submitted(source, limits))) for source in sources]
    for pause in (0.2, 0.5):  # before the second signal, new workers must start
        await asyncio.sleep(pause)
        for victim in victims():
            with suppress(ProcessLookupError):
                os.kill(victim.pid, number)
    return list(await asyncio.gather(*tasks))


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_killing_workers_changes_nothing(make: Callable[..., JudgePool], before: Traces, isolation: str) -> None:
    pool = make(isolation)
    assert [each.outcome for each in run(while_killing(pool, workers))] == EXPECTED
    run(pool.close())
    assert left_behind(before, within=3.0) == []


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_killing_supervisors_changes_no_verdict(make: Callable[..., JudgePool], before: Traces, isolation: str) -> None:
    pool = make(isolation)
    assert [each.outcome for each in run(while_killing(pool, supervisors))] == EXPECTED
    run(pool.close())
    reap()
    assert [each for each in descendants() if each.state != "Z"] == []


def test_killing_supervisors_leaves_nothing(make: Callable[..., JudgePool], before: Traces) -> None:
    for isolation in ("namespaces", "landlock"):
        pool = make(isolation)
        run(pool.judge(submitted(RIGHT)))
        for each in supervisors():
            os.kill(each.pid, signal.SIGKILL)
        run(pool.close())
    reap()
    assert left_behind(before, within=5.0) == []


def programs_now() -> list[Process]:
    """Running programs: all children of workers except the first, which is the interpreter."""
    known_ = {each.pid for each in workers()}
    found = []
    for worker in known_:
        found += [each for each in descendants() if each.parent == worker][1:]
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_to_all_processes_changes_no_verdict(
    make: Callable[..., JudgePool], before: Traces, number: signal.Signals
) -> None:
    pool = make()
    assert [each.outcome for each in run(while_killing(pool, descendants, number))] == EXPECTED
    run(pool.close())
    assert left_behind(before, within=3.0) == []


def test_locked_scratch_of_unseen_processes_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If containers share /tmp, a process id does not tell whether its owner lives."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    unused_pid = 2**22 + 1  # no process has such an id
    locked, free = (tmp_path / f"{PREFIX}{unused_pid}-{name}" for name in ("locked", "free"))
    for path in (locked, free):
        path.mkdir()
        (path / "file").touch()
    held = os.open(locked, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    sweep()
    assert [path.exists() for path in (locked, free)] == [True, False]
    sweep(unused_pid)  # the supervisor of another container had the same id
    assert locked.exists()
    os.close(held)
    sweep()
    assert not locked.exists()


def test_killing_programs_changes_no_verdict(make: Callable[..., JudgePool]) -> None:
    """As if the machine were out of memory: the cause is unknown, so the test runs again."""
    pool = make()
    assert [each.outcome for each in run(while_killing(pool, programs_now))] == EXPECTED


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_close_with_stopped_workers(make: Callable[..., JudgePool], before: Traces, isolation: str) -> None:
    pool = make(isolation)

    async def stopped() -> list[Judgement]:
        await together(pool, [submitted(f"{SLOW}# first {number}") for number in range(2)])  # both have started
        tasks = [asyncio.create_task(pool.judge(submitted(f"{SLOW}# {number}"))) for number in range(2)]
        await asyncio.sleep(0.4)
        for worker in workers():
            os.kill(worker.pid, signal.SIGSTOP)
        await asyncio.sleep(0.2)
        await pool.close()
        return list(await asyncio.gather(*tasks))

    judgements = run(stopped())
    assert all(each.outcome in (Outcome.JUDGE_ERROR, Outcome.ACCEPTED) for each in judgements)
    assert left_behind(before, within=3.0) == []


def test_child_of_the_owner_does_not_keep_the_judge_alive(make: Callable[..., JudgePool], before: Traces) -> None:
    """A data loader, for example, forked from the trainer inherits the channels to the workers."""
    pool = make()
    assert run(pool.judge(submitted(RIGHT))).outcome is Outcome.ACCEPTED
    child = os.fork()
    if child == 0:
        time.sleep(PATIENCE)
        os._exit(0)
    try:
        begun = time.monotonic()
        run(pool.close())
        assert time.monotonic() - begun < 8
        assert [each for each in descendants() if each.pid != child] == []
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert left_behind(before, within=3.0) == []
