"""Splits the GPUs of a Ray cluster between trainers and engines, if the recipe does not set the numbers.

Half of the GPUs train and half sample. Trainers come in multiples of train.sequence_parallel, engines take
rollout.engine.tensor_parallel_size GPUs each, every model of the run gets the same share, adamw8bit trains in one
process, and with rollout.engine=remote all GPUs train. Rollout workers (loop.workers) get their GPUs first, if enough
are left. On a single GPU one trainer and one engine share it.
"""

from dojang.cluster.runtime_config import RayConfig
from dojang.config.run_config import RunConfig

__all__ = ["proposal", "split_gpus", "with_split"]


def with_split(config: RunConfig, gpus: int) -> RunConfig:
    """Returns the configuration with the counts that `split_gpus` chooses."""
    chosen = split_gpus(config, gpus)
    return config.model_copy(update={"runtime": config.runtime.model_copy(update=chosen)}) if chosen else config


def split_gpus(config: RunConfig, gpus: int) -> dict[str, int | float]:
    """Chooses `trainers`, `engines` and (on a single GPU) `gpus` of the runtime section, unless they are set; empty if
    all are set, or no choice fits."""
    runtime = config.runtime
    if not isinstance(runtime, RayConfig) or not gpus or config.model.device == "cpu" or runtime.gpus == 0:
        return {}
    own = runtime.gpus or 1
    chosen = _counts(config, runtime, gpus * int(1 / own + 1e-9) if own < 1 else int(gpus / own))
    if chosen or runtime.model_fields_set & {"trainers", "engines", "gpus"}:
        return chosen
    if config.train.sequence_parallel > 1 or config.rollout.engine.gpus() > 1:  # these need whole GPUs
        return {}
    each = min(0.5, gpus / (2 * len(config.roles())))
    shared = _counts(config, runtime, int(gpus / each))
    return {**shared, "gpus": each} if shared else {}


def proposal(config: RunConfig, gpus: int) -> str:
    """Settings that use these GPUs, whatever the recipe sets; empty if none do."""
    if not isinstance(config.runtime, RayConfig):
        return ""
    kept = config.runtime.model_dump(exclude_unset=True, exclude={"trainers", "engines"})
    tester = config.tester.model_copy(update={"trainers": None, "engines": None}) if config.tester else None
    chosen = split_gpus(config.model_copy(update={"runtime": RayConfig(**kept), "tester": tester}), gpus)
    own = [] if config.tester is None else ["trainers", "engines"]
    cleared = [f"tester.{name}=null" for name in own if getattr(config.tester, name) is not None]
    return " ".join([*(f"runtime.{name}={count:g}" for name, count in chosen.items()), *cleared]) if chosen else ""


def _counts(config: RunConfig, runtime: RayConfig, gpu_slots: int) -> dict[str, int | float]:
    """Counts of each model for a number of processes with one GPU (or a fraction) each. Set counts of the tester are
    subtracted first; otherwise both models get the same."""
    group, width, roles = config.train.sequence_parallel, config.rollout.engine.gpus(), len(config.roles())
    unset = {"trainers", "engines"} - runtime.model_fields_set
    tester = (config.tester.trainers, config.tester.engines) if config.tester else (None, None)
    trained, sampled = (roles - (count is not None) for count in tester)
    remote = config.rollout.engine.external
    gpu_slots -= (tester[0] or 0) + (0 if remote else width * (tester[1] or 0))
    if gpu_slots - (workers := width * config.loop.workers) >= roles * (group + width):
        gpu_slots -= workers
    most = (
        max(1, config.rollout.prompts_per_step // config.train.minibatches) * group
    )  # more ranks would have no prompt to train on
    if config.train.one_process:
        most = 1
    if remote:
        trainers = min(most, gpu_slots // trained // group * group)
        return {"trainers": trainers} if "trainers" in unset and trainers > 0 else {}
    if "trainers" not in unset:
        trainers = runtime.trainers
    elif "engines" not in unset:
        trainers = min(most, (gpu_slots - sampled * width * runtime.engines) // trained // group * group)
    else:
        trainers = min(most, max(group, gpu_slots // 2 // trained // group * group))
    engines = (gpu_slots - trained * trainers) // (sampled * width) if "engines" in unset else runtime.engines
    if trainers < 1 or engines < 1:
        return {}
    counts: dict[str, int | float] = {"trainers": trainers, "engines": engines}
    return {name: count for name, count in counts.items() if name in unset}
