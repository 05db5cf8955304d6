"""`dojang doctor`: checks this machine's hardware, packages and judge isolation, with remedies."""

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from rich.console import Console
from rich.table import Table

from dojang.core.errors import ConfigError
from dojang.core.paths import cache_root
from dojang.judge.host_capabilities import REMEDIES, HostCapabilities

__all__ = ["Finding", "examine", "findings", "required"]

GIB = 2**30

OPTIONAL = {
    "peft": "adapters (LoRA)",
    "bitsandbytes": "4-bit weights (QLoRA), 8-bit optimizer",
    "math-verify": "LaTeX answers",
    "reasoning-gym": "reasoning_gym puzzles",
    "ray": "runs on several machines",
    "vllm": "vLLM rollouts",
    "mlflow-skinny": "tracking in MLflow",
    "sagemaker-mlflow": "SageMaker's managed MLflow",
    "wandb": "tracking in Weights & Biases",
    "tensorboard": "TensorBoard event files",
    "sagemaker": "launching jobs on Amazon SageMaker",
}
GPU_DEVICES = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # NVIDIA, AMD, Windows' Linux
GIVES = {
    "namespaces": "judged programs have separate files, processes and network",
    "landlock": "judged programs can only open the toolchain's files",
    "seccomp": "judged programs cannot start processes or use the network",
    "cgroups": "a second memory limit for judged programs",
}
"""Effect of each isolation mechanism."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    good: bool | None
    """None: neither good nor bad."""
    what: str
    found: str
    meaning: str


def examine() -> None:
    """Prints the results of all checks."""
    marks = {True: "ok", False: "missing", None: "-"}
    table = Table(box=None, pad_edge=False)
    for heading in ("", "check", "found", "meaning"):
        table.add_column(heading, overflow="fold")
    for finding in findings():
        table.add_row(marks[finding.good], finding.what, finding.found, finding.meaning)
    Console().print(table, markup=False, highlight=False)


def findings() -> Iterator[Finding]:
    """Yields the results of all checks, cheapest first."""
    yield _python()
    yield _cores()
    yield _memory()
    yield _disk()
    yield _gpu()
    yield _compiler()
    yield from _judge(HostCapabilities("auto", "", cache_root()))
    for name in required():
        found = _installed(name)
        yield Finding(found is not None, name, found or "not installed", "" if found else "pip install dojang")
    for name, use in OPTIONAL.items():
        found = _installed(name)
        yield Finding(
            True if found else None,
            name,
            found or "not installed",
            f"optional, for {use}",
        )


def _python() -> Finding:
    enough = sys.version_info >= (3, 11)
    return Finding(enough, "python", platform.python_version(), "" if enough else "3.11 or newer is needed")


def _cores() -> Finding:
    cores = len(os.sched_getaffinity(0))
    return Finding(
        True,
        "cores",
        f"{cores} ({platform.machine()})",
        "enough for the quickstart; more cores judge and generate faster" if cores < 8 else "good for judging code",
    )


def _memory() -> Finding:
    page = os.sysconf("SC_PAGE_SIZE")
    total = os.sysconf("SC_PHYS_PAGES") * page / GIB
    free = os.sysconf("SC_AVPHYS_PAGES") * page / GIB
    # Full fine-tuning: master weights, gradient, two Adam moments (16 bytes a parameter), engine copy,
    # activations; about 24 bytes a parameter in all.
    return Finding(
        total >= 2,
        "memory",
        f"{total:.1f} GiB, {free:.1f} free",
        f"full fine-tuning on the CPU up to about {total * GIB / 24 / 1e9:.1f}B parameters"
        if total >= 2
        else "the quickstart needs about 1 GiB",
    )


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free / GIB
    return Finding(
        free > 2,
        "disk here",
        f"{free:.1f} GiB free",
        f"downloaded models go to {cache_root()}" if free > 2 else "too little for checkpoints of a real model",
    )


def _gpu() -> Finding:
    if _installed("torch") is None:
        return Finding(None, "gpu", "unknown", "torch is not installed")
    none = Finding(None, "gpu", "none", "training uses the CPU: fine for dojang-tiny, slow from 100M parameters")
    if not any(Path(device).exists() for device in GPU_DEVICES):
        return none  # torch takes seconds to import
    import torch

    if torch.cuda.is_available():
        name = torch.cuda.get_device_name(0)
        memory = torch.cuda.get_device_properties(0).total_memory / GIB
        count = torch.cuda.device_count()
        return Finding(True, "gpu", f"{count} x {name}, {memory:.0f} GiB", "used by default (model.device=auto)")
    if shutil.which("nvidia-smi") and torch.version.cuda is None:
        return Finding(False, "gpu", "present, but torch is a CPU build", "install a CUDA build of torch to use it")
    return none


def _compiler() -> Finding:
    found = shutil.which("g++")
    if found is None:
        missed = "C++ programs cannot be judged, and CPU rollouts are slower; apt install g++"
        return Finding(False, "g++", "not found", missed)
    return Finding(True, "g++", _first_line(found), "judges C++ programs and makes CPU rollouts faster")


def _judge(host: HostCapabilities) -> Iterator[Finding]:
    for name, gives in GIVES.items():
        why = host.features[name]
        # A missing mechanism is no fault: the next one replaces it.
        yield Finding(None if why else True, name, why or "works", REMEDIES[name] if why else gives)
    try:
        level = host.isolation
    except ConfigError as error:
        yield Finding(False, "judge", "no isolation available", str(error))
    else:
        yield Finding(True, "judge", f"isolation {level}", "test it with `dojang judge selftest`")


def _first_line(program: str) -> str:
    try:
        result = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"does not run: {error}"
    return result.stdout.splitlines()[0] if result.stdout else "unknown version"


def required() -> list[str]:
    """Names of the packages that every part of dojang needs."""
    try:
        every = map(Requirement, requires("dojang") or ())
    except PackageNotFoundError:  # a checkout that is not installed
        return ["dojang"]
    return [each.name for each in every if each.marker is None]


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
