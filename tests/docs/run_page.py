"""Runs a documentation page as its reader would: writes its named files and runs its bash blocks in order.

`dojang` and `python` of the page are real processes; most are forked from a server that has imported what they need
(tests/commands.py).
"""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import commands

__all__ = ["run_page"]

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# ([\w.-]+)\n")
NUMBER = re.compile(r"[+-]?\d[\d,.:]*")
PROGRAMS = {"dojang": [sys.executable, "-m", "dojang"], "python": [sys.executable]}
CLIENT = """#!{python} -S
import json, socket, sys
line = socket.socket(socket.AF_UNIX)
line.connect({address!r})
line.sendall(json.dumps([{name!r}, *sys.argv[1:]]).encode() + b"\\n")
code, printed, complained = json.loads(line.makefile().read())
sys.stdout.write(printed)
sys.stderr.write(complained)
sys.exit(code)
"""


def run_page(page: Path, folder: Path) -> str:
    """Returns everything that the commands print. AssertionError if one fails, or does not print the lines that the
    page shows after it; numbers may differ."""
    said = everything = ""
    with _programs(folder) as path:
        for language, text in BLOCK.findall(page.read_text()):
            if name := NAMED.match(text):
                (folder / name[1]).write_text(text)
            elif language == "bash":
                said = _run(text, folder, path)
                everything += said
            elif "──►" not in text:
                printed = {_shape(line) for line in said.splitlines()}
                assert {_shape(line) for line in text.splitlines()} <= printed, text + said
    return everything


@contextmanager
def _programs(folder: Path) -> Iterator[str]:
    """Yields a PATH on which the programs of the page are those of the tests, run in the folder."""
    place, address = folder / "programs", str(folder / "programs" / "line")
    place.mkdir()
    for name in PROGRAMS:
        (place / name).write_text(CLIENT.format(python=sys.executable, address=address, name=name))
        (place / name).chmod(0o755)
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(address)
        line.listen(8)
        threading.Thread(target=_serve, args=(line, folder), daemon=True).start()
        yield f"{place}:{os.environ['PATH']}"
        line.shutdown(socket.SHUT_RDWR)


def _serve(line: socket.socket, folder: Path) -> None:
    while True:
        try:
            asked, _ = line.accept()
        except OSError:  # the page is at its end
            return
        with asked:
            name, *arguments = json.loads(asked.makefile().readline())
            forked = name == "python" or arguments[0] in ("train", "eval", "export")
            start = commands.run if forked else subprocess.run
            done = start([*PROGRAMS[name], *arguments], cwd=folder, capture_output=True, text=True)
            asked.sendall(json.dumps([done.returncode, done.stdout, done.stderr]).encode())


def _run(script: str, folder: Path, path: str) -> str:
    command = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert done.returncode == 0, script + said
    return said


def _shape(line: str) -> str:
    """A line without its numbers, which differ from machine to machine, and without the spaces that align them."""
    return " ".join(NUMBER.sub("#", line).split())
