"""Runs `dojang eval`: evaluates the cases, prints and writes the results.

OUTPUT/samples.jsonl      one line per completion: prompt, completion, extracted answer, verdict
OUTPUT/settings.json      configuration of each case; --resume compares it
OUTPUT/results.json       all results, per problem, with model, settings and version; --compare reads it
OUTPUT/results.csv        one line per problem
OUTPUT/report.md          tables
OUTPUT/shots.png          accuracy over the number of shots, if several
OUTPUT/comparison.{md,png}  --compare A B: table of differences, and accuracy of both models
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from dojang import __version__
from dojang.core.errors import ConfigError, Interrupted
from dojang.core.paths import check_vacant, claim, writable
from dojang.core.progress import ProgressBars
from dojang.core.run_dir import write_atomic
from dojang.evaluation.cases import Case, find_subject, make_cases
from dojang.evaluation.comparison import Comparison
from dojang.evaluation.evaluate_model import SAMPLES, EvalResult, evaluate_cases, holds_evaluation
from dojang.evaluation.options import Options
from dojang.evaluation.report import name_of, plot_shots, report, write_csv

__all__ = ["compare", "run", "write_results"]


def run(
    model: str,
    options: Options,
    *,
    data: Sequence[str] = (),
    shots: Sequence[int] = (),
    recipe: str = "",
    overrides: Sequence[str] = (),
    output: Path | None = None,
    resume: bool = False,
) -> None:
    """Evaluates the model on every dataset with every number of shots; writes to runs/eval-MODEL-N without `output`."""
    if resume and output is None:
        raise ConfigError("--resume goes on with an evaluation in a directory; name it with --output")
    if output is not None and not (resume and holds_evaluation(output)):
        check_vacant("--output", output)
    console = Console()

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    subject = find_subject(model, recipe)
    cases = make_cases(subject, data, shots, options, overrides, say)
    with writable("--output", output or Path("runs")):
        output = output or claim(Path("runs"), f"eval-{Path(model).name}")
    try:
        results = _with_progress(cases, output, console, resume=resume)
    except KeyboardInterrupt:
        if not holds_evaluation(output):
            raise  # it was interrupted before the first sample, and left nothing
        raise Interrupted(
            f"stopped; finished samples are in {output / SAMPLES}. Go on with the same command and --output {output} "
            "--resume"
        ) from None
    about = {"model": model, "trained_from": subject.trained_from, "recipe": recipe, "overrides": list(overrides)}
    say(write_results(output, about, results))
    for each in results:
        if each.overlong_prompts:
            say(f"{each.data}: {each.overlong_prompts:,} overlong prompts dropped")
    say(f"written to {output}; every completion with its verdict is in {output / SAMPLES}")


def write_results(output: Path, about: Mapping[str, Any], results: Sequence[EvalResult]) -> str:
    """Writes results.json, results.csv, report.md and shots.png; returns the report."""
    found = {
        "version": __version__,
        **about,
        "settings": _settings(results[0]),
        "results": [each.as_json() for each in results],
    }
    text = report(found)
    with writable("--output", output):
        write_atomic(output / "results.json", (json.dumps(found, indent=1) + "\n").encode())
        write_csv(output / "results.csv", found)
        (output / "report.md").write_text(text)
        if len({each.shots for each in results}) > 1:
            plot_shots(output / "shots.png", found)
    return text


def compare(first: Path, second: Path, output: Path | None = None) -> None:
    """Prints the differences of two evaluations on their common problems; with `output`, draws both."""
    if output is not None:
        check_vacant("--output", output)
    found = Comparison.of(first, second)
    console = Console()
    console.print(found.table(), markup=False, highlight=False, soft_wrap=True)
    if output is not None:
        with writable("--output", output):
            output.mkdir(parents=True, exist_ok=True)
        (output / "comparison.md").write_text(f"{found.table()}\n![accuracy of both models](comparison.png)\n")
        found.plot(output / "comparison.png")
        console.print(f"written to {output}", markup=False, highlight=False)


def _settings(result: EvalResult) -> dict[str, Any]:
    config = result.config
    return {
        "samples": config.eval.samples,
        "temperature": config.eval.temperature,
        **{key: getattr(config.eval, key) for key in ("top_p", "top_k", "min_p")},
        "problems": config.eval.problems,
        "max_tokens": config.rollout.max_tokens,
        "seed": config.seed,
        "device": config.model.device,
        "dtype": config.model.dtype,
    }


def _with_progress(cases: Sequence[Case], output: Path, console: Console, *, resume: bool) -> list[EvalResult]:
    """Evaluates the cases with a progress bar for each."""
    with ProgressBars(console) as bars:

        def advance(case: Case, done: int, total: int) -> None:
            bars.update(name_of({"data": case.data, "shots": case.shots}), done, total)

        return asyncio.run(evaluate_cases(cases, output=output, resume=resume, on_progress=advance))
