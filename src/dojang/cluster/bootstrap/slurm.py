"""Reads the hosts of a job from Slurm's environment variables and expands Slurm's compressed node lists."""

import re
from collections.abc import Mapping
from itertools import product

from dojang.core.errors import ConfigError

__all__ = ["expand", "node_list", "this_node"]

_ENTRY = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_MAX_RANGE = 65536


def node_list(environment: Mapping[str, str]) -> str:
    """Node list of this Slurm step (which may have fewer nodes than the job), or of the job; empty outside Slurm."""
    return environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or ""


def this_node(environment: Mapping[str, str]) -> str:
    """Name of this node; refuses a second task on the same node."""
    if environment.get("SLURM_LOCALID", "0") != "0":
        raise ConfigError(
            "this is not the first task on its node, and each host runs the command once: use srun --ntasks-per-node=1"
        )
    name = environment.get("SLURMD_NODENAME", "")
    if not name:
        raise ConfigError(
            "SLURMD_NODENAME is not set: this node's name is unknown; start with srun, or use --host NAME"
        )
    return name


def expand(text: str) -> list[str]:
    """Expands a node list: `gpu[01-03,7],login` gives gpu01, gpu02, gpu03, gpu7, login."""
    entries = _ENTRY.findall(text)
    if ",".join(entries) != text:
        raise ConfigError(f"cannot parse the list of nodes {text!r}: unbalanced brackets or empty entries")
    return [name for entry in entries for name in _expand_entry(entry)]


def _expand_entry(entry: str) -> list[str]:
    choices = [_numbers(ranges) if ranges else [plain] for ranges, plain in _PIECE.findall(entry)]
    return ["".join(parts) for parts in product(*choices)]


def _numbers(ranges: str) -> list[str]:
    numbers: list[str] = []
    for piece in ranges.split(","):
        first, dash, last = piece.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) - int(first) > _MAX_RANGE):
            raise ConfigError(f"[{ranges}] in the list of nodes is not a list of numbers and ranges")
        numbers += [f"{number:0{len(first)}}" for number in range(int(first), int(last or first) + 1)]
    return numbers
