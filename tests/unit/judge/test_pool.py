"""JudgePool as its callers see it."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from dojang.core.paths import cache_root
from dojang.judge.pool import JudgePool
from dojang.judge.worker_handle import WorkerFailed, WorkerHandle
from dojang.judge.worker_pool import ATTEMPTS, Work, WorkerPool
from dojang.programs import (
    CallTest,
    Checker,
    IoTest,
    Isolation,
    Judgement,
    Limits,
    Stop,
    Submission,
    TestSuite,
    sampled,
)
from dojang.types import Outcome

T = TypeVar("T")
PATIENCE = 120.0
"""Timeout in seconds for things that must not hang; not a measurement."""
ROOMY = Limits(cpu_s=10.0, wall_s=60.0)
SUM = (IoTest("1 2\n", "3\n"), IoTest("20 22\n", "42\n"))
RIGHT = "print(sum(map(int, input().split())))\n"
RIGHT_CPP = '#include <cstdio>\nint main() { long a, b; scanf("%ld%ld", &a, &b); printf("%ld\\n", a + b); }\n'
SLOW = "import time\nwhile time.process_time() < 0.3: pass\n" + RIGHT


def submitted(
    source: str = RIGHT,
    tests: Sequence[IoTest | CallTest] = SUM,
    *,
    language: str = "python3",
    limits: Limits = ROOMY,
    checker: Checker | None = None,
    stop: Stop = Stop.NEVER,
) -> Submission:
    return Submission(language, source, TestSuite(tuple(tests), limits, checker or Checker()), stop)


def run(waiting: Awaitable[T]) -> T:
    """Run in a new event loop, with a timeout."""

    async def bounded() -> T:
        return await asyncio.wait_for(waiting, PATIENCE)

    return asyncio.run(bounded())


def judged(pool: JudgePool, submission: Submission) -> Judgement:
    return run(pool.judge(submission))


def all_judged(pool: JudgePool, submissions: Sequence[Submission]) -> list[Judgement]:
    async def together() -> list[Judgement]:
        return await asyncio.gather(*map(pool.judge, submissions))

    return run(together())


@pytest.fixture(scope="module")
def cache() -> Path:
    return cache_root()  # usually has precompiled headers already


@pytest.fixture(scope="module")
def pool(cache: Path) -> Iterator[JudgePool]:
    """Shared by tests that do not change it."""
    pool = JudgePool(cache=cache, workers=2)
    yield pool
    run(pool.close())


@pytest.fixture
def make(cache: Path) -> Iterator[Callable[..., JudgePool]]:
    """Creates pools and closes them."""
    made: list[JudgePool] = []

    def one(workers: int = 1, **options: Any) -> JudgePool:
        made.append(JudgePool(cache=cache, workers=workers, **options))
        return made[-1]

    yield one
    for pool in made:
        run(pool.close())


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Sources sent to workers, in order."""
    given: list[bytes] = []
    judge = WorkerHandle.judge

    def counted(self: WorkerHandle, how: Any, source: bytes, *rest: Any, **options: Any) -> Any:
        given.append(source)
        return judge(self, how, source, *rest, **options)

    monkeypatch.setattr(WorkerHandle, "judge", counted)
    return given


