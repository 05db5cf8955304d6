"""Wiring: what is checked before a run begins, and the escape hatches."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from dojang.build import assemble
from dojang.config import recipe as recipes
from dojang.core.error_list import SeveralErrors
from dojang.core.errors import ConfigError, DataError, ModelError
from dojang.core.run_dir import RunDir
from dojang.trainer.torch_trainer import TorchTrainer
from dojang.types import Outcome, Verdict

MINE = """
from dojang.protocols import Requirements
from dojang.types import Message, Outcome, Problem, Verdict


def problems(split):
    return [Problem(f"{split}/{n}", "mine", (Message("user", f"say {n}"),), str(n)) for n in range(5)]


def nothing(split):
    return []


def wrong(split):
    return ["not a problem"]


def broken(split):
    raise OSError("the cupboard is bare")


def programs(split):
    tests = {"private": [{"input": "1 2", "output": "3"}, {"input": "2 2", "output": "4"}]}
    return [Problem(f"{split}/{n}", "mine", (Message("user", "add two numbers"),), tests) for n in range(2)]


class Task:
    def __init__(self, problems, easy=False):
        self.by_split = {"train": problems["train"], "test": problems["test"][:2]}

    def problems(self, split):
        return self.by_split[split]

    async def grade(self, problem, text):
        return Verdict(Outcome.ACCEPTED, 1.0)


class Incomplete:
    loss_aggregation, max_resample_rounds = "tokens", 0
    requirements = Requirements()
    advantages = None


class Algorithm(Incomplete):
    loss = None

    def __init__(self, strength=1.0):
        self.strength = strength


class Critical(Algorithm):
    requirements = Requirements(critic=True)
    compute_gae = None
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's own module, importable for one test."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("mine", None)


def prepare(*overrides: str) -> assemble.Prepared:
    return assemble.prepare(recipes.load("quickstart", overrides))


DATA = ("data={name: custom, load_with: 'mine:problems'}",)
TASK = ("task={name: custom, make_with: 'mine:Task'}",)


def test_a_custom_dataset_is_loaded() -> None:
    prepared = prepare(*DATA)
    assert [problem.id for problem in prepared.train] == [f"train/{n}" for n in range(5)]
    assert len(prepared.held_out) == 5


@pytest.mark.parametrize(("share", "held_out"), [("0", {"test"}), ("0.3", {"train"})])
def test_a_run_leaves_the_test_problems_alone_if_others_are_kept_aside(
    share: str, held_out: set[str], tmp_path: Path
) -> None:
    rows = [json.dumps({"question": f"What is {n}?", "answer": f"#### {n}"}) for n in range(40)]
    (tmp_path / "train.jsonl").write_text("\n".join(rows[:30]))
    (tmp_path / "test.jsonl").write_text("\n".join(rows[30:]))
    prepared = prepare(f"data={{name: gsm8k, path: {tmp_path}, validation: {share}}}")
    assert {problem.id.split("/")[1] for problem in prepared.held_out} == held_out
    assert not {problem.id for problem in prepared.held_out} & {problem.id for problem in prepared.train}


def test_a_custom_task_chooses_the_held_out_problems() -> None:
    assert [problem.id for problem in prepare(*DATA, *TASK).held_out] == ["test/0", "test/1"]


def test_reward_weights_of_unknown_parts_of_a_custom_task_are_refused() -> None:
    gdpo = ("algo.name=gdpo", "algo.reward_weights={tone: 2, overlong: 1}", "algo.overlong_buffer_fraction=0.2")
    with pytest.raises(ConfigError, match="weight for tone, but the parts of the task's reward are not named"):
        prepare(*DATA, *TASK, *gdpo)


def test_a_custom_algorithm_gets_its_options() -> None:
    algorithm = prepare("algo={name: custom, make_with: 'mine:Algorithm', options: {strength: 3}}").algorithm
    assert algorithm.strength == 3
    assert not algorithm.requirements.critic


def test_engines_in_8_bits_may_differ_from_the_trainer_by_more_than_rounding(tmp_path: Path) -> None:
    async def tolerance(*overrides: str) -> float:
        config = recipes.load("quickstart", ["loop.mode=sync", *overrides])
        prepared = await asyncio.to_thread(assemble.prepare, config)
        run = assemble.build(config, prepared, RunDir(tmp_path), Console(quiet=True))
        (check,) = run.parity_checks
        await check.check()
        await run.engine.close()
        return check.tolerance

    try:
        assert asyncio.run(tolerance()) == 1e-3
        assert asyncio.run(tolerance("rollout.engine.quantization=fp8")) == 0.5
    finally:
        torch.use_deterministic_algorithms(False)  # which a run switches on for the whole process


@pytest.mark.parametrize("algo", ["ppo", "grpo", "{name: custom, make_with: 'mine:Algorithm'}"])
def test_there_is_a_critic_only_if_the_algorithm_needs_one(algo: str, tmp_path: Path) -> None:
    config = recipes.load("quickstart", ["loop.mode=sync", f"algo={algo}" if "{" in algo else f"algo.name={algo}"])
    try:
        run = assemble.build(config, assemble.prepare(config), RunDir(tmp_path), Console(quiet=True))
    finally:
        torch.use_deterministic_algorithms(False)  # which a run switches on for the whole process
    asyncio.run(run.engine.close())
    assert isinstance(run.trainer, TorchTrainer)
    assert run.critic is (run.trainer._critic is not None) is (algo == "ppo")


