"""Repeats the measurements of docs/results/qwen2.5-coder-1.5b.md, one after another, as many as fit into the time.

    python bench/repeat_results.py OUT_DIR --data data --only qlora,distillation --minutes 25

The directory --data has gsm8k/ (train.jsonl and test.jsonl), and mbpp/, humaneval/ and code_contests_easy/ as `dojang
data prepare` writes them. A measurement is started if its estimated seconds on one H200 are left; each has its results
and its log in OUT_DIR. The command can be given again: what is finished is not repeated, and what broke off goes on
(beside-trl is refused then: remove its directory). OUT_DIR/status.json tells how each one ended; the exit code is 0 if
all are finished.
"""

import argparse
import json
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from dojang_process import environment

BENCH = Path(__file__).resolve().parent
FINISHED = "finished"
_FOLDER = re.compile(r"\b(?:OUT|DATA)(?=/)")
BESIDE_TRL = (
    *("rollout.prompts_per_step=32", "rollout.engine.kv_cache_gb=16", "train.warmup_steps=2"),
    *("train.schedule=constant", "train.min_lr_ratio=0", "--steps", "8", "--trl-batch", "16", "--problems", "1319"),
)


@dataclass(frozen=True)
class Measurement:
    """Commands whose `OUT` and `DATA` are the directories; `bench/NAME.py` is a script, anything else is dojang's."""

    seconds: int
    """Estimate of all commands on one H200; some have run only in part."""
    commands: tuple[tuple[str, ...], ...]
    needs: str = ""
    """Another measurement, whose results it uses."""


def before_after(name: str, recipe: str, *settings: str, **evaluations: str) -> tuple[str, ...]:
    """A recipe trained, and evaluated before and after."""
    named = [part for each, text in evaluations.items() for part in ("--eval", f"{each}: {text}")]
    return ("bench/before_after.py", f"OUT/{name}", "--recipe", recipe, *settings, *named)


SHOTS = "--data gsm8k=DATA/gsm8k --shots 0,2,4,8 rollout.engine.kv_cache_gb=8"
QLORA, TOOL = "gsm8k-qwen2.5-coder-1.5b-qlora", "python-tool-1.5b"
NO_CHECKPOINTING = "train.gradient_checkpointing=false"
TEACHER = "OUT/distillation-teacher"
MEASUREMENTS = {
    "qlora": Measurement(
        560,
        (
            before_after(
                *(
                    "qlora",
                    QLORA,
                    "data.path=DATA/gsm8k",
                    "steps=120",
                    "rollout.engine.kv_cache_gb=8",
                    NO_CHECKPOINTING,
                ),
                *("train.max_tokens_per_microbatch=16384", "checkpoint.every=60"),
                shots=f"--recipe {QLORA} {SHOTS}",
            ),
        ),
    ),
    "coder-tester": Measurement(
        450,
        (
            (
                *("train", "coder-tester-1.5b", "data.path=DATA/mbpp", "judge.workers=10", "eval.problems=256"),
                *("train.max_tokens_per_microbatch=8192", "--run-dir", "OUT/coder-tester"),
            ),
        ),
    ),
    "beside-trl": Measurement(
        400,
        (
            (
                *("bench/trl_grpo.py", "gsm8k-qwen2.5-coder-1.5b", "data.path=DATA/gsm8k", *BESIDE_TRL),
                *("--stages", "dojang-sync,trl,eval", "--output", "OUT/beside-trl"),
            ),
        ),
    ),
    "distillation": Measurement(
        350,
        (
            ("export", "OUT/qlora/work/run", TEACHER, "--which", "last"),
            before_after(
                *("distillation", "gsm8k-smollm2-distill", "data.path=DATA/gsm8k", "steps=150"),
                *("rollout.engine.kv_cache_gb=3", "train.max_tokens_per_microbatch=16384"),
                f"distillation.teacher={TEACHER}",
                greedy="--recipe smollm2-gsm8k --data gsm8k=DATA/gsm8k --shots 0 --max-tokens 320 "
                "rollout.engine.kv_cache_gb=3",
            ),
        ),
        needs="qlora",
    ),
    "python-tool": Measurement(
        420,
        (
            before_after(
                *("python-tool", TOOL, "data.path=DATA/gsm8k", "rollout.engine.kv_cache_gb=16", NO_CHECKPOINTING),
                *("checkpoint.metric=critic/rewards/mean",),
                greedy=f"--recipe {TOOL} --data gsm8k=DATA/gsm8k rollout.engine.kv_cache_gb=16",
            ),
        ),
    ),
    "gsm8k": Measurement(
        600,
        (
            before_after(
                *("gsm8k", "gsm8k-qwen2.5-coder-1.5b", "data.path=DATA/gsm8k", "rollout.engine.kv_cache_gb=10"),
                *("checkpoint.every=100", "checkpoint.metric=critic/rewards/mean"),
                shots=f"--recipe gsm8k-qwen2.5-coder-1.5b {SHOTS}",
            ),
        ),
    ),
    "mbpp": Measurement(
        700,
        (
            before_after(
                *("mbpp", "mbpp-1.5b", "data.path=DATA/mbpp", "rollout.engine.kv_cache_gb=10", NO_CHECKPOINTING),
                *("checkpoint.metric=critic/rewards/mean",),
                greedy="--recipe mbpp-1.5b --data DATA/mbpp,DATA/humaneval --max-tokens 512",
                sampled="--recipe mbpp-1.5b --data DATA/mbpp,DATA/humaneval --max-tokens 512 --samples 4",
            ),
        ),
    ),
    "codefu": Measurement(
        1000,
        (
            before_after(
                *("codefu", "codefu-1.5b", "data.path=DATA/code_contests_easy", "judge.workers=12", "steps=36"),
                *("rollout.engine.kv_cache_gb=14", "checkpoint.metric=critic/rewards/mean"),
                held_out="--recipe codefu-1.5b data.path=DATA/code_contests_easy --samples 8",
                humaneval="--recipe codefu-1.5b --data DATA/humaneval",
            ),
        ),
    ),
}


