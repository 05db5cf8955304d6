"""Runs `dojang eval`: evaluates the cases, prints and writes the results.

OUTPUT/results.json       everything, problem by problem: what --compare reads
OUTPUT/results.csv        a line for each problem
OUTPUT/report.md          the tables
OUTPUT/shots.png          accuracy over the number of shots, if several were asked for
OUTPUT/comparison.{md,png}  of --compare A B: the table of differences, and accuracy of both models
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dojang.config.recipe import to_tree
from dojang.core.paths import check_vacant, claim, writable
from dojang.evaluation.cases import Case, Options, find_subject, make_cases
from dojang.evaluation.comparison import Comparison
from dojang.evaluation.report import name_of, plot_shots, report, write_csv
from dojang.loop.scores import Scores

if TYPE_CHECKING:
    from dojang.evaluation.evaluator import Examiner

__all__ = ["compare", "evaluate"]

_KS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


def evaluate(
    model: str,
    options: Options,
    *,
    data: Sequence[str] = (),
    shots: Sequence[int] = (),
    recipe: str = "",
    overrides: Sequence[str] = (),
    output: Path | None = None,
) -> None:
    """Evaluates the model on every dataset with every number of shots; writes to evals/MODEL-N without `output`."""
    if output is not None:
        check_vacant("--output", output)
    console = Console()

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    subject = find_subject(model, recipe)
    cases = make_cases(subject, data, shots, options, overrides, say)
    with writable("--output", output or Path("evals")):
        output = output or claim(Path("evals"), Path(model).name)
        output.mkdir(parents=True, exist_ok=True)
    from dojang.runs.training import load_rooms

    load_rooms()
    from dojang.evaluation.evaluator import Examiner

    results = asyncio.run(_examine(Examiner(cases[0].config), cases, console))
    found = {
        "model": model,
        "trained_from": subject.trained_from,
        "recipe": recipe,
        "overrides": list(overrides),
        "settings": _settings(cases[0]),
        "results": [_result(case, *each) for case, each in zip(cases, results, strict=True)],
    }
    (output / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    write_csv(output / "results.csv", found)
    text = report(found)
    (output / "report.md").write_text(text)
    if len(shots) > 1:
        plot_shots(output / "shots.png", found)
    say(text)
    say(f"written to {output}")


def compare(first: Path, second: Path, output: Path | None = None) -> None:
    """Prints how much better the second evaluation is on the problems both have; draws both if there is an `output`."""
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


def _settings(case: Case) -> dict[str, Any]:
    config = case.config
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


def _result(case: Case, scores: Scores, dropped: int) -> dict[str, Any]:
    ks = [k for k in _KS if k <= case.config.eval.samples]
    return {
        "data": case.data,
        "shots": case.shots,
        **scores.as_json(ks),
        "overlong_prompts": dropped,
        "config": to_tree(case.config),
        "answers": list(map(asdict, scores.answers)),
    }


async def _examine(examiner: "Examiner", cases: Sequence[Case], console: Console) -> list[tuple[Scores, int]]:
    """The scores of each case, and the number of overlong prompts that were left out."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            results = []
            for case in cases:
                bar = progress.add_task(name_of({"data": case.data, "shots": case.shots}), total=None)

                def told(total: int, bar: Any = bar) -> None:
                    progress.update(bar, total=total, advance=1)

                scores = Scores.of(await examiner.examine(case.config, told))
                results.append((scores, examiner.dropped))
                if examiner.dropped:
                    said = f"{case.data}: {examiner.dropped:,} overlong prompts left out"
                    console.print(said, markup=False, highlight=False, soft_wrap=True)
            return results
    finally:
        await examiner.close()
