"""Layout of a run directory: the contract between training and viewing.

    RUN_DIR/
      run.lock                        held (flock) by the process that trains here
      run.json                        the recipe's name, and the overrides given at the start and on resume
      config.yaml                     the resolved configuration
      config.1.yaml                   the configuration before the first change on resume; config.2.yaml, ...
      environment.json                versions, machine and command of each start (runs/environment.py)
      metrics.jsonl                   one object per step: {"step": 3, "critic/rewards/mean": 0.4, ...}
      rollouts/train-000003.parquet   every sample of a training step (core/rollout_schema.py)
      rollouts/test-000000.parquet    every sample of an evaluation (test-NAME-000000.parquet: on the benchmark NAME)
      timeline.jsonl                  what trainer, engine and rollout workers did when (loop/timeline.py)
      token_values/train-000003.parquet   the trainer's log-probs and entropies of a training step
      vocabulary.parquet              bytes and names of the model's tokens (vocabulary-tester.parquet: of another
                                      tokenizer of that role)
      rollouts.journal                judged groups since the last checkpoint (loop/journal.py; asynchronous runs)
      checkpoints/step-000020/        a Hugging Face model (or adapter) directory + optimizer/ + state.json + files.json
                                      (+ critic/; + tester/, the same of a second model)
      checkpoints/last, best          links to the newest and to the best one by checkpoint.metric
      stall.txt                       stacks of all threads and tasks when nothing progressed for loop.stall_s
      reward.png                      rewards and held-out accuracy over the steps
      summary.json                    written at the end (SUMMARY_KEYS)
      delivered/mlflow.json           progress of exporting to an external tracker

Writes are atomic: files are written to a temporary name, flushed to disk and renamed, so a reader, or a run that
resumes after a crash, sees the old file or the new one. `metrics.jsonl` grows by whole lines.
"""

import errno
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dojang.core.errors import RunDirError
from dojang.core.run_lock import LOCK, RunLock

__all__ = [
    "ACCURACY",
    "CHOOSE_ANOTHER",
    "EVALUATION",
    "LINKS",
    "REWARD",
    "SOURCE_ACCURACY",
    "SOURCE_REWARD",
    "SUMMARY_KEYS",
    "RunDir",
    "append_whole",
    "disk_errors",
    "evaluation_name",
    "is_whole",
    "sync_tree",
    "write_atomic",
]

CHOOSE_ANOTHER = "choose another run directory (--run-dir, in Python run_dir)"
"""Remedy in errors."""
LINKS = ("best", "last")
FILES = "files.json"
"""List of a checkpoint's files with sizes, to verify that a copy made file by file is complete."""
UNUSABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.ENAMETOOLONG)
"""Errors of a path that cannot be written to; the user must choose another."""
EVALUATION = "val/"
"""Prefix of the metrics of evaluations, and of no others."""
ACCURACY = "val/accuracy"
"""Held-out accuracy over all data sources."""
SOURCE_ACCURACY = "val/accuracy/"
"""Prefix of the held-out accuracy of a data source."""
REWARD = "val/reward"
"""Mean held-out reward over all data sources."""
SOURCE_REWARD = "val/test_score/"
"""Prefix of the mean held-out reward of a data source, as in veRL."""
SUMMARY_KEYS = ("recipe", "steps", "seconds", "eval", "status", "resume")