def arguments(command: tuple[str, ...], out: Path, data: Path) -> list[str]:
    """The command line of a command; a run that is there already goes on."""
    folders = {"OUT": str(out), "DATA": str(data)}

    def filled(part: str) -> str:
        """Arguments of evaluations are one text, which is split at spaces."""
        quote = shlex.quote if " " in part else str
        return _FOLDER.sub(lambda found: quote(folders[found[0]]), part)

    first, *rest = map(filled, command)
    if first.startswith("bench/"):
        return [sys.executable, str(BENCH / Path(first).name), *rest]
    resume = ["--resume"] if first == "train" and Path(rest[-1]).is_dir() else []
    return [sys.executable, "-m", "dojang", first, *rest, *resume]


def missing_data(measurement: Measurement, data: Path) -> list[str]:
    """Datasets of a measurement that are not there."""
    text = " ".join(part for command in measurement.commands for part in command)
    return sorted({name for name in re.findall(r"\bDATA/(\w+)", text) if not (data / name).is_dir()})


def measure(measurement: Measurement, out: Path, data: Path, log: Path) -> int:
    """Runs the commands with their output in `log`. Returns the exit status of the first that fails, or 0."""
    with log.open("a") as file:
        for command in measurement.commands:
            line = arguments(command, out, data)
            if command[0] == "export" and (Path(line[-3]) / "config.json").exists():
                continue
            print("$", shlex.join(line), file=file, flush=True)
            ended = subprocess.run(line, stdout=file, stderr=subprocess.STDOUT, env=environment(), check=False)
            if ended.returncode:
                return ended.returncode
    return 0


def play(name: str, status: dict[str, str], left: float, out: Path, data: Path) -> str:
    """Runs a measurement if it can and fits into the seconds that are left; returns its status."""
    measurement = MEASUREMENTS[name]
    if measurement.needs and status.get(measurement.needs) != FINISHED:
        return f"not started: it needs {measurement.needs}, which is not finished"
    if missing := missing_data(measurement, data):
        return f"not started: {data} has no {', '.join(missing)}"
    if left < measurement.seconds:
        return f"not started: it needs {measurement.seconds} s, and {max(0, left):.0f} s are left"
    started = time.monotonic()
    print(f"{name}: started, log in {out / name}.log", flush=True)
    code = measure(measurement, out, data, out / f"{name}.log")
    print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    return f"failed with exit code {code}; see {name}.log" if code else FINISHED


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="directory for the results")
    parser.add_argument("--data", type=Path, required=True, help="directory of the datasets")
    parser.add_argument("--only", default=",".join(MEASUREMENTS), help="measurements, in this order (default: all)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="time for all (default: no limit)")
    options = parser.parse_args()
    names = [each.strip() for each in options.only.split(",")]
    if unknown := sorted({*names} - {*MEASUREMENTS}):
        parser.error(f"--only: unknown {', '.join(map(repr, unknown))}; known: {', '.join(MEASUREMENTS)}")
    if not options.data.is_dir():
        parser.error(f"--data {options.data} is not a directory")
    if not options.minutes > 0:
        parser.error("--minutes must be more than 0")
    out, data = options.out.resolve(), options.data.resolve()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"{out} cannot be made: {error.strerror}")
    path, end = out / "status.json", time.monotonic() + 60 * options.minutes
    status: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    for name in names:
        if status.get(name) != FINISHED:
            status[name] = play(name, status, end - time.monotonic(), out, data)
        print(f"{name}: {status[name]}", flush=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(status, indent=1) + "\n")
        new.replace(path)
    sys.exit(any(status[name] != FINISHED for name in names))


if __name__ == "__main__":
    main()
