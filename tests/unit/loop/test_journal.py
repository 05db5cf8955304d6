"""The journal of judged groups, cut and corrupted at every byte."""

import errno
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from dojang.core.errors import RunDirError
from dojang.core.run_dir import RunDir
from dojang.loop.journal import Journal, JournalEntry
from dojang.types import Group, Problem

Make = Callable[[int], Group]


@pytest.fixture
def group(make_group: Callable[..., Group]) -> Make:
    return lambda index: make_group([1.0] if index % 2 == 0 else [], prompt_index=index)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return RunDir(tmp_path).journal


@pytest.fixture
def replayed(problem: Problem) -> Callable[[Path], list[tuple[int, int]]]:
    """Prompt indices and attempts that a new process finds."""

    def read(path: Path) -> list[tuple[int, int]]:
        return [(each.group.prompt_index, each.attempt) for each in Journal(path).replay(lambda _: problem)]

    return read


def write(path: Path, groups: list[Group]) -> list[int]:
    """Appends the groups, with attempts 0, 1, 2, ...; returns the size of the file after each."""
    journal, ends = Journal(path), [0]
    for attempt, group in enumerate(groups):
        journal.append(group, attempt=attempt)
        ends.append(path.stat().st_size)
    return ends


def test_groups_come_back_in_order(path: Path, group: Make, problem: Problem) -> None:
    groups = [group(index) for index in (4, 1, 1, 2)]
    write(path, groups)
    found = list(Journal(path).replay(lambda _: problem))
    assert found == [JournalEntry(each, attempt) for attempt, each in enumerate(groups)]


def test_no_journal_is_an_empty_one(path: Path, replayed: Callable[[Path], object]) -> None:
    assert replayed(path) == []
    assert replayed(path) == []


def test_a_journal_cut_anywhere_keeps_its_whole_records(
    path: Path, group: Make, replayed: Callable[[Path], object]
) -> None:
    ends = write(path, [group(index) for index in (1, 2, 3)])
    data = path.read_bytes()
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends[1:])
        expected = [(1, 0), (2, 1), (3, 2)][:whole]
        assert replayed(path) == expected
        assert path.stat().st_size == ends[whole]
        if cut % 40 == 0:  # appending does not build on a torn record
            path.write_bytes(data[:cut])
            write(path, [group(5)])
            assert replayed(path) == [*expected, (5, 0)]


def test_a_flipped_byte_ends_the_journal_there(path: Path, group: Make, problem: Problem) -> None:
    groups = [group(index) for index in (1, 2, 3)]
    ends = write(path, groups)
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
        whole = sum(end <= at for end in ends[1:])
        found = list(Journal(path).replay(lambda _: problem))
        assert [each.group for each in found] == groups[:whole]


@pytest.mark.parametrize("garbage", [b"\0" * 40, b"\xff" * 40, b"no journal at all, but some text"])
def test_garbage_is_no_record(path: Path, group: Make, replayed: Callable[[Path], object], garbage: bytes) -> None:
    write(path, [group(1)])
    with path.open("ab") as file:
        file.write(garbage)
    assert replayed(path) == [(1, 0)]
    path.write_bytes(garbage)
    assert replayed(path) == []


def test_groups_of_other_data_are_skipped_and_counted(path: Path, group: Make, problem: Problem) -> None:
    write(path, [group(index) for index in range(4)])
    journal = Journal(path)
    others = {1: replace(problem, id="sums/2")}
    found = [each.group.prompt_index for each in journal.replay(lambda index: others.get(index, problem))]
    assert (found, journal.unreadable) == ([0, 2, 3], 1)


def test_a_checkpoint_drops_what_it_holds(path: Path, group: Make, replayed: Callable[[Path], object]) -> None:
    journal = Journal(path)
    for index in range(6):
        journal.append(group(index), attempt=index)
    journal.rewrite(lambda index: index > 3)
    assert replayed(path) == [(4, 4), (5, 5)]
    journal.append(group(6), attempt=0)
    assert replayed(path) == [(4, 4), (5, 5), (6, 0)]
    journal.rewrite(lambda index: False)
    assert path.read_bytes() == b""
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_rewrite_drops_a_torn_end(path: Path, group: Make, replayed: Callable[[Path], object]) -> None:
    write(path, [group(1), group(2)])
    os.truncate(path, path.stat().st_size - 1)
    journal = Journal(path)
    journal.rewrite(lambda index: True)
    journal.append(group(3), attempt=0)
    assert replayed(path) == [(1, 0), (3, 0)]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_an_error_with_a_remedy_and_leaves_whole_records(
    path: Path,
    group: Make,
    replayed: Callable[[Path], object],
    monkeypatch: pytest.MonkeyPatch,
    code: int,
) -> None:
    journal = Journal(path)
    journal.append(group(1), attempt=0)

    def full(_: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(RunDirError, match="Free some space"):
            journal.append(group(2), attempt=0)
        with pytest.raises(RunDirError, match="Free some space"):
            journal.rewrite(lambda index: False)
    assert replayed(path) == [(1, 0)]
    journal.append(group(3), attempt=0)
    assert replayed(path) == [(1, 0), (3, 0)]


def test_threads_may_append_at_the_same_time(path: Path, group: Make, replayed: Callable[[Path], list]) -> None:
    journal = Journal(path)
    with ThreadPoolExecutor(8) as threads:
        for index in range(40):
            threads.submit(journal.append, group(index), attempt=0)
            if index % 10 == 5:
                threads.submit(journal.rewrite, lambda index: True)
    assert sorted(index for index, _ in replayed(path)) == list(range(40))


def test_a_killed_process_loses_at_most_what_it_was_appending(path: Path, problem: Problem) -> None:
    script = """
        import sys
        from pathlib import Path
        from dojang.loop.journal import Journal
        from dojang.types import Group, Problem
        journal = Journal(Path(sys.argv[1]))
        for index in range(10**6):
            journal.append(Group(Problem("sums/1", "sums", (), None), index, ()), attempt=0)
            print(index, flush=True)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == 20:
                process.kill()
                break
        acknowledged = [20, *map(int, process.stdout)][-1]
    found = [each.group.prompt_index for each in Journal(path).replay(lambda _: problem)]
    assert found in (list(range(acknowledged + 1)), list(range(acknowledged + 2)))
