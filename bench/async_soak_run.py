"""One run of the asynchronous soak (async_soak.py): its processes, their faults, and checks of its records."""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq

__all__ = ["Shape", "SoakRun", "Violation", "record_violations", "sampled_tokens", "shared_memory"]

WORKER_TIMEOUT_S = 3.0
PATIENCE_S = 300.0
"""Seconds for anything to happen: more is a hang."""
LEAVE_S = 10.0
FULL_DISK = 5
"""Exit code of a RunDirError."""


class Violation(Exception):
    """The run did something that it must not do."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a run."""

    steps: int = 24
    prompts: int = 4
    group: int = 8
    lag: int = 2

    def settings(self, mode: str) -> list[str]:
        return [
            f"loop.mode={mode}",
            f"loop.lag={self.lag}",
            f"steps={self.steps}",
            f"rollout.prompts_per_step={self.prompts}",
            f"rollout.group_size={self.group}",
            f"eval.every={self.steps}",
            "eval.problems=8",
            "checkpoint.every=3",
            f"health.patience_steps={self.steps}",
        ]


@dataclass(slots=True)
class SoakRun:
    """Processes of one run: the trainer, workers that it starts, and workers that join from outside."""

    directory: Path
    shape: Shape = field(default_factory=Shape)
    mode: str = "stream"
    local: int = 1
    """Workers that the trainer starts."""
    joined: int = 1
    """Workers that join; one that is killed is replaced."""
    popen: Callable[..., subprocess.Popen[Any]] = subprocess.Popen
    host: str = "127.0.0.1"
    trainer_inside: Sequence[str] = ()
    """Prefix of the trainer's command, such as `ip netns exec NAME`."""
    worker_inside: Sequence[str] = ()
    """Prefix of the command of workers that join."""
    port: int = 0
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    trainer: subprocess.Popen[Any] | None = None
    workers: list[subprocess.Popen[Any]] = field(default_factory=list)
    resumed: int = 0

    def __post_init__(self) -> None:
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        if not self.port:
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.port = free.getsockname()[1]

    # Processes

    def start(self) -> None:
        """Starts the trainer, or resumes the run; and workers that are missing."""
        if self.trainer is None:
            settings = self.shape.settings(self.mode)
            if self.mode == "stream":
                settings += [
                    f"loop.workers={self.local}",
                    "loop.sample_here=false",
                    f"loop.listen={self.host}:{self.port}",
                    f"loop.worker_timeout_s={WORKER_TIMEOUT_S}",
                ]
            arguments = ["train", "quickstart", *settings, "--run-dir", str(self.directory)]
        else:
            self.resumed += 1
            arguments = ["resume", str(self.directory)]
        self.trainer = self._start(self.trainer_inside, arguments, "trainer.log")
        if self.mode == "stream":
            self.workers = [worker for worker in self.workers if worker.poll() is None]
            for _ in range(self.joined - len(self.workers)):
                self.workers.append(self.join("worker.log"))

    def join(self, log: str) -> subprocess.Popen[Any]:
        """Starts a worker that joins."""
        join = ["serve", "rollouts", "--join", f"http://{self.host}:{self.port}", "--timeout-s", "60"]
        return self._start(self.worker_inside, join, log)

    def _start(self, inside: Sequence[str], arguments: Sequence[str], log: str) -> subprocess.Popen[Any]:
        environment = {**os.environ, "DOJANG_ROLLOUT_TOKEN": self.token}
        with self.log(log).open("ab") as output:
            return self.popen(
                [*inside, sys.executable, "-m", "dojang", *arguments], env=environment, stdout=output, stderr=output
            )

    def log(self, name: str) -> Path:
        """Path of a log, beside the folder of the run directory: that may be a disk that is filled."""
        folder = self.directory.parent
        return folder.with_name(f"{folder.name}-{name}")

    def own_pids(self) -> list[int]:
        """Worker processes of the trainer."""
        assert self.trainer is not None
        parent = self.trainer.pid
        return [pid for pid, its_parent, command in _processes() if its_parent == parent and b"--join" in command]

    def worker_pids(self) -> list[int]:
        """All worker processes."""
        return [*self.own_pids(), *(worker.pid for worker in self.workers if worker.poll() is None)]

    # Progress

    def rows(self) -> list[dict[str, Any]]:
        """Complete rows of the metrics so far."""
        try:
            lines = (self.directory / "metrics.jsonl").read_bytes().split(b"\n")[:-1]
        except OSError:
            return []
        return [json.loads(line) for line in lines]

    def step(self) -> int:
        """Last step that was trained."""
        return max((row["step"] for row in self.rows() if "staleness/max" in row), default=0)

    def reaches(self, step: int) -> bool:
        """Waits for a step; False if the run ended before."""
        self.wait(lambda: self.step() >= step or not self.is_running(), f"step {step}")
        return self.is_running()

    def is_running(self) -> bool:
        """Whether the trainer lives."""
        return self.trainer is not None and self.trainer.poll() is None

    def wait(self, condition: Callable[[], bool], what: str, limit_s: float = PATIENCE_S) -> None:
        """Waits for a condition. Violation if it does not come true."""
        deadline = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > deadline:
                raise Violation(f"{what} did not come within {limit_s:g} s; the trainer said: {self.said()}")
            time.sleep(0.02)

    def said(self) -> str:
        """End of the trainer's output."""
        return self.log("trainer.log").read_text(errors="replace")[-1500:].strip()

    # Faults

    def kill_worker(self, draw: Random) -> bool:
        """Kills one worker. One that joined is replaced, the trainer replaces its own."""
        if not (pids := self.worker_pids()):
            return False
        pid = draw.choice(pids)
        _signal(pid, signal.SIGKILL)
        for number, worker in enumerate(self.workers):
            if worker.pid == pid:
                worker.wait()
                self.workers[number] = self.join("worker.log")
        return True

    def kill_trainer(self, draw: Random) -> bool:
        """Kills the trainer, with the rollout service in it, and resumes the run."""
        assert self.trainer is not None
        own = self.own_pids()
        self.trainer.kill()
        self.trainer.wait()
        self.wait(lambda: not any(map(_alive, own)), "end of the trainer's workers", LEAVE_S)
        self.start()
        return True

    def kill_all(self, draw: Random) -> bool:
        """Kills all processes at once, in any order, and resumes the run."""
        assert self.trainer is not None
        pids = [self.trainer.pid, *self.worker_pids()]
        draw.shuffle(pids)
        for pid in pids:
            _signal(pid, signal.SIGKILL)
        for process in (self.trainer, *self.workers):
            process.wait()
        self.wait(lambda: not any(map(_alive, pids)), "end of all processes", LEAVE_S)
        self.start()
        return True

    def stop_worker(self, draw: Random) -> bool:
        """Stops a worker until its leases have expired, and lets it go on: its groups come late, or twice."""
        if not (pids := self.worker_pids()):
            return False
        pid = draw.choice(pids)
        _signal(pid, signal.SIGSTOP)
        time.sleep(WORKER_TIMEOUT_S * draw.uniform(1.1, 2.0))
        _signal(pid, signal.SIGCONT)
        return True

    def join_worker(self, draw: Random) -> bool:
        """Lets another worker join for a while, and drain."""
        assert self.trainer is not None
        trainer, name = self.trainer, f"joiner-{secrets.token_hex(4)}.log"
        joiner = self.join(name)
        ended = lambda: joiner.poll() is not None or trainer.poll() is not None  # noqa: E731
        self.wait(lambda: b"joining" in self.log(name).read_bytes() or ended(), "a joining worker")
        time.sleep(draw.uniform(0.0, 1.0))
        made = not ended()
        with suppress(ProcessLookupError):
            joiner.send_signal(signal.SIGTERM)
        self.wait(ended, "end of a worker told to stop")
        if trainer.poll() is not None:  # the run is over
            joiner.kill()
            joiner.wait()
        elif joiner.returncode not in (
            0,
            -signal.SIGTERM,
        ):  # the signal ends it before it has joined or after it is done
            text = self.log(name).read_text()[-500:]
            raise Violation(f"a worker told to stop ended with {joiner.returncode}: {text}")
        return made

    def fill_disk(self, draw: Random) -> bool:
        """Fills the file system of the run directory, waits for the error, frees the space, and resumes the run."""
        assert self.trainer is not None
        filler = self.directory.with_name("filler")
        before = len(self.log("trainer.log").read_bytes())
        left = draw.randrange(0, 100_000)
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while (free := shutil.disk_usage(self.directory).free) > left:
                file.write(bytes(min(free - left, 2**20)))
        trainer = self.trainer
        self.wait(lambda: trainer.poll() is not None, "an error of a full disk")
        said = self.log("trainer.log").read_bytes()[before:].decode(errors="replace")
        filler.unlink()
        if trainer.returncode == 0:
            return False
        if trainer.returncode != FULL_DISK or "is full" not in said:
            raise Violation(f"a full disk ended the run with {trainer.returncode}: {said[-1500:]}")
        self.start()
        return True

    # End

    def finish(self) -> list[str]:
        """Waits for the end of the run. Returns violations of its records, and what it left behind."""
        assert self.trainer is not None
        trainer = self.trainer
        self.wait(lambda: trainer.poll() is not None, "the end of the run")
        found = [] if trainer.returncode == 0 else [f"the run ended with {trainer.returncode}: {self.said()}"]
        deadline = time.monotonic() + LEAVE_S
        while any(worker.poll() is None for worker in self.workers) and time.monotonic() < deadline:
            time.sleep(0.05)
        self._end_workers()  # a worker that was just building when the run ended waits for it
        found += [f"process {pid} is left: {command!r}" for pid, command in self.left()]
        return found or record_violations(self.directory, self.shape)

    def left(self) -> list[tuple[int, bytes]]:
        """Processes with the run's token in their environment that live on."""
        deadline = time.monotonic() + LEAVE_S
        while True:
            found = self._with_token()
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.1)

    def close(self) -> None:
        """Ends all processes."""
        if self.trainer is not None:
            self.trainer.kill()
            self.trainer.wait()
        self._end_workers()
        for pid, _ in self._with_token():
            _signal(pid, signal.SIGKILL)

    def _with_token(self) -> list[tuple[int, bytes]]:
        found = []
        for pid, _, command in _processes():
            with suppress(OSError):
                if self.token.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append((pid, command))
        return found

    def _end_workers(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()


def _processes() -> list[tuple[int, int, bytes]]:
    """Process id, parent and command line of all processes that are no zombies."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdecimal():
            continue
        with suppress(OSError, ValueError, IndexError):
            state, parent = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                found.append((int(entry), int(parent), Path(f"/proc/{entry}/cmdline").read_bytes()))
    return found


def _alive(pid: int) -> bool:
    return any(pid == each for each, _, _ in _processes())


def _signal(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def record_violations(directory: Path, shape: Shape) -> list[str]:
    """Checks the records of a finished run: each step once, each prompt in exactly one step, and nothing too stale."""
    found: list[str] = []
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "staleness/max" in row]
    if (steps := [row["step"] for row in rows]) != list(range(1, shape.steps + 1)):
        found.append(f"steps {steps} in metrics.jsonl, not 1 to {shape.steps}")
    found += [
        f"step {row['step']} has a staleness of {row['staleness/max']:g}"
        for row in rows
        if row["staleness/max"] > shape.lag
    ]
    learned: Counter[int] = Counter()
    for path in sorted((directory / "rollouts").glob("train-*.parquet")):
        step = int(path.stem.rpartition("-")[2])
        table = pq.read_table(path, columns=["prompt_index", "version"])
        samples = Counter(table["prompt_index"].to_pylist())
        learned.update(samples.keys())
        found += [f"prompt {index} has {size} samples" for index, size in samples.items() if size != shape.group]
        if step - 1 - min(table["version"].to_pylist()) > shape.lag:
            found.append(f"step {step} has samples of version {min(table['version'].to_pylist())}")
    expected = set(range(shape.steps * shape.prompts))
    for what, prompts in {
        "missing": expected - learned.keys(),
        "not of this run": learned.keys() - expected,
        "learned twice": {index for index, times in learned.items() if times > 1},
    }.items():
        if prompts:
            found.append(f"prompts {sorted(prompts)} are {what}")
    return found


def sampled_tokens(directory: Path) -> dict[str, list[Any]]:
    """Tokens of all training samples, by step."""
    columns = ["prompt_index", "index", "tokens", "version"]
    paths = sorted((directory / "rollouts").glob("train-*.parquet"))
    return {path.name: pq.read_table(path, columns=columns).to_pylist() for path in paths}


def shared_memory() -> set[str]:
    """Files in shared memory that no process has open."""
    files = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")}
    used = set[str]()
    for pid in filter(str.isdecimal, os.listdir("/proc")) if files else ():
        with suppress(OSError):
            used |= {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
            used |= {
                line.split()[-1] for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if "/dev/shm" in line
            }
    return files - used