@contextmanager
def burners(number: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


# Judging once -------------------------------------------------------------------------------------------------------


def test_equal_submissions_are_judged_once(make: Callable[..., JudgePool], jobs: list[bytes]) -> None:
    pool = make(2)
    judgements = all_judged(pool, [submitted(SLOW)] * 10)
    assert {each.outcome for each in judgements} == {Outcome.ACCEPTED}
    assert len(jobs) == 1
    again = judged(pool, submitted(SLOW))
    assert (again.outcome, again.passed, len(jobs)) == (Outcome.ACCEPTED, 2, 1)
    assert again.seconds < judgements[0].seconds


@pytest.mark.parametrize(
    "other",
    [
        submitted(RIGHT + "#"),
        submitted(tests=SUM[:1]),
        submitted(tests=SUM[::-1]),
        submitted(limits=Limits(cpu_s=9.0)),
        submitted(checker=Checker("exact")),
        submitted(stop=Stop.FAILURE),
    ],
)
def test_different_submissions_are_judged_separately(pool: JudgePool, jobs: list[bytes], other: Submission) -> None:
    judged(pool, submitted())
    before = len(jobs)
    assert judged(pool, other).outcome is Outcome.ACCEPTED
    assert len(jobs) == before + 1


def test_judge_error_is_not_cached(make: Callable[..., JudgePool], monkeypatch: pytest.MonkeyPatch) -> None:
    judge, failures = WorkerHandle.judge, iter(range(ATTEMPTS))

    def failing(self: WorkerHandle, *rest: Any, **options: Any) -> Any:
        if next(failures, None) is not None:
            raise WorkerFailed("for the sake of it")
        return judge(self, *rest, **options)

    monkeypatch.setattr(WorkerHandle, "judge", failing)
    pool = make()
    first = judged(pool, submitted())
    assert (first.outcome, first.results, first.total) == (Outcome.JUDGE_ERROR, (), 2)
    assert "for the sake of it" in first.detail
    assert judged(pool, submitted()).outcome is Outcome.ACCEPTED


def test_failed_workers_are_replaced(make: Callable[..., JudgePool], monkeypatch: pytest.MonkeyPatch) -> None:
    judge, used = WorkerHandle.judge, []

    def failing(self: WorkerHandle, *rest: Any, **options: Any) -> Any:
        used.append(self)
        if len(used) < ATTEMPTS:
            raise WorkerFailed("for the sake of it")
        return judge(self, *rest, **options)

    monkeypatch.setattr(WorkerHandle, "judge", failing)
    assert judged(make(), submitted()).outcome is Outcome.ACCEPTED
    assert len(set(used)) == ATTEMPTS


def test_program_is_compiled_once(make: Callable[..., JudgePool], monkeypatch: pytest.MonkeyPatch) -> None:
    judge, compiled = WorkerHandle.judge, []

    def watched(self: WorkerHandle, how: Any, source: bytes, binary: bytes, *rest: Any, **options: Any) -> Any:
        compiled.append(not binary)
        return judge(self, how, source, binary, *rest, **options)

    monkeypatch.setattr(WorkerHandle, "judge", watched)
    pool = make()
    for number in range(3):
        tests = [IoTest(f"{number} 1", f"{number + 1}")]
        assert judged(pool, submitted(RIGHT_CPP, tests, language="cpp17")).outcome is Outcome.ACCEPTED
    assert compiled == [True, False, False]


# Taking turns -------------------------------------------------------------------------------------------------------


def test_slow_test_suite_does_not_delay_another(make: Callable[..., JudgePool]) -> None:
    pool, order = make(), list[str]()

    async def one(name: str, submission: Submission) -> None:
        await pool.judge(submission)
        order.append(name)

    async def mixed() -> None:
        slow = [one("slow", submitted(f"{SLOW}#{number}")) for number in range(6)]
        tasks = [asyncio.create_task(each) for each in slow]
        await asyncio.sleep(0.3)
        quick = [one("quick", submitted(f"{RIGHT}#{number}", [IoTest("1 1", "2")])) for number in range(2)]
        await asyncio.gather(*tasks, *quick)

    run(mixed())
    # One more slow one, perhaps two, may already have begun; then they alternate.
    last = max(index for index, name in enumerate(order) if name == "quick")
    assert last <= 4, order


def test_every_worker_is_used(make: Callable[..., JudgePool]) -> None:
    """Each of two programs waits for half the time one worker would take for both."""
    pool = make(2)
    all_judged(pool, [submitted(f"{SLOW}#{number}") for number in range(4)])  # both have started
    before = time.monotonic()
    nap = "import time\ntime.sleep(2)\n" + RIGHT
    judgements = all_judged(pool, [submitted(f"{nap}#{number}", SUM[:1]) for number in range(2)])
    assert {each.outcome for each in judgements} == {Outcome.ACCEPTED}
    assert time.monotonic() - before < 3.8


class NoWorker:
    """A worker that does nothing."""

    def close(self) -> None: ...

    def disconnect(self) -> None: ...


def test_simultaneous_work_runs_in_parallel() -> None:
    workers = WorkerPool(2, NoWorker)  # type: ignore[arg-type]
    first = Work("lane", lambda worker: None, str)
    workers.put(first)
    first.done.result(PATIENCE)
    time.sleep(0.1)  # now one thread is idle, and another could start
    meeting = threading.Barrier(2)
    both = [Work("lane", lambda worker: meeting.wait(5), str) for _ in range(2)]
    for work in both:
        workers.put(work)
    try:
        assert sorted(work.done.result(PATIENCE) for work in both) == [0, 1]
    finally:
        workers.close()


# Giving up ----------------------------------------------------------------------------------------------------------


def test_cancel_while_queued(make: Callable[..., JudgePool], jobs: list[bytes]) -> None:
    pool = make()

    async def leave() -> list[Judgement]:
        busy = asyncio.create_task(pool.judge(submitted(SLOW)))
        await asyncio.sleep(0.2)
        unwanted = asyncio.create_task(pool.judge(submitted(RIGHT + "# unwanted")))
        shared = [asyncio.create_task(pool.judge(submitted(RIGHT + "# shared"))) for _ in range(2)]
        await asyncio.sleep(0.1)
        unwanted.cancel()
        shared[0].cancel()
        busy_, shared_ = await busy, await shared[1]
        with pytest.raises(asyncio.CancelledError):
            await unwanted
        with pytest.raises(asyncio.CancelledError):
            await shared[0]
        return [busy_, shared_, await pool.judge(submitted())]

    assert {each.outcome for each in run(leave())} == {Outcome.ACCEPTED}
    assert [source for source in jobs if b"unwanted" in source] == []
    assert judged(pool, submitted(RIGHT + "# unwanted")).outcome is Outcome.ACCEPTED


def test_cancel_while_running_and_submit_again(make: Callable[..., JudgePool], jobs: list[bytes]) -> None:
    pool = make()

    async def leave() -> Judgement:
        first = asyncio.create_task(pool.judge(submitted(SLOW)))
        while not jobs:
            await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.sleep(0)
        return await pool.judge(submitted(SLOW))

    assert run(leave()).outcome is Outcome.ACCEPTED
    assert len(jobs) == 1


def test_closed_event_loop_is_not_notified(make: Callable[..., JudgePool], caplog: pytest.LogCaptureFixture) -> None:
    pool = make()

    async def leave() -> None:
        task = asyncio.create_task(pool.judge(submitted(SLOW)))
        await asyncio.sleep(0.2)
        task.cancel()

    asyncio.run(leave())
    assert judged(pool, submitted(RIGHT + "# after it")).outcome is Outcome.ACCEPTED
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []


def test_close_answers_all_callers(make: Callable[..., JudgePool]) -> None:
    pool = make(2)
    nap = "import time\ntime.sleep(50)\n"

    async def close() -> list[Judgement]:
        await pool.judge(submitted())
        tasks = [asyncio.create_task(pool.judge(submitted(f"{nap}#{number}"))) for number in range(6)]
        running = asyncio.create_task(pool.run("python3", nap, "", ROOMY))
        await asyncio.sleep(0.5)
        await pool.close()
        assert (await running).outcome is Outcome.JUDGE_ERROR
        return list(await asyncio.gather(*tasks))

    before = time.monotonic()
    judgements = run(close())
    assert time.monotonic() - before < 40
    assert {(each.outcome, each.results) for each in judgements} == {(Outcome.JUDGE_ERROR, ())}
    assert all("closed" in each.detail for each in judgements)
    run(pool.close())


def test_close_while_compiling(make: Callable[..., JudgePool]) -> None:
    pool = make()
    source = (
        "template<unsigned long long N, int D> struct S {"
        " static const unsigned long long v = S<2*N, D-1>::v + S<2*N+1, D-1>::v; };\n"
        "template<unsigned long long N> struct S<N, 0> { static const unsigned long long v = 1; };\n"
        "int main() { return S<1, 22>::v; }\n"
    )

    async def close() -> Judgement:
        task = asyncio.create_task(pool.judge(submitted(source, language="cpp17")))
        await asyncio.sleep(2.0)
        await pool.close()
        return await task

    assert run(close()).outcome in (Outcome.JUDGE_ERROR, Outcome.COMPILE_ERROR)


def test_judge_after_close_is_judge_error(tmp_path: Path) -> None:
    code = (
        "import asyncio\nfrom pathlib import Path\nfrom dojang.judge.pool import JudgePool\n"
        "from dojang.programs import TestSuite, IoTest, Submission\n"
        "async def main():\n"
        f"    pool = JudgePool(cache=Path({str(tmp_path)!r}), workers=1)\n"
        "    await pool.close()\n"
        "    judgement = await pool.judge(Submission('python3', 'print(1)', TestSuite((IoTest('', '1'),))))\n"
        "    print(judgement.outcome, judgement.detail)\n"
        "asyncio.run(main())\n"
    )
    root = str(Path(sys.modules["dojang"].__file__ or "").parents[1])
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False, env={"PYTHONPATH": root}
    )
    assert result.stdout.startswith("judge_error the judge is closed"), result.stderr


