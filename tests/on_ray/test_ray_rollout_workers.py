"""Runs whose rollout workers are Ray actors: machines that join late, kills, and LoRA factors."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import kill, of
from training import Training, learned_prompts, rows, train

from run_records import steps_done

pytest.importorskip("ray", reason="Ray is not installed here; make test-ray has it")
pytestmark = pytest.mark.slow
OURS = ("Engine", "Trainer", "Judge", "RolloutWorker")
PROMPTS = 16
RECIPE = ["quickstart", "runtime=ray", "loop.mode=stream", "loop.lag=2", f"rollout.prompts_per_step={PROMPTS}"]
MakeCluster = Callable[..., Any]


def check_exactly_once(directory: Path, steps: int, lag: int = 2) -> None:
    """Every prompt is learned in one step, and no sample is too old."""
    trained = [row for row in rows(directory) if "critic/rewards/mean" in row]
    assert [row["step"] for row in trained] == list(range(1, steps + 1))
    assert max(row["staleness/max"] for row in trained) <= lag
    learned = learned_prompts(directory, steps)
    assert {len(each) for each in learned} == {PROMPTS}
    assert [index for each in learned for index in each] == list(range(steps * PROMPTS))


def workers_on(*nodes: Any) -> set[int]:
    return set(of(nodes, "RolloutWorker"))


def joined(directory: Path, count: int) -> bool:
    return any(row.get("rollout_service/workers") == count for row in rows(directory))


def test_two_worker_actors_learn_through_kills_of_a_worker_and_of_the_trainer(
    make_cluster: MakeCluster, environment: dict[str, str], tmp_path: Path
) -> None:
    cluster, directory, steps = make_cluster(4), tmp_path / "run", 18
    settings = ["loop.workers=2", "loop.sample_here=false", f"steps={steps}", f"eval.every={steps}"]
    settings += ["checkpoint.every=2"]
    on = {**environment, "RAY_ADDRESS": cluster.address}
    with train(directory, on, *settings, recipe=RECIPE) as run:
        run.wait_until(lambda: joined(directory, 2))
        before = workers_on(*cluster.list_all_nodes())
        assert len(before) == 2
        kill(victim := min(before))
        run.wait_until(lambda: len(workers_on(*cluster.list_all_nodes()) - {victim}) == 2)
        done = steps_done(directory)
        run.wait_until(lambda: steps_done(directory) > done)
        kill(*of(cluster.list_all_nodes(), "Trainer"))
        run.ends_well(300)
    assert "restarting from the last checkpoint" in said(run)
    check_exactly_once(directory, steps)
    last = [row for row in rows(directory) if "val/accuracy" in row][-1]
    assert (last["step"], last["val/accuracy"] > 0.8) == (steps, True)
    assert of(cluster.list_all_nodes(), *OURS) == {}


def test_a_node_that_joins_late_gets_the_waiting_worker_and_another_one_if_it_is_lost(
    make_cluster: MakeCluster, environment: dict[str, str], tmp_path: Path
) -> None:
    """The run trains LoRA: a worker gets the base weights once, then factors alone."""
    cluster, directory, steps = make_cluster(2), tmp_path / "run", 12  # for trainer and engine
    settings = ["loop.workers=1", "loop.sample_here=false", f"steps={steps}", f"eval.every={steps}"]
    settings += ["train.lora.rank=2", "train.lr=1e-3", "eval.problems=16"]
    with train(directory, {**environment, "RAY_ADDRESS": cluster.address}, *settings, recipe=RECIPE) as run:
        run.wait_until(lambda: "not started: each needs 1 CPU on one node" in said(run))
        assert steps_done(directory) == 0
        late = cluster.add_node(num_cpus=1)
        run.wait_until(lambda: steps_done(directory) >= 2)  # nothing else samples
        assert len(workers_on(late)) == 1
        cluster.remove_node(late, allow_graceful=False)
        other = cluster.add_node(num_cpus=1)
        run.wait_until(lambda: workers_on(other))
        run.ends_well(300)
    check_exactly_once(directory, steps)
    assert of(cluster.list_all_nodes(), *OURS) == {}
    sent = [row["rollout_service/sent_bytes"] for row in rows(directory) if "rollout_service/sent_bytes" in row]
    full = [size for size in sent if size > max(sent) / 2]
    factors = [size for size in sent if 0 < size <= max(sent) / 2]
    assert len(full) <= 2, sent  # one for each node
    assert len(factors) >= steps / 2, sent
    assert max(factors) < max(sent) / 5, sent


def said(run: Training) -> str:
    """Output of a run without line breaks of the terminal."""
    return " ".join(run.log.read_text().split())


def test_a_run_goes_on_without_workers_that_have_no_room_and_its_workers_end_with_it(
    make_cluster: MakeCluster, environment: dict[str, str], tmp_path: Path
) -> None:
    cluster, directory = make_cluster(3), tmp_path / "run"
    settings = ["loop.workers=2", "steps=500", "eval.every=500", "eval.problems=16"]
    with train(directory, {**environment, "RAY_ADDRESS": cluster.address}, *settings, recipe=RECIPE) as run:
        run.wait_until(lambda: "rollout worker 2 of 2 not started" in said(run) or "worker 1 of 2 not" in said(run))
        run.wait_until(lambda: joined(directory, 1))
        done = steps_done(directory)
        run.wait_until(lambda: steps_done(directory) >= done + 2)
        assert len(workers_on(*cluster.list_all_nodes())) == 1
    deadline = time.monotonic() + 60  # the driver is killed
    while of(cluster.list_all_nodes(), *OURS) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert of(cluster.list_all_nodes(), *OURS) == {}
