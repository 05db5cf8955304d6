"""Checks of a configuration against this machine, before data or models are loaded. Imports no torch.

Packages that settings need, the model's architecture, and the run directory with its disk. `prepare` runs the first
two, so a dry run, a plan and a run refuse the same configurations.
"""

import difflib
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError, safe_open

from dojang import models
from dojang.config.run_config import RunConfig
from dojang.core.error_list import ErrorList
from dojang.core.errors import ConfigError, ModelError, RunDirError
from dojang.core.hub import why_unreachable
from dojang.core.paths import cache_root
from dojang.core.run_dir import CHOOSE_ANOTHER, RunDir
from dojang.core.section import Requirement, Section
from dojang.engine.architectures import Support, support
from dojang.track import registry
from dojang.trainer.memory import optimizer_bytes
from dojang.trainer.untrainable import why_untrainable

__all__ = [
    "check_architecture",
    "check_cache",
    "check_disk_space",
    "check_hub",
    "check_metric",
    "check_packages",
    "check_servers",
    "check_usable",
    "engine_support",
    "requirements",
]

_MASTER_BYTES = 4
"""Bytes per parameter of saved weights."""


def check_packages(config: RunConfig) -> None:
    """Raises MissingPackage if settings need packages that are not installed."""
    errors, elsewhere = ErrorList(), _runs_elsewhere(config)
    for each in requirements(config):
        if not elsewhere or each.packages == ("ray",):
            with errors.collect():
                each.check()
    errors.raise_if_any()


def check_metric(config: RunConfig) -> None:
    """Raises ConfigError if no run reports checkpoint.metric. A custom algorithm may report metrics of any name."""
    metric, algo = config.checkpoint.metric, config.algo.name
    if metric == "val/loss" and algo != "sft":
        raise ConfigError(f"checkpoint.metric=val/loss is reported with algo.name=sft only, not {algo}; use val/reward")
    if registry.find(metric) is None and algo != "custom":
        names = [each.name for each in registry.metrics() if not each.is_family]
        near = difflib.get_close_matches(metric, names, n=1)
        raise ConfigError(
            f"checkpoint.metric={metric} is no metric of a run; "
            + (f"did you mean {near[0]}?" if near else "use val/accuracy, val/reward, or another of docs/metrics.md")
        )


def requirements(section: Section) -> Iterator[Requirement]:
    """Packages that settings need, of all sections."""
    yield from section.required_packages()
    for name in type(section).model_fields:
        inner = getattr(section, name)
        for each in inner.values() if isinstance(inner, Mapping) else [inner]:
            if isinstance(each, Section):
                yield from requirements(each)


def _runs_elsewhere(config: RunConfig) -> bool:
    """Whether trainers and engines run on nodes of an existing Ray cluster, which have their own packages."""
    return config.runtime.name == "ray" and bool(config.runtime.address or os.environ.get("RAY_ADDRESS"))


def check_architecture(key: str, name: str) -> None:
    """Raises ModelError if a model is no causal language model or cannot be trained, by its config.json if that is on
    this machine. `key` is the setting that names it."""
    config = models.read_config(name)
    if config is None:
        return
    if (found := support(config)).engine == "none":
        raise ModelError(f"{key}={name}: {found.message}; choose another model")
    if reason := why_untrainable(config):
        raise ModelError(
            f"{key}={name}: model_type={config['model_type']!r} can be sampled from and evaluated, but not trained: "
            f"{reason}; choose another model"
        )


def engine_support(name: str) -> Support | None:
    """Engine of this project that computes a model; None if its config.json must be downloaded."""
    config = models.read_config(name)
    return None if config is None else support(config)