# Unsupported submissions ---------------------------------------------------------------------------------------------


def test_unknown_language(pool: JudgePool) -> None:
    judgement = judged(pool, submitted(language="cobol"))
    assert judgement.outcome is Outcome.JUDGE_ERROR
    assert "cobol" in judgement.detail
    assert "python3" in judgement.detail


def test_function_calls_need_python(pool: JudgePool) -> None:
    judgement = judged(pool, submitted(RIGHT_CPP, [CallTest("assert f(1) == 1")], language="cpp17"))
    assert judgement.outcome is Outcome.JUDGE_ERROR
    assert "call Python functions" in judgement.detail
    assert "cpp17" in judgement.detail


def test_checker_in_unknown_language(pool: JudgePool) -> None:
    judgement = judged(pool, submitted(checker=Checker("program", language="cobol", source="ACCEPT.")))
    assert judgement.outcome is Outcome.JUDGE_ERROR
    assert "cobol" in judgement.detail
    assert judged(pool, submitted()).outcome is Outcome.ACCEPTED


# Records and interpreter state --------------------------------------------------------------------------------------


INTO_THE_INTERPRETER = """
import gc
gc.unfreeze()
code = next(each for each in gc.get_objects() if type(each).__name__ == "Forks")._code
"""


def test_changes_to_the_interpreter_end_with_the_program(make: Callable[..., JudgePool]) -> None:
    suite = TestSuite((IoTest("", "clean"), IoTest("", "clean")))
    spoil = (
        INTO_THE_INTERPRETER
        + "before = bytes(code[:])\ncode[:] = bytes(len(code))\nprint('clean' if any(before) else 'spoilt')"
    )
    look = INTO_THE_INTERPRETER + "print('clean' if any(code[:]) else 'spoilt')"

    async def play() -> list[Outcome]:
        async with make(workers=1) as pool:
            return [
                (await pool.judge(Submission("python3", each, suite))).outcome for each in (spoil, look, spoil + " ")
            ]

    assert asyncio.run(play()) == [Outcome.ACCEPTED] * 3


