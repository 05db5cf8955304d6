"""Wiring two models: what is refused, what each is made with, what is said of it."""

import asyncio
import sys
from pathlib import Path

import pytest

from dojang.build import assemble
from dojang.cluster.runtime_config import RayConfig
from dojang.config import recipe as recipes
from dojang.core.errors import ConfigError, DataError, ModelError
from dojang.programs import Judgement
from dojang.runs import dry_run
from dojang.tasks.code import CodeTask
from dojang.types import Outcome
from dojang.workflows.test_cases import parse_cases

RECIPE = """
model: {name: dojang-tiny, device: cpu}
data: {name: custom, load_with: "toys:texts"}
task: {name: code, language: python3}
workflow: {name: coder_tester}
tester: {model: dojang-tiny}
rollout: {prompts_per_step: 2, group_size: 2, max_tokens: 24}
judge: {workers: 1}
"""
TOYS = """
from dojang.protocols import Requirements
from dojang.types import Message, Problem

def posed(tests, statement="Add one."):
    return [Problem("p/1", "toys", (Message("user", statement),), {"private": tests})]

def texts(split):
    return posed([{"input": "1", "output": "2"}])

def calls(split):
    return posed([{"code": "assert candidate(1) == 2", "function": "add"}])

def nameless(split):
    return posed([{"code": "assert add(1) == 2"}])

def lengthy(split):
    return posed([{"input": "1", "output": "2"}], "Add 1 and 2 and 3. " * 18)

class Critical:
    loss_aggregation, max_resample_rounds = "tokens", 0
    requirements = Requirements(critic=True)
    advantages = limit = loss = compute_gae = value_loss = None
"""


