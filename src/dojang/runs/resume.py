"""Settings of a run that starts or resumes.

A resumed run takes the configuration in its directory (config.yaml), with the overrides given now. A recipe that is
named as well only finds the directory: its settings are not read again.
"""

import copy
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from dojang.config import recipe as recipes
from dojang.config.overrides import annotation_at, tag_of
from dojang.config.run_config import RunConfig, sections
from dojang.core.errors import ConfigError, DojangError, RunDirError
from dojang.core.run_dir import CHOOSE_ANOTHER, RunDir, disk_errors, write_atomic
from dojang.trainer.memory import AUTO

__all__ = [
    "Fit",
    "Settings",
    "check_directory",
    "choose_directory",
    "reserve_directory",
    "settings_of",
    "step_of",
    "write_settings",
]

Fit = Callable[[RunConfig, int], tuple[RunConfig, str]]
"""Chooses settings that depend on the memory of this machine, for a number of processes, and says what it chose."""

RESUMABLE = (
    *(
        "steps",
        "epochs",
        "rollout.",
        "train.",
        "eval.every",
        "eval.num_completions_to_print",
        "checkpoint.",
        "health.",
        "judge.",
        "track",
        "runtime",
        "loop.",
    ),
    *("distillation.url", "distillation.timeout_s", "distillation.attempts", "distillation.concurrency"),
    *("distillation.max_errors", "distillation.token_env"),
    *("tester.max_tokens", "tester.lr", "tester.url", "tester.engines", "tester.trainers"),
)
"""Prefixes of the settings that may change when a run is resumed."""
FIXED = {
    "train.lora": "the checkpoint has adapters of that shape",
    "train.optimizer": "the checkpoint has that optimizer's state",
    "train.ref_model_sync_steps": "the checkpoint has the reference model that goes with it",
    "model": "the checkpoint has that model's weights",
    "tester.model": "the checkpoint has that model's weights",
    "data": "the next steps would repeat some problems and skip others",
    "seed": "the next steps would repeat some problems and skip others",
}
"""Reasons why settings cannot change, by prefix; also exceptions to RESUMABLE: they decide what a checkpoint holds."""
_URL = re.compile(r"[a-z][a-z0-9+.-]+:/")  # Path makes s3:/ of s3://
OTHERWISE = "rewards and metrics before and after the change could not be compared"


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a run."""

    config: RunConfig
    recipe: str
    """The recipe that the run was started with."""
    overrides: Sequence[str]
    """All overrides since then; with the recipe they give the configuration."""
    notes: Sequence[str] = field(default=())
    """Changes since the run was started or last resumed, for the user."""
    fit_note: str = ""
    """Choices for the memory of this machine, for the user."""

    def fitted(self, fit: Fit | None, processes: int) -> "Settings":
        """The settings with what `fit` chooses for a number of processes."""
        if fit is None:
            return self
        config, said = fit(self.config, processes)
        return replace(self, config=config, notes=[*self.notes, said], fit_note=said) if said else self


def settings_of(recipe: str | None, overrides: Sequence[str], directory: RunDir, *, resume: bool) -> Settings:
    """Settings of a new run, or of the run in the directory. `recipe` is None if only the directory is given."""
    if not resume:
        assert recipe is not None
        return Settings(recipes.load(recipe, overrides), recipe, overrides)
    _check_there(directory)
    started = _read_started(directory)
    name = started.recipe or recipe or directory.path.name
    given = _latest([*started.overrides, *overrides])
    if not directory.config.exists():  # killed in its first seconds
        if not (started.recipe or recipe):
            raise RunDirError(f"no run in {directory.path} to resume; it has neither config.yaml nor a recipe's name")
        return Settings(recipes.load(name, given), name, given)
    where, saved = str(directory.config), recipes.read(str(directory.config))
    before = recipes.resolve(where, copy.deepcopy(saved))
    config = recipes.resolve(where, _switched(saved, overrides), overrides)
    changes = [f"  {key}: {old!r} -> {new!r}" for key, (old, new) in recipes.differences(before, config).items()]
    notes = ["changed settings:", *changes] if changes else ["settings: as before"]
    return Settings(config, name, given, [*_recipe_notes(recipe, started, before), *notes])


@dataclass(frozen=True, slots=True)
class _Started:
    """Content of run.json."""

    recipe: str = ""
    overrides: Sequence[str] = ()


def _read_started(directory: RunDir) -> _Started:
    try:
        found = json.loads(directory.run.read_text())
        return _Started(str(found.get("recipe", "")), [str(each) for each in found.get("overrides", ())])
    except (OSError, ValueError, AttributeError, TypeError):
        return _Started()


def _latest(overrides: Sequence[str]) -> list[str]:
    """The last override of each key."""
    by_key: dict[str, str] = {}
    for override in overrides:
        key = override.partition("=")[0]
        by_key.pop(key, None)
        by_key[key] = override
    return list(by_key.values())


def _switched(tree: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Drops the settings of a choice that an override replaces with another: config.yaml has all of them, and the
    other choice may lack them."""
    tree = copy.deepcopy(tree)
    for key, name in (each.split(".name=", 1) for each in overrides if ".name=" in each):
        here: Any = tree
        for part in key.split("."):
            here = here.get(part) if isinstance(here, dict) else None
        choices = {tag_of(section) for section in sections(annotation_at(key.split(".")))}
        if isinstance(here, dict) and len(choices) > 1 and here.get("name") != name:
            here.clear()
    return tree


