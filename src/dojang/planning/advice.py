"""Problems of a plan, their remedies, and settings that save memory."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError, ModelError
from dojang.planning.checkpointed_layers import fewest_layers
from dojang.planning.cost import judge_core_s
from dojang.planning.estimate import Estimate, Subject, estimate
from dojang.planning.gpu_split import proposal, split_gpus
from dojang.planning.kv_cache_memory import GIB
from dojang.planning.layout import Layout
from dojang.trainer.config import LoraConfig
from dojang.trainer.memory import check_checkpointed_layers

__all__ = ["Finding", "Knob", "knobs", "lacking_resources", "predict_problems", "split_findings", "together"]

_WORTH = 0.01
"""Minimum saving worth listing, as a fraction of the device's memory."""
_ALL_LAYERS = "train.gradient_checkpointing=true"
_NOTICED = 1.0
"""Seconds of judging per step below which no warning is given."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a check."""

    level: str
    """ok, note, warning, or failed: the run cannot work."""
    about: str
    said: str
    code: int = 0
    """Exit code of a failure."""


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting that saves memory."""

    setting: str
    saves: int
    """Bytes of the peak."""
    fits: bool
    """Whether it suffices alone."""


def knobs(subject: Subject, found: Estimate) -> list[Knob]:
    """Settings that save memory, cheapest first."""
    layout = found.layout
    tried = [(setting, _again(subject, config, found)) for setting, config in _changes(subject.config, found)]
    gpus = layout.instance.gpus * layout.nodes
    if gpus > layout.ranks and not layout.servers and not layout.on_ray:
        tried.append((f"--ranks {gpus}", estimate(subject, layout.instance, layout.nodes, gpus)))
    if layout.gpu:
        more = estimate(subject, layout.instance, 2 * layout.nodes)
        tried.append((f"--nodes {2 * layout.nodes}", more))
    helps = [
        Knob(setting, found.peak - other.peak, other.fit == "yes")
        for setting, other in tried
        if found.peak - other.peak > _WORTH * found.capacity
    ]
    if any(each.setting == _ALL_LAYERS and each.fits for each in helps):
        helps.insert(0, _fewest_layers(subject, found))
    return helps


def _fewest_layers(subject: Subject, found: Estimate) -> Knob:
    """Gradient checkpointing of as few layers as suffice; more take more time."""
    count = fewest_layers(subject, lambda each: _again(each, each.config, found))
    planned = _again(subject, subject.config.with_train(gradient_checkpointing=count), found)
    return Knob(f"train.gradient_checkpointing={count}", found.peak - planned.peak, planned.fit == "yes")


def _again(subject: Subject, config: RunConfig, found: Estimate) -> Estimate:
    """Estimates another configuration on the same machines; on Ray it sets the number of trainers itself."""
    ranks = None if found.layout.on_ray else found.layout.ranks
    return estimate(replace(subject, config=config), found.layout.instance, found.layout.nodes, ranks)


def together(subject: Subject, found: Estimate) -> Knob | None:
    """Combines settings, cheapest first, until the run fits; None if it never does."""
    now, chosen = found, list[str]()
    while now.fit != "yes":
        for setting, config in _changes(subject.config, now):
            other = _again(subject, config, now)
            if now.peak - other.peak > _WORTH * found.capacity:
                subject, now = replace(subject, config=config), other
                chosen = [each for each in chosen if each.partition("=")[0] != setting.partition("=")[0]] + [setting]
                break
        else:
            return None
    return Knob(" ".join(chosen), found.peak - now.peak, True)


def _changes(config: RunConfig, found: Estimate) -> Iterator[tuple[str, RunConfig]]:
    train, gpu = config.train, found.layout.gpu is not None
    micro = max(found.work.micro.values())
    longest = max(found.work.of(role)[1] for role in found.work.micro)
    if (less := max(longest, micro // 2)) < micro:
        yield f"train.max_tokens_per_microbatch={less}", config.with_train(max_tokens_per_microbatch=less)
    if train.gradient_checkpointing is not True:
        yield _ALL_LAYERS, config.with_train(gradient_checkpointing=True)
    if gpu and "optimizer" not in train.offload:
        away = (*train.offload, "optimizer")
        yield f"train.offload=[{','.join(away)}]", config.with_train(offload=away)
    if gpu and "reference" not in train.offload and "reference" in found.needs.parts:
        away = (*train.offload, "reference")
        yield f"train.offload=[{','.join(away)}]", config.with_train(offload=away)
    if train.optimizer == "adamw" and found.layout.ranks == 1:
        yield "train.optimizer=adamw8bit", config.with_train(optimizer="adamw8bit")
    if found.cache is not None and found.cache.slots > 1:
        less_kv = round((found.engine or found.needs).parts["KV cache"] / GIB / 2, 2)
        engine = config.rollout.engine.model_copy(update={"kv_cache_gb": max(less_kv, 0.01)})
        rollout = config.rollout.model_copy(update={"engine": engine})
        yield f"rollout.engine.kv_cache_gb={max(less_kv, 0.01):g}", config.model_copy(update={"rollout": rollout})
    if train.lora is None:
        yield "train.lora={}", config.with_train(lora=LoraConfig())
    if train.lora is None or train.lora.base_bits == 16:
        lora = (train.lora or LoraConfig()).model_copy(update={"base_bits": 4})
        yield "train.lora.base_bits=4", config.with_train(lora=lora)


def predict_problems(subject: Subject, found: Estimate) -> Iterator[Finding]:
    """Yields the problems of a planned run."""
    yield from _impossible(subject, found)
    yield from _memory(subject, found)
    yield from _judging(subject, found)
    yield from _idle(subject, found)


def _impossible(subject: Subject, found: Estimate) -> Iterator[Finding]:
    """Yields certain failures: settings that a run refuses, and memory that cannot suffice."""
    config, layout = subject.config, found.layout
    if config.model.device == "cuda" and layout.gpu is None:
        said = f"model.device=cuda, but {layout.instance.name} has no GPU"
        yield Finding("failed", "machine", said, ConfigError.exit_code)
    if layout.unsupported:
        yield Finding("failed", "machine", layout.unsupported, ModelError.exit_code)
    if layout.ranks % config.train.sequence_parallel:
        said = f"train.sequence_parallel={config.train.sequence_parallel} does not divide the {layout.ranks} processes"
        yield Finding("failed", "ranks", f"{said}; use more GPUs, or set it lower", ConfigError.exit_code)
    yield from _by_model(subject)
    if layout.ranks > 1 and (said := config.train.one_process):
        yield Finding("failed", "ranks", said, ConfigError.exit_code)
    if layout.lacks:
        yield Finding("failed", "ranks", lacking_resources(config, layout), ConfigError.exit_code)
    elif layout.workers and not layout.placed_workers and not (config.loop.sample_here or config.loop.listen):
        said = (
            f"none of {layout.workers} rollout workers has room beside trainers and engines, and nothing else samples"
        )
        yield Finding(
            "failed", "workers", f"{said}; use more machines, or loop.sample_here=true", ConfigError.exit_code
        )
    if found.certain > found.capacity:
        said = f"weights, gradients and optimizer alone take {_gib(found.certain)} of {_gib(found.capacity)}"
        yield Finding("failed", "memory", f"{said}; `dojang plan` lists settings that help", ModelError.exit_code)
    cache = found.cache
    if cache is not None and not cache.slots:
        said = f"the KV cache of one sequence ({_gib(cache.needed)}) does not fit"
        sure = config.rollout.engine.name != "remote" and config.rollout.engine.kv_cache_gb is not None
        remedy = "raise rollout.engine.kv_cache_gb or lower rollout.max_tokens"
        code = ModelError.exit_code if sure else 0
        yield Finding("failed" if sure else "warning", "memory", f"{said}; {remedy}", code)


def _by_model(subject: Subject) -> Iterator[Finding]:
    """Yields settings that a model's attention heads, layers or context length do not allow."""
    config = subject.config
    for role, shape in subject.shapes.items():
        own = config.train.sequence_parallel
        if shape.heads % own or (shape.kv_heads % own and own % shape.kv_heads):
            said = (
                f"train.sequence_parallel={own} does not go with the {role}'s {shape.heads} and {shape.kv_heads} heads"
            )
            yield Finding("failed", "ranks", said, ConfigError.exit_code)
        if shape.heads % (size := config.rollout.engine.gpus()):
            said = (
                f"rollout.engine.tensor_parallel_size={size} does not divide the {role}'s {shape.heads} attention heads"
            )
            yield Finding("failed", "engines", said, ConfigError.exit_code)
        try:
            check_checkpointed_layers(config.train.gradient_checkpointing, shape.layers)
        except ConfigError as error:
            yield Finding("failed", "memory", f"{role}: {error}", error.exit_code)
        if (most := config.roles()[role].rollout.max_tokens) >= shape.context:
            said = f"answers of {most} tokens leave no room for a prompt in the {role}'s context of {shape.context}"
            yield Finding("failed", "prompts", f"{said}; lower max_tokens", ConfigError.exit_code)
        if (length := config.rollout.max_model_len) and length > shape.context:
            said = f"rollout.max_model_len={length} is more than the {role}'s context of {shape.context}; lower it"
            yield Finding("failed", "prompts", said, ConfigError.exit_code)


