"""Answers compared by what they mean, in processes that may hang or crash without being taken for wrong answers."""

import asyncio
import gc
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dojang.core import section
from dojang.core.errors import ConfigError
from dojang.data.math500 import Math500
from dojang.tasks.maths import MathsConfig, MathsTask
from dojang.tasks.worker_pool import WorkerFailure, WorkerPool
from dojang.types import Message, Outcome, Problem, Verdict


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerPool]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    made = WorkerPool("scripted_worker", count=2, timeout_s=1)
    yield made
    del made


def ask(workers: WorkerPool, *questions: Any) -> list[Any]:
    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*map(workers.ask, questions), return_exceptions=True)

    return asyncio.run(all_of_them())


def test_every_question_gets_its_own_answer(workers: WorkerPool) -> None:
    found = ask(workers, *range(50))
    assert [answer for answer, _ in found] == list(range(50))
    assert 1 <= len({process for _, process in found}) <= 2


def test_hanging_process_is_killed_and_replaced(workers: WorkerPool) -> None:
    (first,), (second,) = ask(workers, "who"), ask(workers, "who")
    assert first == second
    started = time.monotonic()
    (failure,) = ask(workers, "hang")
    assert isinstance(failure, WorkerFailure)
    assert str(failure) == "it took longer than timeout_s=1"
    assert time.monotonic() - started < 5
    found = ask(workers, *["who"] * 4)
    assert all(answer == "who" for answer, _ in found)
    with pytest.raises(ProcessLookupError):
        os.kill(first[1], 0)


def test_other_processes_continue_while_one_hangs(workers: WorkerPool) -> None:
    ask(workers, 1, 2)
    failure, *found = ask(workers, "hang", *range(20))
    assert isinstance(failure, WorkerFailure)
    assert [answer for answer, _ in found] == list(range(20))


@pytest.mark.parametrize(
    ("question", "words"), [("end", "the process ended with 7: the reason"), ("deaf", "the process ended with -9")]
)
def test_failing_process_is_reported(workers: WorkerPool, question: str, words: str) -> None:
    failure, after = ask(workers, question)[0], ask(workers, "on")[0]
    assert isinstance(failure, WorkerFailure)
    assert words in str(failure)
    assert after[0] == "on"


def test_other_output_is_ignored(workers: WorkerPool) -> None:
    for at in range(5):
        assert ask(workers, "babble") == ["after all"]
        assert ask(workers, at)[0][0] == at


def test_long_question_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    workers = WorkerPool("scripted_worker", count=2, timeout_s=4)  # on a busy machine a new process takes a second
    text = "x" * 5_000_000
    ((answer, _),) = ask(workers, text)
    assert answer == text
    ask(workers, 1, 2)

    async def stuck() -> list[Any]:
        hanging = [asyncio.ensure_future(workers.ask("hang")) for _ in range(2)]
        await asyncio.sleep(0.2)
        return await asyncio.gather(*hanging, workers.ask(text), return_exceptions=True)

    first, second, third = asyncio.run(stuck())
    assert isinstance(first, WorkerFailure)
    assert isinstance(second, WorkerFailure)
    assert third[0] == text


def test_fork_starts_its_own_processes(workers: WorkerPool) -> None:
    ((_, mine),) = ask(workers, "who")
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            ((_, theirs),) = ask(workers, "who")
            os.write(writing, str(theirs).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(reading, 100)) != mine
    assert ask(workers, "who")[0][0] == "who"


def test_process_that_cannot_start() -> None:
    (failure,) = ask(WorkerPool("no.such.module", count=1, timeout_s=1), 1)
    assert isinstance(failure, WorkerFailure)
    assert "the process ended with 1: " in str(failure)
    assert "no.such" in str(failure) or "'no'" in str(failure)


def test_answers_can_be_awaited_in_many_threads(workers: WorkerPool) -> None:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda at=at: found.extend(ask(workers, at, -at))) for at in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answer for answer, _ in found) == sorted([*range(32), *(-at for at in range(32))])


def test_cancelled_question_is_skipped(workers: WorkerPool) -> None:
    async def impatient() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(workers.ask(["sleep", 0.5]), 0.1)
        assert (await workers.ask("on"))[0] == "on"

    ask(workers, "warm")
    asyncio.run(impatient())


def test_processes_end_with_their_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    workers = WorkerPool("scripted_worker", count=1, timeout_s=5)
    ((_, process),) = ask(workers, "who")
    os.kill(process, 0)
    del workers
    gc.collect()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and Path(f"/proc/{process}").exists():
        time.sleep(0.02)
    assert not Path(f"/proc/{process}").exists()


