"""Which hosts a job has, which of them leads, and which one this is.

Asked in this order: what the command line says, what SageMaker says, what Slurm says. If nobody says anything, this
host is alone. The role follows from names only: how many hosts offer Ray anything to work with does not matter here.
"""

import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from dojang.cluster.bootstrap import sagemaker_env, slurm
from dojang.core.errors import ConfigError

__all__ = ["Roster", "discover", "in_order"]

_ALONE = "localhost"


@dataclass(frozen=True)
class Roster:
    """The hosts of a job, the head first."""

    hosts: tuple[str, ...]
    me: str
    source: str
    interface: str = ""

    @property
    def head(self) -> str:
        return self.hosts[0]

    @property
    def workers(self) -> tuple[str, ...]:
        return self.hosts[1:]

    @property
    def leads(self) -> bool:
        return self.me == self.head


def discover(
    hosts: Sequence[str] = (),
    host: str = "",
    head_group: str = "",
    environment: Mapping[str, str] = os.environ,
) -> Roster:
    """What is known of the job this process is part of."""
    job = sagemaker_env.read(environment)
    if hosts:
        _refuse_group(head_group, "--hosts")
        names = _checked(hosts)
        found = Roster(names, host or _myself(names), "--hosts")
    elif job:
        found = _from_container(job, host, head_group)
    elif listed := slurm.node_list(environment):
        _refuse_group(head_group, "Slurm")
        found = Roster(_checked(in_order(slurm.expand(listed))), host or slurm.this_node(environment), "Slurm")
    else:
        _refuse_group(head_group, "a single host")
        found = Roster((host or _ALONE,), host or _ALONE, "a single host")
    if found.me not in found.hosts:
        raise ConfigError(
            f"this host is {found.me}, which is not among the hosts of the job, "
            f"by {found.source}: {', '.join(found.hosts)}"
        )
    return replace(found, interface=job.interface) if job else found


def in_order(hosts: Sequence[str]) -> list[str]:
    """Sorted as people count: algo-2 before algo-10."""
    return sorted(hosts, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])


def _from_container(job: sagemaker_env.Job, host: str, head_group: str) -> Roster:
    hosts = in_order(job.hosts)
    groups = ", ".join(f"{name} ({', '.join(in_order(members))})" for name, members in job.groups.items())
    if head_group:
        if not job.groups.get(head_group):
            raise ConfigError(
                f"--head-group {head_group}: there is no such instance group; there are {groups or 'none'}"
            )
        head = in_order(job.groups[head_group])[0]
    elif len(job.groups) > 1:
        raise ConfigError(f"this job has several instance groups; say with --head-group which one leads: {groups}")
    else:
        head = hosts[0]
    return Roster(_checked([head, *(name for name in hosts if name != head)]), host or job.me, "SageMaker")


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


def _myself(hosts: Sequence[str]) -> str:
    """Which of the hosts this is, by its name or by its addresses."""
    mine = {socket.gethostname(), socket.getfqdn()}
    short = {name.split(".")[0] for name in mine}
    for fits in (lambda name: name in mine, lambda name: name.split(".")[0] in short, _is_local):
        found = [name for name in hosts if fits(name)]
        if len(found) == 1:
            return found[0]
        if found:
            break
    which = f"could be any of {', '.join(found)}" if found else f"is none of {', '.join(hosts)}"
    raise ConfigError(f"this host ({socket.gethostname()}) {which}; say which with --host NAME")


def _is_local(name: str) -> bool:
    """Whether a name's address is one of this host's: only then can a socket be bound to it."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((socket.gethostbyname(name), 0))
        return True
    return False