def test_programs_of_equal_size_are_not_confused(make: Callable[..., JudgePool]) -> None:
    async def play() -> list[Outcome]:
        async with make(workers=1) as pool:
            asks = [(f"print({number})", TestSuite((IoTest("", str(number)),) * 3)) for number in (1, 2, 1, 3)]
            return [(await pool.judge(Submission("python3", *each))).outcome for each in asks]

    assert asyncio.run(play()) == [Outcome.ACCEPTED] * 4


CLEAN = """
import __main__, os, sys, threading
main = threading.main_thread()
assert main.native_id == os.getpid() == threading.get_native_id(), main.native_id
assert type(main).__name__ == "_MainThread" and main is threading.current_thread()
assert sys.argv == ["main.py"], sys.argv
own = {name for name in vars(__main__) if not name.startswith("__")}
assert vars(__main__) is globals() and own == {"os", "sys", "threading", "main"}, own
sys.argv.append(own)
print("clean")
"""


def test_program_sees_no_names_of_the_zygote(make: Callable[..., JudgePool]) -> None:
    async def play() -> list[Outcome]:
        async with make(workers=1) as pool:
            suite = TestSuite((IoTest("", "clean"),) * 3)
            return [(await pool.judge(Submission("python3", each, suite))).outcome for each in (CLEAN, CLEAN + "\n")]

    assert asyncio.run(play()) == [Outcome.ACCEPTED] * 2


SOLUTION = "".join(f"treasure_{number} = {number}\n" for number in range(150)) + "print('found')\n"
THIEF = """
import ctypes
libc = ctypes.CDLL(None)
libc.sbrk.restype = ctypes.c_void_p
end, there = libc.sbrk(0), ctypes.create_string_buffer(1)
start = end - 4096
while libc.mincore(ctypes.c_void_p(start), ctypes.c_size_t(4096), there) == 0:
    start -= 4096
heap = ctypes.string_at(start + 4096, end - start - 4096)
assert len(heap) > 1 << 20
print("found" if bytes(reversed(b"_erusaert")) in heap else "nothing")  # so that it does not find itself
"""


def test_program_sees_nothing_of_earlier_programs(make: Callable[..., JudgePool]) -> None:
    async def play() -> list[list[Outcome]]:
        async with make(workers=1) as pool:
            suite = TestSuite((IoTest("", "found"),) * 2)
            judged = [await pool.judge(Submission("python3", each, suite)) for each in (SOLUTION, THIEF, THIEF + "\n")]
            return [[result.outcome for result in each.results] for each in judged]

    assert asyncio.run(play()) == [[Outcome.ACCEPTED] * 2, [Outcome.WRONG] * 2, [Outcome.WRONG] * 2]


@pytest.mark.parametrize(
    ("source", "isolation", "code"),
    [
        ("def f(n):\n    return 0 if n == 0 else 1 + f(n - 1)\nf(993)\nprint('right')", "auto", 0),
        ("import sys\nout = sys.stdout.detach()\nsys.stdout = None\nout.write(b'right')", "auto", 0),
        ("import sys\nout = sys.stdout.detach()\nout.write(b'right')", "auto", 120),  # as with python3 main.py
        ("import datetime\nprint('right' if datetime.datetime.strptime('1', '%d') else '')", "seccomp", 0),
    ],
)
def test_every_run_is_like_the_first(make: Callable[..., JudgePool], source: str, isolation: str, code: int) -> None:
    async def play() -> list[tuple[Outcome, int | None]]:
        async with make(workers=1, isolation=isolation) as pool:
            judged = await pool.judge(Submission("python3", source, TestSuite((IoTest("", "right"),) * 3)))
            return [(result.outcome, result.exit_code) for result in judged.results]

    assert asyncio.run(play()) == [(Outcome.RUNTIME_ERROR if code else Outcome.ACCEPTED, code)] * 3


def test_too_large_exit_status_is_a_failure(make: Callable[..., JudgePool]) -> None:
    async def play() -> Outcome:
        async with make(workers=1) as pool:
            return (await pool.judge(Submission("python3", "exit(1 << 70)", TestSuite((IoTest("", ""),))))).outcome

    assert asyncio.run(play()) is Outcome.RUNTIME_ERROR


