"""A soak test of asynchronous training: real runs of the tiny model with random faults.

    dojang bench async_soak [--kills 30] [--seed 0] [--only KIND ...] [--json]

    worker    SIGKILL of a rollout worker, of the trainer or joined from outside
    trainer   SIGKILL of the trainer, which serves prompts and weights; then `dojang resume`
    all       SIGKILL of all processes at once; then `dojang resume`
    stop      SIGSTOP of a worker for longer than its leases last, then SIGCONT: late and double deliveries
    link      a cut network link to a worker (needs root: network namespaces)
    join      a worker joins at any moment, drains and leaves
    disk      a full disk, then `dojang resume` (needs root: a small file system)
    overlap   SIGKILL of a run with loop.mode=overlap; then `dojang resume`
    mixed     the first four and joining workers, by turns

After each run: every prompt is learned in exactly one step, no sample is staler than loop.lag, no process and no shared
memory is left, and in overlap the tokens are those of a run without faults. Exit status 1 otherwise.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

from async_soak_run import WORKER_TIMEOUT_S, Shape, SoakRun, Violation, sampled_tokens, shared_memory
from machine import arguments, machine

IN_TURN = ("worker", "trainer", "all", "stop", "join")
"""Kinds that need nothing but processes: "mixed" makes them by turns, in one run."""
KINDS = ("worker", "trainer", "all", "stop", "link", "join", "disk", "overlap", "mixed")
DISK_MB = 16


@dataclass(slots=True)
class Result:
    """Faults of one kind, and what went wrong."""

    kind: str
    faults: int = 0
    runs: int = 0
    seconds: float = 0.0
    events: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("expired", "known", "late"), 0))
    """Lost leases, and deliveries that were not taken."""
    violations: list[str] = field(default_factory=list)
    skipped: str = ""


class Soak:
    """Runs with faults, in a temporary folder."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        *,
        shape: Shape | None = None,
        faults_per_run: int = 5,
        longest_delay_s: float = 6.0,
        local: int = 1,
        joined: int = 1,
        popen: Callable[..., subprocess.Popen[Any]] = subprocess.Popen,
    ) -> None:
        self._folder, self._draw, self._seed = folder, Random(seed), seed
        self._shape, self._most, self._delay_s = shape or Shape(), faults_per_run, longest_delay_s
        self._options: dict[str, Any] = {"popen": popen, "local": local, "joined": joined}
        self._number = 0
        self._undisturbed: dict[str, list[Any]] | None = None

    def soak(self, kind: str, faults: int) -> Result:
        """Runs until this many faults were made."""
        result, started = Result(kind), time.monotonic()
        result.skipped = missing_for(kind)
        while not result.skipped and result.faults < faults and len(result.violations) < 3:
            self._one_run(kind, min(self._most, faults - result.faults), result)
        result.seconds = time.monotonic() - started
        return result

    def _one_run(self, kind: str, faults: int, result: Result) -> None:
        self._number += 1
        folder = self._folder / f"{kind}-{self._number}"
        before = shared_memory()
        with ExitStack() as cleanup:
            run, fault = self._prepare(kind, folder, cleanup)
            cleanup.callback(run.close)
            moments = sorted(self._draw.choices(range(1, self._shape.steps - 2), k=faults))
            try:
                run.start()
                for moment in moments:
                    if not run.reaches(moment):
                        break
                    # Rarely later: while a resumed run or a new worker builds its parts.
                    time.sleep(self._draw.uniform(0, self._draw.choice((0.5, 0.5, self._delay_s))))
                    result.faults += run.is_running() and fault(self._draw)
                found = run.finish()
                if kind == "overlap" and not found and sampled_tokens(run.directory) != self._reference():
                    found = ["the tokens differ from those of a run without faults"]
            except Violation as violation:
                found = [str(violation)]
            for name in result.events:
                result.events[name] += int(max((row.get(f"rollout_queue/{name}", 0) for row in run.rows()), default=0))
        found += [f"{name} is left" for name in shared_memory() - before]
        result.runs += 1
        result.violations += [f"run {self._number} (faults at steps {moments}): {each}" for each in found]
        if not found:
            shutil.rmtree(folder, ignore_errors=True)
            for log in self._folder.glob(f"{folder.name}-*.log"):
                log.unlink()

    def _prepare(self, kind: str, folder: Path, cleanup: ExitStack) -> tuple[SoakRun, Callable[[Random], bool]]:
        """A run, and the fault that is done to it."""
        if kind == "link":
            link = cleanup.enter_context(cut_links())
            run = SoakRun(folder / "run", self._shape, **self._options, **link.places())
            return run, link.cut
        if kind == "disk":
            cleanup.enter_context(small_disk(folder))
        if kind == "overlap":
            run = SoakRun(folder / "run", self._shape, mode="overlap", popen=self._options["popen"])
            return run, run.kill_trainer
        # The run goes on during these faults, and must not be over before the last.
        shape = replace(self._shape, steps=5 * self._shape.steps) if kind in ("stop", "join") else self._shape
        run = SoakRun(folder / "run", shape, **self._options)
        faults = {
            "worker": run.kill_worker,
            "trainer": run.kill_trainer,
            "all": run.kill_all,
            "stop": run.stop_worker,
            "join": run.join_worker,
            "disk": run.fill_disk,
        }
        turns = cycle(faults[each] for each in IN_TURN)
        return run, faults[kind] if kind in faults else lambda draw: next(turns)(draw)

    def _reference(self) -> dict[str, list[Any]]:
        """Tokens of a run without faults."""
        if self._undisturbed is None:
            directory = self._folder / "undisturbed" / "run"
            run = SoakRun(directory, self._shape, mode="overlap", popen=self._options["popen"])
            run.start()
            if found := run.finish():
                raise Violation(f"a run without faults: {found}")
            self._undisturbed = sampled_tokens(run.directory)
        return self._undisturbed


