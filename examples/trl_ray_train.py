"""TRL's GRPOTrainer on Ray Train with dojang's rewards, for those who already use both.

    python examples/trl_ray_train.py --storage /tmp/trl-ray

trains the tiny model that comes with dojang to add, in two processes on a CPU. The published example (Qwen2.5-0.5B on
100 rows of DeepMath-103K, two epochs, four GPUs, vLLM on the GPUs of the trainers):

    dojang data prepare deepmath --input trl-lib/DeepMath-103K --output /mnt/shared/deepmath
    python examples/trl_ray_train.py --model Qwen/Qwen2.5-0.5B --data /mnt/shared/deepmath --limit 100 --epochs 2 \\
        --workers 4 --gpus --per-device-train-batch-size 4 --generations 8 --max-tokens 256 --lr 1e-6 \\
        --save-every 50 --storage s3://BUCKET/runs

Needs `pip install 'dojang[maths]' trl 'ray[train]'` on every machine, and vLLM for faster rollouts (`trl[vllm]`): with
--gpus it is used if it is installed. Answers are compared by math-verify in subprocesses that are killed when they
hang; programs, if the data has them, run in dojang's sandbox. A completion that could not be judged has no reward,
instead of 0.

After a worker or a machine dies, the run continues from its last checkpoint, up to --max-failures times. The same
command resumes a run that ended for any other reason. Below --storage, a directory or a bucket that all machines reach:

    NAME/metrics.jsonl          one line per step; in a bucket written with each checkpoint
    NAME/checkpoint_.../        the best by reward, and the last
"""

from __future__ import annotations  # Ray sends functions without the names that only annotations mention

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pyarrow.fs
import ray.train
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from dojang.core.errors import DojangError
from dojang.data.arithmetic import ArithmeticConfig
from dojang.data.prepared import PreparedConfig
from dojang.data.rows import to_row
from dojang.integrations.reward_functions import TrlReward, as_trl_reward
from dojang.models import check, resolve

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import TrainerCallback

SCORE = "recent_reward"
"""What the best checkpoint is the best by: the mean reward of the steps since the one before. That of a single step is
mostly luck with its problems."""
UNKNOWN = -1e9
"""The score where nothing could be judged. No NaN: Ray writes it as null, and fails over that when it begins again."""


def main() -> None:
    """The driver: says what is to run where, and waits."""
    arguments = parse()
    run = RunConfig(
        # The same name in the same place is the same run: Ray Train finds the checkpoints, and hands the last one to
        # whoever asks for it. See `train`.
        name=arguments.name,
        storage_path=arguments.storage,
        # The last checkpoint is kept beside these, or else there would be nothing to go on with.
        checkpoint_config=CheckpointConfig(num_to_keep=arguments.keep, checkpoint_score_attribute=SCORE),
        failure_config=FailureConfig(max_failures=arguments.max_failures),
    )
    trainer = TorchTrainer(
        train,
        train_loop_config=vars(arguments),
        scaling_config=ScalingConfig(num_workers=arguments.workers, use_gpu=arguments.gpus),
        run_config=run,
    )
    result = trainer.fit()  # raises TrainingFailedError after one failure too many
    # Not result.metrics_dataframe: it knows only of the steps whose checkpoints are still there.
    print(f"metrics: {shown(arguments.storage, metrics_file(vars(arguments))[1])}")
    scores = {checkpoint.path: metrics[SCORE] for checkpoint, metrics in result.best_checkpoints or ()}
    if scores:
        best = max(scores, key=lambda path: scores[path])
        print(f"best: {shown(arguments.storage, f'{best}/checkpoint')} (reward {scores[best]:.3f})")


def train(config: dict[str, Any]) -> None:
    """What each worker runs, as many times as it takes."""
    from ray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer
    from transformers import TrainerState
    from trl import GRPOTrainer

    # Ray Train starts the workers again after a failure, but from the top of this function. To go on where the run was
    # is up to it: a trainer that is not handed the checkpoint begins at step 1.
    last = ray.train.get_checkpoint()
    reward: TrlReward = config["reward"]
    with tempfile.TemporaryDirectory() as scratch, last.as_directory() if last else nullcontext() as found:
        resume = str(Path(found, RayTrainReportCallback.CHECKPOINT_NAME)) if found else None
        if resume and TrainerState.load_from_json(f"{resume}/trainer_state.json").global_step >= config["steps"]:
            return  # it was at its end already, and transformers would make one more step
        trainer = GRPOTrainer(
            model=resolve(config["model"]),
            reward_funcs=[reward],
            args=settings(config, scratch),
            train_dataset=problems(config),
        )
        # In this order: the second reports what the first has added.
        trainer.add_callback(history(*metrics_file(config)))
        trainer.add_callback(RayTrainReportCallback())
        # Only of consequence for datasets of Ray Data, which GRPO cannot use: it wants each problem several times.
        trainer = prepare_trainer(trainer)
        trainer.train(resume_from_checkpoint=resume)
    reward.close()


