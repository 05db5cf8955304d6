"""Number of layers with gradient checkpointing: the fewest with which a run fits its machine.

`train.gradient_checkpointing=auto` takes it when a run starts, so that its config.yaml has a number.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError
from dojang.planning.instances import Instance
from dojang.planning.kv_cache_memory import GIB
from dojang.planning.shapes import find_shape
from dojang.planning.tokens_per_step import Lengths
from dojang.trainer.memory import AUTO

if TYPE_CHECKING:
    from dojang.planning.estimate import Estimate, Subject

__all__ = ["fewest_layers", "resolve_for_this_machine", "with_layers"]

_PROMPT = 512
"""Assumed prompt length in tokens: the data are not loaded yet."""

Plan = Callable[["Subject"], "Estimate"]


def fewest_layers(subject: "Subject", plan: Plan) -> int:
    """Fewest layers with which the plan fits; all if none do. Of two models, as many as the smaller one has."""
    most = min(shape.layers for shape in subject.shapes.values())
    return bisect_left(range(most), True, key=lambda count: plan(_with(subject, count)).fit == "yes")


def with_layers(subject: "Subject", plan: Plan) -> "Subject":
    """The subject with the fewest layers instead of auto; others as they are."""
    if subject.config.train.gradient_checkpointing != AUTO:
        return subject
    return _with(subject, fewest_layers(subject, plan))


def resolve_for_this_machine(config: RunConfig, processes: int) -> tuple[RunConfig, str]:
    """The configuration with a number of layers instead of auto, for the free memory of this machine's GPU, and what to
    tell the user. A configuration without auto stays as it is."""
    if config.train.gradient_checkpointing != AUTO:
        return config, ""
    from dojang.planning.estimate import Subject, estimate

    shapes = {}
    for role, each in config.roles().items():
        shape, why = find_shape(each.model.name)
        if shape is None:
            raise ConfigError(
                f"train.gradient_checkpointing=auto needs a plan of {each.model.name}, and there is none: {why}; set a "
                "number of layers, or true for all"
            )
        shapes[role] = shape
    lengths = {
        role: Lengths(_PROMPT, _PROMPT, each.rollout.max_tokens, each.rollout.max_tokens)
        for role, each in config.roles().items()
    }
    machine = _free_machine()
    # torchrun may have started the processes on several such machines
    gpus, nodes = (processes, -(-processes // machine.gpus)) if machine.gpu is not None else (None, 1)
    subject = Subject(config, shapes, lengths)
    found = with_layers(subject, lambda each: estimate(each, machine, nodes, gpus))
    count, most = found.config.train.gradient_checkpointing, min(shape.layers for shape in shapes.values())
    said = _how_it_fits(estimate(found, machine, nodes, gpus))
    return found.config, f"train.gradient_checkpointing=auto: {count} of {most} layers{said}"


def _how_it_fits(found: "Estimate") -> str:
    if found.fit == "yes":
        return ", the fewest that fit by the plan"
    if found.peak > found.capacity:
        return "; by the plan not even all of them suffice"
    return "; by the plan it is tight even so" if found.fit == "tight" else ""


def _free_machine() -> Instance:
    """This machine, with the GPU memory that nothing uses yet."""
    from dojang.planning.this_machine import this_machine

    machine = this_machine()
    if machine.gpu is None:
        return machine
    import torch

    return replace(machine, gpu=replace(machine.gpu, memory_gib=torch.cuda.mem_get_info()[0] / GIB))


def _with(subject: "Subject", layers: int) -> "Subject":
    return replace(subject, config=subject.config.with_train(gradient_checkpointing=layers))
