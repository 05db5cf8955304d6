"""Trains from Python: `dojang.train` and `dojang.resume`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from dojang.api.blocking import call_without_loop, handlers_restored
from dojang.api.result import RunResult
from dojang.api.settings import Dataset, RewardFunction, Source, listed_functions, make_config
from dojang.core.errors import ConfigError
from dojang.core.in_process import function_name, register_again
from dojang.core.run_dir import RunDir
from dojang.planning.checkpointed_layers import resolve_for_this_machine
from dojang.runs import training
from dojang.runs.resume import Settings, settings_of
from dojang.runs.stop import StopRequest

__all__ = ["resume", "train"]


def train(
    config: Source | None = None,
    *,
    model: str | Path | Mapping[str, Any] | None = None,
    dataset: Dataset | None = None,
    eval_dataset: Dataset | None = None,
    reward_funcs: RewardFunction | Sequence[RewardFunction] | None = None,
    reward_weights: Sequence[float] | None = None,
    task: str | Mapping[str, Any] | None = None,
    algo: str | Mapping[str, Any] | None = None,
    steps: int | None = None,
    run_dir: str | Path | None = None,
    overrides: Sequence[str] = (),
    progress: bool = True,
    **sections: Any,
) -> RunResult:
    """Trains a model and returns the result of the run.

    Args:
        config: a recipe's name, a YAML file, a tree of settings or a RunConfig to start from.
        model: a name of the catalogue, a Hugging Face directory, or a hub id (org/name).
        dataset: rows as a list of dicts, a DataFrame, a Table or a datasets.Dataset; a path or hub id; the name of a
            dataset of dojang (gsm8k, arithmetic, ...) or its section of a recipe. A row has a `prompt` (text or
            messages) or a `question`, and an `answer` unless reward functions alone decide.
        eval_dataset: held-out rows; by default a tenth of the rows, at least one.
        reward_funcs: Python functions, or names such as package.module:function; their sum is the reward.
        reward_weights: one weight for each reward function; by default 1.
        task: how completions are graded: answer_line, maths, code, ... By default it follows from the dataset, or is
            the reward functions.
        algo: grpo, dapo, gspo, m2po, ... or the section of a recipe.
        steps: number of training steps.
        run_dir: directory of the run; by default a new one under runs/. Required under torchrun.
        overrides: settings as on the command line, such as ["train.lr=1e-5"].
        progress: whether to print progress.
        sections: further sections of a recipe, such as train={"lr": 1e-5} or rollout={"group_size": 8}.

    Blocks until the run has ended, in a script, a thread or a notebook. Ctrl-C saves a checkpoint and raises
    Interrupted; `dojang.resume(run_dir)` continues.
    """
    resolved = make_config(
        config,
        model=model,
        dataset=dataset,
        eval_dataset=eval_dataset,
        reward_funcs=reward_funcs,
        reward_weights=reward_weights,
        task=task,
        algo=algo,
        steps=steps,
        overrides=overrides,
        **sections,
    )
    if run_dir is None and training.process_count() > 1:
        raise ConfigError(
            "torchrun started several processes, which must use one run directory; give run_dir, the same in each"
        )
    name = str(config) if isinstance(config, str | Path) else "train"
    directory = training.new_directory(name) if run_dir is None else RunDir(Path(run_dir))
    return _run(directory, Settings(resolved, name, list(overrides)), resume=False, progress=progress)


def resume(
    run_dir: str | Path,
    *,
    reward_funcs: RewardFunction | Sequence[RewardFunction] | None = None,
    overrides: Sequence[str] = (),
    progress: bool = True,
) -> RunResult:
    """Continues a run from its last checkpoint, with its settings and further overrides such as ["steps=200"].

    Give `reward_funcs` again if the run was started with Python functions of a script or notebook.
    """
    directory = RunDir(Path(run_dir))
    if reward_funcs is not None:
        _register_again(directory, listed_functions(reward_funcs))
    return _run(directory, settings_of(None, overrides, directory, resume=True), resume=True, progress=progress)


def _register_again(directory: RunDir, functions: Sequence[RewardFunction]) -> None:
    """Gives functions the names that they had when the run was started. Raises ConfigError if it had others."""
    names = list(getattr(RunResult(directory.path).config.task, "rewards", {}))
    left, others = list(names), []
    for each in functions:
        found = each if isinstance(each, str) else register_again(each, left)
        if found in left:
            left.remove(found)
        else:
            others.append(function_name(each))
    if others:
        known = ", ".join(map(function_name, names)) or "none"
        raise ConfigError(
            f"the run in {directory.path} was started with the reward functions {known}, not {', '.join(others)}: "
            "rewards cannot change during a run; give the same functions, or start a new run from its best_model"
        )


def _run(directory: RunDir, settings: Settings, *, resume: bool, progress: bool) -> RunResult:
    stop = StopRequest()

    def run() -> None:
        training.start(
            directory,
            settings,
            resume=resume,
            console=Console(quiet=not progress),
            stop=stop,
            fit=resolve_for_this_machine,
        )

    with handlers_restored():
        call_without_loop(run, on_interrupt=stop.ask)
    return RunResult(directory.path)
