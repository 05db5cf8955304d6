"""Hosts on one machine: each has a network namespace with an address of its own, a host name and its own /etc/hosts.

A switch joins them, in a namespace of its own as well: nothing of this touches the network of the machine. Processes
share the machine's process numbers, so that what a host leaves behind can be found from outside.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

__all__ = ["NEEDS_HOSTS", "Host", "Lab", "labs", "no_leftovers", "until"]

PREFIX = f"dj{os.getpid()}"
SETUP = 'mount --bind "$1" /etc/hosts && mount --bind "$2" /tmp/ray && hostname "$3" && shift 3 && exec "$@"'


def missing_here() -> str:
    """Why hosts cannot be made here. Empty if they can."""
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    if not shutil.which("ip") or not shutil.which("unshare"):
        return "ip (iproute2) or unshare (util-linux) is not installed"
    probe = subprocess.run(["unshare", "-n", "-m", "-u", "ip", "link", "add", "v", "type", "veth"], capture_output=True)
    return "" if probe.returncode == 0 else f"no namespaces here: {probe.stderr.decode().strip()}"


def until(done: Callable[[], object], seconds: float, what: Callable[[], str]) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what()}"
        time.sleep(0.1)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


NEEDS_HOSTS = (
    pytest.mark.skipif(bool(missing_here()), reason=missing_here() or "hosts can be made"),
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: make test-ray"),
)


class Host:
    """One host, and the bootstrap process on it."""

    def __init__(self, number: int, folder: Path) -> None:
        self.name, self.space, self.number = f"algo-{number}", f"{PREFIX}-{number}", number
        self.address = f"10.213.0.{number}"
        self.root = folder / self.name
        self.log, self.failure = self.root / "log", self.root / "output/failure"
        self.scratch = self.root / "ray"  # seen as /tmp/ray: workers of Ray use the folder the head does
        self.scratch.mkdir(parents=True)
        Path("/tmp/ray").mkdir(exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None
        (self.root / "output").mkdir(parents=True)
        ip("netns", "add", self.space)
        ip("-n", self.space, "link", "set", "lo", "up")

    def start(self, hosts_file: Path, *arguments: str, **variables: str) -> None:
        """Starts `dojang launch ray-cluster` with these arguments."""
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SM_", "SLURM"))
        }
        environment |= {"SAGEMAKER_BASE_DIR": str(self.root), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "dojang", "launch", "ray-cluster", *arguments]
        self.run(hosts_file, command, {**environment, **variables})

    def run(self, hosts_file: Path, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts a command on this host; its output goes to the log."""
        inside = ["ip", "netns", "exec", self.space, "unshare", "-m", "-u", "bash", "-c", SETUP, "_"]
        inside += [str(hosts_file), str(self.scratch), self.name, *command]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                inside, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )

    def said(self) -> str:
        return self.log.read_text()

    def says(self, text: str, seconds: float) -> None:
        until(lambda: text in self.said() or self.poll() is not None, seconds, lambda: f"{text!r} in {self.said()}")
        assert text in self.said()

    def poll(self) -> int | None:
        assert self.process
        return self.process.poll()

    def ends(self, seconds: float) -> int:
        until(lambda: self.poll() is not None, seconds, lambda: f"end of {self.name}, which said {self.said()}")
        code = self.poll()
        assert code is not None
        return code

    def signal(self, number: int) -> None:
        assert self.process
        self.process.send_signal(number)

    def processes(self) -> list[int]:
        found = subprocess.run(["ip", "netns", "pids", self.space], capture_output=True, text=True, check=True)
        return [int(word) for word in found.stdout.split()]

    def remove(self) -> None:
        while left := self.processes():
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            if self.process:
                self.process.poll()
            time.sleep(0.1)
        if self.process:
            self.process.wait()
        ip("netns", "del", self.space)
        shutil.rmtree(self.scratch, ignore_errors=True)


class Lab:
    """So many hosts, algo-1 and on, joined by a switch."""

    def __init__(self, count: int, folder: Path) -> None:
        self.switch = f"{PREFIX}-switch"
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "switch", "type", "bridge")
        ip("-n", self.switch, "link", "set", "switch", "up")
        self.hosts = [Host(number, folder) for number in range(1, count + 1)]
        self.hosts_file = folder / "hosts"
        names = "".join(f"{host.address} {host.name}\n" for host in self.hosts)
        self.hosts_file.write_text(f"127.0.0.1 localhost\n{names}")
        for host in self.hosts:
            port = f"port{host.number}"
            ip("-n", self.switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", host.space)
            ip("-n", self.switch, "link", "set", port, "master", "switch", "up")
            ip("-n", host.space, "addr", "add", f"{host.address}/24", "dev", "eth0")
            ip("-n", host.space, "link", "set", "eth0", "up")

    def describe(self, groups: dict[str, Sequence[int]]) -> None:
        """Write SageMaker's description of the job for every host. As there, hosts are sorted as strings."""
        named = [
            {"instance_group_name": name, "instance_type": "ml.x", "hosts": [f"algo-{number}" for number in numbers]}
            for name, numbers in groups.items()
        ]
        for host in self.hosts:
            config = host.root / "input/config"
            config.mkdir(parents=True)
            group = next(name for name, numbers in groups.items() if host.number in numbers)
            job: dict[str, object] = {"current_host": host.name, "hosts": sorted(each.name for each in self.hosts)}
            job |= {"current_instance_type": "ml.x", "current_group_name": group}
            job |= {"instance_groups": named, "network_interface_name": "eth0"}
            (config / "resourceconfig.json").write_text(json.dumps(job))

    def start(self, *arguments: str, hosts: Sequence[int] = (), **variables: str) -> None:
        for host in self.hosts:
            if not hosts or host.number in hosts:
                host.start(self.hosts_file, *arguments, **variables)

    def link(self, number: int, state: str) -> None:
        ip("-n", self.switch, "link", "set", f"port{number}", state)

    def remove(self) -> None:
        for host in self.hosts:
            host.remove()
        ip("netns", "del", self.switch)


@contextmanager
def labs(folder: Path) -> Iterator[Callable[[int], Lab]]:
    """Makes labs that are removed in the end; what their hosts said is printed."""
    made: list[Lab] = []

    def make(count: int) -> Lab:
        made.append(Lab(count, folder))
        return made[-1]

    try:
        yield make
    finally:
        for lab in made:
            for host in lab.hosts:
                if host.log.exists():
                    sys.stdout.write(f"--- {host.name} ({host.poll()}), {len(host.processes())} left\n{host.said()}\n")
            lab.remove()


def no_leftovers(lab: Lab, seconds: float = 15) -> None:
    """Nothing of any host is left, shortly after its bootstrap process has ended."""
    until(lambda: not any(host.processes() for host in lab.hosts), seconds, lambda: "all processes gone")
