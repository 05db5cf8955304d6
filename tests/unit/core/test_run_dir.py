"""A run directory under everything that may happen to it."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dojang.core.errors import RunDirError
from dojang.core.run_dir import RunDir, disk_errors, write_atomic


@pytest.fixture
def directory(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "run")
    run.path.mkdir()
    return run


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a quarter of a megabyte."""
    mounted = tmp_path / "small"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(mounted)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a small file system cannot be mounted here")
    yield mounted
    subprocess.run(["umount", "--lazy", str(mounted)], check=True)  # a failed writer may still hold a file


def checkpoint(run: RunDir, step: int, content: str = "weights") -> None:
    with run.new_checkpoint(step) as path:
        (path / "model").write_text(content)


def abort(run: RunDir, step: int, failure: type[BaseException]) -> None:
    with run.new_checkpoint(step) as path:
        (path / "model").write_text("half")
        raise failure


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Files


def test_a_file_is_written_whole_and_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    write_atomic(path, b"one")
    write_atomic(path, b"two")
    assert path.read_bytes() == b"two"
    assert path.stat().st_mode & 0o777 == 0o644
    assert names(path.parent) == ["file"]


def test_content_may_be_a_function_of_the_path(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", lambda aside: aside.write_text("made"))
    assert (tmp_path / "file").read_text() == "made"


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path, failure: type[BaseException]) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"old")

    def fail(aside: Path) -> None:
        aside.write_text("half")
        raise failure

    with pytest.raises(failure):
        write_atomic(path, fail)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["file"]


# A full disk


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_raises_run_dir_error(tmp_path: Path, code: int) -> None:
    def fail(aside: Path) -> None:
        raise OSError(code, os.strerror(code))

    with pytest.raises(RunDirError, match=r"is full; earlier checkpoints are intact.*then resume the run"):
        write_atomic(tmp_path / "file", fail)
    assert names(tmp_path) == []


def test_a_really_full_disk_leaves_the_old_file(small_disk: Path) -> None:
    path = small_disk / "file"
    write_atomic(path, b"old")
    with pytest.raises(RunDirError, match=f"the disk that holds {path} is full"):
        write_atomic(path, b"x" * 2**20)
    assert path.read_bytes() == b"old"
    assert names(small_disk) == ["file"]


def _with_python(path: Path) -> None:
    (path / "model").write_bytes(b"x" * 2**20)


def _with_torch(path: Path) -> None:
    import torch

    torch.save({"weights": torch.zeros(2**18)}, path / "optimizer.pt")


def _with_safetensors(path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"weights": torch.zeros(2**18)}, path / "model.safetensors")


def _with_parquet(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"noise": [os.urandom(2**20)]}), path / "rows.parquet")


@pytest.mark.parametrize("fill", [_with_python, _with_torch, _with_safetensors, _with_parquet])
def test_a_checkpoint_that_does_not_fit_leaves_the_old_one(small_disk: Path, fill: Callable[[Path], None]) -> None:
    run = RunDir(small_disk)
    checkpoint(run, 1)
    with pytest.raises(RunDirError, match="is full"), run.new_checkpoint(2) as path:
        fill(path)
    assert names(run.checkpoints) == ["step-000001"]
    (small_disk / "room").write_bytes(b"x" * 2**16)  # the space was given back


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_an_unwritable_path_raises_run_dir_error(tmp_path: Path, code: int) -> None:
    with pytest.raises(RunDirError, match=r"cannot write to .*; choose another run directory"), disk_errors(tmp_path):
        raise OSError(code, os.strerror(code))


def test_other_refusals_pass_through(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), disk_errors(tmp_path):
        (tmp_path / "nothing").read_bytes()


# The lock


