"""dojang beside TRL's GRPOTrainer: the same model, prompts, batch, rewards and optimizer, each in its own process.

    python bench/trl_grpo.py quickstart rollout.prompts_per_step=4 --steps 4 --problems 64 --output runs/beside-trl
    python bench/trl_grpo.py gsm8k-qwen2.5-coder-1.5b data.path=data/gsm8k --output runs/beside-trl

Stages, one after the other: `dojang` is `dojang train RECIPE`, `dojang-sync` the same with loop.mode=sync (on-policy,
as TRL), `trl` is TRL, and `eval` runs `dojang eval` on the base model and on every trained one. A stage leaves its
results in the output directory, so stages may run in separate calls, with the same recipe and settings; the table has
what is there.

Completions end with the end token or at rollout.max_tokens on both sides: TRL calls `generate` without a tokenizer, so
it cannot stop at strings, and dojang runs with task.stop_at=never and without stop strings. TRL's settings are the
recipe's (trl_grpo_trainer.py), its precision is its default, float32 weights under bfloat16 autocast, as dojang's.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from dojang.algos.grpo import GrpoConfig
from dojang.config import recipe as recipes
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError, DojangError
from dojang_process import keep_command
from machine import arguments, machine
from peak_memory import measured
from trl_grpo_table import BASE, OURS, THEIRS, markdown, read, table_rows
from trl_grpo_trainer import GENERATION
from trl_grpo_trainer import main as train_with_trl

STAGES = (*OURS, *THEIRS, "eval")
SETTINGS = {"dojang": [], "dojang-sync": ["loop.mode=sync"]}
"""Settings of dojang's stages beside the recipe's."""
SAMPLES = {True: 128, False: 16}
"""Samples in a forward pass of TRL, at most, with and without a GPU."""


def main() -> None:
    if sys.argv[1:2] == ["--play"]:
        _play(sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
        return
    options = _options()
    try:
        config = recipes.load(options.recipe, options.overrides)
        options.overrides += no_stops(config)
        check(config, options)
        options.output.mkdir(parents=True, exist_ok=True)
        there = [options.output / name for name in (*OURS, *THEIRS, f"eval-{BASE}")]
        keep_command(options.output / "command.json", [options.recipe, *options.overrides], *there)
        for stage in options.stages:
            if stage == "eval":
                _evaluate(config, options)
            else:
                _train(stage, config, options)
    except DojangError as error:
        sys.exit(str(error))
    found = read(options.output)
    rows = table_rows(found)
    about = {"recipe": options.recipe, "overrides": options.overrides, "trl_generation": options.trl_generation}
    result = {"bench": "trl_grpo", "machine": machine(), **about, "rows": [asdict(row) for row in rows], **found}
    table = markdown(rows, found)
    (options.output / "results.json").write_text(json.dumps(result, indent=1))
    (options.output / "table.md").write_text(table)
    print(json.dumps(result) if options.json else f"{machine()}\n\n{table}")


def _options() -> argparse.Namespace:
    parser = arguments((__doc__ or "").partition("\n")[0])
    parser.add_argument("recipe", metavar="RECIPE")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings of both, as for dojang train")
    parser.add_argument("--output", type=Path, required=True, help="directory of all results")
    parser.add_argument("--steps", type=int, default=10, help="of each; the first does not count into medians")
    parser.add_argument("--stages", default=",".join(STAGES), help="with commas between (default: %(default)s)")
    parser.add_argument("--problems", type=int, default=256, help="held-out problems of the evaluations")
    parser.add_argument("--trl-generation", choices=GENERATION, default="transformers")
    batch = f"samples in a forward pass of TRL (default: up to {SAMPLES[True]} on a GPU, {SAMPLES[False]} on a CPU)"
    parser.add_argument("--trl-batch", type=int, help=batch)
    parser.add_argument("--trl-dtype", choices=("float32", "bfloat16"), default="float32", help="of TRL's weights")
    liger = "Liger's kernels in TRL (default: on a GPU, if installed)"
    parser.add_argument("--trl-liger", action=argparse.BooleanOptionalAction, help=liger)
    options = parser.parse_intermixed_args()
    options.overrides.append(f"steps={options.steps}")
    options.stages = options.stages.split(",")
    if unknown := {*options.stages} - {*STAGES}:
        parser.error(f"--stages: unknown {', '.join(sorted(unknown))}; known: {', '.join(STAGES)}")
    return options


def no_stops(config: RunConfig) -> list[str]:
    """Overrides without which completions would end at strings."""
    lines = ["task.stop_at=never"] if config.task.stop_line() is not None else []
    return [*lines, "data.stop=[]"] if config.data.stop else lines


def check(config: RunConfig, options: argparse.Namespace) -> None:
    """Raises ConfigError for settings that TRL's side does not follow, and for stages that cannot run."""
    algo, train = config.algo, config.train
    clips = {"clip_low": 0.2, "clip_high": 0.2}
    wrong = {
        "algo": algo.model_copy(update=clips) != GrpoConfig(),
        "workflow.name": config.workflow.name != "single_turn",
        "distillation": config.distillation is not None,
        "train.lora": train.lora is not None,
        "train.optimizer": train.optimizer != "adamw",
        "train.minibatches": train.minibatches != 1,
        "train.ppo_epochs": train.ppo_epochs != 1,
        "runtime.name": config.runtime.name != "local",
        "data.style": getattr(config.data, "style", "chat") != "chat",
    }
    if keys := [key for key, differs in wrong.items() if differs]:
        raise ConfigError(
            f"{', '.join(keys)}: TRL's side has GRPO on chats without a KL penalty, full fine-tuning by AdamW and one "
            "optimizer step per batch; choose a recipe of that kind, or override these settings"
        )
    if "trl" in options.stages:
        packages = {"trl", "datasets", *(["vllm"] if options.trl_generation == "vllm" else [])}
        if missing := sorted(each for each in packages if find_spec(each) is None):
            raise ConfigError(f"the stage trl needs {', '.join(missing)}, not installed here: pip install trl==1.16.0")
        samples = config.rollout.prompts_per_step * config.rollout.group_size
        if options.trl_batch is not None and samples % options.trl_batch:
            raise ConfigError(f"--trl-batch {options.trl_batch} does not divide the {samples} samples of a step")
    for stage in options.stages:
        if stage != "eval" and (options.output / stage).exists():
            raise ConfigError(f"{options.output / stage} exists; remove it, or leave {stage} out of --stages")