def _recipe_notes(recipe: str | None, started: _Started, before: RunConfig) -> list[str]:
    """Differences between the recipe that is named now and the run's settings; the run's are kept."""
    if recipe is None or not started.recipe:
        return []
    if recipe != started.recipe:
        return [
            f"this run was started with the recipe {started.recipe}: it keeps its settings, and those of {recipe} "
            "are not used"
        ]
    try:
        now = recipes.load(recipe, started.overrides)
    except DojangError:
        return []  # the file is gone, or its keys are from another version
    changed = recipes.differences(before, now)
    if now.epochs is not None:  # resolved to steps in config.yaml
        changed = {key: values for key, values in changed.items() if key not in ("steps", "epochs")}
    if now.train.gradient_checkpointing == AUTO:  # a number in config.yaml
        changed.pop("train.gradient_checkpointing", None)
    if not changed:
        return []
    lines = [f"  {key}: {old!r}, in the recipe {new!r}" for key, (old, new) in changed.items()]
    return [
        f"{recipe} has changed since the run was started; the run keeps its settings (KEY=VALUE changes them):",
        *lines,
    ]


def choose_directory(recipe: str, run_dir: Path | None, *, resume: bool) -> RunDir:
    """The given directory; by default a new one under runs/, or the newest one of the recipe to resume."""
    if run_dir is not None:
        return RunDir(run_dir)
    if not resume:
        return next(_free_directories(recipe))
    started_runs = {number: directory for number, directory in _numbered(recipe).items() if directory.holds_a_run()}
    if not started_runs:
        raise RunDirError(f"no run of {recipe!r} under runs/ to resume; give its directory with --run-dir")
    return started_runs[max(started_runs)]


def reserve_directory(recipe: str) -> RunDir:
    """Makes and locks the next free directory under runs/. Runs that start at the same time get different ones."""
    return next(directory for directory in _free_directories(recipe) if directory.reserve())


def _numbered(recipe: str) -> dict[int, RunDir]:
    """Directories of the recipe under runs/, by number."""
    name = Path(recipe).stem
    return {
        int(path.name.removeprefix(f"{name}-")): RunDir(path)
        for path in Path("runs").glob(f"{name}-*")
        if path.name.removeprefix(f"{name}-").isdecimal()
    }


def _free_directories(recipe: str) -> Iterator[RunDir]:
    """Directories under runs/ after the last one with a run, in order."""
    numbered = _numbered(recipe).items()
    used = [number for number, each in numbered if not (each.path.is_dir() and each.is_empty())]
    for number in itertools.count(max(used, default=0) + 1):
        yield RunDir(Path("runs") / f"{Path(recipe).stem}-{number}")


def _check_there(directory: RunDir) -> None:
    _check_own(directory)
    if not directory.path.is_dir():
        raise RunDirError(f"no run in {directory.path} to resume; check the path, or start a new run")


def _check_own(directory: RunDir) -> None:
    if _URL.match(str(directory.path)):
        raise RunDirError(
            f"{directory.path} is a URL; a run writes to a local directory. {CHOOSE_ANOTHER.capitalize()}"
        )
    with disk_errors(directory.path):
        if directory.is_foreign():
            raise RunDirError(f"{directory.path} is not empty and holds no run; {CHOOSE_ANOTHER}")


def check_directory(directory: RunDir, config: RunConfig, *, resume: bool) -> None:
    """Raises an error if the directory holds a run that is not to be resumed, or if fixed settings changed."""
    _check_own(directory)
    if not directory.holds_a_run():  # also if it resumes: a run may die before its first checkpoint
        return
    if not resume:
        raise RunDirError(
            f"{directory.path} already holds a run; continue it with `dojang resume {directory.path}` "
            f"(in Python dojang.resume), or {CHOOSE_ANOTHER}"
        )
    done = step_of(directory.last_checkpoint())
    if config.epochs is None and config.steps < done:
        raise ConfigError(f"the run in {directory.path} has done {done} steps already; steps={config.steps} is fewer")
    if changed := _fixed(recipes.differences(recipes.load(str(directory.config)), config)):
        listing = "\n".join(
            f"  - {key}: was {old!r}, now {new!r} ({_reason(key)})" for key, (old, new) in changed.items()
        )
        raise ConfigError(
            f"these settings cannot change when a run is resumed:\n{listing}\nleave them out, or start a new run from "
            f"its weights with model.name={directory.checkpoints}/last"
        )


def _fixed(changed: Mapping[str, tuple[Any, Any]]) -> dict[str, tuple[Any, Any]]:
    return {
        key: values
        for key, values in changed.items()
        if not key.startswith(RESUMABLE) or (key.startswith(tuple(FIXED)) and key != "train.lora.publish")
    }


def _reason(key: str) -> str:
    return next((reason for prefix, reason in FIXED.items() if key.startswith(prefix)), OTHERWISE)


def write_settings(directory: RunDir, settings: Settings, config: RunConfig) -> None:
    """Writes run.json and config.yaml; keeps a config.yaml with other content as config.1.yaml, config.2.yaml, ..."""
    started = {"recipe": settings.recipe, "overrides": list(settings.overrides)}
    write_atomic(directory.run, json.dumps(started).encode())
    content = yaml.safe_dump(recipes.to_tree(config, absolute=True), sort_keys=False).encode()
    if directory.config.exists() and (former := directory.config.read_bytes()) != content:
        write_atomic(directory.next_former_config(), former)
    write_atomic(directory.config, content)


def step_of(checkpoint: Path | None) -> int:
    """Step of a checkpoint directory; 0 without one."""
    return int(checkpoint.name.removeprefix("step-")) if checkpoint else 0
