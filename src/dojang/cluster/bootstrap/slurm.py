"""What Slurm tells a task: the nodes of its step or job, in Slurm's compressed notation, and the name of this one."""

import re
from collections.abc import Mapping
from itertools import product

from dojang.core.errors import ConfigError

__all__ = ["expand", "node_list", "this_node"]

_ENTRY = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_MOST = 65536


def node_list(environment: Mapping[str, str]) -> str:
    """The nodes this command was started on: a step may have fewer than the job. Empty outside of Slurm."""
    return environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST") or ""


def this_node(environment: Mapping[str, str]) -> str:
    if environment.get("SLURM_LOCALID", "0") != "0":
        raise ConfigError(
            "this is not the first task on its node, and each host runs the command once: use srun --ntasks-per-node=1"
        )
    name = environment.get("SLURMD_NODENAME", "")
    if not name:
        raise ConfigError("SLURMD_NODENAME is not set, so this node is not known; start with srun, or use --host NAME")
    return name


def expand(text: str) -> list[str]:
    """`gpu[01-03,7],login` in full: gpu01, gpu02, gpu03, gpu7, login."""
    entries = _ENTRY.findall(text)
    if ",".join(entries) != text:
        raise ConfigError(f"the list of nodes {text!r} cannot be read: its brackets or commas do not fit")
    return [name for entry in entries for name in _expand_entry(entry)]


def _expand_entry(entry: str) -> list[str]:
    choices = [_numbers(ranges) if ranges else [plain] for ranges, plain in _PIECE.findall(entry)]
    return ["".join(parts) for parts in product(*choices)]


def _numbers(ranges: str) -> list[str]:
    numbers: list[str] = []
    for piece in ranges.split(","):
        first, dash, last = piece.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) - int(first) > _MOST):
            raise ConfigError(f"[{ranges}] in the list of nodes is no list of numbers and ranges")
        numbers += [f"{number:0{len(first)}}" for number in range(int(first), int(last or first) + 1)]
    return numbers
