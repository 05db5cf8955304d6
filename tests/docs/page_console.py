"""Runs the terminal sessions of a page (`$ command`, and what it prints) and compares the output.

Numbers, the isolation level and the length of a table's rules differ between machines; everything else must be equal. A
line `...` stands for any lines. `cat FILE` shows a file that the reader has written, which is then there.
"""

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from page_commands import Commands
from typer.testing import CliRunner

from dojang.commands import app

__all__ = ["Console", "same_output"]

PORT = "8650"
"""Port of the judge on the page."""
WAIT_S = 60
_LEVEL = re.compile(r"\b(?:namespaces|landlock|seccomp)\b")
_NUMBER = re.compile(r"-?\b\d[\d,]*(?:\.\d+)?\b")


class Console:
    """The terminals of a page's reader: their exit code, environment, and the judge that one of them serves."""

    def __init__(self, commands: Commands, folder: Path) -> None:
        self.commands, self.folder, self.code = commands, folder, 0
        self.environment: dict[str, str] = {}
        self.served: subprocess.Popen[str] | None = None
        self.port = ""

    def run(self, text: str) -> None:
        """Runs the commands of a session, and compares what each prints."""
        for command, shown in _commands(text):
            said = self._one(command, shown)
            if said is not None:
                assert same_output(shown, said), f"$ {command}\nthe page shows\n{shown}\nbut it prints\n{said}"

    def close(self) -> None:
        """Stops the judge."""
        if self.served is not None:
            self.served.terminate()
            self.served.communicate(timeout=WAIT_S)

    def _one(self, command: str, shown: str) -> str | None:
        """Output of a command; None if it is not compared."""
        words = shlex.split(command)
        match words:
            case ["export", assignment]:
                name, _, value = assignment.partition("=")
                self.environment[name] = value
                return ""
            case ["cat", name]:
                (self.folder / name).write_text(shown)
                return None
            case ["echo", "$?"]:
                return f"{self.code}\n"
            case ["dojang", "judge", "serve", *_]:
                return self._serve(words)
            case ["curl", *_]:
                return self._curl(words, shown)
            case ["dojang", "judge", *rest]:
                found = CliRunner(env={"COLUMNS": "120"}).invoke(app, ["judge", *rest], catch_exceptions=False)
                self.code = found.exit_code
                return str(found.output)
            case ["dojang", *rest]:
                self.commands.dojang(rest)
                return None
        raise AssertionError(f"$ {command}: tests/docs/page_console.py does not know this command")

    def _serve(self, words: list[str]) -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = str(free.getsockname()[1])
        arguments = [self.port if each == PORT else each for each in words[1:]]
        self.served = subprocess.Popen(
            [sys.executable, "-m", "dojang", *arguments],
            env={**os.environ, **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.served.stdout is not None
        return self.served.stdout.readline() + self.served.stdout.readline()

    def _curl(self, words: list[str], shown: str) -> str | None:
        asked = subprocess.run(
            [each.replace(f":{PORT}/", f":{self.port}/") for each in words],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert asked.returncode == 0, asked.stderr
        return None if '"draining"' in shown else asked.stdout  # it drains only while a program runs


def same_output(shown: str, said: str) -> bool:
    """Whether a command prints what the page shows, on another machine."""
    lines, printed = (_plain(each).splitlines() for each in (shown, said))
    pattern = "\n".join(r"(?:.*\n)*?.*" if line.strip() == "..." else re.escape(line) for line in lines)
    return re.fullmatch(pattern, "\n".join(printed)) is not None


def _plain(text: str) -> str:
    text = "\n".join(line.rstrip() for line in text.strip().splitlines())
    with contextlib.suppress(ValueError):
        text = json.dumps(json.loads(text))
    return _NUMBER.sub("N", _LEVEL.sub("LEVEL", text))


def _commands(text: str) -> Iterator[tuple[str, str]]:
    """Commands of a session, each with its output."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        while command.endswith("\\"):
            more, _, shown = shown.partition("\n")
            command = command[:-1] + more
        yield command, shown