@pytest.fixture(autouse=True)
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toys.py").write_text(TOYS)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("toys", None)


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "two.yaml"
    path.write_text(RECIPE)
    return str(path)


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["tester=null"], "workflow.name=coder_tester needs a second model: set tester.model"),
        (["workflow.name=single_turn"], "tester is a second model: only workflow.name=coder_tester uses it"),
        (["task={name: answer_line}"], r"needs programs \(task.name=code\), not answer_line"),
        (["algo.name=ppo"], "supports no critic, so algo.name=ppo cannot be used"),
        (["tester.engines=2"], "tester.engines=2 is a number of Ray processes; set runtime.name=ray"),
        (["tester.trainers=2"], "tester.trainers=2 is a number of Ray processes; set runtime.name=ray"),
        (
            ["runtime=ray", "tester.trainers=3", "runtime.trainers=2", "train.sequence_parallel=2"],
            "tester.trainers=3 must be a multiple of train.sequence_parallel=2",
        ),
        (
            ["runtime=ray", "tester.trainers=2", "train.optimizer=adamw8bit"],
            r"tester.trainers=2: train.optimizer=adamw8bit needs one process",
        ),
        (
            ["rollout.engine.tensor_parallel_size=2"],
            "it is a setting of rollout.engine.name=vllm",
        ),
        (
            ["rollout.engine.tensor_parallel_size=2", "rollout.engine=vllm", "runtime={name: ray, gpus: 0.5}"],
            "tensor_parallel_size=2 needs whole GPUs, but runtime.gpus=0.5",
        ),
        (
            ["rollout.engine=remote", "rollout.engine.url=[http://127.0.0.1:8000]"],
            r"tester.url=\[\] do not go together; with the engine remote the tester needs its own servers",
        ),
        (["tester.url=[http://127.0.0.1:8001]"], "do not go together"),
        (["tester.modle=x"], "tester.modle: no such key; did you mean tester.model"),
        (["workflow.cases=0"], "workflow.cases"),
        (["workflow.name=coder_testr"], "did you mean coder_tester"),
    ],
)
def test_conflicting_settings_are_refused(file: str, overrides: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        recipes.load(file, overrides)


def test_the_tester_shares_what_is_not_its_own(file: str) -> None:
    config = recipes.load(
        file, ["train.lr=1e-4", "train.warmup_steps=3", "model.chat_template_kwargs.enable_thinking=false"]
    )
    roles = config.roles()
    assert list(roles) == ["coder", "tester"]
    assert roles["coder"] is config
    assert roles["tester"].train == config.train
    assert roles["tester"].rollout == config.rollout
    assert roles["tester"].model.chat_template_kwargs == {}
    own = recipes.load(
        file,
        [
            *(
                "tester.model=other",
                "tester.lr=2e-5",
                "tester.max_tokens=7",
                "tester.chat_template_kwargs.enable_thinking=true",
            ),
            *("rollout.engine=remote", "rollout.engine.url=[http://a]", "tester.url=[http://b]"),
        ],
    ).roles()["tester"]
    assert (own.model.name, own.model.device, own.train.lr) == ("other", "cpu", 2e-5)
    assert (own.rollout.max_tokens, own.rollout.engine.url, own.rollout.group_size) == (7, ["http://b"], 2)
    assert own.model.chat_template_kwargs == {"enable_thinking": True}


def test_one_model_is_the_policy() -> None:
    config = recipes.load("quickstart")
    assert config.roles() == {"policy": config}


@pytest.mark.parametrize(
    ("overrides", "error", "text"),
    [
        (["tester.model=dojang-tinny"], ModelError, "did you mean 'dojang-tiny'"),
        (["data.load_with='toys:nameless'"], DataError, "1 problems, such as p/1, have tests that are neither"),
        (
            ["algo={name: custom, make_with: 'toys:Critical'}"],
            ConfigError,
            "supports no critic, but algo.make_with needs one",
        ),
    ],
)
def test_unusable_problems_and_prompts_are_refused_before_a_run(
    file: str, overrides: list[str], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        assemble.prepare(recipes.load(file, overrides))


def test_a_dry_run_says_who_takes_part_and_measures_both_prompts(file: str) -> None:
    for data in ("texts", "calls"):
        said = dry_run.describe(recipes.load(file, ["tester.lr=2e-5", f"data.load_with='toys:{data}'"]))
        assert "  tester  model directory" in said
        assert "learning rate 2e-05, replies of up to 24 tokens" in said
    with pytest.raises(ConfigError, match=r"tester.max_tokens=24 do not fit .* lower tester.max_tokens"):
        dry_run.describe(recipes.load(file, ["data.load_with='toys:lengthy'"]))


@pytest.mark.parametrize(
    ("data", "program", "written"),
    [
        ("texts", "print(int(input()) + 1)", '```json\n{"inputs": ["4", "x"], "outputs": ["5", "6"]}\n```'),
        (
            "calls",
            "def add(n):\n    return (n[0] + 1,)",
            "```python\nassert add((4,)) == [5]\nassert add({5}) == 1\n```",
        ),
    ],
)
def test_cases_are_run_by_the_judge_there_is(file: str, data: str, program: str, written: str) -> None:
    prepared = assemble.prepare(recipes.load(file, [f"data.load_with='toys:{data}'"]))
    (problem,) = prepared.train
    assert isinstance(prepared.task, CodeTask)
    function = prepared.task.function(problem)
    assert function is not None
    tests = [case.test for case in parse_cases(written, count=2, function=function)]

    async def play() -> Judgement:
        assert isinstance(prepared.task, CodeTask)
        try:
            return await prepared.task.trial(problem, f"```python\n{program}\n```", tests)
        finally:
            await prepared.judge.close()

    found = asyncio.run(play())
    assert [result.outcome for result in found.results] == [Outcome.ACCEPTED, Outcome.RUNTIME_ERROR]


def test_the_tester_has_its_own_numbers_of_processes(file: str) -> None:
    """AstraFlow's: six engines of the coder, two of the tester."""
    own = ["runtime={name: ray, engines: 6, trainers: 4}", "tester.engines=2", "tester.trainers=1"]
    runtimes = [each.runtime for each in recipes.load(file, own).roles().values()]
    assert [(each.engines, each.trainers) for each in runtimes if isinstance(each, RayConfig)] == [(6, 4), (2, 1)]
    shared = recipes.load(file, own[:1]).roles()
    assert shared["tester"].runtime == shared["coder"].runtime


@pytest.mark.parametrize("runtime", ["local", "ray"])
def test_both_roles_may_have_vllm_engines(file: str, runtime: str) -> None:
    roles = recipes.load(file, ["rollout.engine=vllm", f"runtime={runtime}"]).roles()
    assert {each.rollout.engine.name for each in roles.values()} == {"vllm"}
