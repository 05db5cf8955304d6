"""Repeats the measurements of docs/results/qwen2.5-coder-1.5b.md and the distillation of smollm2-gsm8k.md, one after
another, as many as fit into the time.

    python bench/repeat_results.py OUT_DIR --data data --only qlora,distillation --minutes 25

The directory --data has gsm8k/ (train.jsonl and test.jsonl), and mbpp/, humaneval/ and code_contests_easy/ as `dojang
data prepare` writes them. A measurement is started if its estimated seconds on one H200 are left; each has its results
and its log in OUT_DIR. The command can be given again: what is finished is not repeated, and what broke off goes on
(beside-trl is refused then: remove its directory); an OUT_DIR with results of other commands, or of another --data, is
refused. OUT_DIR/status.json tells how each one ended; the exit code is 0 if
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

from dojang_process import environment, keep_command

BENCH = Path(__file__).resolve().parent
FINISHED = "finished"
_FOLDER = re.compile(r"\b(?:OUT|DATA)(?=/)")


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


EVAL_GSM8K = "--data gsm8k=DATA/gsm8k"
SHOTS = f"{EVAL_GSM8K} --shots 0,2,4,8 rollout.engine.kv_cache_gb=8"
EVAL_MBPP = "--recipe mbpp-1.5b --data DATA/mbpp,DATA/humaneval --max-tokens 512"
NO_CHECKPOINTING = "train.gradient_checkpointing=false"
BY_REWARD = "checkpoint.metric=critic/rewards/mean"
TEACHER = "OUT/distillation-teacher"

QLORA = before_after(
    "qlora",
    "gsm8k-qwen2.5-coder-1.5b-qlora",
    "data.path=DATA/gsm8k",
    "steps=120",
    "rollout.engine.kv_cache_gb=8",
    NO_CHECKPOINTING,
    "train.max_tokens_per_microbatch=16384",
    "checkpoint.every=60",
    shots=f"--recipe gsm8k-qwen2.5-coder-1.5b-qlora {SHOTS}",
)
CODER_TESTER = (
    "train",
    "coder-tester-1.5b",
    "data.path=DATA/mbpp",
    "judge.workers=10",
    "eval.problems=256",
    "train.max_tokens_per_microbatch=16384",
    "--run-dir",
    "OUT/coder-tester",
)
BESIDE_TRL = (
    "bench/trl_grpo.py",
    "gsm8k-qwen2.5-coder-1.5b",
    "data.path=DATA/gsm8k",
    "rollout.prompts_per_step=32",
    "rollout.engine.kv_cache_gb=16",
    "train.warmup_steps=2",
    "train.schedule=constant",
    "train.min_lr_ratio=0",
    "--steps=8",
    "--trl-batch=16",
    "--problems=1319",
    "--stages=dojang-sync,trl,eval",
    "--output=OUT/beside-trl",
)
DISTILLATION = before_after(
    "distillation",
    "gsm8k-smollm2-distill",
    "data.path=DATA/gsm8k",
    "steps=150",
    "rollout.engine.kv_cache_gb=3",
    "train.max_tokens_per_microbatch=16384",
    f"distillation.teacher={TEACHER}",
    "train.mask_truncated_completions=true",  # without it a student went on until the limit, which has a low KL
    greedy=f"--recipe smollm2-gsm8k {EVAL_GSM8K} --shots 0 --max-tokens 320 rollout.engine.kv_cache_gb=3",
)
PYTHON_TOOL = before_after(
    "python-tool",
    "python-tool-1.5b",
    "data.path=DATA/gsm8k",
    "rollout.engine.kv_cache_gb=16",
    NO_CHECKPOINTING,
    BY_REWARD,
    greedy=f"--recipe python-tool-1.5b {EVAL_GSM8K} rollout.engine.kv_cache_gb=16",
)
GSM8K = before_after(
    "gsm8k",
    "gsm8k-qwen2.5-coder-1.5b",
    "data.path=DATA/gsm8k",
    "rollout.engine.kv_cache_gb=10",
    "checkpoint.every=100",
    BY_REWARD,
    shots=f"--recipe gsm8k-qwen2.5-coder-1.5b {SHOTS}",
)
MBPP = before_after(
    "mbpp",
    "mbpp-1.5b",
    "data.path=DATA/mbpp",
    "rollout.engine.kv_cache_gb=10",
    NO_CHECKPOINTING,
    BY_REWARD,
    greedy=EVAL_MBPP,
    sampled=f"{EVAL_MBPP} --samples 4",
)
CODEFU = before_after(
    "codefu",
    "codefu-1.5b",
    "data.path=DATA/code_contests_easy",
    "judge.workers=12",
    "steps=36",
    "rollout.engine.kv_cache_gb=14",
    BY_REWARD,
    held_out="--recipe codefu-1.5b data.path=DATA/code_contests_easy --samples 8",
    humaneval="--recipe codefu-1.5b --data DATA/humaneval",
)
EXPORT_TEACHER = ("export", "OUT/qlora/work/run", TEACHER, "--which", "last")

MEASUREMENTS = {
    "qlora": Measurement(560, (QLORA,)),
    "coder-tester": Measurement(450, (CODER_TESTER,)),
    "beside-trl": Measurement(400, (BESIDE_TRL,)),
    "distillation": Measurement(350, (EXPORT_TEACHER, DISTILLATION), needs="qlora"),
    "python-tool": Measurement(420, (PYTHON_TOOL,)),
    "gsm8k": Measurement(600, (GSM8K,)),
    "mbpp": Measurement(700, (MBPP,)),
    "codefu": Measurement(1000, (CODEFU,)),
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


def keep_commands(name: str, out: Path, data: Path) -> None:
    """Exits if the results of a measurement are those of other commands or other datasets."""
    commands = [shlex.join(command) for command in MEASUREMENTS[name].commands]
    keep_command(out / f"{name}.json", [f"DATA={data}", *commands], out / f"{name}.log")


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
        keep_commands(name, out, data)
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