def _train(stage: str, config: RunConfig, options: argparse.Namespace) -> None:
    out = options.output / stage
    if stage in THEIRS:
        out.mkdir()
        arguments = [str(out), options.recipe, *options.overrides, *_trl_options(config, options)]
    else:
        # One held-out problem: a run evaluates before and after, and the stage `eval` does it for all. Ranked by a
        # figure of training, the checkpoint of step 0 is never the best, and is deleted.
        seldom = [f"eval.every={config.steps}", "eval.problems=1", f"checkpoint.every={config.steps}"]
        seldom.append("checkpoint.metric=critic/rewards/mean")
        arguments = ["train", options.recipe, *options.overrides, *SETTINGS[stage], *seldom, "--run-dir", str(out)]
    player = "trl" if stage in THEIRS else "dojang"
    command = [sys.executable, __file__, "--play", player, str(options.output / f"{stage}.memory.json"), *arguments]
    seconds = _call(stage, command)
    for optimizer in out.glob("checkpoints/step-*/optimizer"):
        shutil.rmtree(optimizer)  # two thirds of a checkpoint, and no run resumes from this one
    figures = {"seconds": seconds, "samples_per_step": config.rollout.prompts_per_step * config.rollout.group_size}
    (options.output / f"{stage}.process.json").write_text(json.dumps(figures))


def _trl_options(config: RunConfig, options: argparse.Namespace) -> list[str]:
    import torch

    gpu = torch.cuda.is_available() and config.model.device != "cpu"
    samples = config.rollout.prompts_per_step * config.rollout.group_size
    batch = options.trl_batch or max(each for each in range(1, SAMPLES[gpu] + 1) if samples % each == 0)
    liger = options.trl_liger if options.trl_liger is not None else gpu and find_spec("liger_kernel") is not None
    chosen = ["--generation", options.trl_generation, "--batch", str(batch), "--dtype", options.trl_dtype]
    return [*chosen, *(["--liger"] if liger else [])]


def _evaluate(config: RunConfig, options: argparse.Namespace) -> None:
    """Evaluates every model that is there and has no evaluation yet, by the same command."""
    trained = {name: options.output / name / "checkpoints" / "last" for name in OURS}
    trained["trl"] = options.output / "trl" / "model"
    models = {BASE: config.model.name, **{name: str(path) for name, path in trained.items() if path.exists()}}
    for name, model in models.items():
        out = options.output / f"eval-{name}"
        settings = [each for each in options.overrides if not each.startswith("model.name=")]
        command = [model, *settings, "--recipe", options.recipe, "--problems", str(options.problems)]
        keep_command(options.output / f"eval-{name}.json", command, out)
        if not (out / "results.json").exists():
            _call(f"eval of {name}", [sys.executable, "-m", "dojang", "eval", *command, "--output", str(out)])


def _call(what: str, command: list[str]) -> float:
    """Runs a command with its output on stderr; returns its seconds."""
    print(f"{what}: {' '.join(command)}", file=sys.stderr, flush=True)
    started = time.monotonic()
    done = subprocess.run(command, stdout=sys.stderr, check=False)
    if done.returncode:
        raise ConfigError(f"{what} ended with exit code {done.returncode}; its output is above")
    return time.monotonic() - started


def _play(player: str, memory: Path, arguments: list[str]) -> None:
    """Trains in this process."""
    from dojang.__main__ import main as run_dojang

    sys.argv = [player, *arguments]
    measured(memory, train_with_trl if player == "trl" else run_dojang)


if __name__ == "__main__":
    main()
