"""Finds the hosts of a job, its head, and which host this is.

Sources, in order: the command line, SageMaker, Slurm, and a single host. Roles follow from host names alone; the
resources that a host offers to Ray do not matter here.
"""

import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from dojang.cluster.bootstrap import sagemaker_env, slurm
from dojang.core.errors import ConfigError

__all__ = ["Topology", "discover", "natural_sort"]

_ALONE = "localhost"


@dataclass(frozen=True)
class Topology:
    """Hosts of a job, head first; `source` says where the list came from, `interface` which network device to use."""

    hosts: tuple[str, ...]
    this_host: str
    source: str
    interface: str = ""

    @property
    def head(self) -> str:
        return self.hosts[0]

    @property
    def workers(self) -> tuple[str, ...]:
        return self.hosts[1:]

    @property
    def is_head(self) -> bool:
        return self.this_host == self.head


def discover(
    hosts: Sequence[str] = (),
    host: str = "",
    head_group: str = "",
    environment: Mapping[str, str] = os.environ,
) -> Topology:
    """Finds the topology of the job this process belongs to."""
    job = sagemaker_env.read(environment)
    if hosts:
        _refuse_group(head_group, "--hosts")
        names = _checked(hosts)
        found = Topology(names, host or _find_this_host(names), "--hosts")
    elif job:
        found = _from_container(job, host, head_group)
    elif listed := slurm.node_list(environment):
        _refuse_group(head_group, "Slurm")
        found = Topology(_checked(natural_sort(slurm.expand(listed))), host or slurm.this_node(environment), "Slurm")
    else:
        _refuse_group(head_group, "a single host")
        found = Topology((host or _ALONE,), host or _ALONE, "a single host")
    if found.this_host not in found.hosts:
        raise ConfigError(
            f"this host is {found.this_host}, which is not among the hosts of the job, "
            f"according to {found.source}: {', '.join(found.hosts)}"
        )
    return replace(found, interface=job.interface) if job else found


def natural_sort(hosts: Sequence[str]) -> list[str]:
    """Sorts by the numbers in names: algo-2 before algo-10."""
    return sorted(hosts, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])


def _from_container(job: sagemaker_env.Job, host: str, head_group: str) -> Topology:
    hosts = natural_sort(job.hosts)
    groups = ", ".join(f"{name} ({', '.join(natural_sort(members))})" for name, members in job.groups.items())
    if head_group:
        if not job.groups.get(head_group):
            raise ConfigError(f"--head-group {head_group}: no such instance group; the job has {groups or 'none'}")
        head = natural_sort(job.groups[head_group])[0]
    elif len(job.groups) > 1:
        raise ConfigError(f"this job has several instance groups; choose the head's with --head-group: {groups}")
    else:
        head = hosts[0]
    return Topology(_checked([head, *(name for name in hosts if name != head)]), host or job.this_host, "SageMaker")


def _refuse_group(head_group: str, source: str) -> None:
    if head_group:
        raise ConfigError(f"--head-group {head_group}: only SageMaker has instance groups; the hosts are from {source}")


def _checked(hosts: Sequence[str]) -> tuple[str, ...]:
    names = tuple(name.strip() for name in hosts)
    if not all(names):
        raise ConfigError(f"--hosts {','.join(hosts)}: a name is missing between two commas")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{', '.join(twice)}: named twice among the hosts; each host runs the command once")
    return names


def _find_this_host(hosts: Sequence[str]) -> str:
    """Finds this host in the list, by its name or its addresses."""
    mine = {socket.gethostname(), socket.getfqdn()}
    short = {name.split(".")[0] for name in mine}
    for fits in (lambda name: name in mine, lambda name: name.split(".")[0] in short, _is_local):
        found = [name for name in hosts if fits(name)]
        if len(found) == 1:
            return found[0]
        if found:
            break
    which = f"could be any of {', '.join(found)}" if found else f"is none of {', '.join(hosts)}"
    raise ConfigError(f"this host ({socket.gethostname()}) {which}; choose with --host NAME")


def _is_local(name: str) -> bool:
    """Reports whether a name resolves to an address of this host: only then can a socket bind to it."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((socket.gethostbyname(name), 0))
        return True
    return False
