"""TRL's side of trl_grpo.py: a GRPOTrainer with the settings, prompts and rewards of a dojang recipe.

OUT/steps.jsonl   a record of every step, written when it ends
OUT/steps.json    these, with TRL's settings and versions
OUT/model         the trained model, for `dojang eval`
"""

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dojang.config import recipe as recipes
from dojang.config.run_config import RunConfig
from train_work import Clock, Spent

__all__ = ["GENERATION", "main", "prompt_digest"]

GENERATION = ("transformers", "continuous", "vllm")


def main() -> None:
    """Trains with the arguments of the command line; trl_grpo.py writes it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("recipe")
    parser.add_argument("overrides", nargs="*")
    parser.add_argument("--generation", choices=GENERATION, default="transformers")
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--liger", action="store_true")
    options = parser.parse_intermixed_args()
    config = recipes.load(options.recipe, options.overrides)
    train(config, options)


def prompt_digest(prompts: Sequence[Sequence[int]]) -> str:
    """Digest of a step's prompts in their order, as token ids."""
    return sha256(json.dumps([list(map(int, prompt)) for prompt in prompts]).encode()).hexdigest()[:16]


def rows(config: RunConfig) -> list[dict[str, Any]]:
    """The training prompts in the order in which a dojang run draws them."""
    from dojang.build.prepare import prepare
    from dojang.data.rows import to_row
    from dojang.loop.prompt_sampler import draw_prompts

    prepared = prepare(config)
    asyncio.run(prepared.judge.close())
    drawn = draw_prompts(prepared.train, config.seed, 0, config.steps * config.rollout.prompts_per_step)
    return [to_row(problem, ability="", split="train", index=index) for index, problem in drawn]


def settings(config: RunConfig, options: argparse.Namespace, numeric: Any) -> dict[str, Any]:
    """GRPOConfig's arguments: the recipe's settings under TRL's names. Everything else is TRL's default."""
    rollout, update = config.rollout, config.train
    samples = rollout.prompts_per_step * rollout.group_size
    gpu = numeric.device.type == "cuda"
    attention = "flash_attention_2" if gpu and find_spec("flash_attn") else "sdpa"
    return {
        "output_dir": str(options.out / "trainer"),
        "seed": config.seed,
        "max_steps": config.steps,
        "shuffle_dataset": False,
        # All samples of a step are generated at once, and make one optimizer step.
        "per_device_train_batch_size": options.batch,
        "gradient_accumulation_steps": samples // options.batch,
        "num_generations": rollout.group_size,
        "max_completion_length": rollout.max_tokens,
        "temperature": rollout.temperature,
        "top_p": rollout.top_p,
        "top_k": rollout.top_k,
        "min_p": rollout.min_p or None,
        "chat_template_kwargs": config.model.chat_template_kwargs,
        "loss_type": "dapo",  # the mean over tokens of the optimizer step, as dojang's grpo
        "epsilon": config.algo.clip_low,
        "epsilon_high": config.algo.clip_high,
        "beta": 0.0,
        "learning_rate": update.lr,
        "adam_beta1": update.betas[0],
        "adam_beta2": update.betas[1],
        "adam_epsilon": update.eps,
        "weight_decay": update.weight_decay,
        "max_grad_norm": update.max_grad_norm,
        "mask_truncated_completions": update.mask_truncated_completions,
        "gradient_checkpointing": bool(update.gradient_checkpointing),
        "bf16": str(numeric.compute) == "torch.bfloat16",
        "use_cpu": not gpu,
        "model_init_kwargs": {"dtype": options.dtype, "attn_implementation": attention},
        "use_liger_kernel": options.liger,
        "use_transformers_continuous_batching": options.generation == "continuous",
        # TRL's default is half of the memory that is free: right for a GPU, but not for a machine that others use too.
        "transformers_continuous_batching_config": {"max_memory_percent": 0.5 if gpu else 0.02},
        "use_vllm": options.generation == "vllm",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def record(step: int, seconds: float, clock: Clock, logs: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of a step that has ended."""
    generate, reward = (clock.parts[name][step].wall for name in ("generate", "reward"))
    return {
        "seconds": seconds,
        "rollout": generate + reward,
        "generate": generate,
        "update": seconds - generate - reward,
        "length": logs["completions/mean_length"],
        "reward": logs["reward"],
        "zero_variance": logs["frac_reward_zero_std"],
        "loss": logs["loss"],
        "lr": logs["learning_rate"],
    }


def now(device: Any) -> Spent:
    """The time at which the device has finished: the optimizer's kernels may still run."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)
    return Spent.now()


def train(config: RunConfig, options: argparse.Namespace) -> None:
    import torch
    import transformers
    import trl
    from datasets import Dataset
    from torch.optim.lr_scheduler import LambdaLR
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    from dojang import models
    from dojang.build.local import numerics
    from dojang.integrations.reward_functions import as_trl_reward
    from dojang.trainer.lr_schedule import learning_rate, warmup_steps

    source, numeric = models.resolve(config.model.name), numerics(config)
    clock, starts, prompts = Clock(config.steps), list[Spent](), list[str]()
    steps = list[dict[str, Any]]()
    warmup = warmup_steps(config.steps, steps=config.train.warmup_steps, ratio=config.train.warmup_ratio)

    def rate(step: int) -> float:
        """dojang's schedule: that of transformers with the same name begins with a learning rate of 0."""
        how = {"schedule": config.train.schedule, "min_ratio": config.train.min_lr_ratio}
        return learning_rate(step, peak=1.0, warmup=warmup, total=config.steps, **how)

    class Timed(GRPOTrainer):
        """TRL's trainer with a clock around generation and rewards."""

        def training_step(self, *asked: Any, **named: Any) -> Any:
            if self._step % self.args.gradient_accumulation_steps == 0:
                starts.append(now(numeric.device))
            return super().training_step(*asked, **named)

        def _generate(self, asked: list[Any]) -> Any:
            with clock.part("generate"):
                found = super()._generate(asked)
            prompts.append(prompt_digest(found[0][:: config.rollout.group_size]))
            return found

        def _calculate_rewards(self, *asked: Any) -> Any:
            with clock.part("reward"):
                return super()._calculate_rewards(*asked)

        def log(self, logs: dict[str, Any], *asked: Any, **named: Any) -> None:
            super().log(logs, *asked, **named)
            if "reward" in logs:  # a step has ended
                seconds = (now(numeric.device) - starts[len(steps)]).wall
                steps.append({**record(len(steps), seconds, clock, logs), "prompts": prompts[len(steps)]})
                with (options.out / "steps.jsonl").open("a") as file:
                    file.write(json.dumps(steps[-1]) + "\n")

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            self.lr_scheduler = LambdaLR(self.optimizer if optimizer is None else optimizer, rate)
            return self.lr_scheduler

    reward = as_trl_reward(config.task.model_dump(), judge=config.judge)
    told = settings(config, options, numeric)
    trainer = Timed(
        model=source,
        processing_class=AutoTokenizer.from_pretrained(source, padding_side="left"),
        reward_funcs=reward,
        train_dataset=Dataset.from_list(rows(config)),
        args=GRPOConfig(**told),
    )
    trainer.train()
    trainer.save_model(str(options.out / "model"))
    reward.close()
    versions = {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__}
    (options.out / "steps.json").write_text(json.dumps({"versions": versions, "settings": told, "steps": steps}))
