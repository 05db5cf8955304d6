"""The layout and schema of a run directory: the only contract between training and viewing.

    RUN_DIR/
      run.lock                        held (flock) by the process that trains here
      run.json                        the recipe's name and the overrides it was started with
      config.yaml                     the resolved configuration
      metrics.jsonl                   one object per step: {"step": 3, "critic/rewards/mean": 0.4, ...}
      rollouts/train-000003.parquet   every sample of a training step (ROLLOUT_COLUMNS)
      rollouts/test-000000.parquet    every sample of an evaluation (test-NAME-000000.parquet: on the benchmark NAME)
      checkpoints/step-000020/        a Hugging Face model (or adapter) directory + optimizer/ + state.json + files.json
                                      (+ critic/; + tester/, the same of a second model)
      checkpoints/last, best          links to the newest and to the best one by checkpoint.metric
      reward.png                      rewards and held-out accuracy over the steps
      summary.json                    written at the end (SUMMARY_KEYS)
      delivered/mlflow.json           how far a tracker outside has been told what is in here

Nothing is ever half there: files are written aside, flushed to disk and renamed, so a reader, or a run that
resumes after a crash, sees the old file or the new one. `metrics.jsonl` grows by whole lines.
"""

import errno
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from dojang.core.errors import RunDirError

__all__ = [
    "ACCURACY",
    "EVALUATION",
    "LINKS",
    "REWARD",
    "ROLLOUT_COLUMNS",
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

LOCK = "run.lock"
LINKS = ("best", "last")
FILES = "files.json"
"""What a checkpoint consists of, with sizes: a copy of it that somebody made file by file can be told to be whole."""
UNUSABLE = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.ENAMETOOLONG,
)
"""A path nobody can write to; another one must be chosen."""
EVALUATION = "val/"
"""What the figures of an evaluation, and of nothing else, begin with."""
ACCURACY = "val/accuracy"
"""Held-out accuracy over all data sources."""
SOURCE_ACCURACY = "val/accuracy/"
"""Followed by a data source: its held-out accuracy."""
REWARD = "val/reward"
"""Mean held-out reward over all data sources."""
SOURCE_REWARD = "val/test_score/"
"""Followed by a data source: its mean held-out reward, which is what veRL logs under this name."""
SUMMARY_KEYS = ("recipe", "steps", "seconds", "eval", "status", "resume")

ROLLOUT_COLUMNS: dict[str, str] = {
    "step": "int32",
    "ordinal": "int64",
    "index": "int32",
    "problem": "string",
    "data_source": "string",
    "question": "string",
    "prompt": "string",
    "response": "string",
    "tokens": "list<int32>",
    "mask": "list<bool>",
    "logprobs": "list<float64>",
    "version": "int64",
    "finish": "string",
    "role": "string",
    "turn": "int32",
    "outcome": "string",
    "reward": "float64",
    "reward_parts": "map<string, float64>",
    "passed": "int32",
    "total": "int32",
    "advantage": "float64",
    "detail": "string",
    "isolation": "string",
}