def settings(config: dict[str, Any], scratch: str) -> Any:
    """TRL's settings; one step has workers x per_device_train_batch_size completions."""
    from trl import GRPOConfig

    return GRPOConfig(
        # A directory for each worker, on its own disk. transformers has the first write the model, and every one its
        # random numbers; RayTrainReportCallback uploads what it finds, and Ray makes one checkpoint of it. In a
        # directory that workers share, every one of them would copy all of it.
        output_dir=scratch,
        save_strategy="steps",
        save_steps=config["save_every"],
        save_total_limit=1,
        logging_steps=1,  # what is reported with a checkpoint is what was logged last
        max_steps=config["steps"],
        per_device_train_batch_size=config["per_device_train_batch_size"],
        num_generations=config["generations"],
        max_completion_length=config["max_tokens"],
        learning_rate=config["lr"],
        seed=config["seed"],
        # Colocated: each worker has a vLLM engine on its own GPU, which gets its weights before every rollout.
        use_vllm=config["vllm"],
        vllm_mode="colocate",
        vllm_gpu_memory_utilization=config["vllm_gpu_memory_utilization"],
        use_cpu=not config["gpus"],
        bf16=config["gpus"],
        report_to=config["report_to"],
        disable_tqdm=True,
    )


def problems(config: dict[str, Any]) -> Dataset:
    """In the columns that dojang's rewards read. The whole of it in each worker: TRL gives every one its share."""
    from datasets import Dataset

    found = source(config["data"]).load(config["split"])
    rows = [to_row(each, ability="", split=config["split"], index=place) for place, each in enumerate(found)]
    dataset = Dataset.from_list(rows)
    return dataset.shuffle(seed=config["seed"]).select(range(config["limit"])) if config["limit"] else dataset


def metrics_file(config: dict[str, Any]) -> tuple[pyarrow.fs.FileSystem, str]:
    """The file system of --storage, and the path of the run's metrics there."""
    filesystem, path = pyarrow.fs.FileSystem.from_uri(config["storage"])
    return filesystem, f"{path}/{config['name']}/metrics.jsonl"


def shown(storage: str, path: str) -> str:
    """A path below --storage as users write it: pyarrow leaves out the `s3://` of a bucket."""
    return f"{urlsplit(storage).scheme}://{path}" if "://" in storage else path


def history(filesystem: pyarrow.fs.FileSystem, path: str) -> TrainerCallback:
    """Writes one line of metrics per step.

    A directory gets each line at once; steps repeated after a failure are there twice, and the later line counts. A
    bucket, where nothing can be appended, gets the whole file with each checkpoint.
    """
    from transformers import TrainerCallback

    appends = isinstance(filesystem, pyarrow.fs.LocalFileSystem)

    class Metrics(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
            if "reward" not in logs:  # the summary at the end
                return
            since = state.global_step - args.save_steps
            recent = [row.get("reward") for row in state.log_history if row["step"] > since]
            judged = [each for each in recent if each is not None]
            # log_history travels with the checkpoint, and what stands in it last is reported to Ray Train.
            state.log_history[-1] |= {"time": time.time(), "process": os.getpid()}
            state.log_history[-1][SCORE] = fmean(judged) if judged else UNKNOWN
            if state.is_world_process_zero and appends:
                with filesystem.open_append_stream(path) as out:
                    out.write(lines(state.log_history[-1:]))

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.is_world_process_zero and not appends:
                with filesystem.open_output_stream(path) as out:
                    out.write(lines(state.log_history))

        on_train_end = on_save

    return Metrics()


def lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows if "reward" in row).encode()


def source(data: Path | None) -> ArithmeticConfig | PreparedConfig:
    """Where problems come from: prepared rows, or sums made on the spot."""
    return PreparedConfig(path=data) if data else ArithmeticConfig()


