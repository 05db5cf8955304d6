"""TRL's GRPOTrainer on Ray Train, rewarded by dojang: for those who have both already.

    python examples/trl_ray_train.py --storage /tmp/trl-ray

trains the tiny model that comes with dojang to add, in two processes on a CPU. DeepMath-103K on four GPUs:

    dojang data prepare deepmath --input trl-lib/DeepMath-103K --output /mnt/shared/deepmath
    python examples/trl_ray_train.py --model Qwen/Qwen2.5-0.5B-Instruct --data /mnt/shared/deepmath \\
        --workers 4 --gpus --steps 400 --save-every 50 --lr 1e-6 --max-tokens 1024 --storage /mnt/shared/runs

Wants `pip install 'dojang[maths]' trl 'ray[train]'` on every machine. Answers are compared by math-verify in processes
of their own, which are killed when they hang; programs, where the data asks for them, run in dojang's sandbox. What
could not be judged has no reward, rather than 0.

A process or a machine may die: the run goes on at its last checkpoint, --max-failures times. Whatever ended it, the
same command takes it up again. Below --storage, which all machines must see, are

    NAME/metrics.jsonl          one line a step
    NAME/checkpoint_.../        the best by reward, and the last

Not covered: vLLM for the rollouts (GRPOConfig's use_vllm), and buckets: --storage is a directory.
"""

from __future__ import annotations  # Ray sends functions without the names that only annotations mention

import argparse
import json
import os
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import ray.train
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from dojang.data.arithmetic import ArithmeticConfig
from dojang.data.prepared import PreparedConfig
from dojang.data.rows import to_row
from dojang.errors import DojangError
from dojang.models import check, resolve
from dojang.rewards import TrlReward, as_trl_reward

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
        storage_path=str(arguments.storage.resolve()),
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
    print(f"metrics: {arguments.storage / arguments.name / 'metrics.jsonl'}")
    scores = {checkpoint.path: metrics[SCORE] for checkpoint, metrics in result.best_checkpoints or ()}
    if scores:
        best = max(scores, key=lambda path: scores[path])
        print(f"best: {Path(best, 'checkpoint')} (reward {scores[best]:.3f})")


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
        trainer.add_callback(history(config["storage"] / config["name"] / "metrics.jsonl"))
        trainer.add_callback(RayTrainReportCallback())
        # Only of consequence for datasets of Ray Data, which GRPO cannot use: it wants each problem several times.
        trainer = prepare_trainer(trainer)
        trainer.train(resume_from_checkpoint=resume)
    reward.close()


def settings(config: dict[str, Any], scratch: str) -> Any:
    """TRL's, for a step of `workers` times `prompts` problems."""
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
        per_device_train_batch_size=config["prompts"] * config["generations"],
        num_generations=config["generations"],
        max_completion_length=config["max_tokens"],
        learning_rate=config["lr"],
        seed=config["seed"],
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
    return Dataset.from_list(rows)


def history(file: Path) -> TrainerCallback:
    """Writes what TRL logs, line by line. Steps that were made again after a failure are there again, from another
    process; the later line is the one that counts."""
    from transformers import TrainerCallback

    class Metrics(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **_: Any) -> None:
            if "reward" not in logs:  # the summary at the end
                return
            since = state.global_step - args.save_steps
            recent = [row.get("reward") for row in state.log_history if row["step"] > since]
            judged = [each for each in recent if each is not None]
            # log_history travels with the checkpoint, and what stands in it last is reported to Ray Train.
            state.log_history[-1][SCORE] = fmean(judged) if judged else UNKNOWN
            if state.is_world_process_zero:
                line = {"step": state.global_step, "time": time.time(), "process": os.getpid(), **logs}
                with file.open("a") as out:
                    out.write(json.dumps(line) + "\n")

    return Metrics()


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
    add("--steps", type=int, default=40)
    add("--prompts", type=int, default=8, help="problems a step, for each worker")
    add("--generations", type=int, default=8, help="attempts at each problem")
    add("--max-tokens", type=int, default=64, help="length of an attempt")
    add("--lr", type=float, default=3e-4)
    add("--seed", type=int, default=42)
    add("--workers", type=int, default=2, help="processes that train")
    add("--gpus", action="store_true", help="one for each worker")
    add("--storage", type=directory, default="runs", help="a directory that all machines see")
    add("--name", default="trl-ray-train", help="the run's directory below it; an old one is continued")
    add("--save-every", type=int, default=10, help="steps between checkpoints")
    add("--keep", type=int, default=1, help="how many of the best checkpoints to keep")
    add("--max-failures", type=int, default=3, help="how often to begin again at the last checkpoint")
    add("--report-to", default="none", help="where transformers also sends metrics: tensorboard, mlflow, wandb...")
    arguments = parser.parse_args()
    try:
        check(arguments.model)
        data = source(arguments.data)
        by_itself = data.grader(arguments.split) if isinstance(data, PreparedConfig) else "maths"
        # Its processes start with the first attempt, in each worker; until then it travels like any other value.
        arguments.reward = as_trl_reward(arguments.task or by_itself, judge=arguments.judge)
    except DojangError as error:
        parser.error(str(error))
    return arguments


def section(text: str) -> Any:
    return json.loads(text) if text.startswith("{") else text


def directory(text: str) -> Path:
    if "://" in text:
        raise argparse.ArgumentTypeError(f"{text} is no directory, and a bucket will not do: metrics are appended to")
    return Path(text).absolute()  # workers may run elsewhere


if __name__ == "__main__":
    main()