class RunDir:
    """A run directory, and the only code that knows its file names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def run(self) -> Path:
        return self.path / "run.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

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

    def is_foreign(self) -> bool:
        """Whether the directory holds files, but none of ours."""
        if not self.path.is_dir():
            return False
        visible = {path.name for path in self.path.iterdir() if not path.name.startswith(".")}
        return bool(visible - {LOCK}) and not self.run.exists()

    def holds_a_run(self) -> bool:
        """Whether a run got far enough here to have something to lose: its first checkpoint."""
        return self.last_checkpoint() is not None

    def lock(self) -> None:
        """Claim the directory for this process; the claim ends with the process, however it ends."""
        if self._lock is not None:
            return
        with disk_errors(self.path):
            try:
                self.path.mkdir(parents=True, exist_ok=True)
            except FileNotFoundError as error:  # its parents were made, or cannot be: such as below /proc
                raise PermissionError(errno.EACCES, error.strerror) from error
            self._lock = (self.path / LOCK).open("a+")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.seek(0)
            holder = self._lock.read().strip() or "unknown"
            self._lock.close()
            self._lock = None
            raise RunDirError(
                f"run directory {self.path} is in use by process {holder}; wait for it, stop it, or choose "
                "another with --run-dir"
            ) from None
        self._lock.truncate(0)
        self._lock.write(str(os.getpid()))
        self._lock.flush()
        self._recover()

    def _recover(self) -> None:
        """Finish what a crash interrupted between two renames of `new_checkpoint`."""
        for old in self.checkpoints.glob(".step-*.old.tmp"):
            final = self.checkpoints / old.name.removeprefix(".").removesuffix(".old.tmp")
            if not final.exists():
                os.rename(old, final)

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def last_checkpoint(self) -> Path | None:
        """The newest complete checkpoint, or None. A directory under its final name is complete."""
        found = self.saved()
        return found[max(found)] if found else None

    def saved(self) -> dict[int, Path]:
        """Complete checkpoints by step; what a user keeps beside them under a name of his own is not one."""
        return {
            int(path.name.removeprefix("step-")): path
            for path in self.checkpoints.glob("step-*")
            if path.name.removeprefix("step-").isdecimal()
        }

    def checkpoint_names(self) -> dict[str, Path]:
        """Complete checkpoints by every name they have: best, last, step-000040."""
        links = {name: (self.checkpoints / name).resolve() for name in LINKS}
        there = {name: path for name, path in links.items() if path.is_dir()}
        return there | {path.name: path.resolve() for _, path in sorted(self.saved().items())}

    @contextmanager
    def new_checkpoint(self, step: int) -> Iterator[Path]:
        """A directory to fill; it gets its final name only when everything in it is on disk."""
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
                # Libraries that write files for us report a full disk in their own ways, so look for ourselves.
                full = isinstance(error, Exception) and shutil.disk_usage(aside).free < 2**20
                shutil.rmtree(aside, ignore_errors=True)  # gives a full disk its space back
                if full:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
                raise
            if final.exists():  # moved away whole: what bears a final name is never half deleted
                shutil.rmtree(old, ignore_errors=True)
                os.rename(final, old)
            os.rename(aside, final)
            _sync(self.checkpoints)
            shutil.rmtree(old, ignore_errors=True)

    def drop_fragments(self) -> list[str]:
        """Remove what a copy of this directory, made file by file, has of checkpoints that are not whole, and what was
        a link before it was copied. Names of the checkpoints that are gone."""
        gone = [path for path in self.saved().values() if not is_whole(path)]
        links = [path for name in LINKS if not (path := self.checkpoints / name).is_symlink() and path.exists()]
        for path in [*gone, *links, *self.checkpoints.glob(".step-*.tmp")]:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        return sorted(path.name for path in gone)

    def point(self, name: str, step: int) -> None:
        """Let the link `name` (last, best) lead to the checkpoint of `step`."""
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
                os.rename(path, doomed)  # first: what bears a final name is never half deleted
                shutil.rmtree(doomed)

    def figures(self) -> set[str]:
        """Names of all figures recorded so far."""
        if not self.metrics.exists():
            return set()
        with self.metrics.open() as file:
            return {name for line in file for name in json.loads(line)} - {"step"}

    def rewind(self, step: int, evaluated: Mapping[str, int]) -> None:
        """Forget the steps after `step` and the evaluations after the step in `evaluated`, by benchmark ("" for the
        held-out split): they will be done again."""
        if self.metrics.exists():
            lines = self.metrics.read_bytes().splitlines(keepends=True)
            write_atomic(self.metrics, b"".join(line for line in lines if _upto(line, step, evaluated)))
        for path in (self.path / "rollouts").glob("*-*.parquet"):
            split, _, number = path.stem.rpartition("-")
            last = step if split == "train" else evaluated.get(split.removeprefix("test").removeprefix("-"), -1)
            if int(number) > last:
                path.unlink()
        self.summary.unlink(missing_ok=True)


def is_whole(checkpoint: Path) -> bool:
    """Whether all files of a checkpoint are there, as long as they were when it was written."""
    try:
        wanted = json.loads((checkpoint / FILES).read_text())
    except (OSError, ValueError):
        return False
    return isinstance(wanted, dict) and wanted.items() <= _sizes(checkpoint).items()


def _sizes(folder: Path) -> dict[str, int]:
    files = (Path(at) / name for at, _, names in os.walk(folder) for name in names)
    return {str(path.relative_to(folder)): path.stat().st_size for path in files if path != folder / FILES}


def _upto(line: bytes, step: int, evaluated: Mapping[str, int]) -> bool:
    """Whether a line of metrics is whole and not later than the step or, for an evaluation, the last such one."""
    try:
        row = json.loads(line)
    except ValueError:
        return False
    if not isinstance(row, dict) or "step" not in row:
        return False
    name = evaluation_name(row)
    return line.endswith(b"\n") and int(row["step"]) <= (step if name is None else evaluated.get(name, -1))


def evaluation_name(row: Iterable[str]) -> str | None:
    """The benchmark that a line of metrics.jsonl is of; "" for the held-out split, None for a training step."""
    names = [name for name in row if name.startswith(EVALUATION)]
    if not names:
        return None
    sources = [name.removeprefix(SOURCE_ACCURACY) for name in names if name.startswith(SOURCE_ACCURACY)]
    return sources[0] if sources and ACCURACY not in names else ""


def write_atomic(path: Path, content: bytes | Callable[[Path], Any]) -> None:
    """Write a file aside, flush it to disk, rename it into place. `content` is bytes or a function that
    writes to the path it is given."""
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
            aside.chmod(0o644)  # mkstemp makes private files; a run directory is for sharing
            os.rename(aside, path)
            _sync(path.parent)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise


def append_whole(path: Path, content: bytes) -> None:
    """Add to a file, all or nothing: what a full disk accepted of it is taken back."""
    with path.open("ab", buffering=0) as file:
        before = os.fstat(file.fileno()).st_size
        try:
            written = file.write(content)
            if written != len(content):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            file.truncate(before)
            raise


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals into something a person can act on."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunDirError(
                f"the disk that holds {path} is full; what was saved before is intact. Free some space, "
                "then continue with --resume"
            ) from error
        if error.errno in UNUSABLE:
            raise RunDirError(f"cannot write to {path}: {error.strerror}; choose another --run-dir") from error
        raise


def sync_tree(root: Path) -> None:
    """Push everything below a directory to the disk, so that a power cut after a rename finds it whole."""
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
