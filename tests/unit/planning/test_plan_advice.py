"""What is foreseen, and whether what is advised helps."""

import pytest
from plan_subjects import subject

from dojang.config import recipe
from dojang.core.errors import ConfigError
from dojang.planning.advice import Finding, knobs, predict_problems, together
from dojang.planning.estimate import Subject, estimate
from dojang.planning.instances import INSTANCES

SOME = (
    "h200",
    "p4d.24xlarge",
    "p4de.24xlarge",
    "p5en.48xlarge",
    "g5.xlarge",
    "g6.12xlarge",
    "g6e.48xlarge",
    "c7i.4xlarge",
)


def found(asked: Subject, instance: str, ranks: int | None = None, nodes: int = 1) -> list[Finding]:
    return list(predict_problems(asked, estimate(asked, INSTANCES[instance], nodes, ranks)))


@pytest.mark.parametrize("name", recipe.shipped())
def test_every_recipe_can_be_planned_everywhere(name: str) -> None:
    asked = subject(name)
    for instance in SOME:
        for nodes in (1, 2):
            planned = estimate(asked, INSTANCES[instance], nodes)
            assert planned.needs.peak > 0
            assert 0 < planned.times.step < 1e9
            assert planned.fit in ("yes", "tight", "no")
            assert all(each.said for each in predict_problems(asked, planned))


def test_recipes_fit_what_they_say_they_want() -> None:
    for name, instance, nodes in (
        ("quickstart", "c7i.4xlarge", 1),
        ("smollm2-code", "h200", 1),
        ("gsm8k-qwen2.5-0.5b-qlora", "g6.xlarge", 1),
        ("codefu-7b-stage1", "p4de.24xlarge", 2),
    ):
        planned = estimate(subject(name), INSTANCES[instance], nodes)
        assert planned.needs.peak <= planned.capacity, name


def test_gpus_without_fp8_are_refused() -> None:
    asked = subject("smollm2-gsm8k", "rollout.engine.quantization=fp8")
    for instance, supported in (
        ("h200", True),
        ("p4de.24xlarge", False),
        ("g6e.48xlarge", False),
        ("c7i.4xlarge", True),
    ):
        said = [each.said for each in found(asked, instance) if "rollout.engine.quantization=fp8 needs" in each.said]
        assert bool(said) is not supported
        if not supported:
            assert estimate(asked, INSTANCES[instance]).fit == "no"


def test_fp8_in_another_precision_is_refused_on_gpus() -> None:
    asked = subject("smollm2-gsm8k", "rollout.engine.quantization=fp8", "model.dtype=float32")
    (said,) = [each.said for each in found(asked, "h200") if "fp8" in each.said]
    assert said == "rollout.engine.quantization=fp8 on a GPU is for model.dtype=bfloat16, not float32"
    assert estimate(asked, INSTANCES["h200"]).fit == "no"
    assert not [each.said for each in found(asked, "c7i.4xlarge") if "model.dtype" in each.said]


def test_a_run_that_does_not_fit_is_reported_with_settings_that_help() -> None:
    large = ("deepmath-qwen2.5-0.5b", "model.name=Qwen/Qwen3-8B", "rollout.prompts_per_step=16", "algo.kl_coef=0.1")
    asked = subject(*large, "train.max_tokens_per_microbatch=24576")
    planned = estimate(asked, INSTANCES["h200"])
    assert planned.fit == "no"
    assert any("will probably not fit" in each.said for each in predict_problems(asked, planned))
    helps = {each.setting: each for each in knobs(asked, planned)}
    assert {
        "train.gradient_checkpointing=true",
        "train.offload=[reference]",
        "train.optimizer=adamw8bit",
    } <= helps.keys()
    assert {"train.lora={}", "--nodes 2"} <= helps.keys()
    assert not any(each.fits for each in helps.values())
    several = together(asked, planned)
    assert several is not None
    assert "train.gradient_checkpointing=true" in several.setting
    settings = several.setting.split()
    other = estimate(subject(*large, *settings), INSTANCES["h200"])
    assert other.fit == "yes"
    assert planned.needs.peak - other.needs.peak == several.saves


def test_the_fewest_layers_with_gradient_checkpointing_that_fit_are_advised() -> None:
    large = ("smollm2-code", "train.max_tokens_per_microbatch=30000")

    def fit(setting: object) -> str:
        asked = subject(*large, f"train.gradient_checkpointing={setting}")
        return estimate(asked, INSTANCES["g5.xlarge"]).fit

    assert (fit("false"), fit("true")) == ("tight", "yes")
    asked = subject(*large, "train.gradient_checkpointing=false")
    first = knobs(asked, estimate(asked, INSTANCES["g5.xlarge"]))[0]
    name, _, count = first.setting.partition("=")
    assert (name, first.fits) == ("train.gradient_checkpointing", True)
    assert 0 < int(count) < 30
    assert (fit(int(count) - 1), fit(int(count))) == ("tight", "yes")