def _memory(subject: Subject, found: Estimate) -> Iterator[Finding]:
    where = f"{_gib(found.peak)} of {_gib(found.capacity)} in the {found.fullest} phase"
    if found.peak > found.capacity:
        yield Finding("warning", "memory", f"will probably not fit: {where}")
    elif found.fit == "tight" and found.peak > 0.92 * found.capacity:
        yield Finding("warning", "memory", f"may not fit: {where}")
    host = found.layout.instance.memory_gib * GIB
    if found.layout.gpu and found.host > 0.92 * host:
        said = f"host memory may not suffice: {_gib(found.host)} of {_gib(host)}"
        yield Finding("warning", "memory", f"{said}; fewer processes on each, or less in train.offload")
    for role, shape in subject.shapes.items():
        config = subject.config.roles()[role]
        gpu = found.layout.gpu
        if config.rollout.engine.external and gpu and 2 * shape.parameters > 0.9 * gpu.memory_gib * GIB:
            said = f"the {role}'s weights ({_gib(2 * shape.parameters)}) do not fit one such GPU"
            yield Finding("warning", "servers", f"{said}; servers need --tensor-parallel-size")


def _judging(subject: Subject, found: Estimate) -> Iterator[Finding]:
    times, layout = found.times, found.layout
    others = times.generate + times.train
    if times.judge > max(others, _NOTICED):
        needed = found.work.sequences * judge_core_s(subject.config, subject.language) / max(others, 1e-9)
        yield Finding(
            "warning",
            "judge",
            f"judging {found.work.sequences} answers a step takes {times.judge:.3g} s on {layout.cores} cores, longer "
            f"than all else ({others:.3g} s); {needed:.0f} cores would keep up: judge.url=[...] on other machines",
        )


