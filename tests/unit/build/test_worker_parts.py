"""Rollout workers built from a run's settings: their share of the work, digests of the data, and what is refused."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dojang
from dojang import __version__, models
from dojang.build.local import load_tokenizer
from dojang.build.model_description import describe_model
from dojang.build.prepare import prepare
from dojang.build.rollout_worker import build_worker, data_digest, rollout_slots, worker_environment
from dojang.build.worker_config import worker_config
from dojang.config import recipe as recipes
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError, DataError
from dojang.loop.prompt_sampler import problem_at
from dojang.rollout_service.messages import RunDescription
from dojang.types import Message, Problem

STREAM = ["loop.mode=stream", "rollout.prompts_per_step=16", "rollout.group_size=8"]


def config_of(*overrides: str) -> RunConfig:
    return recipes.load("quickstart", [*STREAM, *overrides])


def description_of(config: RunConfig, version: str = __version__) -> RunDescription:
    sources = {role: models.resolve(each.model.name) for role, each in config.roles().items()}
    described = {role: describe_model(source, load_tokenizer(source)[0]) for role, source in sources.items()}
    return RunDescription(dojang=version, config=recipes.to_tree(config), models=described)


@pytest.mark.parametrize(
    ("overrides", "slots"),
    [
        ([], 32),
        (["rollout.engine.max_num_seqs=24"], 3),
        (["rollout.engine.max_num_seqs=4"], 1),
        (["rollout.engine.max_num_seqs=64", "rollout.group_size=4"], 16),
    ],
)
def test_a_worker_samples_as_many_groups_as_its_engine_decodes(overrides: list[str], slots: int) -> None:
    assert rollout_slots(config_of("loop.workers=1", *overrides)) == slots


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
    assert worker.parts.join.run == description_of(config).digest


def copy_of_tiny(folder: Path, **changed: Any) -> Path:
    """A directory with the quickstart's model, with other settings and so other weights."""
    shutil.copytree(models.resolve("dojang-tiny"), folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, **changed, "transformers_version": "4.0", "new": 1}))
    return folder


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"hidden_size": 32, "num_hidden_layers": 3},
            "num_hidden_layers is 3 here, 2 there; hidden_size is 32 here, 64",
        ),
        ({"num_attention_heads": 2, "head_dim": 32}, "head_dim is 32 here, 16 there"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}, r"rope_parameters is \{'rope_theta': 5.0"),
        (
            {"hidden_act": "gelu", "rms_norm_eps": 1e-3, "vocab_size": 9, "mlp_bias": True},
            "9 here, 292 .* 1 more; give",
        ),
    ],
)
def test_a_worker_with_another_model_is_refused_before_weights_are_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], said: str
) -> None:
    run = description_of(config_of("loop.workers=1"))
    folder = copy_of_tiny(tmp_path / "other", **changed)
    monkeypatch.setattr("dojang.build.rollout_worker.prepare", None)  # neither data nor weights are loaded
    with pytest.raises(
        ConfigError, match=f"model.name={folder} is another model here than in the run: .*{said}"
    ) as error:
        build_worker(run, worker_config(run, [f"model.name={folder}"]))
    assert "give this worker the run's model, by model.name=DIR" in str(error.value)


@pytest.mark.parametrize("part", ["vocab", "merges", "chat_template"])
def test_a_worker_with_another_tokenizer_is_refused(tmp_path: Path, part: str) -> None:
    run = description_of(config_of("loop.workers=1"))
    folder = copy_of_tiny(tmp_path / "other")
    if part == "chat_template":
        (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    else:
        content = json.loads((folder / "tokenizer.json").read_text())
        if part == "merges":
            content["model"]["merges"] = content["model"]["merges"][:-1]
        else:
            first, second, *_ = vocabulary = content["model"]["vocab"]
            vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
        (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=f"model.name={folder} has another tokenizer here than in the run"):
        build_worker(run, worker_config(run, [f"model.name={folder}"]))


def test_a_copy_of_the_model_by_another_version_of_transformers_is_the_same(tmp_path: Path) -> None:
    run = description_of(config_of("loop.workers=1"))
    folder = copy_of_tiny(tmp_path / "copy", torch_dtype="float32", use_cache=False)
    worker = build_worker(run, worker_config(run, [f"model.name={folder}"]))
    asyncio.run(worker.close())
    assert worker.parts.join.run == run.digest == RunDescription.model_validate_json(run.model_dump_json()).digest


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["loop.listen=8643"], "HOST:PORT"),
        (["loop.listen=localhost:90000"], "HOST:PORT"),
        (["loop.workers=1", "runtime=ray", "loop.listen=127.0.0.1:0"], "other nodes of the Ray cluster cannot reach"),
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


def test_worker_processes_find_the_modules_that_the_trainer_finds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "my_reward.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    environment = {**os.environ, **worker_environment(config_of("loop.workers=1"), 0, 0)}
    assert environment["PYTHONPATH"].split(os.pathsep)[0] == str(tmp_path)
    assert not [path for path in environment["PYTHONPATH"].split(os.pathsep) if "site-packages" in path]
    subprocess.run([sys.executable, "-c", "import my_reward"], env=environment, cwd="/", check=True)


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


def test_a_worker_that_is_given_the_problems_needs_no_files(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    text = [json.dumps({"prompt": f"{first}+1?", "answer": str(first + 1)}) for first in range(8)]
    rows.write_text("\n".join(text) + "\n")
    config = config_of("loop.workers=1", f"data={{name: files, train: {rows}, test: {rows}}}")
    prepared = prepare(config)
    asyncio.run(prepared.judge.close())
    rows.unlink()
    with pytest.raises(DataError, match=r"rows\.jsonl"):
        prepare(config)
    worker = build_worker(description_of(config), worker_config(description_of(config)), data=prepared.data)
    asyncio.run(worker.close())
    assert worker.parts.join.data == data_digest(prepared.train)
    assert worker.parts.problem(3) == problem_at(prepared.train, config.seed, 3)