def test_a_directory_in_use_names_the_process(directory: RunDir) -> None:
    code = (
        "import sys; from pathlib import Path; from dojang.core.run_dir import RunDir\n"
        "run = RunDir(Path(sys.argv[1])); run.lock(); print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(directory.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(RunDirError, match=rf"in use by process {other.pid}; .*--run-dir"):
            directory.lock()
        other.kill()  # the claim ends with the process, however it ends
    directory.lock()
    directory.unlock()


def test_the_lock_can_be_taken_again_after_it_was_released(directory: RunDir) -> None:
    directory.lock()
    assert (directory.path / "run.lock").read_text() == str(os.getpid())
    with pytest.raises(RunDirError, match=f"in use by process {os.getpid()}"):
        RunDir(directory.path).lock()
    directory.unlock()
    directory.unlock()
    again = RunDir(directory.path)
    again.lock()
    again.unlock()


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert RunDir(Path("~/run")).path == tmp_path / "run"


def test_locking_makes_the_directory(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "not" / "yet")
    run.lock()
    assert run.path.is_dir()
    assert not run.holds_a_run()  # nothing was started yet
    run.unlock()


@pytest.mark.parametrize("inside", ["", "deeper"])
def test_a_file_in_place_of_the_directory_raises_run_dir_error(tmp_path: Path, inside: str) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(RunDirError, match="choose another"):
        RunDir(tmp_path / "file" / inside).lock()


# Checkpoints


def test_a_checkpoint_gets_its_name_when_it_is_complete(directory: RunDir) -> None:
    with directory.new_checkpoint(3) as path:
        (path / "model").write_text("weights")
        assert directory.last_checkpoint() is None
    assert directory.last_checkpoint() == directory.checkpoints / "step-000003"
    assert names(directory.checkpoints) == ["step-000003"]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_an_aborted_checkpoint_leaves_the_old_one(directory: RunDir, failure: type[BaseException]) -> None:
    checkpoint(directory, 1)
    for step in (1, 2):
        with pytest.raises(failure):
            abort(directory, step, failure)
    assert names(directory.checkpoints) == ["step-000001"]
    assert (directory.checkpoints / "step-000001" / "model").read_text() == "weights"


def test_a_checkpoint_replaces_one_of_the_same_step(directory: RunDir) -> None:
    checkpoint(directory, 1, "old")
    checkpoint(directory, 1, "new")
    assert (directory.checkpoints / "step-000001" / "model").read_text() == "new"


def test_a_partial_checkpoint_of_a_crash_is_replaced(directory: RunDir) -> None:
    left = directory.checkpoints / ".step-000002.tmp"
    left.mkdir(parents=True)
    (left / "half").write_text("half")
    assert directory.last_checkpoint() is None
    checkpoint(directory, 2)
    assert names(directory.checkpoints / "step-000002") == ["files.json", "model"]


@pytest.mark.parametrize("killed_at", ["rmtree", "rename"])
def test_replacing_a_checkpoint_never_leaves_half_of_it(
    directory: RunDir, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    """A crash while the old one makes room: what is under a final name must be whole, and there must be one."""
    checkpoint(directory, 1, "old")
    (directory.checkpoints / "step-000001" / "optimizer").write_text("old")

    def half(path: Path, **_: object) -> None:
        if Path(path).name == "step-000001":
            (Path(path) / "model").unlink()
            raise SystemExit(9)

    def crash(*_: object) -> None:
        raise SystemExit(9)

    monkeypatch.setattr(*(("shutil.rmtree", half) if killed_at == "rmtree" else ("os.rename", crash)))
    with suppress(SystemExit), directory.new_checkpoint(1) as path:
        (path / "model").write_text("new")
        (path / "optimizer").write_text("new")
    monkeypatch.undo()
    found = directory.last_checkpoint()
    assert found is not None
    assert names(found) == ["files.json", "model", "optimizer"]


def test_the_newest_is_the_last_by_number(directory: RunDir) -> None:
    for step in (9, 10, 2):
        checkpoint(directory, step)
    assert directory.last_checkpoint() == directory.checkpoints / "step-000010"


def test_links_follow_and_pruning_keeps_what_they_lead_to(directory: RunDir) -> None:
    for step in (1, 2, 3, 4):
        checkpoint(directory, step)
    (directory.checkpoints / ".step-000005.tmp").mkdir()
    directory.point("last", 1)
    directory.point("last", 4)
    directory.point("best", 2)
    directory.prune_checkpoints()
    assert names(directory.checkpoints) == ["best", "last", "step-000002", "step-000004"]
    assert (directory.checkpoints / "best").resolve().name == "step-000002"
    assert (directory.checkpoints / "last" / "model").read_text() == "weights"
    assert not os.path.isabs(os.readlink(directory.checkpoints / "last"))  # a run directory can be moved


def test_pruning_without_a_best_keeps_the_last(directory: RunDir) -> None:
    checkpoint(directory, 1)
    checkpoint(directory, 2)
    directory.point("last", 2)
    directory.prune_checkpoints()
    assert names(directory.checkpoints) == ["last", "step-000002"]


def test_pruning_keeps_the_given_steps(directory: RunDir) -> None:
    for step in (1, 2, 3, 4, 5):
        checkpoint(directory, step)
    (directory.checkpoints / "step-000002-mine").mkdir()
    directory.point("last", 5)
    directory.point("best", 3)
    directory.prune_checkpoints([1, 3, 9])
    assert names(directory.checkpoints) == [
        *("best", "last", "step-000001", "step-000002-mine", "step-000003", "step-000005")
    ]


def test_the_names_of_all_figures(directory: RunDir) -> None:
    assert directory.figures() == set()
    directory.metrics.write_text('{"step": 0, "val/x": 1}\n{"step": 1, "y": 1}\n{"step": 2, "y": 1, "z": 2}\n')
    assert directory.figures() == {"val/x", "y", "z"}


# Rewinding


def test_rewinding_forgets_later_steps_and_a_torn_line(directory: RunDir) -> None:
    kept = [json.dumps({"step": step, "x": step / 2}) + "\n" for step in (0, 1, 1, 2)]
    later = [json.dumps({"step": step}) + "\n" for step in (3, 4)]
    directory.metrics.write_text("".join(kept + later) + '{"step": 1, "x')
    for split, step in (("test", 0), ("train", 2), ("train", 3), ("test", 3), ("train", 1_000_000)):
        write_atomic(directory.rollouts(split, step), b"rows")
    directory.timeline.write_text("".join(kept + later))
    for step in (1, 2, 3):
        write_atomic(directory.token_values("train", step), b"rows")
    directory.summary.write_text("{}")
    directory.rewind(2, {"": 2})
    assert directory.metrics.read_text() == directory.timeline.read_text() == "".join(kept)
    assert names(directory.path / "rollouts") == ["test-000000.parquet", "train-000002.parquet"]
    assert names(directory.path / "token_values") == ["train-000001.parquet", "train-000002.parquet"]
    assert not directory.summary.exists()


@pytest.mark.parametrize("torn", ['{"step": 1', '{"step": 1}', "\0\0\0\0", '{"st\n'])
def test_a_line_that_is_not_whole_is_dropped(directory: RunDir, torn: str) -> None:
    directory.metrics.write_text('{"step": 0}\n' + torn)
    directory.rewind(5, {"": 5})
    assert directory.metrics.read_text() == '{"step": 0}\n'


def test_rewinding_to_before_the_start_forgets_everything(directory: RunDir) -> None:
    directory.metrics.write_text('{"step": 0}\n')
    write_atomic(directory.rollouts("test", 0), b"rows")
    directory.rewind(-1, {})
    assert directory.metrics.read_text() == ""
    assert names(directory.path / "rollouts") == []


def test_an_evaluation_that_will_be_repeated_is_forgotten(directory: RunDir) -> None:
    kept = ['{"step": 0, "val/x": 1}\n', '{"step": 3, "y": 1}\n']
    directory.metrics.write_text("".join([*kept, '{"step": 3, "val/x": 1}\n']))
    for split, step in (("test", 0), ("train", 3), ("test", 3)):
        write_atomic(directory.rollouts(split, step), b"rows")
    directory.rewind(3, {"": 0})
    assert directory.metrics.read_text() == "".join(kept)
    assert names(directory.path / "rollouts") == ["test-000000.parquet", "train-000003.parquet"]


def test_evaluations_on_benchmarks_are_forgotten_each_by_its_own_last_step(directory: RunDir) -> None:
    held_out = '{"step": 3, "val/accuracy": 1, "val/accuracy/sums": 1}\n'
    extra = ['{"step": 0, "val/accuracy/extra": 1}\n', '{"step": 2, "val/accuracy/extra": 1}\n']
    other = '{"step": 2, "val/accuracy/other-1": 1}\n'
    directory.metrics.write_text("".join([*extra, other, held_out]))
    for split, step in (("test-extra", 0), ("test-extra", 2), ("test-other-1", 2), ("test", 3), ("train", 3)):
        write_atomic(directory.rollouts(split, step), b"rows")
    directory.rewind(3, {"": 3, "extra": 0, "other-1": 2})
    assert directory.metrics.read_text() == "".join([extra[0], other, held_out])
    kept = ["test-000003.parquet", "test-extra-000000.parquet", "test-other-1-000002.parquet", "train-000003.parquet"]
    assert names(directory.path / "rollouts") == kept


def test_a_checkpoint_lost_between_two_renames_comes_back(directory: RunDir) -> None:
    with directory.new_checkpoint(4) as path:
        (path / "weights").write_text("whole")
    (directory.checkpoints / "step-000004").rename(directory.checkpoints / ".step-000004.old.tmp")
    assert directory.last_checkpoint() is None
    directory.lock()
    found = directory.last_checkpoint()
    assert found is not None
    assert (found / "weights").read_text() == "whole"
    directory.unlock()


def test_rewinding_a_fresh_directory_does_nothing(directory: RunDir) -> None:
    directory.rewind(-1, {})
    assert names(directory.path) == []


def test_a_copy_made_file_by_file_loses_what_is_not_whole(directory: RunDir) -> None:
    for step in (1, 2, 3):
        checkpoint(directory, step)
    (directory.checkpoints / "step-000002" / "model").write_text("wei")  # cut short
    (directory.checkpoints / "step-000003" / "files.json").unlink()  # had not been copied yet
    (directory.checkpoints / "step-000001" / "notes.txt").write_text("a user's own")
    (directory.checkpoints / "best").mkdir()  # was a link, and copied as what it led to
    (directory.checkpoints / ".step-000004.old.tmp").mkdir()
    assert directory.drop_fragments() == ["step-000002", "step-000003"]
    assert names(directory.checkpoints) == ["step-000001"]


def test_links_that_still_are_some_stay_when_fragments_go(directory: RunDir) -> None:
    checkpoint(directory, 1)
    directory.point("last", 1)
    assert directory.drop_fragments() == []
    assert names(directory.checkpoints) == ["last", "step-000001"]
