"""Shared libraries of programs: one ldd call per set of libraries finds them all."""

import _ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dojang.judge import libraries

PROGRAMS = [os.path.realpath(sys.executable), *map(str, Path(_ctypes.__file__).parent.glob("*.so"))]
PROGRAMS += map(str, Path(np.__file__).parent.rglob("*.so"))


@pytest.fixture
def ldd_calls(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Arguments of each `ldd` call."""
    libraries._run_ldd.cache_clear()
    found: list[list[str]] = []
    run = subprocess.run

    def counted(command: list[str], **options: object) -> "subprocess.CompletedProcess[str]":
        found.append(command[1:])
        return run(command, **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(subprocess, "run", counted)
    return found


def test_ldd_runs_once_per_library_set(ldd_calls: list[list[str]]) -> None:
    found = libraries.shared_libraries(PROGRAMS)
    assert len(ldd_calls[0]) < len(PROGRAMS) / 2
    each_alone = [libraries.shared_libraries([path]) for path in PROGRAMS]
    assert found == sorted(set().union(*each_alone))


def test_ldd_runs_again_for_changed_files(tmp_path: Path, ldd_calls: list[list[str]]) -> None:
    copy = shutil.copy(_ctypes.__file__, tmp_path / "module.so")
    assert libraries.shared_libraries([copy]) == libraries.shared_libraries([copy]) != []
    assert len(ldd_calls) == 1
    shutil.copy("/bin/sh", copy)
    assert libraries.shared_libraries([copy]) != []
    assert len(ldd_calls) == 2


def test_ldd_runs_for_unparsed_files(tmp_path: Path, ldd_calls: list[list[str]]) -> None:
    texts = [tmp_path / "script", tmp_path / "empty", tmp_path / "cut", tmp_path / "missing"]
    for path, text in zip(texts, (b"#!/bin/sh\n", b"", b"\x7fELF\x02\x01" + bytes(20)), strict=False):
        path.write_bytes(text)
    assert libraries.shared_libraries(list(map(str, texts))) == []
    assert ldd_calls == [list(map(str, texts))]
