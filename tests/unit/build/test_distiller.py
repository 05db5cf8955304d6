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
from dojang.build.distiller import same_tokenizer
from dojang.config import recipe as recipes
from dojang.core.errors import ConfigError, Interrupted, ModelError
from dojang.core.run_dir import RunDir
from dojang.loop import train
from dojang.loop.run_state import State
from dojang.runs import training
from other_tokenizer import other_tokenizer, save_other_tiny

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


@pytest.mark.parametrize("kind", ["teacher", "hinted", "other tokenizer"])
def test_a_resumed_run_distils_the_same_tokens(
    kind: str, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = {
        "teacher": [f"distillation.teacher={teacher}", "rollout.group_size=1", "train.offload=[teacher]"],
        "hinted": [*HINTED, "distillation.reward_coef=0.5", "train.minibatches=2"],
        "other tokenizer": [
            f"distillation.teacher={save_other_tiny(tmp_path / 'other')}",
            "distillation.hint=[The answer is {reference}.]",
            "train.offload=[teacher]",
            "loop.mode=overlap",
        ],
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
    told = capsys.readouterr().out
    assert f"teacher model directory {teacher}; reverse KL x 1, no reward" in told
    assert "tokenizer differs" not in told
    training.dry_run("quickstart", ["distillation.teacher=dojang-tiny-code"])
    assert "its tokenizer differs from the student's: log-probs are aligned by text" in capsys.readouterr().out
    with pytest.raises(ModelError, match=r"distillation\.teacher: model directory 'no/such/' does not exist"):
        training.dry_run("quickstart", ["distillation.teacher=no/such/"])
    with pytest.raises(ConfigError, match=r"\{answer\}.*nor a column"):
        training.dry_run("quickstart", ["distillation.teacher=policy", "distillation.hint=[It is {answer}]"])


def test_a_dry_run_refuses_tokenizers_that_cannot_be_aligned(tmp_path: Path) -> None:
    for name, change, words in (
        ("changed", {"normalizer": {"type": "Lowercase"}}, "spell another text"),
        ("endless", {}, "no token that ends an answer"),
    ):
        path = save_other_tiny(tmp_path / name)
        file = path / "tokenizer.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
        settings = json.loads((path / "tokenizer_config.json").read_text())
        if not change:
            settings["eos_token"] = None
            (path / "chat_template.jinja").write_text("{% for each in messages %}{{ each.content }}{% endfor %}")
        (path / "tokenizer_config.json").write_text(json.dumps(settings))
        with pytest.raises(ConfigError, match=words) as refusal:
            training.dry_run("quickstart", [f"distillation.teacher={path}"])
        assert "2 problems" not in str(refusal.value)


def test_a_teacher_may_have_more_tokens_and_must_have_their_embeddings(
    tokenizer: PreTrainedTokenizerBase, micro_model: Callable[..., PreTrainedModel]
) -> None:
    config = micro_model().config
    assert same_tokenizer(tokenizer, tokenizer, config, "same")
    with pytest.raises(ConfigError, match="too few for the"):
        same_tokenizer(tokenizer, tokenizer, type(config)(vocab_size=100), "small")
    with pytest.raises(ConfigError, match="100 embeddings, too few for the"):
        same_tokenizer(tokenizer, other_tokenizer(), type(config)(vocab_size=100), "small")
    for other in (AutoTokenizer.from_pretrained(models.resolve("dojang-tiny")), other_tokenizer()):
        assert not same_tokenizer(tokenizer, other, type(config)(vocab_size=len(other)), "other")
    image = other_tokenizer()
    image.add_special_tokens({"additional_special_tokens": ["<image>"]})
    assert not same_tokenizer(tokenizer, image, type(config)(vocab_size=len(image) - 1), "no embedding of <image>")


def test_a_teacher_with_renumbered_tokens_gives_the_same_advantages(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same weights and the same splits of a text: alignment by text finds what the token IDs would."""
    monkeypatch.chdir(tmp_path)
    renumbered = save_other_tiny(tmp_path / "renumbered", str(teacher), without=())
    settings = [*SHORT, "loop.mode=sync", "rollout.max_tokens=32"]
    for name, source in (("ids", teacher), ("text", renumbered)):
        training.run("quickstart", [*settings, f"distillation.teacher={source}"], tmp_path / name, resume=False)
    ids, text = rows(tmp_path / "ids"), rows(tmp_path / "text")
    assert [row["distillation/unaligned"] for row in text] == [0.0] * 3
    assert "distillation/unaligned" not in ids[0]
    for mine, other in zip(ids, text, strict=True):
        for key in ("distillation/reverse_kl", "actor/grad_norm", "critic/advantages/max"):
            assert other[key] == pytest.approx(mine[key], rel=1e-3)


def test_a_student_learns_from_a_teacher_with_another_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The teacher writes its answer line in eight tokens where the student has one, and learns to add by SFT."""
    monkeypatch.chdir(tmp_path)
    source = save_other_tiny(tmp_path / "other")
    sft = [f"model.name={source}", "steps=60", "train.lr=6e-3", "rollout.max_tokens=48"]
    training.run("quickstart-sft", [*sft, "eval.every=60", "eval.problems=16"], tmp_path / "sft", resume=False)
    learned = [f"distillation.teacher={tmp_path / 'sft/checkpoints/last'}", "steps=8", "eval.every=8"]
    training.run("quickstart-distill", [*learned, "eval.problems=64"], tmp_path / "run", resume=False)
    found = [row["distillation/reverse_kl"] for row in rows(tmp_path / "run")]
    assert max(found[-2:]) < 0.6 * found[0]
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["eval"]["after"] > summary["eval"]["before"] + 0.3
