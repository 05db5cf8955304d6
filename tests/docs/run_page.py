"""Runs a documentation page as its reader would: writes its named files and runs its bash blocks in order."""

import os
import re
import subprocess
import sys
from pathlib import Path

__all__ = ["run_page"]

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# ([\w.-]+)\n")
NUMBER = re.compile(r"[+-]?\d[\d,.:]*")


def run_page(page: Path, folder: Path) -> str:
    """Returns everything that the commands print. AssertionError if one fails, or does not print the lines that the
    page shows after it; numbers may differ."""
    environment, said, everything = _environment(folder / "programs"), "", ""
    for language, text in BLOCK.findall(page.read_text()):
        if name := NAMED.match(text):
            (folder / name[1]).write_text(text)
        elif language == "bash":
            said = _run(text, folder, environment)
            everything += said
        elif "──►" not in text:
            printed = {_shape(line) for line in said.splitlines()}
            assert {_shape(line) for line in text.splitlines()} <= printed, text + said
    return everything


def _environment(programs: Path) -> dict[str, str]:
    """An environment in which `dojang` and `python` are those of the tests."""
    programs.mkdir()
    for name, command in {"dojang": f"{sys.executable} -m dojang", "python": sys.executable}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (programs / name).chmod(0o755)
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}


def _run(script: str, folder: Path, environment: dict[str, str]) -> str:
    command = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0, script + said
    return said


def _shape(line: str) -> str:
    """A line without its numbers, which differ from machine to machine, and without the spaces that align them."""
    return " ".join(NUMBER.sub("#", line).split())
