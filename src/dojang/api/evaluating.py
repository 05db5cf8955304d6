"""Evaluates a model from Python."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dojang.api.blocking import run_coroutine
from dojang.api.result import RunResult
from dojang.api.settings import Dataset, RewardFunction, check_whole, data_tree, make_config, model_of
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError
from dojang.core.progress import ProgressBars
from dojang.core.run_dir import RunDir
from dojang.evaluation.cases import Case
from dojang.evaluation.evaluate_model import EvalResult
from dojang.evaluation.evaluate_model import evaluate as evaluate_config

__all__ = ["evaluate"]


def evaluate(
    model: str | Path,
    *,
    dataset: Dataset | None = None,
    samples: int = 1,
    temperature: float | None = None,
    max_tokens: int = 256,
    task: str | Mapping[str, Any] | None = None,
    reward_funcs: RewardFunction | Sequence[RewardFunction] | None = None,
    reward_weights: Sequence[float] | None = None,
    problems: int | None = None,
    output: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
    overrides: Sequence[str] = (),
    **sections: Any,
) -> EvalResult:
    """Samples completions of every row and grades them.

    Args:
        model: a name of the catalogue, a Hugging Face or adapter directory, a hub id, or the directory of a run.
        dataset: rows, a path, a hub id or a dataset of dojang, as in `dojang.train`; all rows are evaluated. By default
            the held-out problems of the run, if `model` is a run directory.
        samples: number of completions per row; with several the result has pass@k.
        temperature: by default greedy for one sample, and 1 for several.
        max_tokens: most tokens of a completion.
        task, reward_funcs, reward_weights: grading, as in `dojang.train`.
        problems: number of rows to evaluate, from the first; by default all.
        output: directory for prompts, completions and verdicts (samples.jsonl); nothing is written without it.
        resume: go on with an evaluation that was interrupted in `output`.
        sections: further sections of a recipe, such as model={"device": "cpu"} or rollout={...}.
    """
    check_whole("samples", samples)
    if problems is not None:
        check_whole("problems", problems)
    if resume and output is None:
        raise ConfigError("resume=True needs output, the directory of the evaluation to go on with")
    data, source = _data(model, dataset)
    sampling = {"samples": samples, "temperature": float(samples > 1) if temperature is None else temperature}
    config = make_config(
        source,
        model={"name": str(model_of(model)), **sections.pop("model", {})},
        dataset=data,
        task=task,
        reward_funcs=reward_funcs,
        reward_weights=reward_weights,
        overrides=overrides,
        caller="dojang.evaluate",
        rollout={"max_tokens": max_tokens, **sections.pop("rollout", {})},
        eval={"problems": problems or 10**9, **sampling, **sections.pop("eval", {})},
        **sections,
    )
    output = None if output is None else Path(output)
    with ProgressBars(shown=progress) as bars:

        def advance(_: Case, done: int, total: int) -> None:
            bars.update("evaluating", done, total)

        return run_coroutine(lambda: evaluate_config(config, output=output, resume=resume, on_progress=advance))


def _data(model: str | Path, dataset: Dataset | None) -> tuple[dict[str, Any] | None, RunConfig | None]:
    """Returns the data section, or the configuration of the run whose held-out problems are evaluated."""
    if dataset is None:
        if not RunDir(Path(model)).config.exists():
            raise ConfigError(f"evaluating {model} needs a dataset: give rows, a path, or a name such as gsm8k")
        return None, RunResult(Path(model)).config
    data = data_tree(dataset)
    if data["name"] == "files":
        data["test"] = data["train"]
    return data, None
