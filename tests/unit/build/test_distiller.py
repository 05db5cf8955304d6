"""Distillation from recipe to run: settings, tokenizers, a short training, and a resumed one with the same tokens."""

import asyncio
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from dojang import models
from dojang.build.distiller import check_tokenizers
from dojang.config import recipe as recipes
from dojang.core.errors import ConfigError, Interrupted, ModelError
from dojang.core.run_dir import RunDir
from dojang.loop import train
from dojang.loop.run_state import State
from dojang.runs import training

SHORT = (
    "steps=3",
    "rollout.prompts_per_step=4",
    "rollout.group_size=2",
    "eval.problems=4",
    "eval.every=3",
    "checkpoint.every=1",
)
HINTED = ("distillation.teacher=reference", "distillation.hint=[The answer is {reference}.]")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dojang-tiny with other weights."""
    path = tmp_path_factory.mktemp("models") / "teacher"
    shutil.copytree(models.resolve("dojang-tiny"), path, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        for each in model.parameters():
            each.mul_(1 + 0.02 * torch.randn_like(each))
    model.save_pretrained(path)
    return path


def rows(directory: Path) -> list[dict[str, float]]:
    found = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return [row for row in found if "distillation/reverse_kl" in row]


def sampled(directory: Path) -> list[object]:
    paths = [RunDir(directory).rollouts("train", step) for step in (1, 2, 3)]
    return [pq.read_table(path, columns=["tokens", "logprobs"]).to_pylist() for path in paths]


@pytest.mark.parametrize("kind", ["teacher", "hinted"])
def test_a_resumed_run_distils_the_same_tokens(
    kind: str, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = {
        "teacher": [f"distillation.teacher={teacher}", "rollout.group_size=1", "train.offload=[teacher]"],
        "hinted": [*HINTED, "distillation.reward_coef=0.5", "train.minibatches=2"],
    }[kind]
    settings = [*SHORT, *chosen]
    training.run("quickstart", settings, tmp_path / "whole", resume=False)
    taken = train.train_step

    async def stopped(run: Any, state: State, batch: Any, timer: Any, stop: asyncio.Event) -> State:
        if state.step == 1:
            stop.set()
        return await taken(run, state, batch, timer, stop)

    with monkeypatch.context() as patched:
        patched.setattr(train, "train_step", stopped)
        with pytest.raises(Interrupted):
            training.run("quickstart", settings, tmp_path / "parts", resume=False)
    training.run("quickstart", settings, tmp_path / "parts", resume=True)
    assert sampled(tmp_path / "parts") == sampled(tmp_path / "whole")
    whole, parts = rows(tmp_path / "whole"), rows(tmp_path / "parts")
    assert [row["distillation/reverse_kl"] for row in parts] == [row["distillation/reverse_kl"] for row in whole]
    assert all(row["actor/grad_norm"] > 0 for row in whole)
    assert all(row["distillation/teacher_errors"] == 0 for row in whole)
    if kind != "teacher":
        assert all(row["distillation/hinted"] == 1 for row in whole)


def test_settings_that_do_not_go_together_are_refused() -> None:
    remote = "distillation.url=[http://teacher:8000]"
    for settings, words in (
        (("distillation.teacher=a/b", "algo.name=ppo"), "another algo.name"),
        ((remote, "rollout.temperature=0.7"), "set rollout.temperature=1"),
        (("rollout.group_size=1",), "2 or more"),
        (("distillation.teacher=a/b", "rollout.top_p=0.9", "algo.old_logprobs=trainer"), "leave them out"),
        (
            ("rollout.group_size=1", "distillation.teacher=a/b", "distillation.reward_coef=1"),
            "or distillation.reward_coef=0",
        ),
        (("distillation.teacher=a/b", "algo.kl_in_reward=0.1"), "distillation.reward_coef above 0"),
        (
            ("distillation.teacher=policy", "distillation.hint=[See {solution}]", "rollout.group_size=1"),
            "a hint without",
        ),
        (("distillation.teacher=policy", "distillation.hint=See: {solution}"), "into quotes"),
        (("train.offload=[teacher]",), "names no model to load"),
        (("train.offload=[teacher]", remote), "names no model to load"),
    ):
        with pytest.raises(ConfigError, match=words):
            recipes.load("quickstart", settings)
    recipes.load("quickstart", ["rollout.group_size=1", "distillation.teacher=a/b"])
    recipes.load("quickstart", ["train.offload=[reference]", "distillation.teacher=reference", "distillation.hint=[x]"])


def test_a_dry_run_refuses_teachers_that_cannot_teach(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training.dry_run("quickstart", [f"distillation.teacher={teacher}"])
    assert f"teacher model directory {teacher}; reverse KL x 1, no reward" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="a different tokenizer than the student"):
        training.dry_run("quickstart", ["distillation.teacher=dojang-tiny-code"])
    with pytest.raises(ModelError, match=r"distillation\.teacher: model directory 'no/such/' does not exist"):
        training.dry_run("quickstart", ["distillation.teacher=no/such/"])
    with pytest.raises(ConfigError, match=r"\{answer\}.*nor a column"):
        training.dry_run("quickstart", ["distillation.teacher=policy", "distillation.hint=[It is {answer}]"])


def test_a_teacher_with_fewer_or_other_tokens_is_refused(
    tokenizer: PreTrainedTokenizerBase, micro_model: Callable[..., PreTrainedModel]
) -> None:
    config = micro_model().config
    check_tokenizers(tokenizer, tokenizer, config, "same")
    with pytest.raises(ConfigError, match="too few for the student's"):
        check_tokenizers(tokenizer, tokenizer, type(config)(vocab_size=100), "small")
    tiny = AutoTokenizer.from_pretrained(models.resolve("dojang-tiny"))
    with pytest.raises(ConfigError, match="tokens differ, such as"):
        check_tokenizers(tokenizer, tiny, config, "other")
