# ruff: noqa: E402
"""Judging on a cluster whose processes and machines come and go: nothing is lost, and nothing is left behind."""

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

ray = pytest.importorskip("ray", reason="Ray is not installed here; make test-ray has it")

from dojang.build.ray_judges import distribute_task, make_judge
from dojang.cluster.ray.judges import RayJudge
from dojang.cluster.ray.placement import release, reserve, spare_cpus
from dojang.config.run_config import RunConfig
from dojang.core.errors import ClusterError, ConfigError
from dojang.judge.config import JudgeConfig
from dojang.programs import IoTest, Limits, Submission, TestSuite
from dojang.types import Message, Outcome, Problem, Verdict
from ray_cluster import NEEDS_RAY, folder, judging

pytestmark = [*NEEDS_RAY]
T = TypeVar("T")
PATIENCE = 120.0
SUITE = TestSuite((IoTest("1 2\n", "3\n"),), Limits(cpu_s=10.0, wall_s=60.0))
BUSY = "import time\nwhile time.process_time() < 0.05: pass\nprint(sum(map(int, input().split())))\n# {}"


def run(waiting: Awaitable[T]) -> T:
    async def bounded() -> T:
        return await asyncio.wait_for(waiting, PATIENCE)

    return asyncio.run(bounded())


@pytest.fixture(scope="module")
def machines() -> Iterator[Any]:
    """A cluster that others may join. Its first machine has two processors."""
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch, folder() as path:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)  # it has a task of its own
        head = {"num_cpus": 2, "include_dashboard": False, "temp_dir": path}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture
def judge(machines: Any, tmp_path: Path) -> Iterator[RayJudge]:
    made = judging(tmp_path)
    yield made
    run(made.close())


def submissions(count: int) -> list[Submission]:
    return [Submission("python3", BUSY.format(number), SUITE) for number in range(count)]


async def until(condition: Callable[[], T]) -> T:
    while not (found := condition()):
        await asyncio.sleep(0.05)
    return found


async def gone(processes: set[int]) -> None:
    await until(lambda: not any(Path("/proc", str(each)).exists() for each in processes))


def judges(log: Path) -> list[int]:
    """Processes that have judged something and are still there."""
    return [int(each.name) for each in log.iterdir() if Path("/proc", each.name).exists()]


def below(pid: int) -> set[int]:
    """All its descendants."""
    children: set[int] = set()
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            children |= {int(word) for word in (thread / "children").read_text().split()}
    return children.union(*map(below, children))


def all_right(judge: RayJudge, log: Path, count: int, disturb: Callable[[], Awaitable[None]]) -> Counter[str]:
    """Judge so many programs while something is done to the judges; says how often each was judged to the end."""

    async def together() -> list[Outcome]:
        disturbing = asyncio.ensure_future(disturb())
        found = await asyncio.gather(*map(judge.judge, submissions(count)))
        await disturbing
        return [each.outcome for each in found]

    assert run(together()) == [Outcome.ACCEPTED] * count
    return Counter(line for each in log.iterdir() for line in each.read_text().splitlines())


def test_a_sandbox_that_is_killed_costs_no_judgement(judge: RayJudge, tmp_path: Path) -> None:
    async def disturb() -> None:
        for _ in range(3):
            (pid,) = await until(lambda: judges(tmp_path))
            for each in await until(partial(below, pid)):
                with suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            await asyncio.sleep(0.4)

    judged = all_right(judge, tmp_path, 40, disturb)
    assert judged == Counter(f"# {number}" for number in range(40))


def test_a_judge_that_is_killed_is_replaced_and_leaves_nothing_behind(judge: RayJudge, tmp_path: Path) -> None:
    left: set[int] = set()

    async def disturb() -> None:
        for _ in range(2):
            (pid,) = await until(lambda: judges(tmp_path))
            left.update(await until(partial(below, pid)))
            os.kill(pid, signal.SIGKILL)
            await gone({pid})

    judged = all_right(judge, tmp_path, 40, disturb)
    assert set(judged) == {f"# {number}" for number in range(40)}
    assert len(list(tmp_path.iterdir())) == 3
    assert len(left) >= 2

    run(gone(left))


def test_closing_leaves_nothing_running(machines: Any, tmp_path: Path) -> None:
    judge = judging(tmp_path)

    async def closed() -> set[int]:
        await judge.judge(submissions(1)[0])
        (pid,) = judges(tmp_path)
        family = {pid, *below(pid)}
        await judge.close()
        await gone(family)
        return family

    assert len(run(closed())) >= 3  # the process, a supervisor and its worker


