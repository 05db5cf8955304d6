"""Trains with a recipe, and evaluates the model before and after on the same problems.

    python bench/before_after.py OUT_DIR --recipe gsm8k-qwen2.5-coder-1.5b \\
        --eval "shots: --recipe gsm8k-qwen2.5-coder-1.5b --data gsm8k=data/gsm8k --shots 0,2,4,8" data.path=data/gsm8k

--eval is a name and the arguments of `dojang eval`, and may be repeated. The base model is the recipe's; the trained
one is the last checkpoint, not the best one: choosing a checkpoint by held-out problems would favour it on them.
Settings after the options go to the training run.

OUT_DIR gets result.json (commands, machine, accuracies with intervals, differences, time, memory), metrics.jsonl,
reward.png, a chart of each comparison, and in `work/` the run and the evaluations. What is finished is not repeated;
an OUT_DIR with the results of other settings is refused.
"""

import argparse
import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from statistics import median
from typing import Any

from dojang_process import SOURCE, curve, dojang, keep_command, keep_training, train
from machine import machine

WORK, RUN = "work", "run"
MEMORY = "perf/max_memory_allocated_gb"


def named(text: str) -> tuple[str, list[str]]:
    name, colon, arguments = text.partition(":")
    if not (name.isidentifier() and colon and arguments.split()):
        raise argparse.ArgumentTypeError(f"{text!r} must have the form 'NAME: ARGUMENTS of dojang eval'")
    return name, shlex.split(arguments)


def evaluate(folder: Path, model: str, arguments: list[str]) -> None:
    """Evaluates once. An evaluation that broke off goes on."""
    if not (folder / "results.json").exists():
        resume = ["--resume"] if folder.is_dir() else []
        dojang(folder.with_suffix(".log"), "eval", model, *arguments, "--output", str(folder), *resume)


def accuracies(folder: Path) -> list[dict[str, Any]]:
    """Accuracy, reward and answer length of each dataset and number of shots."""
    results = json.loads((folder / "results.json").read_text())["results"]
    names = ("data", "shots", "accuracy", "pass_at", "reward", "length", "finish", "outcomes", "judge_errors")
    return [{name: each[name] for name in names} for each in results]


def speed(run: Path) -> dict[str, float]:
    """Median seconds of a step and its stages, and the largest GPU memory."""
    names = ("timing_s/step", "timing_s/rollout", "timing_s/update", "timing_s/load", "timing_s/wait")
    found = {name: list(curve(run, name).values()) for name in names}
    memory = curve(run, MEMORY)
    return {
        **{name: median(values) for name, values in found.items() if values},
        **({MEMORY: max(memory.values())} if memory else {}),
    }


def compare(out: Path, name: str) -> str:
    """Writes the chart of a comparison, and returns its table."""
    work = out / WORK
    folder = work / f"compared-{name}"
    if not (folder / "comparison.md").exists():
        pair = (str(work / f"before-{name}"), str(work / f"after-{name}"))
        dojang(work / f"compared-{name}.log", "eval", "--compare", *pair, "--output", str(folder))
    shutil.copyfile(folder / "comparison.png", out / f"{name}.png")
    return (folder / "comparison.md").read_text()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="directory for the results")
    parser.add_argument("--recipe", required=True)
    parser.add_argument("--eval", type=named, action="append", required=True, metavar="'NAME: ARGUMENTS'")
    parser.add_argument("--base", type=Path, help="OUT_DIR of another run whose evaluations of the base model are used")
    options, settings = parser.parse_known_args()
    if wrong := [each for each in settings if "=" not in each or each.startswith("-")]:
        parser.error(f"not an option, nor a setting key=value: {' '.join(wrong)}")
    work = options.out.resolve() / WORK
    sys.path.insert(0, str(SOURCE))
    from dojang.config.recipe import load
    from dojang.core.errors import DojangError

    try:
        base = load(options.recipe, settings).model.name
    except DojangError as error:
        raise SystemExit(str(error)) from None
    keep_training(options.recipe, work / RUN, *settings)
    for name, arguments in options.eval:
        command = [base, *arguments]
        keep_command(work / f"eval-{name}.json", command, work / f"before-{name}")
        if options.base and not (work / f"before-{name}").exists():
            theirs = options.base.resolve() / WORK
            if not (theirs / f"before-{name}" / "results.json").exists():
                raise SystemExit(f"--base {options.base} has no finished evaluation {name!r} of the base model")
            keep_command(theirs / f"eval-{name}.json", command, theirs / f"before-{name}")
            (work / f"before-{name}").symlink_to(theirs / f"before-{name}")
    for name, arguments in options.eval:
        evaluate(work / f"before-{name}", base, arguments)
    summary = train(options.recipe, work / RUN, *settings)
    result: dict[str, Any] = {
        "machine": machine(),
        "train": ["dojang", "train", options.recipe, *settings],
        "summary": {name: summary[name] for name in ("steps", "seconds", "eval")},
        "speed": speed(work / RUN),
        "evaluations": {},
    }
    for name, arguments in options.eval:
        evaluate(work / f"after-{name}", os.path.relpath(work / RUN / "checkpoints" / "last"), arguments)
        table = compare(options.out, name)
        result["evaluations"][name] = {
            "arguments": arguments,
            "before": accuracies(work / f"before-{name}"),
            "after": accuracies(work / f"after-{name}"),
            "differences": [line for line in table.splitlines() if line.startswith("|")],
        }
        print(table)
    for name in ("metrics.jsonl", "reward.png"):
        shutil.copyfile(work / RUN / name, options.out / name)
    (options.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
