"""Rollout workers built from a run's settings: their share of the work, digests of the data, and what is refused."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

import dojang
from dojang import __version__
from dojang.build.rollout_worker import build_worker, data_digest, rollout_slots, worker_environment
from dojang.build.worker_config import worker_config
from dojang.config import recipe as recipes
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError
from dojang.rollout_service.messages import RunDescription, digest_of
from dojang.types import Message, Problem

STREAM = ["loop.mode=stream", "rollout.prompts_per_step=16", "rollout.group_size=8"]


def config_of(*overrides: str) -> RunConfig:
    return recipes.load("quickstart", [*STREAM, *overrides])


def description_of(config: RunConfig, version: str = __version__) -> RunDescription:
    return RunDescription(dojang=version, config=recipes.to_tree(config), policies=["policy"])


@pytest.mark.parametrize(
    ("overrides", "slots"),
    [
        (["loop.workers=1"], 16),  # half of the 2 x 16 prompts that may start at lag 1
        (["loop.workers=3"], 8),
        (["loop.workers=2", "loop.sample_here=false"], 16),
        (["loop.workers=1", "loop.listen=0.0.0.0:0"], 11),
        (["loop.workers=1", "rollout.engine.max_num_seqs=24"], 3),
        (["loop.workers=1", "rollout.engine.max_num_seqs=4"], 1),
        (["loop.workers=1", "loop.lag=3"], 32),
    ],
)
def test_workers_share_the_prompts_that_may_start(overrides: list[str], slots: int) -> None:
    assert rollout_slots(config_of(*overrides)) == slots


def test_the_digest_of_the_data_covers_order_prompts_and_references() -> None:
    first = Problem("a", "sums", (Message("user", "1+1?"),), "2")
    second = replace(first, id="b")
    digests = {
        data_digest(each)
        for each in (
            [first, second],
            [second, first],
            [first],
            [replace(first, reference="3"), second],
            [replace(first, messages=(Message("system", "1+1?"),)), second],
            [replace(first, messages=(Message("user", "1+2?"),)), second],
        )
    }
    assert len(digests) == 6
    assert data_digest([first, second]) == data_digest([replace(first), replace(second)])


def test_a_worker_changes_only_settings_of_its_machine() -> None:
    config = config_of("loop.workers=1")
    refused = (
        "seed=1",
        "rollout.temperature=0.5",
        "data.digits=3",
        "loop.lag=2",
        "model.named=x",
        "rollout",
        "judges=",
    )
    for override in refused:
        with pytest.raises(ConfigError, match="a worker has the settings of its run"):
            worker_config(description_of(config), [override])
    for override in ("rollout.engine=vllm", "rollout.engine.name=vllm", "rollout.engine={name: vllm}"):
        assert worker_config(description_of(config), [override]).rollout.engine.name == "vllm"
    with pytest.raises(ConfigError, match=r"judge\.nothing: no such key"):
        worker_config(description_of(config), ["judge.nothing=1"])
    with pytest.raises(ConfigError, match=r"the run has dojang 0\.0\.1, this machine"):
        worker_config(description_of(config, "0.0.1"))


def test_settings_of_its_machine_do_not_keep_a_worker_from_joining() -> None:
    config = config_of("loop.workers=1")
    own = worker_config(description_of(config), ["rollout.engine.max_num_seqs=24", "judge.workers=1"])
    worker = build_worker(description_of(config), own)
    asyncio.run(worker.close())
    assert worker.parts.slots == 3
    assert worker.parts.join.config == digest_of(recipes.to_tree(config))


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["loop.listen=8643"], "HOST:PORT"),
        (["loop.listen=localhost:90000"], "HOST:PORT"),
        (["loop.workers=1", "runtime=ray"], "need runtime.name=local"),
        (["loop.workers=1", "rollout.engine={name: remote, url: ['http://a:1']}"], "starts an engine"),
    ],
)
def test_settings_that_rollout_workers_cannot_have(overrides: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        config_of(*overrides)


def test_a_reward_that_workers_cannot_import_is_refused_before_the_run(tmp_path: Path) -> None:
    def reward(completions: list[str], **columns: object) -> list[float]:
        return [0.0 for _ in completions]

    rows, loop = [{"prompt": "1+1?"}, {"prompt": "1+2?"}], {"mode": "stream", "workers": 1}
    with pytest.raises(ConfigError, match="rollout workers are other processes, which cannot import"):
        dojang.train(model="dojang-tiny", dataset=rows, reward_funcs=[reward], run_dir=tmp_path / "run", loop=loop)
    assert not (tmp_path / "run").exists()


def test_worker_processes_get_the_gpus_after_those_of_the_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of("loop.workers=3")
    for name in ("CUDA_VISIBLE_DEVICES", "LOCAL_WORLD_SIZE", "RANK", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)

    def chosen(devices: int) -> list[str]:
        return [worker_environment(config, number, devices)["CUDA_VISIBLE_DEVICES"] for number in range(3)]

    assert chosen(4) == ["1", "2", "3"]
    assert chosen(2) == ["1", "0", "1"]
    assert chosen(1) == ["0", "0", "0"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert chosen(4) == ["5", "6", "7"]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert chosen(4) == ["6", "7", "4"]
    assert worker_environment(config, 0, 0)["LOCAL_WORLD_SIZE"] == "1"
    assert int(worker_environment(config, 0, 0)["OMP_NUM_THREADS"]) >= 1
    assert "CUDA_VISIBLE_DEVICES" not in worker_environment(config, 0, 0)