@pytest.mark.parametrize("isolation", ["auto", "namespaces", "landlock", "seccomp", "none"])
def test_isolation_is_recorded(make: Callable[..., JudgePool], isolation: str) -> None:
    pool = make(isolation=isolation)
    if isolation not in ("auto", "none") and pool.host.features[isolation]:
        pytest.skip(pool.host.features[isolation])
    assert pool.isolation is not Isolation.NONE or isolation == "none"
    for source, expected in ((RIGHT, Outcome.ACCEPTED), ("print(1 / 0)", Outcome.RUNTIME_ERROR)):
        judgement = judged(pool, submitted(source))
        assert (judgement.outcome, judgement.isolation) == (expected, pool.isolation), judgement


def test_record_of_each_test(pool: JudgePool) -> None:
    source = "import sys\nn = int(input())\nprint('out', n)\nprint('err', n, file=sys.stderr)\nsys.exit(n)\n"
    judgement = judged(pool, submitted(source, [IoTest(f"{n}", "out 0") for n in (0, 3, 0)]))
    assert [result.test for result in judgement.results] == [0, 1, 2]
    assert [result.exit_code for result in judgement.results] == [0, 3, 0]
    assert [(result.output, result.errors) for result in judgement.results] == [
        ("", ""),
        ("out 3\n", "err 3\n"),
        ("", ""),
    ]
    assert all(result.cpu_s > 0 and result.wall_s > 0 for result in judgement.results)
    assert (judgement.passed, judgement.total, judgement.detail) == (2, 3, "test 1: exit code 3")


STEPS = (
    "n = int(input())\n"
    "while n == 2: pass\n"
    "print('no' if n == 1 else 'yes')\n"
)  # fmt: skip


@pytest.mark.parametrize(("stop", "ran"), [(Stop.NEVER, 4), (Stop.FAILURE, 2), (Stop.TIME_LIMIT, 3)])
def test_judging_stops_after_the_chosen_failure(pool: JudgePool, stop: Stop, ran: int) -> None:
    tests = [IoTest(str(number), "yes") for number in range(4)]
    judgement = judged(pool, submitted(STEPS, tests, limits=Limits(cpu_s=0.5), stop=stop))
    expected = [Outcome.ACCEPTED, Outcome.WRONG, Outcome.TIME_LIMIT, Outcome.ACCEPTED]
    assert [each.outcome for each in judgement.results] == expected[:ran]
    assert judgement.outcome is (Outcome.WRONG if ran == 2 else Outcome.TIME_LIMIT)
    assert judgement.total == 4


def test_sampling_keeps_order_and_is_repeatable() -> None:
    tests = tuple(IoTest(str(number), "") for number in range(100))
    some = sampled(tests, 10, seed=1)
    assert some == sampled(tests, 10, seed=1)
    assert some != sampled(tests, 10, seed=2)
    assert len(some) == 10
    assert list(some) == sorted(some, key=tests.index)
    assert sampled(tests, 100, seed=1) == sampled(tests, 1000, seed=3) == tests


# Limits -------------------------------------------------------------------------------------------------------------

THREADS = (
    "import threading\n"
    "done = threading.Event()\n"
    "threads = [threading.Thread(target=done.wait, daemon=True) for _ in range(int(input()))]\n"
    "for thread in threads: thread.start()\n"
    "done.set()\n"
    "print('ok')\n"
)
RECURSE = (
    "#include <cstdio>\n"
    "int __attribute__((noinline)) deep(int n) {\n"
    "    volatile char room[1000];\n"
    "    room[n % 1000] = 1;\n"
    "    return n == 0 ? 0 : deep(n - 1) + room[n % 1000];\n"
    "}\n"
    'int main() { int n; scanf("%d", &n); puts(deep(n) == n ? "ok" : "no"); }\n'
)
TOUCH = "x = b'x' * (int(input()) << 20)\nprint('ok')\n"
WRITE = "import sys\nsys.stdout.write(' ' * (int(input()) * 1000) + 'ok')\n"
KEEP = "with open('kept', 'wb') as file: file.write(bytes(int(input()) << 20))\nprint('ok')\n"
NAP = "import time\ntime.sleep(float(input()))\nprint('ok')\n"
SPIN = "import time\nneed = float(input())\nwhile time.process_time() < need: pass\nprint('ok')\n"