# ---- maths -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def task() -> MathsTask:
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    return MathsConfig(boxed=0.5, timeout_s=20).make({})


def problem(reference: object) -> Problem:
    return Problem("maths/1", "maths", (Message("user", "?"),), reference)


def grade(task: MathsTask, *pairs: tuple[object, str]) -> list[Verdict]:
    async def all_of_them() -> list[Verdict]:
        return await asyncio.gather(*(task.grade(problem(reference), text) for reference, text in pairs))

    return asyncio.run(all_of_them())


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        (r"\frac{1}{2}", r"So it is \boxed{\frac{1}{2}}."),
        (r"\frac{1}{2}", r"So it is \boxed{0.5}."),
        ("12", r"First \boxed{11}, no: \boxed{12}"),
        ("12", r"\boxed {12}"),
        (r"2\sqrt{3}", r"\boxed{\sqrt{12}}"),
        ("(0, 1]", r"\boxed{(0,1]}"),
        (r"\{1, 2\}", r"\boxed{\{2, 1\}}"),
        ("x^2 + 2x + 1", r"\boxed{(x+1)^2}"),
        ("1000", "The final answer is $1000$."),
        ("1000", "The final answer is 1000."),
        (7, r"\boxed{7}"),
    ],
)
def test_equal_answers_are_accepted(task: MathsTask, reference: object, text: str) -> None:
    (verdict,) = grade(task, (reference, text))
    boxed = float("boxed" in text)
    assert (verdict.outcome, verdict.reward, verdict.parts) == (
        Outcome.ACCEPTED,
        1 + 0.5 * boxed,
        {"correct": 1.0, "boxed": boxed},
    )
    assert verdict.terms == {"correct": (1.0, 1.0), "boxed": (0.5, boxed)}


@pytest.mark.parametrize(
    ("reference", "text", "outcome", "reward"),
    [
        (r"\frac{1}{2}", r"\boxed{\frac{1}{3}}", Outcome.WRONG, 0.5),
        ("12", r"\boxed{11} or \boxed{13}", Outcome.WRONG, 0.5),
        ("12", "I do not know.", Outcome.NO_ANSWER, 0.0),
        ("12", "", Outcome.NO_ANSWER, 0.0),
        ("12", "There are 12 apples in a box of 30.", Outcome.NO_ANSWER, 0.0),
        ("12", r"Then \boxed{1", Outcome.NO_ANSWER, 0.0),
    ],
)
def test_different_answers_are_rejected(
    task: MathsTask, reference: str, text: str, outcome: Outcome, reward: float
) -> None:
    (verdict,) = grade(task, (reference, text))
    assert (verdict.outcome, verdict.reward) == (outcome, reward)


def test_invalid_reference_is_a_judge_error(task: MathsTask) -> None:
    for verdict in grade(task, ("", r"\boxed{1}"), (r"\frac{", r"\boxed{1}")):
        assert verdict.outcome is Outcome.JUDGE_ERROR
        assert verdict.reward is None
        assert "cannot be parsed" in verdict.detail


def test_endless_comparison_is_a_judge_error() -> None:
    pytest.importorskip("math_verify", reason="math-verify is not installed")
    brisk = MathsConfig(timeout_s=1, workers=1).make({})
    tower = r"\boxed{" + "9^{" * 5 + "9" + "}" * 5 + "}"
    slow, quick = grade(brisk, ("7", tower), ("7", r"\boxed{7}"))
    assert slow.outcome is Outcome.JUDGE_ERROR
    assert quick.outcome is Outcome.ACCEPTED


def test_math500_references_are_accepted_and_wrong_answers_rejected(task: MathsTask, shared_data: Path) -> None:
    rows = [json.loads(line) for line in (shared_data / "math500" / "test.jsonl").read_text().splitlines()]
    problems = [Math500().problem(row, "") for row in rows]
    assert len(problems) == 500
    assert Counter(each.tier for each in problems) == {
        "level 1": 43,
        "level 2": 90,
        "level 3": 105,
        "level 4": 128,
        "level 5": 134,
    }
    chosen = problems[::5]
    right = grade(task, *((each.reference, rf"So \boxed{{{each.reference}}}.") for each in chosen))
    assert Counter(verdict.outcome for verdict in right) == {Outcome.ACCEPTED: 100}
    wrong = grade(task, *((each.reference, r"So \boxed{-98765.4321}.") for each in chosen))
    assert Counter(verdict.outcome for verdict in wrong) == {Outcome.WRONG: 100}


def test_missing_math_verify_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(section, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'dojang\[maths\]'"):
        MathsConfig().make({})
