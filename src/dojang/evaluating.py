"""`dojang eval`: a model on held-out problems, and two evaluations beside each other.

OUTPUT/results.json    everything, problem by problem: what --compare reads
OUTPUT/results.csv     a line for each problem
OUTPUT/report.md       the tables
OUTPUT/shots.png       accuracy by the number of examples shown, if several numbers were asked for
"""

import asyncio
import csv
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dojang.config import RunConfig
from dojang.data.prepared import PreparedConfig
from dojang.errors import ConfigError, DataError
from dojang.loop.scores import Scores
from dojang.loop.statistics import compare as paired
from dojang.places import check_vacant, claim

__all__ = ["Settings", "compare", "evaluate", "numbers"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How to evaluate."""

    samples: int
    temperature: float
    problems: int
    max_tokens: int
    seed: int
    device: str
    dtype: str


@dataclass(frozen=True, slots=True)
class _Case:
    data: str
    shots: int | None
    config: RunConfig


def evaluate(model: str, data: Sequence[str], shots: Sequence[int], settings: Settings, output: Path | None) -> None:
    """Every dataset, with every number of examples; print and write what was found, under evals/ if nothing is said."""
    if output is not None:
        check_vacant("--output", output)
    counts: Sequence[int | None] = shots or [None]
    cases = [_case(_model(model), each, count, settings) for each in data for count in counts]
    output = output or claim(Path("evals"), Path(model).name)
    output.mkdir(parents=True, exist_ok=True)
    from dojang.runner import load_rooms

    load_rooms()
    from dojang import compose

    console = Console()
    results = asyncio.run(_examine(compose.Examiner(cases[0].config), cases, console))
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64, 128, 256) if k <= settings.samples]
    found = {
        "model": model,
        "settings": asdict(settings),
        "results": [
            {"data": case.data, "shots": case.shots, **scores.as_json(ks), "answers": list(map(asdict, scores.answers))}
            for case, scores in zip(cases, results, strict=True)
        ],
    }
    (output / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    _write_csv(output / "results.csv", found)
    report = _report(found)
    (output / "report.md").write_text(report)
    if len(shots) > 1:
        _plot(output / "shots.png", found)
    console.print(report, markup=False, highlight=False, soft_wrap=True)
    console.print(f"written to {output}", markup=False, highlight=False)


def compare(first: Path, second: Path) -> None:
    """How much better the second is than the first, on the problems both have."""
    Console().print(_comparison(_read(first), _read(second)), markup=False, highlight=False, soft_wrap=True)


def numbers(text: str) -> list[int]:
    """0,2,4,8"""
    try:
        return [int(each) for each in text.split(",")] if text else []
    except ValueError:
        raise ConfigError(f"--shots {text} must be numbers with commas between, such as 0,2,4,8") from None


async def _examine(examiner: Any, cases: Sequence[_Case], console: Console) -> list[Scores]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=console, transient=True) as progress:
            results = []
            for case in cases:
                name = case.data if case.shots is None else f"{case.data}, {case.shots} shots"
                bar = progress.add_task(name, total=None)

                def told(total: int, bar: Any = bar) -> None:
                    progress.update(bar, total=total, advance=1)

                results.append(Scores.of(await examiner.examine(case.config, told)))
            return results
    finally:
        await examiner.close()


def _model(name: str) -> str:
    """A run stands for its best checkpoint."""
    path = Path(name)
    for link in ("best", "last"):
        if (path / "checkpoints" / link).exists():
            path = path / "checkpoints" / link
            break
    if (path / "adapter_config.json").exists():
        raise ConfigError(f"{path} holds an adapter; `dojang export {name} DIR` merges it, then evaluate DIR")
    return str(path) if path.is_dir() else name


def _case(model: str, data: str, shots: int | None, settings: Settings) -> _Case:
    name, _, place = data.partition("=")
    section, task = _sections(name, place)
    if shots is not None:
        if name != "gsm8k":
            raise ConfigError(f"--shots is for gsm8k; {name} has no examples to show")
        section["shots"] = shots
    tree = {
        "model": {"name": model, "device": settings.device, "dtype": settings.dtype},
        "data": section,
        "task": task,
        "rollout": {"max_tokens": settings.max_tokens},
        "seed": settings.seed,
        "eval": {
            "samples": settings.samples,
            "temperature": settings.temperature,
            "problems": settings.problems,
        },
    }
    try:
        return _Case(name, shots, RunConfig.model_validate(tree))
    except ValidationError as error:
        said = "\n".join(f"  - {'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise ConfigError(f"this cannot be evaluated:\n{said}") from None


def _sections(name: str, place: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The data, and the task that grades it."""
    if Path(name).is_dir():
        return {"name": "prepared", "path": name}, {"name": PreparedConfig(path=Path(name)).grader("test")}
    if name in ("arithmetic", "gsm8k", "functions", "tiny_programs"):
        written = name in ("functions", "tiny_programs")
        task = {"name": "code", "language": "python3"} if written else {"name": "answer_line"}
        return {"name": name, **({"path": place} if place else {})}, task
    if name == "reasoning_gym":
        return {"name": name, "generators": {each: {} for each in filter(None, place.split("+"))}}, {"name": name}
    raise ConfigError(
        f"--data {name} is neither gsm8k, arithmetic, functions, tiny_programs or reasoning_gym nor a directory that "
        "`dojang data prepare` has made"
    )


def _name(result: dict[str, Any]) -> str:
    return str(result["data"]) if result["shots"] is None else f"{result['data']}, {result['shots']} shots"


def _shown(estimate: dict[str, Any]) -> str:
    return f"{estimate['value']:.1%} [{estimate['low']:.1%}, {estimate['high']:.1%}]"


def _table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _report(found: dict[str, Any]) -> str:
    results, settings = found["results"], found["settings"]
    how = "greedy" if settings["temperature"] == 0 else f"temperature {settings['temperature']:g}"
    ks = list(dict.fromkeys(k for result in results for k in result["pass_at"]))[1:]
    rows = [
        [
            _name(result),
            result["accuracy"]["problems"],
            _shown(result["accuracy"]),
            *(_shown(result["pass_at"][k]) if k in result["pass_at"] else "" for k in ks),
            f"{result['length']:.0f}",
            result["judge_errors"],
        ]
        for result in results
    ]
    headings = ["", "problems", "accuracy", *(f"pass@{k}" for k in ks), "tokens", "judge errors"]
    parts = [
        f"# {found['model']}",
        f"Answers a problem: {settings['samples']}, {how}, at most {settings['max_tokens']} tokens; 95% intervals.",
        _table(headings, rows),
    ]
    for result in results:
        if result["tiers"]:
            tiers = [[name, each["problems"], _shown(each)] for name, each in result["tiers"].items()]
            parts.append(_table([_name(result), "problems", "accuracy"], tiers))
    outcomes = list(dict.fromkeys(name for result in results for name in result["outcomes"]))
    shares = [[_name(result), *(f"{result['outcomes'].get(each, 0):.1%}" for each in outcomes)] for result in results]
    return "\n\n".join([*parts, _table(["share of answers", *outcomes], shares)]) + "\n"


def _write_csv(path: Path, found: dict[str, Any]) -> None:
    with path.open("w", newline="") as file:
        columns = ["data", "shots", *found["results"][0]["answers"][0]]
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        for result in found["results"]:
            for answer in result["answers"]:
                writer.writerow({"data": result["data"], "shots": result["shots"], **answer})


def _plot(path: Path, found: dict[str, Any]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for data in dict.fromkeys(result["data"] for result in found["results"]):
        results = sorted((each for each in found["results"] if each["data"] == data), key=lambda each: each["shots"])
        values = [each["accuracy"] for each in results]
        gaps = [
            [each["value"] - each["low"] for each in values],
            [each["high"] - each["value"] for each in values],
        ]
        shots = [each["shots"] for each in results]
        axes.errorbar(shots, [each["value"] for each in values], gaps, marker="o", capsize=3, label=data)
        axes.set_xticks(shots)
    axes.set(xlabel="examples shown", ylabel="accuracy", ylim=(0, None))
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)


def _read(path: Path) -> dict[str, Any]:
    file = path / "results.json" if path.is_dir() else path
    try:
        found: dict[str, Any] = json.loads(file.read_text())
        if not isinstance(found["results"], list):
            raise TypeError("no results")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} is not what `dojang eval --output` writes: {error}") from None
    return found


def _comparison(first: dict[str, Any], second: dict[str, Any]) -> str:
    results = {_name(result): result for result in first["results"]}
    rows = []
    for result in second["results"]:
        if (name := _name(result)) not in results:
            continue
        before, after = (
            {each["id"]: each["right"] / each["attempts"] for each in which["answers"]}
            for which in (results[name], result)
        )
        both = [key for key in before if key in after]
        if not both:
            continue
        gap = paired([before[key] for key in both], [after[key] for key in both])
        means = [sum(which[key] for key in both) / len(both) for which in (before, after)]
        rows.append(
            [
                name,
                len(both),
                *(f"{mean:.1%}" for mean in means),
                f"{gap.mean:+.1%} [{gap.low:+.1%}, {gap.high:+.1%}]",
                f"{gap.p:.2g}" if gap.p else "< 0.0001",
            ]
        )
    if not rows:
        raise DataError("the two evaluations have no problems in common")
    headings = ["", "problems", first["model"], second["model"], "difference", "p"]
    return _table(headings, rows) + "\n\n95% intervals and p of a paired bootstrap over problems.\n"
