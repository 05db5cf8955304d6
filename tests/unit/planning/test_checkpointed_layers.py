"""The number of layers with gradient checkpointing that fits a machine."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from plan_subjects import subject

from dojang.config import recipe
from dojang.core.errors import ConfigError
from dojang.core.run_dir import RunDir
from dojang.planning import checkpointed_layers
from dojang.planning.checkpointed_layers import resolve_for_this_machine, with_layers
from dojang.planning.estimate import Estimate, Subject, estimate
from dojang.planning.instances import INSTANCES, Instance
from dojang.runs import training
from dojang.trainer.memory import checkpointed_layers as count_of

LARGE = ("smollm2-code", "train.max_tokens_per_microbatch=30000")


def on(instance: str, asked: Subject) -> Estimate:
    return estimate(asked, INSTANCES[instance])


def test_auto_takes_the_fewest_layers_that_fit() -> None:
    found = with_layers(subject(*LARGE, "train.gradient_checkpointing=auto"), lambda each: on("g5.xlarge", each))
    count = found.config.train.gradient_checkpointing
    assert isinstance(count, int)
    assert 0 < count < 30
    fits = [on("g5.xlarge", subject(*LARGE, f"train.gradient_checkpointing={each}")).fit for each in (count - 1, count)]
    assert fits == ["tight", "yes"]
    assert on("g5.xlarge", subject(*LARGE, "train.gradient_checkpointing=auto")) == on("g5.xlarge", found)


def test_no_layer_where_all_fits() -> None:
    found = with_layers(subject(*LARGE, "train.gradient_checkpointing=auto"), lambda each: on("h200", each))
    assert found.config.train.gradient_checkpointing == 0


def test_other_settings_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(checkpointed_layers, "_free_machine")  # not asked for
    config = recipe.load("quickstart", ["train.gradient_checkpointing=true"])
    assert resolve_for_this_machine(config, 1) == (config, "")


@pytest.mark.parametrize(("memory_gib", "expected"), [(22.3, range(1, 30)), (141, range(1)), (4, range(30, 31))])
def test_it_is_chosen_for_the_free_memory(monkeypatch: pytest.MonkeyPatch, memory_gib: float, expected: range) -> None:
    machine = INSTANCES["g5.xlarge"]
    assert machine.gpu is not None
    free: Instance = replace(machine, gpu=replace(machine.gpu, memory_gib=memory_gib))
    monkeypatch.setattr(checkpointed_layers, "_free_machine", lambda: free)
    config = recipe.load(LARGE[0], [*LARGE[1:], "train.gradient_checkpointing=auto"])
    found, said = resolve_for_this_machine(config, 1)
    assert found.train.gradient_checkpointing in expected
    assert f"train.gradient_checkpointing=auto: {found.train.gradient_checkpointing} of 30 layers" in said
    assert ("not even all of them suffice" in said) == (memory_gib == 4)


@pytest.mark.parametrize("processes", [1, 4, 6, 16])
def test_processes_on_several_machines(monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    """torchrun starts as many on each; this process sees the GPUs of its own machine."""
    monkeypatch.setattr(checkpointed_layers, "_free_machine", lambda: INSTANCES["g5.12xlarge"])
    config = recipe.load(LARGE[0], [*LARGE[1:], "train.gradient_checkpointing=auto"])
    found, _ = resolve_for_this_machine(config, processes)
    assert isinstance(found.train.gradient_checkpointing, int)


def test_a_layout_that_does_not_divide_is_not_called_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpointed_layers, "_free_machine", lambda: INSTANCES["p4d.24xlarge"])
    asked = [*LARGE[1:], "train.gradient_checkpointing=auto", "train.sequence_parallel=2"]
    _, said = resolve_for_this_machine(recipe.load(LARGE[0], asked), 3)
    assert "suffice" not in said


def test_a_local_model_without_a_plan_is_refused_for_its_reason(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 3}))
    (tmp_path / "model.safetensors").touch()
    config = recipe.load("quickstart", ["train.gradient_checkpointing=auto", f"model.name={tmp_path}"])
    with pytest.raises(ConfigError, match="gpt2") as caught:
        resolve_for_this_machine(config, 1)
    assert "download" not in str(caught.value)


def test_a_model_that_must_be_downloaded_first_needs_a_number() -> None:
    config = recipe.load("quickstart", ["train.gradient_checkpointing=auto", "model.name=some/unknown-model"])
    with pytest.raises(ConfigError, match="set a number of layers, or true for all"):
        resolve_for_this_machine(config, 1)


def test_on_ray_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"train\.gradient_checkpointing=auto is chosen for the GPU of this"):
        recipe.load("quickstart", ["train.gradient_checkpointing=auto", "runtime.name=ray"])


def test_a_trainer_by_itself_needs_a_number() -> None:
    with pytest.raises(ConfigError, match="becomes a number of layers when a run starts"):
        count_of("auto", 4)


@pytest.mark.parametrize("value", ["half", "2.5", "-3", "[1]"])
def test_other_values_are_refused_in_one_sentence(value: str) -> None:
    with pytest.raises(ConfigError, match="is no number of layers; set 0 or more, true for all") as caught:
        recipe.load("quickstart", [f"train.gradient_checkpointing={value}"])
    assert str(caught.value).count("gradient_checkpointing") == 1


def test_a_run_records_the_number_and_resumes_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checkpointed_layers, "fewest_layers", lambda *_: 1)
    overrides = ["train.gradient_checkpointing=auto", "steps=1", "eval.every=1", "judge.workers=1"]
    small = ["rollout.prompts_per_step=2", "rollout.group_size=2", "rollout.max_tokens=4", "eval.problems=2"]
    training.dry_run("quickstart", [*overrides, *small], tmp_path / "run", fit=resolve_for_this_machine)
    said = capsys.readouterr().out
    assert "  gradient_checkpointing: 1\n" in said
    assert "layers with gradient checkpointing: the first 1\n" in said
    assert "train.gradient_checkpointing=auto: 1 of 2 layers" in said
    training.run("quickstart", [*overrides, *small], tmp_path / "run", resume=False, fit=resolve_for_this_machine)
    assert "train.gradient_checkpointing=auto: 1 of 2 layers" in capsys.readouterr().out
    monkeypatch.setattr(checkpointed_layers, "fewest_layers", lambda *_: 2)
    capsys.readouterr()
    training.run("quickstart", ["steps=2"], tmp_path / "run", resume=True, fit=resolve_for_this_machine)
    assert "has changed" not in capsys.readouterr().out
    assert recipe.load(str(RunDir(tmp_path / "run").config)).train.gradient_checkpointing == 1
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 2