def lacking_resources(config: RunConfig, layout: Layout) -> str:
    """Describes the resources that a Ray cluster's processes lack, with counts that fit."""
    said = f"the trainers and engines of a Ray cluster want {layout.lacks}; use more machines, or fewer processes"
    gpus = layout.instance.gpus * layout.nodes
    settings = (
        proposal(config, gpus) if layout.wanted > gpus else ""
    )  # it counts GPUs, not their distribution over machines
    return f"{said}, such as {settings}" if settings else said


def split_findings(config: RunConfig, layout: Layout) -> Iterator[Finding]:
    """Yields notes on the counts chosen for a Ray cluster, and on idle GPUs."""
    gpus = layout.instance.gpus * layout.nodes
    if not layout.on_ray or not gpus:
        return
    if chosen := split_gpus(config, gpus):
        settings = " ".join(f"runtime.{name}={count:g}" for name, count in chosen.items())
        said = f"{settings} chosen for the {gpus} GPUs, since the recipe does not set them"
        yield Finding("note", "ranks", f"{said}; `dojang train` needs them typed")
    idle = gpus - layout.wanted - math.ceil(layout.placed_workers * layout.engine)
    if idle > 0 and not config.rollout.engine.external:
        settings = "" if chosen else proposal(config, gpus)
        yield Finding(
            "warning", "ranks", f"{idle} of {gpus} GPUs stay idle" + (f"; try {settings}" if settings else "")
        )


def _idle(subject: Subject, found: Estimate) -> Iterator[Finding]:
    config, layout = subject.config, found.layout
    yield from split_findings(config, layout)
    if layout.ranks > 1 and config.rollout.engine.name == "torch" and not layout.servers:
        said = f"the torch engine samples on one GPU while {layout.ranks - 1} wait"
        yield Finding("note", "ranks", f"{said}; rollout.engine=remote uses all")
    if layout.on_ray and (waiting := layout.workers - layout.placed_workers):
        said = f"{waiting} of {layout.workers} rollout workers have no room, and wait until a machine joins the cluster"
        yield Finding("warning", "workers", f"{said}; lower loop.workers, or use more machines")
    if config.rollout.engine.external and not layout.servers and layout.gpu:
        said = "the rollout servers are taken to be elsewhere, on one GPU like this one; they are not in the price"
        yield Finding("note", "servers", said)
    if config.rollout.engine.external and layout.on_ray and "engines" in config.runtime.model_fields_set:
        said = "runtime.engines has no effect with rollout.engine=remote; rollout.engine.url names the servers"
        yield Finding("note", "servers", said)
    if (rounds := getattr(config.algo, "max_resample_rounds", 0)) > 0:
        said = f"algo.max_resample_rounds={rounds}: a step may sample up to {1 + rounds} times as many prompts;  "
        yield Finding("note", "max_resample_rounds", said + "not in the estimate")
    cache = found.cache
    each = -(-found.work.sequences // max(1, layout.servers)) if layout.on_ray else found.work.sequences
    engine = config.rollout.engine
    if engine.name == "remote" or cache is None:
        return
    wanted = min(engine.max_num_seqs, each)
    if 0 < cache.slots < wanted:
        said = f"the KV cache holds {cache.slots} sequences at a time, not {wanted}"
        grown = layout.alone and engine.kv_cache_gb is None  # the cache already uses the whole GPU
        remedy = (
            "more engines, or a smaller rollout.max_tokens, decode"
            if grown
            else "a larger rollout.engine.kv_cache_gb decodes"
        )
        yield Finding("note", "memory", f"{said}; {remedy} faster")


def _gib(size: float) -> str:
    return f"{size / GIB:.3g} GiB"