def parse() -> argparse.Namespace:
    """The command line. What can be found wrong is found here, and not by every worker in turn."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--model", default="dojang-tiny", help="a directory, a hub id, or one of dojang's models")
    add("--data", type=directory, help="a directory that `dojang data prepare` has written; sums, if there is none")
    add("--split", default="train", help="which problems of it to train on")
    add("--task", type=section, help="a task of dojang, or its section of a recipe as JSON; else what the data says")
    add("--judge", type=section, help="for programs: the judge section of a recipe, as JSON")
    add("--limit", type=whole(1), help="train on this many rows only, the first after a shuffle by --seed")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--steps", type=whole(1), help="optimizer steps; 40 without --epochs")
    length.add_argument("--epochs", type=whole(1), help="passes over the rows, instead of --steps")
    add("--per-device-train-batch-size", type=whole(1), default=64, help="completions a step, for each worker")
    add("--generations", type=whole(2), default=8, help="completions for each prompt (the group size)")
    add("--max-tokens", type=whole(1), default=64, help="maximum length of a completion, in tokens")
    add("--lr", type=number(0), default=3e-4, help="learning rate at the start; it falls linearly to 0")
    add("--seed", type=whole(0), default=42)
    add("--workers", type=whole(1), default=2, help="training processes")
    add("--gpus", action="store_true", help="one for each worker")
    add("--vllm", action=argparse.BooleanOptionalAction, help="rollouts by vLLM; with --gpus if it is installed")
    add("--vllm-gpu-memory-utilization", type=number(0, 1), default=0.3, help="share of each GPU's memory for vLLM")
    add("--storage", type=storage, default="runs", help="a directory or s3://BUCKET/PATH that all machines can reach")
    add("--name", default="trl-ray-train", help="the run's directory below it; an existing run is resumed")
    add("--save-every", type=whole(1), default=10, help="steps between checkpoints")
    add("--keep", type=whole(1), default=1, help="number of best checkpoints to keep")
    add("--max-failures", type=whole(-1), default=3, help="restarts from the last checkpoint; -1: without limit")
    add("--report-to", default="none", help="where transformers also sends metrics: tensorboard, mlflow, wandb...")
    arguments = parser.parse_args()
    try:
        check(arguments.model)
        data = source(arguments.data)
        by_itself = data.grader(arguments.split) if isinstance(data, PreparedConfig) else "maths"
        # Its processes start with the first completion, in each worker; until then it travels like any other value.
        arguments.reward = as_trl_reward(arguments.task or by_itself, judge=arguments.judge)
        rows = len(data.load(arguments.split))
    except DojangError as error:
        parser.error(str(error))
    if wrong := complete(arguments, rows):
        parser.error(wrong)
    return arguments


def complete(arguments: argparse.Namespace, rows: int) -> str:
    """Fills in --vllm and --steps. Returns what does not fit together, if anything."""
    found = find_spec("vllm")
    there = found is not None and found.origin is not None  # a folder of that name is not vLLM
    if arguments.vllm and not (there and arguments.gpus):
        return "--vllm needs --gpus" if there else "--vllm: vLLM is not installed here; pip install 'trl[vllm]'"
    arguments.vllm = there and arguments.gpus if arguments.vllm is None else arguments.vllm
    if arguments.limit and arguments.limit > rows:
        return f"--limit {arguments.limit}: there are only {rows} rows"
    batch = arguments.workers * arguments.per_device_train_batch_size
    if batch % arguments.generations:
        return (
            f"--generations {arguments.generations} does not divide the {batch} completions of a step (--workers "
            f"{arguments.workers} x --per-device-train-batch-size {arguments.per_device_train_batch_size})"
        )
    prompts, rows = batch // arguments.generations, arguments.limit or rows
    if prompts > rows:
        return f"a step needs {prompts} prompts, and there are only {rows} rows; lower --per-device-train-batch-size"
    # As TRL counts: an epoch leaves out the rows that do not fill a step.
    arguments.steps = arguments.epochs * (rows // prompts) if arguments.epochs else arguments.steps or 40
    return ""


def whole(least: int) -> Callable[[str], int]:
    """An argument that is an integer, and large enough."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is too small; it must be {least} or more")
        return value

    return read


def number(above: float, most: float = float("inf")) -> Callable[[str], float]:
    """An argument that is a number above one bound and not above another."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text} is not a number") from None
        if not (isfinite(value) and above < value <= most):
            limit = "" if most == float("inf") else f" and at most {most:g}"
            raise argparse.ArgumentTypeError(f"{text} must be greater than {above:g}{limit}")
        return value

    return read


def section(text: str) -> Any:
    return json.loads(text) if text.startswith("{") else text


def directory(text: str) -> Path:
    return Path(text).absolute()  # workers may run elsewhere


def storage(text: str) -> str:
    """--storage: a directory, or a bucket that exists and can be reached from here. Nothing is created."""
    if "://" not in text:
        place = Path(text).resolve()
        for each in (place, *place.parents):
            if each.exists() and not each.is_dir():
                raise argparse.ArgumentTypeError(f"{each} is a file; give a directory, or s3://BUCKET/PATH")
        return str(place)
    if not urlsplit(text).netloc:
        raise argparse.ArgumentTypeError(f"{text} names no bucket; write s3://BUCKET/PATH")
    try:
        filesystem, path = pyarrow.fs.FileSystem.from_uri(text)
        bucket = filesystem.get_file_info(path.partition("/")[0])
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be used: {error}") from None
    if bucket.type is pyarrow.fs.FileType.NotFound:
        raise argparse.ArgumentTypeError(f"{text}: there is no bucket {bucket.path}, or no permission to see it")
    return text.rstrip("/")


if __name__ == "__main__":
    main()