def test_more_layers_than_the_model_has_are_foreseen() -> None:
    said = [each.said for each in found(subject("quickstart", "train.gradient_checkpointing=99"), "c7i.4xlarge")]
    assert any("train.gradient_checkpointing=99 is a number of layers, but the model has" in each for each in said)


def test_where_nothing_suffices_nothing_is_promised() -> None:
    asked = subject("deepmath-qwen2.5-0.5b", "model.name=Qwen/Qwen3-8B")
    assert together(asked, estimate(asked, INSTANCES["g5.xlarge"])) is None


def test_a_suggested_setting_saves_the_stated_memory() -> None:
    name = ("deepmath-qwen2.5-0.5b", "train.max_tokens_per_microbatch=16384")
    planned = estimate(subject(*name), INSTANCES["g6.xlarge"])
    helps = {each.setting: each.saves for each in knobs(subject(*name), planned)}
    assert len(helps) >= 4
    for setting, saves in helps.items():
        if not setting.startswith("--"):
            other = estimate(subject(*name, setting), INSTANCES["g6.xlarge"])
            assert planned.needs.peak - other.needs.peak == saves, setting


def test_only_runs_that_can_never_fit_are_failures() -> None:
    never = found(subject("deepmath-qwen2.5-0.5b", "model.name=Qwen/Qwen3-8B"), "g5.xlarge")
    assert [each.code for each in never if each.level == "failed"] == [4]
    asked = subject("deepmath-qwen2.5-0.5b", "rollout.max_tokens=8192", "rollout.engine.kv_cache_gb=0.05")
    sequence = [each for each in found(asked, "g5.xlarge") if each.level == "failed"]
    assert "KV cache" in sequence[0].said
    perhaps = found(
        subject("deepmath-qwen2.5-0.5b", "train.max_tokens_per_microbatch=200000", "rollout.prompts_per_step=512"),
        "g5.xlarge",
    )
    assert any("will probably not fit" in each.said for each in perhaps)
    assert not any(each.level == "failed" for each in perhaps)


def test_rows_that_cannot_be_divided_are_failures() -> None:
    asked = subject("smollm2-code", "train.sequence_parallel=2")
    assert any("heads" in each.said and each.level == "failed" for each in found(asked, "p4d.24xlarge"))
    alone = [
        each.said for each in found(subject("codefu-7b-stage1", "runtime=local"), "h200") if each.level == "failed"
    ]
    assert any("does not divide" in each for each in alone)
    eight = subject("smollm2-code", "train.optimizer=adamw8bit")
    assert any("one process" in each.said for each in found(eight, "p4d.24xlarge") if each.level == "failed")
    assert not any(each.level == "failed" for each in found(eight, "h200"))


def test_too_few_cores_for_judging_are_warned_of() -> None:
    asked = subject("smollm2-code", "task.language=cpp17")
    (said,) = (each.said for each in found(asked, "g6.xlarge") if each.about == "judge")
    assert "4 cores" in said
    assert "judge.url" in said
    assert not [each for each in found(subject("smollm2-gsm8k"), "g6.xlarge") if each.about == "judge"]


def test_gpus_that_wait_are_noted() -> None:
    assert any("7 wait" in each.said for each in found(subject("smollm2-code"), "p4d.24xlarge"))
    assert not any("wait" in each.said for each in found(subject("smollm2-code"), "p4d.24xlarge", ranks=1))


def test_a_gpu_that_is_asked_for_must_be_there() -> None:
    asked = subject("smollm2-code", "model.device=cuda")
    assert any("no GPU" in each.said for each in found(asked, "c7i.4xlarge") if each.level == "failed")
    with pytest.raises(ConfigError, match="exceeds the 1 GPUs"):
        estimate(asked, INSTANCES["h200"], ranks=2)


def test_all_ranks_load_the_model_into_the_machines_memory() -> None:
    asked = subject("deepmath-qwen2.5-0.5b", "model.name=Qwen/Qwen3-8B", "algo.kl_coef=0.1")
    assert any("host memory may not" in each.said for each in found(asked, "g5.12xlarge"))


