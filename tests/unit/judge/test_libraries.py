"""Which shared libraries programs need: asking about few of them tells as much as asking about all."""

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
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The programs that `ldd` was asked about, each time."""
    libraries._asked_of_ldd.cache_clear()
    found: list[list[str]] = []
    run = subprocess.run

    def counted(command: list[str], **options: object) -> "subprocess.CompletedProcess[str]":
        found.append(command[1:])
        return run(command, **options)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(subprocess, "run", counted)
    return found


def test_one_of_those_that_need_the_same_is_asked_about(asked: list[list[str]]) -> None:
    found = libraries.libraries_of(PROGRAMS)
    assert len(asked[0]) < len(PROGRAMS) / 2
    each_alone = [libraries.libraries_of([path]) for path in PROGRAMS]
    assert found == sorted(set().union(*each_alone))


def test_it_is_asked_about_files_that_have_changed(tmp_path: Path, asked: list[list[str]]) -> None:
    copy = shutil.copy(_ctypes.__file__, tmp_path / "module.so")
    assert libraries.libraries_of([copy]) == libraries.libraries_of([copy]) != []
    assert len(asked) == 1
    shutil.copy("/bin/sh", copy)
    assert libraries.libraries_of([copy]) != []
    assert len(asked) == 2


def test_what_is_no_program_is_asked_about(tmp_path: Path, asked: list[list[str]]) -> None:
    texts = [tmp_path / "script", tmp_path / "empty", tmp_path / "cut", tmp_path / "missing"]
    for path, text in zip(texts, (b"#!/bin/sh\n", b"", b"\x7fELF\x02\x01" + bytes(20)), strict=False):
        path.write_bytes(text)
    assert libraries.libraries_of(list(map(str, texts))) == []
    assert asked == [list(map(str, texts))]
