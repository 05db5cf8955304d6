"""The contract of every Judge: local pool, remote services, Ray cluster."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from dojang.core.paths import cache_root
from dojang.judge.client import RemoteJudge, RetryPolicy
from dojang.judge.pool import JudgePool
from dojang.judge.server import serve
from dojang.judge.service import ServiceOptions
from dojang.programs import CallTest, IoTest, Limits, Stop, Submission, TestSuite
from dojang.protocols import Judge
from dojang.types import Outcome
from ray_cluster import NEEDS_RAY, alone, judging

T = TypeVar("T")
PATIENCE = 240.0
"""Timeout in seconds for things that must not hang; not a measurement."""
ROOMY = Limits(cpu_s=10.0, wall_s=60.0)
TESTS = (IoTest("1 2\n", "3\n"), IoTest("20 22\n", "42\n"))
SUMS = TestSuite(TESTS, ROOMY)
LARGE = TestSuite((IoTest("1 2\n" + " " * 300_000, "3\n"), *TESTS), ROOMY)
RIGHT = "print(sum(map(int, input().split())))\n"
SLEEPS = "import time\ntime.sleep(120)\n"
SLOW = TestSuite(TESTS, Limits(cpu_s=10.0, wall_s=300.0))
MakeJudge = Callable[[], Judge]


@contextmanager
def service() -> Iterator[str]:
    """A judge service in a thread, with a separate judge."""
    up, found, ends = threading.Event(), list[str](), list[Callable[[], object]]()

    async def main() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        ends.append(lambda: loop.call_soon_threadsafe(stop.set))

        def announce(url: str) -> None:
            found.append(url)
            up.set()

        pool = JudgePool(cache=cache_root(), workers=2)
        await serve(pool, ServiceOptions(), port=0, drain_s=0.0, announce=announce, stop=stop)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert up.wait(PATIENCE)
    yield found[0]
    ends[0]()
    thread.join()


@pytest.fixture(scope="module", params=["pool", "remote", pytest.param("ray", marks=NEEDS_RAY)])
def make_judge(request: pytest.FixtureRequest) -> Iterator[MakeJudge]:
    """Creates judges with two workers."""
    if request.param == "pool":
        yield lambda: JudgePool(cache=cache_root(), workers=2)
    elif request.param == "remote":
        with service() as url:
            yield lambda: RemoteJudge([url], policy=RetryPolicy(total_s=PATIENCE))
    else:
        with alone(2):
            yield judging


@pytest.fixture(scope="module")
def judge(make_judge: MakeJudge) -> Iterator[Judge]:
    """A judge that tests do not close."""
    made = make_judge()
    yield made
    run(made.close())


def run(waiting: Awaitable[T]) -> T:
    """Run in a new event loop, with a timeout."""

    async def bounded() -> T:
        return await asyncio.wait_for(waiting, PATIENCE)

    return asyncio.run(bounded())


@pytest.mark.parametrize(
    ("source", "outcome", "passed"),
    [
        (RIGHT, Outcome.ACCEPTED, 2),
        ("print(3)\n", Outcome.WRONG, 1),
        ("print(1 / 0)\n", Outcome.RUNTIME_ERROR, 0),
        ("print(\n", Outcome.COMPILE_ERROR, 0),
    ],
)
def test_a_judgement_says_what_became_of_the_program(judge: Judge, source: str, outcome: Outcome, passed: int) -> None:
    judgement = run(judge.judge(Submission("python3", source, SUMS)))
    assert (judgement.outcome, judgement.passed, judgement.total) == (outcome, passed, 2)
    assert bool(judgement.detail) == (outcome is not Outcome.ACCEPTED)
    assert judgement.seconds > 0


def test_limits_calls_and_early_stops_arrive(judge: Judge) -> None:
    hasty = TestSuite(TESTS, Limits(cpu_s=0.1))
    endless = Submission("python3", "while True: pass\n", hasty, Stop.TIME_LIMIT)
    calls = Submission("python3", "def add(a, b): return a + b\n", TestSuite((CallTest.of("add", [1, 2], 3),), ROOMY))

    async def both() -> None:
        first, second = await asyncio.gather(judge.judge(endless), judge.judge(calls))
        assert (first.outcome, len(first.results)) == (Outcome.TIME_LIMIT, 1)
        assert second.outcome is Outcome.ACCEPTED

    run(both())


@pytest.mark.parametrize("suite", [SUMS, LARGE], ids=["small", "large"])
def test_concurrent_submissions_get_their_own_judgements(judge: Judge, suite: TestSuite) -> None:
    sources = [RIGHT + f"# {number}" if number % 3 else f"print('no {number}')" for number in range(30)]

    async def together() -> list[Outcome]:
        found = await asyncio.gather(*(judge.judge(Submission("python3", each, suite)) for each in sources))
        return [each.outcome for each in found]

    assert run(together()) == [Outcome.ACCEPTED if number % 3 else Outcome.WRONG for number in range(30)]


def test_the_same_program_again_is_judged_the_same(judge: Judge) -> None:
    submission = Submission("python3", RIGHT + "# twice", SUMS)

    async def together() -> list[Outcome]:
        return [each.outcome for each in await asyncio.gather(*(judge.judge(submission) for _ in range(5)))]

    assert run(together()) == [Outcome.ACCEPTED] * 5
    assert run(judge.judge(submission)).outcome is Outcome.ACCEPTED


def test_an_unknown_language_is_a_judge_error_and_no_exception(judge: Judge) -> None:
    judgement = run(judge.judge(Submission("cobol", RIGHT, SUMS)))
    assert judgement.outcome is Outcome.JUDGE_ERROR
    assert "cobol" in judgement.detail


def test_cancelled_submission_does_not_affect_others(judge: Judge) -> None:
    """More submissions are cancelled than run at a time: some are running, some are queued."""

    async def some_leave() -> Outcome:
        leaving = [
            asyncio.ensure_future(judge.judge(Submission("python3", f"import time; time.sleep(1) # {number}", SUMS)))
            for number in range(8)
        ]
        stays = asyncio.ensure_future(judge.judge(Submission("python3", RIGHT + "# stays", SUMS)))
        await asyncio.sleep(0.3)
        for each in leaving:
            each.cancel()
        left = await asyncio.gather(*leaving, return_exceptions=True)
        assert all(isinstance(each, asyncio.CancelledError) for each in left)
        return (await stays).outcome

    assert run(some_leave()) is Outcome.ACCEPTED


def test_closing_ends_what_is_pending(make_judge: MakeJudge) -> None:
    judge = make_judge()

    async def closed() -> list[Outcome]:
        assert (await judge.judge(Submission("python3", RIGHT, SUMS))).outcome is Outcome.ACCEPTED
        pending = [
            asyncio.ensure_future(judge.judge(Submission("python3", SLEEPS + f"# closed {number}", SLOW)))
            for number in range(6)
        ]
        await asyncio.sleep(1.0)
        await judge.close()
        pending.append(asyncio.ensure_future(judge.judge(Submission("python3", RIGHT + "# late", SUMS))))
        return [each.outcome for each in await asyncio.gather(*pending)]

    assert run(closed()) == [Outcome.JUDGE_ERROR] * 7


def test_closing_one_that_was_never_asked_costs_nothing(make_judge: MakeJudge) -> None:
    run(make_judge().close())
