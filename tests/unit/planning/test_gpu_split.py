"""How GPUs of a Ray cluster are split between trainers and engines."""

import pytest
from plan_subjects import subject

from dojang.config import recipe
from dojang.planning.advice import predict_problems
from dojang.planning.estimate import estimate
from dojang.planning.gpu_split import split_gpus, with_split
from dojang.planning.instances import INSTANCES

RAY = "runtime={name: ray}"
PAIR = ("rollout.engine=torch", "tester.url=[]", "tester.engines=null", "tester.trainers=null")
OWN_ENGINES = ("rollout.engine=vllm",)


def chosen(gpus: int, *overrides: str, name: str = "smollm2-code") -> dict[str, float]:
    return dict(split_gpus(recipe.load(name, [RAY, *overrides]), gpus))


@pytest.mark.parametrize(
    ("gpus", "overrides", "expected"),
    [
        (8, [], {"trainers": 4, "engines": 4}),
        (3, [], {"trainers": 1, "engines": 2}),
        (2, [], {"trainers": 1, "engines": 1}),
        (1, [], {"trainers": 1, "engines": 1, "gpus": 0.5}),
        (8, ["runtime.gpus=0.5"], {"trainers": 8, "engines": 8}),
        (8, ["train.sequence_parallel=3"], {"trainers": 3, "engines": 5}),
        (4, ["train.sequence_parallel=2", "runtime.engines=1"], {"trainers": 2}),
        (8, ["runtime.trainers=2"], {"engines": 6}),
        (8, ["runtime.engines=2"], {"trainers": 6}),
        (8, ["train.optimizer=adamw8bit"], {"trainers": 1, "engines": 7}),
        (8, ["rollout.engine=remote", "rollout.engine.url=[http://there:8000]"], {"trainers": 8}),
        (8, ["rollout.prompts_per_step=2"], {"trainers": 2, "engines": 6}),
        (8, ["loop.mode=stream", "loop.workers=4"], {"trainers": 2, "engines": 2}),
        (8, ["loop.mode=stream", "loop.workers=32"], {"trainers": 4, "engines": 4}),  # they wait for other machines
        (8, ["runtime.trainers=1", "runtime.engines=1"], {}),
        (8, ["model.device=cpu"], {}),
        (8, ["runtime.gpus=0"], {}),
        (0, [], {}),
        (4, ["train.sequence_parallel=4"], {}),
        (8, ["rollout.engine=vllm", "rollout.engine.tensor_parallel_size=2"], {"trainers": 4, "engines": 2}),
        (8, ["rollout.engine=vllm", "rollout.engine.tensor_parallel_size=4"], {"trainers": 4, "engines": 1}),
        (1, ["rollout.engine=vllm", "rollout.engine.tensor_parallel_size=2"], {}),
    ],
)
def test_gpus_are_split_by_what_the_recipe_leaves_open(
    gpus: int, overrides: list[str], expected: dict[str, float]
) -> None:
    assert chosen(gpus, *overrides) == expected


def test_two_models_get_the_same_share() -> None:
    assert chosen(16, *PAIR, name="code-qwen3-8b-coder-tester") == {"trainers": 4, "engines": 4}
    assert chosen(1, *PAIR, "train.sequence_parallel=1", name="code-qwen3-8b-coder-tester")["gpus"] == 0.25


def test_counts_of_the_tester_are_taken_out_first() -> None:
    pair = [*PAIR, "train.sequence_parallel=1"]
    own = chosen(16, *pair, "tester.engines=2", "tester.trainers=2", name="code-qwen3-8b-coder-tester")
    assert own == {"trainers": 6, "engines": 6}
    assert chosen(16, *pair, "tester.engines=2", name="code-qwen3-8b-coder-tester") == {"trainers": 3, "engines": 8}


def test_counts_that_do_not_fit_come_with_some_that_do() -> None:
    asked = subject("codefu-7b-stage1", "runtime={name: ray, trainers: 16, engines: 16}", *OWN_ENGINES)
    planned = estimate(asked, INSTANCES["p4de.24xlarge"], 2)
    (said,) = (each.said for each in predict_problems(asked, planned) if "want" in each.said)
    assert said.endswith(
        "want 32 GPUs, and there are 16; use more machines, or fewer processes, such as "
        "runtime.trainers=8 runtime.engines=8"
    )


def test_without_ray_nothing_is_split() -> None:
    config = recipe.load("smollm2-code")
    assert split_gpus(config, 8) == {}
    assert with_split(config, 8) is config


def test_trainers_default_to_one_sequence_parallel_group() -> None:
    config = recipe.load("codefu-7b-stage1", ["runtime={name: ray}", *OWN_ENGINES])
    assert config.runtime.model_dump()["trainers"] == 4
    assert "trainers" not in config.runtime.model_fields_set
    assert dict(split_gpus(config, 16)) == {"trainers": 8, "engines": 8}


def test_a_plan_uses_all_gpus_and_says_what_it_chose() -> None:
    asked = subject("gsm8k-qwen2.5-0.5b-qlora", RAY)
    planned = estimate(asked, INSTANCES["p4d.24xlarge"])
    assert (planned.layout.ranks, planned.layout.servers) == (4, 4)
    said = [each.said for each in predict_problems(asked, planned)]
    assert any("runtime.trainers=4 runtime.engines=4 chosen for the 8 GPUs" in each for each in said)
    assert not any("idle" in each for each in said)


def test_gpus_that_stay_idle_are_counted() -> None:
    asked = subject("gsm8k-qwen2.5-0.5b-qlora", RAY, "runtime.trainers=1", "runtime.engines=1")
    (said,) = (
        each.said for each in predict_problems(asked, estimate(asked, INSTANCES["p4d.24xlarge"])) if "idle" in each.said
    )
    assert said == "6 of 8 GPUs stay idle; try runtime.trainers=4 runtime.engines=4"