class RunDir:
    """A run directory. Only this class knows its file names."""

    def __init__(self, path: Path) -> None:
        self.path = Path(os.path.expanduser(path))  # a shell leaves the ~ of --run-dir=~/run as it is
        self._lock, self._reserved = RunLock(self.path), False

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    def next_former_config(self) -> Path:
        """First free path for a configuration that is replaced."""
        paths = (self.path / f"config.{number}.yaml" for number in itertools.count(1))
        return next(path for path in paths if not path.exists())

    @property
    def run(self) -> Path:
        return self.path / "run.json"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def timeline(self) -> Path:
        return self.path / "timeline.jsonl"

    @property
    def chart(self) -> Path:
        return self.path / "reward.png"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def delivered(self, tracker: str) -> Path:
        return self.path / "delivered" / f"{tracker}.json"

    def rollouts(self, split: str, step: int) -> Path:
        return self.path / "rollouts" / f"{split}-{step:06d}.parquet"

    def token_values(self, split: str, step: int) -> Path:
        return self.path / "token_values" / f"{split}-{step:06d}.parquet"

    def rollout_steps(self) -> dict[str, list[int]]:
        """Steps with rollouts, in order, by split: train, test, or test-NAME of the benchmark NAME."""
        found: dict[str, list[int]] = {}
        for path in (self.path / "rollouts").glob("[!.]*-*.parquet"):
            split, _, number = path.stem.rpartition("-")
            if number.isdecimal():
                found.setdefault(split, []).append(int(number))
        return {split: sorted(steps) for split, steps in sorted(found.items())}

    def vocabulary(self, role: str = "") -> Path:
        """Bytes of the tokens: of the run's first model, or of a role with another tokenizer."""
        return self.path / (f"vocabulary-{role}.parquet" if role else "vocabulary.parquet")

    @property
    def journal(self) -> Path:
        return self.path / "rollouts.journal"

    def worker_log(self, number: int) -> Path:
        return self.path / "workers" / f"worker-{number}.log"

    @property
    def stall(self) -> Path:
        return self.path / "stall.txt"

    def is_foreign(self) -> bool:
        """Reports whether the directory holds files, but no run."""
        return not self.is_empty() and not self.run.exists()

    def is_empty(self) -> bool:
        """Reports whether the directory is missing, or holds no files but the lock."""
        if not self.path.is_dir():
            return True
        return {path.name for path in self.path.iterdir() if not path.name.startswith(".")} <= {LOCK}

    def holds_a_run(self) -> bool:
        """Reports whether a run has saved a checkpoint here."""
        return self.last_checkpoint() is not None

    def lock(self) -> None:
        """Locks the directory for this process; the lock ends with the process, even if it is killed."""
        with disk_errors(self.path):
            holder = self._lock.acquire()
        if holder is not None:
            raise RunDirError(
                f"run directory {self.path} is in use by process {holder}; wait for it, stop it, or {CHOOSE_ANOTHER}"
            )
        self._recover()

    def reserve(self) -> bool:
        """Makes and locks a new directory; False if another process has reserved or used it."""
        with disk_errors(self.path):
            self._reserved = self._lock.acquire() is None and not self._lock.is_removed and self.is_empty()
        if not self._reserved:
            self._lock.release()
        return self._reserved

    def _recover(self) -> None:
        """Completes a `new_checkpoint` that crashed between its two renames."""
        for old in self.checkpoints.glob(".step-*.old.tmp"):
            final = self.checkpoints / old.name.removeprefix(".").removesuffix(".old.tmp")
            if not final.exists():
                os.rename(old, final)

    def unlock(self) -> None:
        """Ends the lock. A reserved directory that is still empty is removed."""
        if self._reserved and self.is_empty():
            self._lock.remove_directory()
        self._lock.release()

    def last_checkpoint(self) -> Path | None:
        """Newest complete checkpoint, or None. A directory with its final name is complete."""
        found = self.saved()
        return found[max(found)] if found else None

    def saved(self) -> dict[int, Path]:
        """Complete checkpoints by step; ignores directories with other names."""
        return {
            int(path.name.removeprefix("step-")): path
            for path in self.checkpoints.glob("step-*")
            if path.name.removeprefix("step-").isdecimal()
        }

    def checkpoint_names(self) -> dict[str, Path]:
        """Complete checkpoints by all their names: best, last, step-000040."""
        links = {name: (self.checkpoints / name).resolve() for name in LINKS}
        there = {name: path for name, path in links.items() if path.is_dir()}
        return there | {path.name: path.resolve() for _, path in sorted(self.saved().items())}

    @contextmanager
    def new_checkpoint(self, step: int) -> Iterator[Path]:
        """Yields a temporary directory to fill; flushes it to disk and renames it to its final name."""
        final = self.checkpoints / f"step-{step:06d}"
        with disk_errors(self.path):
            aside, old = (self.checkpoints / f".{final.name}.{kind}" for kind in ("tmp", "old.tmp"))
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            try:
                yield aside
                (aside / FILES).write_text(json.dumps(_sizes(aside)))
                sync_tree(aside)
            except BaseException as error:
                # Libraries report a full disk with different errors: check the free space.
                full = isinstance(error, Exception) and shutil.disk_usage(aside).free < 2**20
                shutil.rmtree(aside, ignore_errors=True)  # frees the space
                if full:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
                raise
            if final.exists():  # rename before deleting: a directory with a final name is never half deleted
                shutil.rmtree(old, ignore_errors=True)
                os.rename(final, old)
            os.rename(aside, final)
            _sync(self.checkpoints)
            shutil.rmtree(old, ignore_errors=True)

    def drop_fragments(self) -> list[str]:
        """Removes incomplete checkpoints, and former links, from a copy of this directory made file by file. Returns
        the names of the removed checkpoints."""
        gone = [path for path in self.saved().values() if not is_whole(path)]
        links = [path for name in LINKS if not (path := self.checkpoints / name).is_symlink() and path.exists()]
        for path in [*gone, *links, *self.checkpoints.glob(".step-*.tmp")]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return sorted(path.name for path in gone)

    def point(self, name: str, step: int) -> None:
        """Points the link `name` (last, best) to the checkpoint of `step`."""
        with disk_errors(self.path):
            aside = self.checkpoints / f".{name}.tmp"
            aside.unlink(missing_ok=True)
            aside.symlink_to(f"step-{step:06d}")
            os.rename(aside, self.checkpoints / name)
            _sync(self.checkpoints)

    def prune_checkpoints(self, steps: Collection[int] = ()) -> None:
        """Delete what neither `last` nor `best` leads to and is not of these steps, and what a crash left behind."""
        kept = {(self.checkpoints / name).resolve().name for name in LINKS} | {f"step-{step:06d}" for step in steps}
        for path in [*self.saved().values(), *self.checkpoints.glob(".step-*.tmp")]:
            if path.name not in kept:
                doomed = self.checkpoints / f".{path.name.removeprefix('.')}.gone.tmp"
                os.rename(path, doomed)  # rename first: a directory with a final name is never half deleted
                shutil.rmtree(doomed)

    def figures(self) -> set[str]:
        """Names of all metrics recorded so far."""
        if not self.metrics.exists():
            return set()
        with self.metrics.open() as file:
            return {name for line in file for name in json.loads(line)} - {"step"}

    def rewind(self, step: int, evaluated: Mapping[str, int]) -> None:
        """Drops the records of steps after `step`, and of evaluations after the step in `evaluated`, by benchmark (""
        for the held-out split): the resumed run repeats them."""
        for path in (self.metrics, self.timeline):
            if path.exists():
                lines = path.read_bytes().splitlines(keepends=True)
                write_atomic(path, b"".join(line for line in lines if _upto(line, step, evaluated)))
        for path in itertools.chain(*((self.path / each).glob("*-*.parquet") for each in ("rollouts", "token_values"))):
            split, _, number = path.stem.rpartition("-")
            last = step if split == "train" else evaluated.get(split.removeprefix("test").removeprefix("-"), -1)
            if int(number) > last:
                path.unlink()
        self.summary.unlink(missing_ok=True)


