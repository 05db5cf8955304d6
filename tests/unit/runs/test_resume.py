"""A resumed run keeps its settings, says what changes, and refuses what cannot."""

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import yaml
from typer.testing import CliRunner

from dojang import models
from dojang.commands import app
from dojang.config import recipe as recipes
from dojang.core.errors import ConfigError, DojangError, RunDirError
from dojang.core.run_dir import RunDir
from dojang.runs import training
from dojang.runs.resume import (
    Settings,
    check_directory,
    choose_directory,
    reserve_directory,
    settings_of,
    write_settings,
)


@pytest.fixture
def directory(tmp_path: Path) -> RunDir:
    """A run that was started with two overrides and has saved a checkpoint."""
    started = RunDir(tmp_path / "run")
    settings = settings_of("quickstart", ["train.lr=1e-5", "rollout.group_size=4"], started, resume=False)
    write_settings(started, settings, settings.config)
    (started.checkpoints / "step-000003").mkdir(parents=True)
    return started


def resumed(directory: RunDir, *overrides: str, recipe: str | None = None) -> Settings:
    return settings_of(recipe, overrides, directory, resume=True)


@pytest.mark.parametrize("recipe", [None, "quickstart"])
def test_settings_of_the_run_are_kept(directory: RunDir, recipe: str | None) -> None:
    found = resumed(directory, recipe=recipe)
    assert (found.config.train.lr, found.config.rollout.group_size) == (1e-5, 4)
    assert found.recipe == "quickstart"
    assert found.notes == ["settings: as before"]
    check_directory(directory, found.config, resume=True)


def test_changed_settings_are_reported_and_the_old_configuration_kept(directory: RunDir) -> None:
    first = directory.config.read_text()
    for number, (former_lr, lr) in enumerate([("1e-05", "2e-05"), ("2e-05", "3e-05")], start=1):
        former = directory.config.read_text()
        found = resumed(directory, f"train.lr={lr}")
        assert found.notes == ["changed settings:", f"  train.lr: {former_lr} -> {lr}"]
        assert found.config.rollout.group_size == 4
        write_settings(directory, found, found.config)
        assert (directory.path / f"config.{number}.yaml").read_text() == former
    write_settings(directory, found, found.config)
    assert sorted(path.name for path in directory.path.glob("config*")) == [
        "config.1.yaml",
        "config.2.yaml",
        "config.yaml",
    ]
    assert (directory.path / "config.1.yaml").read_text() == first
    saved = json.loads(directory.run.read_text())
    assert saved == {"recipe": "quickstart", "overrides": ["rollout.group_size=4", "train.lr=3e-05"]}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("model.name=dojang-tiny-code", "the checkpoint has that model's weights"),
        ("train.lora.rank=4", "the checkpoint has adapters of that shape"),
        ("train.optimizer=muon", "the checkpoint has that optimizer's state"),
        ("seed=9", "the next steps would repeat some problems and skip others"),
        ("algo.kl_coef=0.5", "could not be compared"),
    ],
)
def test_settings_that_cannot_change_are_refused_with_the_reason(directory: RunDir, override: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        check_directory(directory, resumed(directory, override).config, resume=True)
    assert f"  - {override.partition('=')[0]}: was " in str(caught.value)
    assert f"model.name={directory.checkpoints}/last" in str(caught.value)


def test_another_recipe_is_reported_and_not_used(directory: RunDir) -> None:
    found = resumed(directory, recipe="quickstart-code")
    assert found.config.data.name == "arithmetic"
    assert "started with the recipe quickstart" in found.notes[0]
    assert "those of quickstart-code are not used" in found.notes[0]


def test_an_edited_recipe_is_reported_and_not_used(tmp_path: Path) -> None:
    recipe, directory = tmp_path / "mine.yaml", RunDir(tmp_path / "run")
    tree = {"model": {"name": "dojang-tiny"}, "data": {"name": "arithmetic"}, "epochs": 2, "train": {"lr": 1e-5}}
    recipe.write_text(yaml.safe_dump(tree))
    settings = settings_of(str(recipe), ["health.patience_steps=7"], directory, resume=False)
    write_settings(directory, settings, settings.config.with_steps(100))
    assert resumed(directory, recipe=str(recipe)).notes == ["settings: as before"]
    recipe.write_text(yaml.safe_dump({**tree, "train": {"lr": 4e-5}}))
    found = resumed(directory, recipe=str(recipe))
    assert found.config.train.lr == 1e-5
    assert found.notes[1:] == ["  train.lr: 1e-05, in the recipe 4e-05", "settings: as before"]
    recipe.unlink()
    assert resumed(directory, recipe=str(recipe)).notes == ["settings: as before"]


def test_a_choice_that_is_replaced_leaves_its_settings_behind(directory: RunDir) -> None:
    on_ray = resumed(directory, "runtime=ray", "runtime.trainers=2")
    write_settings(directory, on_ray, on_ray.config)
    found = resumed(directory, "runtime.name=local")
    assert found.config.runtime.name == "local"
    assert "  runtime.name: 'ray' -> 'local'" in found.notes


def test_a_run_that_was_killed_before_its_configuration_was_written_is_resumed_by_its_recipe(directory: RunDir) -> None:
    directory.config.unlink()
    found = resumed(directory, "steps=9")
    assert (found.config.train.lr, found.config.steps, found.recipe) == (1e-5, 9, "quickstart")


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match=r"no run in .* to resume"):
        resumed(RunDir(tmp_path / "nosuch"))
    with pytest.raises(RunDirError, match=r"no run in .* to resume; it has neither"):
        resumed(RunDir(tmp_path))
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(RunDirError, match="holds no run"):
        resumed(RunDir(tmp_path))