@pytest.mark.parametrize(
    ("language", "source", "limits", "within", "beyond", "outcomes"),
    [
        ("python3", SPIN, Limits(cpu_s=0.5, wall_s=60), "0.1", "3600", {Outcome.TIME_LIMIT}),
        ("python3", NAP, Limits(cpu_s=60, wall_s=0.5), "0.01", "3600", {Outcome.TIME_LIMIT}),
        ("python3", NAP, Limits(cpu_s=0.5), "0.01", "3600", {Outcome.TIME_LIMIT}),
        ("python3", TOUCH, Limits(memory_mb=128), "50", "200", {Outcome.MEMORY_LIMIT}),
        ("python3", TOUCH, Limits(memory_mb=128), "50", "9999", {Outcome.MEMORY_LIMIT, Outcome.RUNTIME_ERROR}),
        ("python3", WRITE, Limits(output_mb=0.05), "40", "60", {Outcome.OUTPUT_LIMIT}),
        ("python3", WRITE, Limits(output_mb=0.05), "40", "20000", {Outcome.OUTPUT_LIMIT}),
        ("python3", THREADS, Limits(processes=8), "6", "30", {Outcome.RUNTIME_ERROR}),
        ("python3", KEEP, Limits(file_mb=2, output_mb=1), "1", "4", {Outcome.OUTPUT_LIMIT, Outcome.RUNTIME_ERROR}),
        ("cpp17", RECURSE, Limits(stack_mb=8), "1000", "30000", {Outcome.RUNTIME_ERROR}),
        ("cpp17", RECURSE, Limits(memory_mb=64), "30000", "300000", {Outcome.RUNTIME_ERROR, Outcome.MEMORY_LIMIT}),
    ],
)  # fmt: skip
def test_limits_hold(
    pool: JudgePool, language: str, source: str, limits: Limits, within: str, beyond: str, outcomes: set[Outcome]
) -> None:
    tests = [IoTest(within, "ok"), IoTest(beyond, "ok"), IoTest(within, "ok")]
    first, second, third = judged(pool, submitted(source, tests, language=language, limits=limits)).results
    assert (first.outcome, third.outcome) == (Outcome.ACCEPTED, Outcome.ACCEPTED)
    assert second.outcome in outcomes, second


def test_compile_time_is_limited(pool: JudgePool) -> None:
    source = (
        "template<unsigned long long N, int D> struct S {"
        " static const unsigned long long v = S<2*N, D-1>::v + S<2*N+1, D-1>::v; };\n"
        "template<unsigned long long N> struct S<N, 0> { static const unsigned long long v = 1; };\n"
        "int main() { return S<1, 24>::v; }\n"
    )
    judgement = judged(pool, submitted(source, language="cpp17", limits=Limits(compile_s=1.0)))
    assert judgement.outcome is Outcome.COMPILE_ERROR


def test_load_changes_no_verdict(pool: JudgePool) -> None:
    """A program that needs 0.8 of its CPU limit passes at eight-fold load; by wall time it would not."""
    limit = 0.2
    source = "import time\nwhile time.process_time() < 0.16: pass\nprint('ok')\n"
    tests, limits = [IoTest("", "ok")], Limits(cpu_s=limit)

    def by_the_wall_clock() -> bool:
        try:
            subprocess.run([sys.executable, "-S", "-c", source], timeout=limit, check=True, capture_output=True)
        except subprocess.TimeoutExpired:
            return False
        return True

    with burners(8 * len(os.sched_getaffinity(0))):
        judgements = all_judged(pool, [submitted(f"{source}#{number}", tests, limits=limits) for number in range(4)])
        control = [by_the_wall_clock() for _ in range(3)]
    assert [each.outcome for each in judgements] == [Outcome.ACCEPTED] * 4
    assert not all(control), "the machine is not busy, so this proves nothing"


# Checkers -----------------------------------------------------------------------------------------------------------

CHECK = """
import sys
given, output, answer = (open(name).read() for name in sys.argv[1:])
assert given == "1 2\\n" and answer == "expected\\n", (given, answer)
if output.startswith("crash"):
    import os
    os.abort()
if output.startswith("score"):
    print(output.split()[1])
    sys.exit(0)
sys.exit({"good\\n": 0, "bad\\n": 1, "worse\\n": 2}.get(output, 3))
"""
CHECK_CPP = """
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
int main(int count, char** names) {
    std::ifstream given(names[1]), output(names[2]), answer(names[3]);
    std::string a, b, word, expected;
    given >> a >> b; output >> word; answer >> expected;
    if (count != 4 || a != "1" || b != "2" || expected != "expected") return 9;
    if (word == "crash") abort();
    if (word == "score") { output >> word; std::cout << word; return 0; }
    return word == "good" ? 0 : word == "bad" ? 1 : word == "worse" ? 2 : 3;
}
"""


@pytest.mark.parametrize(("language", "source"), [("python3", CHECK), ("cpp17", CHECK_CPP)])
def test_checker_program_decides(pool: JudgePool, language: str, source: str) -> None:
    checker = Checker("program", language=language, source=source)
    for word, expected in {
        "good": Outcome.ACCEPTED,
        "bad": Outcome.WRONG,
        "worse": Outcome.WRONG,
        "score 1": Outcome.ACCEPTED,
        "score 0": Outcome.WRONG,
        "score 0.0": Outcome.WRONG,
        "crash": Outcome.JUDGE_ERROR,
        "other": Outcome.JUDGE_ERROR,
    }.items():
        judgement = judged(pool, submitted(f"print({word!r})", [IoTest("1 2\n", "expected\n")], checker=checker))
        assert judgement.outcome is expected, (word, judgement)
        if expected is Outcome.JUDGE_ERROR:
            assert "the checker failed" in judgement.detail