def test_on_a_ray_cluster_engines_have_gpus_of_their_own() -> None:
    asked = subject("smollm2-code", "runtime={name: ray, trainers: 2, engines: 6}")
    planned = estimate(asked, INSTANCES["p4d.24xlarge"])
    assert (planned.layout.ranks, planned.layout.servers) == (2, 6)
    assert "engine weights" not in planned.needs.parts
    assert not any(each.level == "failed" or "wait" in each.said for each in found(asked, "p4d.24xlarge"))
    assert any("want 8 GPUs" in each.said for each in found(asked, "g5.12xlarge") if each.level == "failed")
    assert planned.fit == "yes"
    assert estimate(asked, INSTANCES["g5.12xlarge"]).fit == "no"
    shared = subject("smollm2-code", "runtime={name: ray, trainers: 2, engines: 6, gpus: 0.5}")
    assert not estimate(shared, INSTANCES["g5.12xlarge"]).layout.lacks


def test_settings_are_suggested_if_an_engine_exceeds_its_gpu() -> None:
    asked = subject(
        "smollm2-code",
        "runtime={name: ray, trainers: 1, engines: 2}",
        "rollout.engine.kv_cache_gb=24",
        "rollout.engine.max_num_seqs=4096",
    )
    planned = estimate(asked, INSTANCES["g6.12xlarge"])
    assert planned.engine is not None
    assert planned.fit == "no"
    assert any("in the rollout phase" in each.said for each in found(asked, "g6.12xlarge"))
    (knob,) = (each for each in knobs(asked, planned) if each.setting.startswith("rollout.engine.kv_cache_gb"))
    assert knob.fits


def test_processors_must_suffice_too() -> None:
    asked = subject("smollm2-code", "runtime={name: ray, trainers: 1, engines: 2, cpus: 20}")
    (failed,) = (each for each in found(asked, "g6.12xlarge") if each.level == "failed")
    assert "want 60 processors, and there are 48" in failed.said
    assert estimate(asked, INSTANCES["g6.12xlarge"]).fit == "no"
    assert estimate(asked, INSTANCES["g6.12xlarge"], 2).fit == "yes"


WORKERS = ("loop.mode=stream", "runtime={name: ray, trainers: 2, engines: 1}")


def test_rollout_workers_without_room_are_named() -> None:
    def said(instance: str, nodes: int, workers: int, *more: str) -> list[tuple[str, str]]:
        asked = subject("smollm2-code", *WORKERS, f"loop.workers={workers}", *more)
        return [(each.level, each.said) for each in found(asked, instance, nodes=nodes) if each.about == "workers"]

    assert said("g6.12xlarge", 1, 1) == []  # four GPUs
    ((level, words),) = said("g6.12xlarge", 1, 4)
    assert (level, "3 of 4 rollout workers have no room" in words) == ("warning", True)
    assert said("g6.12xlarge", 2, 5) == []
    alone = "loop.sample_here=false"
    assert said("g6.12xlarge", 1, 1, alone) == []
    (failed, _) = said("g6.12xlarge", 1, 1, "runtime.engines=2", alone)
    assert failed[0] == "failed"
    assert "none of 1 rollout workers has room" in failed[1]
    asked = subject("smollm2-code", *WORKERS, "loop.workers=1")
    assert not any("stay idle" in each.said for each in found(asked, "g6.12xlarge"))
    large = said("g6.12xlarge", 1, 1, "rollout.engine=vllm", "rollout.engine.tensor_parallel_size=8")
    assert [level for level, _ in large] == ["warning"]  # and engines of that size are refused


def test_engines_beside_servers_are_noted() -> None:
    served = ("code-qwen3-8b-m2po-full", "rollout.engine=remote", "rollout.engine.url=[http://there:8000]")
    asked = subject(*served, "runtime={name: ray, trainers: 8, engines: 8}")
    assert any("runtime.engines has no effect" in each.said for each in found(asked, "p4de.24xlarge"))
    asked = subject(*served, "runtime={name: ray, trainers: 8}")
    assert not any("runtime.engines" in each.said for each in found(asked, "p4de.24xlarge"))


def test_ranks_are_the_recipe_s_to_say_on_a_ray_cluster() -> None:
    with pytest.raises(ConfigError, match=r"set runtime\.trainers instead"):
        estimate(subject("smollm2-code", "runtime=ray"), INSTANCES["p4d.24xlarge"], 1, 4)


def test_judges_on_a_ray_cluster_have_what_is_left_of_all_machines() -> None:
    asked = subject("smollm2-code", "runtime={name: ray, trainers: 2, engines: 6, cpus: 4}")
    assert estimate(asked, INSTANCES["p4d.24xlarge"], 2).layout.cores == 2 * 96 - 8 * 4
    assert estimate(subject("smollm2-code"), INSTANCES["p4d.24xlarge"], 2).layout.cores == 96
