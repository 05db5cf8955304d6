import asyncio
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from dojang.core.errors import ConfigError
from dojang.tasks import rewards
from dojang.tasks.rewards import RewardFailure, Score, WeightedRewards
from dojang.types import Message, Problem

PROBLEM = Problem("p/1", "p", (Message("user", "What is 9 * 2?"),), "18")
RIGHT = "9 * 2 = 18\n#### The final answer is 18"


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module `verifiers` to put functions into."""
    module = ModuleType("verifiers")
    monkeypatch.setitem(sys.modules, "verifiers", module)
    return module


def score(weights: dict[str, float], text: str = RIGHT, *, timeout_s: float = 10.0) -> Score:
    return asyncio.run(WeightedRewards(weights, timeout_s=timeout_s).score(PROBLEM, text))


@pytest.mark.parametrize(
    ("text", "total", "format_", "correct"),
    [
        (RIGHT, 1.5, 1, 1),
        ("#### The final answer is 17", 0.5, 1, 0),
        ("#### 18", 1.0, 0, 1),
        ("18", 0.0, 0, 0),
    ],
)
def test_the_built_in_rewards(text: str, total: float, format_: float, correct: float) -> None:
    result = score({"format": 0.5, "correct": 1.0}, text)
    terms = {"format": (0.5, format_), "correct": (1.0, correct)}
    assert result == Score(total, {"format": format_, "correct": correct}, terms)


def test_parts_are_unweighted_and_a_weight_may_be_zero_or_negative(module: ModuleType) -> None:
    module.length = lambda problem, text: len(text)
    found = score({"correct": 2.0, "format": 0.0, "verifiers:length": -0.25}, "#### 18")
    assert (found.total, found.parts) == (2.0 - 0.25 * 7, {"correct": 1.0, "format": 0.0, "length": 7.0})
    assert found.terms == {"correct": (2.0, 1.0), "format": (0.0, 0.0), "length": (-0.25, 7.0)}


async def _later(value: float) -> float:
    await asyncio.sleep(0)
    return value


async def _async(problem: Problem, text: str) -> float:
    return await _later(0.25)


class _Verifier:
    async def __call__(self, problem: Problem, text: str) -> float:
        return 0.25

    def method(self, problem: Problem, text: str) -> float:
        return 0.25


@pytest.mark.parametrize(
    "function",
    [
        lambda problem, text: 0.25,
        lambda problem, text, extra=0: _later(0.25),
        lambda *args: np.float32(0.25),
        _async,
        _Verifier(),
        _Verifier().method,
    ],
)
def test_a_foreign_function_may_be_anything_callable(module: ModuleType, function: object) -> None:
    module.one = function
    assert score({"verifiers:one": 2.0}) == Score(0.5, {"one": 0.25}, {"one": (2.0, 0.25)})


def test_a_foreign_function_gets_the_problem_and_the_whole_text(module: ModuleType) -> None:
    seen: list[object] = []
    module.look = lambda problem, text: seen.append((problem, text)) or 1
    score({"verifiers:look": 1.0}, "a\nQuestion: b")
    assert seen == [(PROBLEM, "a\nQuestion: b")]


def test_labels_are_full_names_where_short_ones_would_clash(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    module.correct = lambda problem, text: True
    assert score({"correct": 1.0, "verifiers:correct": 1.0}, "#### 17").parts == {
        "correct": 0.0,
        "verifiers:correct": 1.0,
    }


@pytest.mark.parametrize("value", [None, "1.0", [1.0], {}, float("nan"), float("inf"), -float("inf"), 1j, object()])
def test_non_finite_reward_fails(module: ModuleType, value: object) -> None:
    module.odd = lambda problem, text: value
    with pytest.raises(RewardFailure, match=r"reward 'odd' returned .*, not a finite number"):
        score({"verifiers:odd": 1.0})


def test_an_overflowing_sum_fails(module: ModuleType) -> None:
    module.big = lambda problem, text: 1e308
    with pytest.raises(RewardFailure, match="is inf, not a finite number"):
        score({"verifiers:big": 1e308})


def _raise(error: BaseException) -> Callable[[Problem, str], float]:
    def function(problem: Problem, text: str) -> float:
        raise error

    return function


def _raise_later(error: BaseException) -> Callable[[Problem, str], Awaitable[float]]:
    async def function(problem: Problem, text: str) -> float:
        raise error

    return function


@pytest.mark.parametrize("make", [_raise, _raise_later])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("no such tool"), "raised ValueError: no such tool"),
        (TimeoutError("upstream"), "raised TimeoutError: upstream"),
        (StopIteration(), "raised RuntimeError: .*StopIteration"),
        (SystemExit(3), "raised SystemExit: 3"),
    ],
)
def test_an_exception_fails(module: ModuleType, make: Callable[..., object], error: Exception, said: str) -> None:
    module.bad = make(error)
    with pytest.raises(RewardFailure, match=f"reward 'bad' {said}"):
        score({"correct": 1.0, "verifiers:bad": 1.0})


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()])
def test_an_exception_that_would_end_the_program_fails_too(module: ModuleType, error: BaseException) -> None:
    module.bad = _raise(error)
    with pytest.raises(RewardFailure, match=f"reward 'bad' raised .*{type(error).__name__}"):
        score({"verifiers:bad": 1.0})


def test_an_async_function_that_cancels_itself_fails_too(module: ModuleType) -> None:
    module.bad = _raise_later(asyncio.CancelledError())
    with pytest.raises(RewardFailure, match="reward 'bad' raised CancelledError"):
        score({"verifiers:bad": 1.0})


def test_function_that_modifies_its_problem_affects_no_other(module: ModuleType) -> None:
    def greedy(completions: list[object], answer: list[dict[str, list[str]]]) -> list[float]:
        answer[0]["required"].pop()
        return [float(len(answer[0]["required"]))]

    module.greedy = greedy
    problem = replace(PROBLEM, reference={"required": ["one", "two"]})
    rewards_ = WeightedRewards({"verifiers:greedy": 1.0}, timeout_s=10)
    assert [asyncio.run(rewards_.score(problem, "")).total for _ in range(2)] == [1.0, 1.0]
    assert problem.reference == {"required": ["one", "two"]}


def test_hanging_function_is_abandoned(module: ModuleType) -> None:
    release = threading.Event()
    module.hang = lambda problem, text: release.wait() and 1.0
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    async def main() -> None:
        ticking = asyncio.create_task(tick())
        with pytest.raises(RewardFailure, match=r"reward 'hang' took longer than timeout_s=0\.2"):
            await WeightedRewards({"verifiers:hang": 1.0}, timeout_s=0.2).score(PROBLEM, RIGHT)
        ticking.cancel()
        release.set()  # the late answer must not disturb anybody
        await asyncio.sleep(0.05)

    asyncio.run(main())
    assert ticks >= 5


def test_a_hung_coroutine_is_cancelled(module: ModuleType) -> None:
    async def hang(problem: Problem, text: str) -> float:
        await asyncio.Event().wait()
        return 1.0

    module.hang = hang
    with pytest.raises(RewardFailure, match=r"took longer than timeout_s=0\.1"):
        score({"verifiers:hang": 1.0}, timeout_s=0.1)


def test_an_answer_after_the_loop_has_closed_is_dropped(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    complaints: list[object] = []
    monkeypatch.setattr(threading, "excepthook", complaints.append)
    release = threading.Event()
    workers: list[threading.Thread] = []

    def hang(problem: Problem, text: str) -> float:
        workers.append(threading.current_thread())
        release.wait()
        return 1.0

    module.hang = hang
    with pytest.raises(RewardFailure):
        score({"verifiers:hang": 1.0}, timeout_s=0.05)
    release.set()
    workers[0].join(5)
    assert not complaints


def test_time_in_the_queue_does_not_count(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewards, "THREADS", 2)
    lock = threading.Lock()
    at_work = most = 0

    def slow(problem: Problem, text: str) -> float:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        time.sleep(0.02)
        with lock:
            at_work -= 1
        return 1.0

    module.slow = slow
    weighted = WeightedRewards({"verifiers:slow": 1.0}, timeout_s=0.5)

    async def main(times: int) -> list[Score]:
        return await asyncio.gather(*(weighted.score(PROBLEM, RIGHT) for _ in range(times)))

    assert len(asyncio.run(main(80))) == 80  # 0.8 seconds in all
    assert len(asyncio.run(main(6))) == 6  # in another event loop
    assert most <= 2


def test_cancelling_the_caller_is_not_a_failure(module: ModuleType) -> None:
    release = threading.Event()
    module.hang = lambda problem, text: release.wait() and 1.0

    async def main() -> None:
        grading = asyncio.create_task(WeightedRewards({"verifiers:hang": 1.0}, timeout_s=10).score(PROBLEM, ""))
        await asyncio.sleep(0.05)
        grading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await grading

    asyncio.run(main())
    release.set()


def test_a_hung_function_does_not_keep_the_program_alive() -> None:
    program = """
        import asyncio, sys, time, types
        from dojang.tasks.rewards import RewardFailure, WeightedRewards
        from dojang.types import Problem

        def hang(problem, text):
            while True:
                time.sleep(60)

        sys.modules["verifiers"] = types.ModuleType("verifiers")
        sys.modules["verifiers"].hang = hang
        rewards = WeightedRewards({"verifiers:hang": 1.0}, timeout_s=0.1)
        try:
            asyncio.run(rewards.score(Problem("", "", (), "1"), ""))
        except RewardFailure as failure:
            print(failure)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert "took longer" in done.stdout


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("corect", "unknown reward 'corect'.*; did you mean 'correct'\\?$"),
        ("Format", "did you mean 'format'\\?$"),
        ("speed", "neither built in \\(format, correct, .*\\) nor of the form package.module:function$"),
        ("", "unknown reward ''"),
        (":f", "unknown reward ':f'"),
        ("a.b:", "unknown reward"),
        ("a b:c", "unknown reward"),
        ("a..b:c", "unknown reward"),
        ("no_such_package:f", "cannot import 'no_such_package' .*; install it"),
        ("json.nothing:f", "cannot import 'json.nothing'"),
        ("json:nothing", "module 'json' has no 'nothing'"),
        ("json:dumps.nothing", "unknown reward"),
        ("json:__name__", "reward 'json:__name__' is str, not a function"),
        ("json:loads", "is called with \\(problem, text\\)"),
    ],
)
def test_unknown_name_is_refused(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        WeightedRewards({name: 1.0}, timeout_s=1)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("1 / 0", "'broken_verifiers:f': importing 'broken_verifiers' raised ZeroDivisionError: division by zero"),
        ("raise SystemExit(2)", "raised SystemExit: 2"),
        ("def f(:", "raised SyntaxError"),
        ("import no_such_package", "No module named 'no_such_package'"),
    ],
)
def test_a_module_that_does_not_import(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, source: str, said: str
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "broken_verifiers", raising=False)
    with open(f"{tmp_path}/broken_verifiers.py", "w") as file:
        file.write(source)
    with pytest.raises(ConfigError, match=said):
        WeightedRewards({"broken_verifiers:f": 1.0}, timeout_s=1)