def test_checker_that_does_not_compile(pool: JudgePool) -> None:
    for language in ("python3", "cpp17"):
        judgement = judged(pool, submitted(checker=Checker("program", language=language, source="int (")))
        assert judgement.outcome is Outcome.JUDGE_ERROR
        assert "checker does not compile" in judgement.detail


def test_checker_does_not_run_after_a_failure(pool: JudgePool) -> None:
    checker = Checker("program", language="python3", source="raise SystemExit(0)")
    assert judged(pool, submitted("raise SystemExit(1)", checker=checker)).outcome is Outcome.RUNTIME_ERROR
    assert judged(pool, submitted("pass", checker=checker)).outcome is Outcome.ACCEPTED


def test_checker_is_confined_like_a_program(pool: JudgePool) -> None:
    source = (
        "import os, socket, sys\n"
        "seen = []\n"
        "for attempt in (lambda: open('/etc/passwd').read(), os.fork, socket.socket, lambda: open('/etc/x', 'w')):\n"
        "    try:\n"
        "        attempt(); seen.append(attempt)\n"
        "    except OSError:\n"
        "        pass\n"
        "sys.exit(9 if seen else 0)\n"
    )
    checker = Checker("program", language="python3", source=source)
    assert judged(pool, submitted(checker=checker)).outcome is Outcome.ACCEPTED


def test_checker_that_raises_is_judge_error(pool: JudgePool) -> None:
    checker = Checker("program", language="python3", source="raise RuntimeError('oops')")
    judgement = judged(pool, submitted(checker=checker))
    assert judgement.outcome is Outcome.JUDGE_ERROR
    assert "oops" in judgement.detail


def test_checker_without_files_is_judge_error(make: Callable[..., JudgePool]) -> None:
    pool = make(isolation="seccomp")
    source = "import sys\nsys.exit(open(sys.argv[2]).read() != open(sys.argv[3]).read())\n"
    checker = Checker("program", language="python3", source=source)
    judgement = judged(pool, submitted(checker=checker))
    assert judgement.outcome in (Outcome.ACCEPTED, Outcome.JUDGE_ERROR), judgement


# Running once -------------------------------------------------------------------------------------------------------


def test_run_returns_complete_output(pool: JudgePool) -> None:
    source = "import sys\nprint('x' * 1_000_000)\nsys.stderr.write('y' * 3000)\nsys.exit(int(input()))\n"
    execution = run(pool.run("python3", source, "0\n", ROOMY))
    assert (execution.outcome, execution.compiled) == (Outcome.ACCEPTED, True)
    assert execution.stdout == b"x" * 1_000_000 + b"\n"
    assert execution.stderr == b"y" * 3000
    execution = run(pool.run("python3", source, "7\n", ROOMY))
    assert execution.outcome is Outcome.RUNTIME_ERROR
    assert execution.result is not None
    assert execution.result.exit_code == 7
    assert len(execution.stdout) == 1_000_001


def test_run_returns_complete_stderr(pool: JudgePool) -> None:
    execution = run(pool.run("python3", "import sys\nsys.stderr.write('y' * 30_000 + 'z')\n", "", ROOMY))
    assert execution.stderr == b"y" * 30_000 + b"z"


def test_end_of_stderr_is_shown(pool: JudgePool) -> None:
    source = "import sys\nsys.stderr.write('y' * 100_000 + 'the end')\nsys.exit(1)\n"
    assert judged(pool, submitted(source)).results[0].errors.endswith("the end")


def test_run_of_a_program_that_does_not_compile(pool: JudgePool) -> None:
    for language, source in (("python3", "def f(:"), ("cpp17", "int main() { return nothing; }")):
        execution = run(pool.run(language, source, "", ROOMY))
        assert (execution.outcome, execution.compiled, execution.result) == (Outcome.COMPILE_ERROR, False, None)
        assert execution.compile_log
    execution = run(pool.run("cobol", "", "", ROOMY))
    assert (execution.outcome, execution.compiled) == (Outcome.JUDGE_ERROR, False)
    assert "cobol" in execution.compile_log


def test_run_cpp(pool: JudgePool) -> None:
    for _ in range(2):
        execution = run(pool.run("cpp17", RIGHT_CPP, "40 2", ROOMY))
        assert (execution.outcome, execution.stdout, execution.stderr) == (Outcome.ACCEPTED, b"42\n", b"")


# Callers of every kind ----------------------------------------------------------------------------------------------


def test_several_event_loops(pool: JudgePool) -> None:
    for number in range(3):
        assert judged(pool, submitted(f"{RIGHT}# loop {number}")).outcome is Outcome.ACCEPTED