def check_hub(name: str) -> str:
    """Raises ModelError if a hub model does not exist or is not accessible. Downloads its config.json, which
    `check_architecture` reads. Returns why it could not be checked; empty if it was, or is on this machine."""
    if models.local(name) is not None or "/" not in name or models.read_config(name) is not None:
        return ""
    if reason := why_unreachable():
        return f"{name} is not on this machine, and {reason}: its architecture and prompts are not checked"
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        hf_hub_download(name, "config.json")
    except LocalEntryNotFoundError as error:
        return f"{name} is not on this machine, and the hub did not answer ({error}): it is not checked"
    except (RepositoryNotFoundError, EntryNotFoundError) as error:  # also a gated repository without access
        first = str(error).strip().splitlines()[0]
        raise ModelError(
            f"model {name!r} cannot be downloaded: {first}; correct the name, or log in with `hf auth login`"
        ) from error
    return ""


def check_servers(config: RunConfig) -> None:
    """Raises ConfigError if a rollout server of a local run does not answer its health check."""
    import httpx  # takes a while to load

    engine = config.rollout.engine
    for url in engine.url if engine.name == "remote" and config.runtime.name == "local" else ():
        try:
            httpx.get(f"{url.rstrip('/')}/health", timeout=5, trust_env=False).raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ConfigError(
                f"rollout.engine.url={url}: GET /health failed ({error}); start the server, or correct its address"
            ) from None


def check_disk_space(config: RunConfig, directory: RunDir) -> None:
    """Raises RunDirError if the disk is certainly too small for the checkpoints that a run keeps: weights and optimizer
    state. Adapters are small, and a cluster may write elsewhere: these are not checked."""
    if config.train.lora is not None or config.runtime.name != "local":
        return
    saves = 1 if config.epochs is not None else -(-config.steps // config.checkpoint.every)
    there = len(list(directory.checkpoints.glob("step-*")))
    count = max(1, min(saves, config.checkpoint.keep + 1) - there)
    parameters = sum(_parameters(each.model.name) for each in config.roles().values())
    size = _MASTER_BYTES * parameters + optimizer_bytes(config.train.optimizer, _MASTER_BYTES, parameters, 0)
    free = shutil.disk_usage(_existing(directory.path)).free
    if count * size > free:
        raise RunDirError(
            f"the disk that holds {directory.path} has {free / 1e9:.3g} GB free, but {count} x {size / 1e9:.3g} GB of "
            f"checkpoints (weights and optimizer state, checkpoint.keep={config.checkpoint.keep} and the last) will "
            f"not fit; free some space, lower checkpoint.keep, or {CHOOSE_ANOTHER}"
        )


def _parameters(name: str) -> int:
    """Number of parameters in the safetensors files of a model; 0 if it has none on this machine."""
    directory = models.local(name)
    count = 0
    for path in Path(directory).glob("*.safetensors") if directory else ():
        with suppress(SafetensorError), safe_open(path, "np") as file:  # a damaged file is reported where it is loaded
            count += sum(math.prod(file.get_slice(key).get_shape()) for key in file.keys())  # noqa: SIM118
    return count


def _existing(path: Path) -> Path:
    """The nearest directory above a path that exists."""
    existing = path.absolute()
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    return existing


def check_usable(directory: RunDir) -> None:
    """Raises RunDirError if a run directory is in use or cannot be written. Leaves nothing behind."""
    path = directory.path
    if path.is_dir():
        directory.lock()
        directory.unlock()
    try:
        _write_there(path)
    except OSError as error:
        raise RunDirError(f"cannot write to {path}: {error.strerror or error}; {CHOOSE_ANOTHER}") from error


def check_cache(name: str) -> None:
    """Raises ModelError if a model has to be fetched or converted, and the cache cannot be written. Leaves nothing
    behind."""
    if not models.will_be_cached(name):
        return
    try:
        _write_there(cache_root())
    except OSError as error:
        raise ModelError(
            f"cannot store {name} in {cache_root()}: {error.strerror or error}; make it writable, or set DOJANG_CACHE "
            "to another directory"
        ) from error


def _write_there(path: Path) -> None:
    """Raises OSError if a directory cannot be made or written. Leaves nothing behind."""
    existing = _existing(path)
    if not existing.is_dir():
        raise NotADirectoryError(20, f"{existing} is a file")
    with tempfile.TemporaryDirectory(prefix=".dojang-", dir=existing):
        pass
