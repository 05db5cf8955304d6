"""Records where a run was started and resumed: versions, machine, command (environment.json)."""

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import dojang
from dojang.core.mask_secrets import mask_arguments, masked
from dojang.core.run_dir import RunDir, write_atomic

__all__ = ["describe_environment", "record_start"]

PACKAGES = (
    *("torch", "transformers", "tokenizers", "numpy", "pyarrow", "triton", "peft", "bitsandbytes", "flash-attn"),
    *("vllm", "ray", "math-verify"),
)
VARIABLES = (
    *("CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "TORCH", "PYTORCH_", "OMP_", "MKL_", "TOKENIZERS_", "HF_", "TRANSFORMERS_"),
    *("VLLM_", "RAY_", "SLURM_", "DOJANG_", "PYTHONHASHSEED", "RANK", "WORLD_SIZE", "LOCAL_"),
)
"""Prefixes of the environment variables that change how a run computes. No others are recorded."""
_TIMEOUT_S = 5.0


def record_start(directory: RunDir, step: int) -> None:
    """Adds this start of a run, after `step`, to environment.json."""
    try:
        starts = json.loads(directory.environment.read_bytes())["starts"]
    except (OSError, ValueError, KeyError, TypeError):  # the first start, or a damaged file
        starts = []
    started = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "step": step, **describe_environment()}
    write_atomic(directory.environment, json.dumps({"starts": [*starts, started]}, indent=1).encode())


def describe_environment(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Versions, machine, command and environment variables, without secrets."""
    return {
        "dojang": {"version": dojang.__version__, **_checkout(Path(dojang.__file__).resolve().parents[2])},
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := _installed(name))},
        "cuda": _cuda(),
        "gpus": _gpus(),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "os": platform.platform(),
        "hostname": socket.gethostname(),
        "command": mask_arguments(sys.argv),
        "variables": {
            name: masked(name, value) for name, value in sorted(environment.items()) if name.startswith(VARIABLES)
        },
    }


def _checkout(root: Path) -> dict[str, Any]:
    """Commit of dojang's source, and whether it was changed; empty if it is installed from a package."""
    if not (root / ".git").exists() or not (commit := _output("git", "-C", str(root), "rev-parse", "HEAD")):
        return {}
    changes = _output("git", "-C", str(root), "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": bool(changes)}


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _cuda() -> str | None:
    torch = sys.modules.get("torch")  # imported by the run, not for this
    return torch.version.cuda if torch is not None else None


def _gpus() -> list[str]:
    """Names, memory and drivers of the GPUs of this machine. Asks the driver's program: torch would take GPU memory."""
    query = ("--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    return _output("nvidia-smi", *query).splitlines()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _output(*command: str) -> str:
    """Output of a program; empty if it is missing, fails or takes too long."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