def test_event_loops_in_threads(pool: JudgePool) -> None:
    found: list[Judgement] = []

    def call(number: int) -> None:
        found.extend(all_judged(pool, [submitted(f"{SLOW}# thread {number % 2} {each}", SUM[:1]) for each in range(3)]))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(each.outcome for each in found) == {Outcome.ACCEPTED: 12}


# Programs that attack the judge ---------------------------------------------------------------------------
# A failure of the judge is not held against a program; so no program may bring one about.

RAISE_CPP = "#include <signal.h>\nint main() { raise(40); }\n"
SHUT = "import os\nos.fchmod(os.open('/tmp', os.O_RDONLY), 0)\n" + RIGHT
FORGED = "#error Killed signal terminated program cc1plus\nint main() {}\n"


@pytest.mark.parametrize("number", [33, 40])
def test_signals_without_a_name(pool: JudgePool, number: int) -> None:
    source = f"import os\nos.kill(os.getpid(), {number})\nimport time\ntime.sleep(0.1)\nos._exit(1)\n"
    assert judged(pool, submitted(source)).outcome is Outcome.RUNTIME_ERROR


def test_signals_without_a_name_in_cpp(pool: JudgePool) -> None:
    assert judged(pool, submitted(RAISE_CPP, language="cpp17")).outcome is Outcome.RUNTIME_ERROR


def test_unreadable_directory(pool: JudgePool) -> None:
    assert judged(pool, submitted(SHUT)).outcome in (Outcome.ACCEPTED, Outcome.RUNTIME_ERROR)


def test_forged_compiler_messages(pool: JudgePool) -> None:
    assert judged(pool, submitted(FORGED, language="cpp17")).outcome is Outcome.COMPILE_ERROR


def test_too_large_answer_is_runtime_error(pool: JudgePool) -> None:
    source = (
        "import os, struct\n"
        "def write(data):\n"
        "    while data: data = data[os.write(5, data):]\n"
        "head, piece, tail = b'[\"value\", [', b'[],' * (1 << 18), b'0], []]'\n"
        "write(struct.pack('<Q', len(head) + 80 * len(piece) + len(tail)))\n"
        "write(head)\n"
        "for _ in range(80): write(piece)\n"
        "write(tail)\n"
        "os._exit(0)\n"
    )
    tests = [CallTest("assert candidate(1) == 1", "f")]
    outcome = judged(pool, submitted(source, tests)).outcome
    assert outcome not in (Outcome.JUDGE_ERROR, Outcome.ACCEPTED)


def test_second_run_sees_nothing_of_the_first(pool: JudgePool) -> None:
    source = (
        "import os, time\n"
        "if os.path.exists('notes'):\n"
        "    print('ok')\n"
        "else:\n"
        "    while time.process_time() < 0.75: pass\n"
        "    open('notes', 'w').close()\n"
        "    print('ok')\n"
    )
    if pool.isolation not in (Isolation.NAMESPACES, Isolation.LANDLOCK):
        pytest.skip("programs have no files here")
    judgement = judged(pool, submitted(source, [IoTest("", "ok")], limits=Limits(cpu_s=0.6)))
    assert judgement.outcome is Outcome.TIME_LIMIT


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_unreachable_cache(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    pool = JudgePool(cache=tmp_path, workers=1, isolation="landlock")
    if why := pool.host.features["landlock"]:
        pytest.skip(why)
    source = "#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b; }\n"
    judgement = judged(pool, submitted(source, language="cpp17"))
    run(pool.close())
    assert judgement.outcome is Outcome.ACCEPTED, judgement


def test_heartbeat_during_a_long_test(make: Callable[..., JudgePool], monkeypatch: pytest.MonkeyPatch) -> None:
    import dojang.judge.sandbox.worker as worker
    import dojang.judge.worker_handle as worker_handle

    if not hasattr(worker_handle, "_TIMEOUT_S") or not hasattr(worker, "_HEARTBEAT_S"):
        pytest.skip("the silence cannot be shortened here")
    monkeypatch.setattr(worker_handle, "_TIMEOUT_S", worker._HEARTBEAT_S + 1.5)
    nap = f"import time\ntime.sleep({worker._HEARTBEAT_S + 3.0})\n" + RIGHT
    assert judged(make(), submitted(nap, SUM[:1])).outcome is Outcome.ACCEPTED


def test_memory_of_the_worker_is_not_charged_to_programs(make: Callable[..., JudgePool]) -> None:
    pool = make()
    for number in range(4):
        test = IoTest("7 " * (10 << 20) + str(number), "3")
        source = '#include <cstdio>\nint main() { puts("3"); }\n'
        limits = Limits(cpu_s=10, memory_mb=64)
        judgement = judged(pool, submitted(source, [test], language="cpp17", limits=limits))
        assert judgement.outcome is Outcome.ACCEPTED, (number, judgement)