def test_a_machine_that_joins_gets_work_and_one_that_dies_loses_none(
    judge: RayJudge, machines: Any, tmp_path: Path
) -> None:
    async def disturb() -> None:
        await until(lambda: judges(tmp_path))
        added = machines.add_node(num_cpus=2)  # here: Ray wants to be in the main thread
        await until(lambda: len(judges(tmp_path)) == 2)  # it has judged something
        machines.remove_node(added, allow_graceful=False)
        await until(lambda: len(spare_cpus()) == 1)  # Ray has noticed

    async def go_on() -> None:
        disturbing = asyncio.ensure_future(disturb())
        number = 0
        while not disturbing.done():  # there must be work for as long as starting a machine takes
            batch = [Submission("python3", BUSY.format(number + each), SUITE) for each in range(20)]
            number += len(batch)
            assert {each.outcome for each in await asyncio.gather(*map(judge.judge, batch))} == {Outcome.ACCEPTED}
        await disturbing

    run(go_on())
    assert len(judges(tmp_path)) == 1


def test_trainers_and_engines_get_their_places_from_judges(judge: RayJudge, machines: Any) -> None:
    async def concurrency() -> list[int]:
        assert (await judge.judge(submissions(1)[0])).outcome is Outcome.ACCEPTED
        return [worker.concurrency for worker in await judge._pool.open()]

    assert run(concurrency()) == [2]
    held = reserve("engine 1", 1, cpus=1, gpus=0, strategy="PACK", timeout_s=10)
    try:
        assert run(concurrency()) == [1]
        held += reserve("trainers", 1, cpus=1, gpus=0, strategy="PACK", timeout_s=10)
        assert run(concurrency()) == [1]  # nothing is left, but somebody must judge
    finally:
        release(held)
    assert run(concurrency()) == [2]


def test_without_anybody_who_can_judge_there_is_a_reason_and_no_verdict(machines: Any) -> None:
    def factory(concurrency: int) -> Callable[[], object]:
        def broken() -> None:
            raise OSError("the disk is full")

        return broken

    judge = RayJudge(factory, timeout_s=4.0)  # type: ignore[arg-type]
    started = time.monotonic()
    judgement = run(judge.judge(submissions(1)[0]))
    assert judgement.outcome is Outcome.JUDGE_ERROR
    assert "no judge was available for 4 s" in judgement.detail
    assert "the disk is full" in judgement.detail
    assert time.monotonic() - started < 60
    with pytest.raises(ClusterError, match=r"judging cannot start on .*the disk is full"):
        run(judge.open())
    run(judge.close())


def test_a_machine_that_cannot_judge_is_named(machines: Any, tmp_path: Path) -> None:
    config = ray_config(task={"name": "code"}, judge={"python": str(tmp_path / "none")})
    judge = make_judge(config, {})
    address = spare_cpus()[0][0].address
    with pytest.raises(ConfigError, match=rf"python3 programs cannot be judged on {address}: .*{tmp_path}/none"):
        run(config.judge.check(judge, "python3"))
    run(judge.close())
    judge = make_judge(ray_config(task={"name": "code"}), {})
    run(JudgeConfig().check(judge, "python3"))
    run(judge.close())


def ray_config(**sections: object) -> RunConfig:
    return RunConfig.model_validate(
        {"model": {"name": "dojang-tiny"}, "data": {"name": "arithmetic"}, "runtime": {"name": "ray"}, **sections}
    )


def graded(config: RunConfig, problems: list[Problem], *answers: str) -> list[Verdict]:
    """By the task as a run on a cluster has it."""
    splits = {"train": problems, "test": problems}
    judge = make_judge(config, splits)

    async def together() -> list[Verdict]:
        task = await distribute_task(config.task.make(splits), config, judge)  # type: ignore[call-arg]
        assert task.problems("train") == problems
        try:
            return await asyncio.gather(*(task.grade(problems[0], each) for each in answers))
        finally:
            await judge.close()

    return run(together())


def test_maths_answers_are_verified_on_other_nodes(machines: Any) -> None:
    pytest.importorskip("math_verify")
    problem = Problem("half", "maths", (Message("user", "1/2?"),), "\\frac12")
    config = ray_config(task={"name": "maths"})
    found = graded(config, [problem], "\\boxed{0.5}", "\\boxed{2}", "none")
    assert [each.outcome for each in found] == [Outcome.ACCEPTED, Outcome.WRONG, Outcome.NO_ANSWER]


def test_a_custom_task_has_its_problems_on_other_nodes(machines: Any) -> None:
    problem = Problem("mine", "custom", (Message("user", "?"),), "right")
    task = {"name": "custom", "make_with": "own_task:OwnTask", "options": {"bonus": 0.5}}
    right, wrong, raised = graded(ray_config(task=task), [problem], "right", "wrong", "raise")
    assert [right.outcome, wrong.outcome, right.reward] == [Outcome.ACCEPTED, Outcome.WRONG, 0.5]
    assert int(right.detail) != os.getpid()
    assert raised.outcome is Outcome.JUDGE_ERROR
    assert "cannot grade this" in raised.detail


def test_an_answer_that_ends_every_process_is_given_up(machines: Any) -> None:
    problem = Problem("mine", "custom", (Message("user", "?"),), "right")
    task = {"name": "custom", "make_with": "own_task:OwnTask", "options": {"bonus": 0.5}}
    (verdict,) = graded(ray_config(task=task), [problem], "end")
    assert verdict.outcome is Outcome.JUDGE_ERROR
    assert "workers were lost while judging it" in verdict.detail
