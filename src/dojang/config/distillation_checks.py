"""Checks of distillation and supervised fine-tuning against the other sections."""

from collections.abc import Iterator

from dojang.algos.distillation import DistillationConfig
from dojang.config.rollout_config import RolloutConfig
from dojang.loop.config import LoopConfig
from dojang.trainer.config import TrainConfig

__all__ = ["distillation_disagreements", "samples_disagreements", "sft_disagreements"]


def distillation_disagreements(
    distillation: DistillationConfig | None, algorithm: str, workflow: str, rollout: RolloutConfig, train: TrainConfig
) -> Iterator[str]:
    """Errors of `distillation`, and of settings that need it."""
    if "teacher" in train.offload and (distillation is None or not distillation.local_model):
        yield "train.offload has teacher, but distillation.teacher names no model to load"
    if distillation is None:
        return
    yield from _hint_disagreements(distillation.hint, rollout.group_size)
    if algorithm == "sft":
        yield "algo.name=sft trains on given completions, but a teacher scores sampled ones; leave one out"
    if algorithm == "ppo":
        yield "distillation sets the advantages of tokens, as ppo's critic does; use another algo.name"
    if workflow == "coder_tester":
        yield "distillation supports one policy; workflow.name=coder_tester has two. Leave one of them out"
    if (rollout.top_p, rollout.top_k, rollout.min_p) != (1, 0, 0):
        yield (
            "rollout.top_p, top_k and min_p raise the log-probs of sampled tokens, which distillation compares with "
            "the teacher's; leave them out"
        )
    if distillation.url and rollout.temperature != 1:
        yield (
            f"rollout.temperature={rollout.temperature:g}, but servers give a teacher's log-probs at temperature 1; "
            "set rollout.temperature=1, or load the teacher here (distillation.teacher)"
        )


def samples_disagreements(distillation: DistillationConfig | None, advantage: str, samples: int) -> Iterator[str]:
    """Errors of rollout.group_size if `advantage` compares the samples of a group."""
    if samples > 1 or (distillation is not None and not distillation.reward_coef):
        return
    other = (
        "distil from a teacher alone (distillation.teacher)" if distillation is None else "distillation.reward_coef=0"
    )
    yield (
        f"rollout.group_size={samples} leaves nothing to compare a reward with, as algo.advantage={advantage} does; "
        f"set it to 2 or more, or algo.advantage=reinforce++ (which uses the batch mean), or {other}"
    )


def _hint_disagreements(hints: tuple[str, ...], samples: int) -> Iterator[str]:
    if samples == 1 and hints and all("{solution}" in each for each in hints):
        yield (
            f"distillation.hint has {{solution}}, another sample of the group, but rollout.group_size={samples} has "
            "none; set it to 2 or more, or add a hint without it"
        )


def sft_disagreements(algorithm: str, workflow: str, rollout: RolloutConfig, loop: LoopConfig) -> Iterator[str]:
    """Errors of settings that supervised fine-tuning does not use."""
    if algorithm != "sft":
        return
    if workflow != "single_turn":
        yield f"algo.name=sft trains on rows of the data; leave workflow.name={workflow} out"
    if rollout.temperature != 1:
        yield (
            f"rollout.temperature={rollout.temperature:g} would scale the loss of algo.name=sft, which samples "
            "nothing; set it to 1 (evaluations have eval.temperature)"
        )
    if (rollout.top_p, rollout.top_k, rollout.min_p) != (1, 0, 0):
        yield (
            "rollout.top_p, top_k and min_p are for rollouts, but algo.name=sft has none; leave them out (evaluations "
            "use eval.top_p, top_k and min_p)"
        )
    if loop.mode != "sync":
        yield "loop.mode and loop.lag are for rollouts, but algo.name=sft has none; leave them out"