def is_whole(checkpoint: Path) -> bool:
    """Reports whether a checkpoint has all its files, with the sizes they were written with."""
    try:
        wanted = json.loads((checkpoint / FILES).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(wanted, dict) and wanted.items() <= _sizes(checkpoint).items()


def _sizes(folder: Path) -> dict[str, int]:
    files = (Path(at) / name for at, _, names in os.walk(folder) for name in names)
    return {str(path.relative_to(folder)): path.stat().st_size for path in files if path != folder / FILES}


def _upto(line: bytes, step: int, evaluated: Mapping[str, int]) -> bool:
    """Reports whether a line of metrics is complete and not after `step`, or for an evaluation, after its last one."""
    try:
        row = json.loads(line)
    except ValueError:
        return False
    if not isinstance(row, dict) or "step" not in row:
        return False
    name = evaluation_name(row)
    return line.endswith(b"\n") and int(row["step"]) <= (step if name is None else evaluated.get(name, -1))


def evaluation_name(row: Iterable[str]) -> str | None:
    """Benchmark of a line of metrics.jsonl; "" for the held-out split, None for a training step."""
    names = [name for name in row if name.startswith(EVALUATION)]
    if not names:
        return None
    sources = [name.removeprefix(SOURCE_ACCURACY) for name in names if name.startswith(SOURCE_ACCURACY)]
    return sources[0] if sources and ACCURACY not in names else ""


def write_atomic(path: Path, content: bytes | Callable[[Path], Any]) -> None:
    """Writes a temporary file, flushes it to disk and renames it. `content` is bytes, or a function that writes to a
    given path."""
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        aside = Path(name)
        try:
            os.close(descriptor)
            if callable(content):
                content(aside)
            else:
                aside.write_bytes(content)
            _sync(aside)
            aside.chmod(0o644)  # mkstemp makes private files
            os.rename(aside, path)
            _sync(path.parent)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise


def append_whole(path: Path, content: bytes, *, sync: bool = False) -> None:
    """Appends to a file, all or nothing: truncates a partial write after an error. `sync` flushes it to disk."""
    with path.open("ab", buffering=0) as file:
        before = os.fstat(file.fileno()).st_size
        try:
            written = file.write(content)
            if written != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if sync:
                os.fsync(file.fileno())
        except OSError:
            file.truncate(before)
            raise


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turns OSErrors of writing into RunDirErrors with a remedy."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunDirError(
                f"the disk that holds {path} is full; earlier checkpoints are intact. Free some space, "
                "then resume the run"
            ) from error
        if error.errno in UNUSABLE:
            raise RunDirError(f"cannot write to {path}: {error.strerror}; {CHOOSE_ANOTHER}") from error
        raise


def sync_tree(root: Path) -> None:
    """Flushes all files below a directory to disk, so that a rename after it survives a power cut."""
    for directory, _, files in os.walk(root):
        for name in files:
            _sync(Path(directory) / name)
        _sync(Path(directory))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