# Places ---------------------------------------------------------------------------------------------------------------


def missing_for(kind: str) -> str:
    """Why a kind of fault cannot be made here; empty if it can."""
    if kind not in ("link", "disk"):
        return ""
    if os.geteuid() != 0:
        return "needs root"
    if kind == "disk":
        with tempfile.TemporaryDirectory() as folder:
            made = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], capture_output=True, text=True)
            if made.returncode == 0:
                subprocess.run(["umount", "--lazy", folder], check=True)
        return made.stderr.strip()
    if not shutil.which("ip") or not shutil.which("unshare"):
        return "ip (iproute2) or unshare (util-linux) is not installed"
    probe = subprocess.run(["unshare", "-n", "ip", "link", "add", "v", "type", "veth"], capture_output=True, text=True)
    return probe.stderr.strip() if probe.returncode else ""


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mounts a small file system."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


class Link:
    """A network of two hosts, the trainer's and a worker's, and a switch between them. A cut drops packets silently."""

    def __init__(self) -> None:
        name = f"dj{os.getpid()}"
        self._hosts, self._switch = (f"{name}-t", f"{name}-w"), f"{name}-s"

    def open(self) -> None:
        for space in (*self._hosts, self._switch):
            _ip("netns", "add", space)
        _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "switch", "up")
        for number, space in enumerate(self._hosts, 1):
            port = f"port{number}"
            _ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", space)
            _ip("-n", self._switch, "link", "set", port, "master", "switch", "up")
            _ip("-n", space, "addr", "add", f"10.214.0.{number}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")

    def close(self) -> None:
        for space in (*self._hosts, self._switch):
            subprocess.run(["ip", "netns", "del", space], check=False)

    def places(self) -> dict[str, Any]:
        """Options of a run whose trainer and workers are on the two hosts."""
        trainer, worker = (("ip", "netns", "exec", space) for space in self._hosts)
        return {"host": "10.214.0.1", "port": 8643, "trainer_inside": trainer, "worker_inside": worker}

    def cut(self, draw: Random) -> bool:
        """Cuts the link for a moment, or for longer than leases last."""
        _ip("-n", self._switch, "link", "set", "port2", "down")
        time.sleep(WORKER_TIMEOUT_S * draw.uniform(0.1, 2.5))
        _ip("-n", self._switch, "link", "set", "port2", "up")
        return True


@contextmanager
def cut_links() -> Iterator[Link]:
    """Makes a network, and removes it."""
    link = Link()
    try:
        link.open()
        yield link
    finally:
        link.close()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def main() -> None:
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=30, help="faults of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--keep", type=Path, help="folder for the runs; those with violations stay")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # removes what it has made
    folder = asked.keep or Path(tempfile.mkdtemp(prefix="dojang-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    if not asked.json:
        print(f"async_soak on {machine()}, seed {asked.seed}")
        print(
            f"{'kind':8} {'faults':>6} {'runs':>5} {'seconds':>8} {'expired':>8} {'known':>6} {'late':>5}  violations"
        )
    results = []
    soak = Soak(folder, asked.seed)
    for kind in asked.only:
        result = soak.soak(kind, asked.kills)
        results.append(result)
        if not asked.json:
            events = result.events
            said = f"skipped: {result.skipped}" if result.skipped else str(len(result.violations))
            print(
                f"{kind:8} {result.faults:6} {result.runs:5} {result.seconds:8.0f} {events['expired']:8} "
                f"{events['known']:6} {events['late']:5}  {said}",
                flush=True,
            )
    if asked.json:
        found = {"seed": asked.seed, "results": [asdict(each) for each in results]}
        print(json.dumps({"bench": "async_soak", "machine": machine(), **found}))
    for result in results:
        for each in result.violations:
            print(f"{result.kind}: {each}", file=sys.stderr)
    if not any(result.violations for result in results) and not asked.keep:
        shutil.rmtree(folder)
    sys.exit(any(result.violations for result in results))


if __name__ == "__main__":
    main()