@pytest.mark.parametrize(
    ("overrides", "error", "text"),
    [
        (["data={name: custom, load_with: 'mine:nothing'}"], DataError, "the train split of custom is empty"),
        (["data={name: custom, load_with: 'mine:wrong'}"], SeveralErrors, "must return a list of dojang.types.Problem"),
        (["data={name: custom, load_with: 'mine:broken'}"], ConfigError, "raised OSError: the cupboard is bare"),
        (["data={name: custom, load_with: 'mine:absent'}"], ConfigError, "has no 'absent'"),
        (["data={name: custom, load_with: 'nowhere:problems'}"], ConfigError, "PYTHONPATH"),
        (["data={name: custom, load_with: 'problems'}"], ConfigError, "package.module:object"),
        (["task={name: custom, make_with: 'mine:Task', options: {hard: 1}}"], ConfigError, "unexpected keyword"),
        (["algo={name: custom, make_with: 'mine:Algorithm', options: {hard: 1}}"], ConfigError, "unexpected keyword"),
        (
            ["algo={name: custom, make_with: 'mine:Incomplete'}"],
            ConfigError,
            "Incomplete has no loss; see dojang.protocols",
        ),
        (
            ["algo={name: custom, make_with: 'mine:Critical'}"],
            ConfigError,
            "Critical has no value_loss; see dojang.protocols",
        ),
        (["task.rewards={'nowhere:brevity': 1}"], ConfigError, "nowhere"),
        (["checkpoint.metric=val/accuracy/gsm8k"], ConfigError, "does not evaluate on 'gsm8k', but on arithmetic"),
        (["checkpoint.metric=val/acuracy"], ConfigError, "is no metric of a run; did you mean val/accuracy?"),
        (["checkpoint.metric=val/loss"], ConfigError, "reported with algo.name=sft only"),
        (["train.lora.modules_to_save=[wte]"], ConfigError, "has wte, which the model does not have"),
        (["train.lora.modules_to_save=[q_proj]"], ConfigError, "q_proj, which is quantised or has an adapter"),
        (
            ["train.lora={base_bits: 4, target_modules: [q_proj], modules_to_save: [o_proj]}"],
            ConfigError,
            "o_proj, which is quantised",
        ),
        (["train.lora.target_modules=[c_attn]"], ConfigError, "'c_attn'.* do not fit the model"),
        (["model.name=dojang-tinny"], ModelError, "did you mean 'dojang-tiny'"),
    ],
)
def test_invalid_runs_are_refused_before_they_start(overrides: list[str], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        prepare(*overrides)


def test_a_prompt_that_leaves_no_room_for_an_answer_shows_before_anything_runs() -> None:
    with pytest.raises(ConfigError, match="do not fit the model's context of 512 tokens"):
        prepare("rollout.max_tokens=600")


@pytest.mark.parametrize(
    ("dtype", "compute", "master"),
    [("auto", "float32", "float32"), ("bfloat16", "bfloat16", "float32"), ("float64", "float64", "float64")],
)
def test_master_weights_are_never_in_half_precision(dtype: str, compute: str, master: str) -> None:
    found = assemble.numerics(recipes.load("quickstart", ["model.device=cpu", f"model.dtype={dtype}"]))
    assert (found.compute, found.master) == (getattr(torch, compute), getattr(torch, master))


PROGRAMS = ("data={name: custom, load_with: 'mine:programs'}", "task={name: code, language: python3}")


def test_code_is_judged_by_the_configured_judge() -> None:
    prepared = prepare(*PROGRAMS, "judge.workers=1")

    async def grade() -> list[Verdict]:
        texts = ("```python\nprint(sum(map(int, input().split())))\n```", "```python\nprint(3)\n```", "I cannot say.")
        try:
            return [await prepared.task.grade(prepared.train[0], text) for text in texts]
        finally:
            await prepared.judge.close()

    right, half, nothing = asyncio.run(grade())
    assert (right.outcome, right.reward, right.passed, right.total) == (Outcome.ACCEPTED, 1.0, 2, 2)
    assert (half.outcome, half.reward) == (Outcome.WRONG, 0.5)
    assert (nothing.outcome, nothing.reward, nothing.isolation) == (Outcome.NO_ANSWER, -1.0, "")
    assert right.isolation in ("namespaces", "landlock", "seccomp")


def test_a_machine_that_cannot_judge_is_known_before_the_run() -> None:
    with pytest.raises(ConfigError, match="does not run"):
        prepare(*PROGRAMS, "judge.python=/nowhere/python3")
    with pytest.raises(ConfigError, match=r"cannot be judged at http://127.0.0.1:9"):
        prepare(*PROGRAMS, "judge.url=[http://127.0.0.1:9]")


def test_a_judge_service_has_an_address() -> None:
    with pytest.raises(ConfigError, match="write it like http"):
        recipes.load("quickstart", ("judge.url=[somewhere]",))
