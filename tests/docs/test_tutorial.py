"""docs/tutorial.md: its files are written and its commands run in order, and they print what the page shows."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# ([\w.]+)\n")
NUMBER = re.compile(r"[+-]?\d[\d,.:]*")

pytestmark = pytest.mark.slow


def shape(line: str) -> str:
    """A line without its numbers, which differ from machine to machine, and without the spaces that align them."""
    return " ".join(NUMBER.sub("#", line).split())


def shell(folder: Path) -> dict[str, str]:
    """An environment in which `dojang` and `python` are those of the tests."""
    programs = folder / "programs"
    programs.mkdir()
    for name, command in {"dojang": f"{sys.executable} -m dojang", "python": sys.executable}.items():
        (programs / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (programs / name).chmod(0o755)
    return {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}


def test_every_block_runs_in_order_and_prints_what_the_page_shows(tmp_path: Path) -> None:
    folder, environment, said, everything = tmp_path / "here", shell(tmp_path), "", ""
    folder.mkdir()
    for language, text in BLOCK.findall(PAGE.read_text()):
        if name := NAMED.match(text):
            (folder / name[1]).write_text(text)
        elif language == "bash":
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", text], cwd=folder, env=environment, capture_output=True, text=True
            )
            said = done.stdout + done.stderr
            everything += said
            assert done.returncode == 0, text + said
        elif "──►" not in text:
            printed = {shape(line) for line in said.splitlines()}
            assert {shape(line) for line in text.splitlines()} <= printed, text + said

    assert not (folder / "runs" / "sums-1").exists()  # a dry run makes none
    found = json.loads((folder / "runs" / "sums" / "summary.json").read_text())["eval"]
    assert found["before"] < 0.5 < 0.9 < found["after"]
    assert "The final answer is 108" in everything
