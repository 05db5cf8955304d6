"""Runs the bash blocks of a documentation page: bash itself, with chosen programs answered by functions of the test.

A program that is neither chosen nor one of the system's own ends the script, and so the test.
"""

import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = ["Answer", "blocks", "run", "value"]

Answer = Callable[[list[str]], str]
"""Answers one program: its arguments -> what it prints. Raises to fail."""

_BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_CLIENT = """#!{python} -S
import json, socket, sys
stdin = sys.stdin.read()
line = socket.socket(socket.AF_UNIX)
line.connect({address!r})
line.sendall(json.dumps([{name!r}, *sys.argv[1:]]).encode() + b"\\n")
code, text = json.loads(line.makefile().read())
sys.stdout.write(text)
sys.exit(code)
"""


def blocks(page: Path) -> dict[str, str]:
    """The bash blocks of each section of a page, one after the other."""
    _, *rest = _HEADING.split(page.read_text())
    found = {title: "\n".join(_BLOCK.findall(text)) for title, text in zip(rest[::2], rest[1::2], strict=True)}
    return {title: script for title, script in found.items() if script}


def run(script: str, folder: Path, programs: Mapping[str, Answer]) -> list[list[str]]:
    """Runs a script in a folder; returns the command lines that `programs` answered. AssertionError if it fails."""
    address = str(folder.parent / "line")
    shims = folder.parent / "shims"
    shims.mkdir(exist_ok=True)
    for name in programs:
        (shims / name).write_text(_CLIENT.format(python=sys.executable, address=address, name=name))
        (shims / name).chmod(0o755)
    (folder.parent / "script.sh").write_text(f"set -euo pipefail\n{script}\nwait\n")
    seen: list[list[str]] = []
    Path(address).unlink(missing_ok=True)
    said = folder.parent / "output"
    with socket.socket(socket.AF_UNIX) as line, said.open("w") as output:
        line.bind(address)
        line.listen(8)
        line.settimeout(0.05)
        begun = subprocess.Popen(
            ["bash", str(folder.parent / "script.sh")],
            cwd=folder,
            env={"PATH": f"{shims}:/usr/bin:/bin", "HOME": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            while begun.poll() is None:
                _serve(line, programs, seen)
        finally:
            begun.kill()
            begun.wait()
    assert begun.returncode == 0, f"after {' '.join(seen[-1] if seen else ['nothing'])}:\n{said.read_text()}"
    return seen


def _serve(line: socket.socket, programs: Mapping[str, Answer], seen: list[list[str]]) -> None:
    try:
        asked, _ = line.accept()
    except TimeoutError:
        return
    with asked:
        asked.settimeout(10)
        command: list[str] = json.loads(asked.makefile().readline())
        seen.append(command)
        name, *arguments = command
        try:
            answer = (0, programs[name](arguments))
        except Exception as error:
            asked.sendall(json.dumps((1, f"{error}\n")).encode())
            raise AssertionError(f"{' '.join(command)}\n{error}") from error
        asked.sendall(json.dumps(answer).encode())


def value(arguments: Sequence[str], option: str) -> str:
    """What an option of a command line was given."""
    return arguments[arguments.index(option) + 1]
