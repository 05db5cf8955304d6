"""Copies of folders never lead out of them; outputs are cut to an exact length."""

import os
import random
import socket
from pathlib import Path

import pytest

from dojang.judge.sandbox.file_tree import FileTree, TooLarge, TreeLimits, read_tree, write_tree
from dojang.judge.sandbox.output_ends import OutputEnds, cut_middle

LIMITS = TreeLimits(1 << 20)


def names(tree: FileTree) -> dict[str, str]:
    return {each["path"]: each.get("target") or each["kind"] for each in tree.entries}


def test_a_copy_has_the_same_files(tmp_path: Path) -> None:
    source, copy = tmp_path / "source", tmp_path / "copy"
    (source / "a" / "b").mkdir(parents=True)
    (source / "a" / "run.sh").write_bytes(b"\x00\xff")
    (source / "a" / "run.sh").chmod(0o4755)
    (source / "a" / "link").symlink_to("run.sh")
    (source / "folder").symlink_to(source / "a")
    (source / os.fsdecode(b"\xe9")).write_text("name that is no UTF-8")
    copy.mkdir()
    (copy / "old").write_text("gone")
    write_tree(str(copy), read_tree(str(source), LIMITS))
    assert read_tree(str(copy), LIMITS) == read_tree(str(source), LIMITS)
    assert (copy / "a" / "run.sh").stat().st_mode & 0o7777 == 0o755
    assert (copy / "folder" / "link").read_bytes() == b"\x00\xff"
    assert os.readlink(copy / "folder") == "a"
    assert not (copy / "old").exists()


def test_bytecode_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a" / "__pycache__").mkdir(parents=True)
    for name in ("a/__pycache__/x.cpython-311.pyc", "a/x.pyc", "a/x.py"):
        (tmp_path / name).touch()
    assert [entry["path"] for entry in read_tree(str(tmp_path), LIMITS).entries] == ["a", "a/x.py"]


def test_nothing_leads_out_of_a_copy(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    source = tmp_path / "source"
    (source / "a").mkdir(parents=True)
    (source / "a" / "up").symlink_to("..")
    targets = [
        "/etc/passwd",
        "../secret",
        "a/up/../secret",
        "/proc/self/root",
        "/proc/self/cwd",
        "loop",
        "nothing",
        ".",
    ]
    for number, target in enumerate(targets):
        (source / ("loop" if target == "loop" else str(number))).symlink_to(target)
    os.mkfifo(source / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "socket"))
    (source / "two\nlines").write_text("")
    (source / "bad\x1b").mkdir()
    (source / "bad\x1b" / "inside").write_text("")
    tree = read_tree(str(source), LIMITS)
    assert names(tree) == {"a": "dir"}
    assert len(tree.left_out) == 9  # eight are named, the rest is counted
    assert tree.left_out[-1].endswith("more")


def test_permissions_do_not_hide_files(tmp_path: Path) -> None:
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "file").write_text("here")
    (tmp_path / "closed" / "file").chmod(0)
    (tmp_path / "closed").chmod(0)
    assert read_tree(str(tmp_path), LIMITS).contents == [b"here"]


@pytest.mark.parametrize(
    ("limits", "reason"),
    [(TreeLimits(99), "too large"), (TreeLimits(100, entries=1), "more than 1"), (TreeLimits(100, depth=1), "deep")],
)
def test_large_folders_are_refused(tmp_path: Path, limits: TreeLimits, reason: str) -> None:
    (tmp_path / "a" / "b" / "c").mkdir(parents=True)
    (tmp_path / "half").write_bytes(bytes(50))
    os.link(tmp_path / "half", tmp_path / "other")  # counts twice
    with pytest.raises(TooLarge, match=reason):
        read_tree(str(tmp_path), limits)
    os.truncate(tmp_path / "half", 1 << 40)  # a sparse file is not read
    with pytest.raises(TooLarge):
        read_tree(str(tmp_path), limits)


@pytest.mark.parametrize("path", ["../out", "/etc/out", "a/../../out"])
def test_paths_out_of_the_folder_are_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ValueError, match="not a path within"):
        write_tree(str(tmp_path), FileTree([{"path": path, "kind": "file", "executable": False}], [b""]))


def test_outputs_are_cut_to_the_exact_length_however_the_pieces_arrive() -> None:
    draw = random.Random(0)
    for most in (1, 7, 40, 61, 100, 1000):
        for length in (0, 1, most - 1, most, most + 1, 2 * most, 4 * most, 8 * most, 8 * most + 1, 9 * most, 50 * most):
            for alphabet in ("ab\n", "aé€😀"):
                text = "".join(draw.choices(alphabet, k=length))
                data = text.encode()
                ends, at = OutputEnds(4 * most), 0
                while at < len(data):
                    size = draw.choice([1, 2, 3, most, 5 * most])
                    ends.add(data[at : at + size])
                    at += size
                assert ends.total == len(data)
                assert len(ends.head) + len(ends.tail) <= 8 * most
                cut = cut_middle(bytes(ends.head), bytes(ends.tail), ends.total, most)
                assert len(cut) <= most
                if length <= most:
                    assert cut == text
                elif most >= 61:
                    assert "left out" in cut
                    assert len(cut) > most - 20
                    assert cut.startswith(text[:5])
                    assert cut.endswith(text[-5:])