@pytest.mark.parametrize(
    ("place", "words"), [("s3://bucket/run", "is a URL"), ("x" * 300, "cannot write to x+: File name too long")]
)
def test_a_place_that_cannot_hold_a_run_is_refused(place: str, words: str) -> None:
    with pytest.raises(RunDirError, match=words):
        check_directory(RunDir(Path(place)), recipes.load("quickstart"), resume=False)
    with pytest.raises(RunDirError, match=words):
        resumed(RunDir(Path(place)))


def test_the_newest_run_of_a_recipe_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for number in (2, 10):
        (tmp_path / f"runs/quickstart-{number}/checkpoints/step-000001").mkdir(parents=True)
    assert choose_directory("quickstart", None, resume=True).path == Path("runs/quickstart-10")
    assert choose_directory("quickstart", None, resume=False).path == Path("runs/quickstart-11")


def test_runs_that_start_at_once_get_different_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/quickstart-2/checkpoints").mkdir(parents=True)
    together = Barrier(8)

    def reserve(_: int) -> RunDir:
        together.wait()
        return reserve_directory("quickstart")

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(reserve, range(8)))
    assert sorted(int(each.path.name.rpartition("-")[2]) for each in found) == list(range(3, 11))
    assert all(each.path.is_dir() for each in found)
    for each in found:
        each.unlock()
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["quickstart-2"]


def test_an_empty_directory_that_a_killed_run_left_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "import os; from dojang.runs.resume import reserve_directory; reserve_directory('quickstart'); os._exit(9)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 9
    assert (tmp_path / "runs/quickstart-1/run.lock").exists()
    found = reserve_directory("quickstart")
    assert found.path == Path("runs/quickstart-1")
    assert choose_directory("other", None, resume=False).path == Path("runs/other-1")
    (found.path / "run.json").write_text("{}")
    found.unlock()
    assert found.path.is_dir()  # it holds a run
    after = reserve_directory("quickstart")
    assert after.path == Path("runs/quickstart-2")
    after.unlock()


def test_a_refused_run_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    seen = []

    def refuse() -> None:
        seen.extend(path.name for path in (tmp_path / "runs").iterdir())
        raise ConfigError("refused")

    monkeypatch.setattr(training, "import_build", refuse)
    with pytest.raises(ConfigError, match="refused"):
        training.run("quickstart", [], None, resume=False)
    assert seen == ["quickstart-1"]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError):  # found before a directory is made
        training.run("quickstart", ["train.lr=-1"], None, resume=False)
    assert list(tmp_path.iterdir()) == []


def test_the_command_resumes_without_a_recipe(directory: RunDir) -> None:
    with pytest.raises(DojangError, match="has done 3 steps already; steps=2 is fewer"):
        CliRunner().invoke(app, ["resume", str(directory.path), "steps=2"], catch_exceptions=False)
    with pytest.raises(ConfigError, match=r"config\.yaml':\n  - train.lrr: no such key; did you mean train.lr"):
        CliRunner().invoke(app, ["resume", str(directory.path), "train.lrr=2"], catch_exceptions=False)


def test_every_shipped_recipe_resumes_with_unchanged_settings(tmp_path: Path) -> None:
    for name in recipes.shipped():
        directory = RunDir(tmp_path / name)
        settings = settings_of(name, [], directory, resume=False)
        write_settings(directory, settings, settings.config)
        assert resumed(directory, recipe=name).notes == ["settings: as before"]


def test_a_resumed_run_sends_the_same_settings_to_rollout_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(models.resolve("dojang-tiny"), tmp_path / "mine")
    directory = RunDir(tmp_path / "run")
    settings = settings_of("quickstart", ["model.name=mine", "loop.mode=stream"], directory, resume=False)
    write_settings(directory, settings, settings.config)
    again = resumed(directory).config
    assert settings.config.model.name == "mine"
    assert recipes.to_tree(settings.config, absolute=True) == recipes.to_tree(again, absolute=True)
    assert again.model.name == str(tmp_path / "mine")


def test_a_default_lag_that_is_written_out_is_no_change(tmp_path: Path) -> None:
    directory = RunDir(tmp_path / "run")
    settings = settings_of("quickstart", ["loop.mode=stream"], directory, resume=False)
    write_settings(directory, settings, settings.config)
    assert resumed(directory, "loop.lag=1").notes == ["settings: as before"]
    assert resumed(directory, "loop.lag=2").notes == ["changed settings:", "  loop.lag: None -> 2"]
