"""Every code block of the documentation works: commands run, programs run, settings are valid, output is as shown.

A page is read from top to bottom in one folder, as a reader would: a block may use the files and names of those before.
doc_blocks.py tells what a block is, page_*.py what is done with it, stand_ins.py what the reader is thought to have.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import page_python
import pytest
from doc_blocks import PAGES, ROOT, Block, blocks
from page_commands import Commands, play_clusters
from page_console import Console
from page_files import check_files
from page_python import check_python, run_python
from page_settings import check_json, check_program, check_settings
from stand_ins import ABSOLUTE, StandIns
from usage import check_usage, is_usage

from doc_shell import run

pytestmark = pytest.mark.slow

OF_ITS_OWN = {
    "docs/reproduce.md": "tests/docs/test_reproduce.py runs its commands, in sections",
    "docs/agents.md": "tests/docs/test_agents_page.py runs it in full",
    "docs/tutorial.md": "tests/docs/test_tutorial.py runs it in full, and compares what it prints",
}
"""Pages with a separate test."""
_VARIABLE = re.compile(r"\bDOJANG_[A-Z_]+")


class Reader:
    """Does what a page says, in a folder."""

    def __init__(self, folder: Path, finished: Path, library: Path) -> None:
        self.folder = folder
        self.stand_ins = StandIns(folder, finished, library)
        self.commands = Commands(self.stand_ins)
        self.console = Console(self.commands, folder)
        self.names: dict[str, Any] = {}

    def read(self, block: Block) -> None:
        """Exercises a block, and saves it as the file that it is said to be."""
        if block.file:
            (self.folder / block.file).write_text(block.text)
        ways: dict[str, Callable[[str], None]] = {
            "shell": self.shell,
            "console": self.console.run,
            "python": self.python,
            "yaml": check_settings,
            "json": check_json,
            "cpp": check_program,
            "files": self.files,
            "text": self.text,
        }
        ways[block.kind](block.text)

    def shell(self, text: str) -> None:
        """Runs commands; checks lines of usage."""
        _check_variables(text)
        lines = re.sub(r"\\\n\s*", "", text).splitlines()
        usage = [line for line in lines if is_usage(line)]
        for line in usage:
            check_usage(line)
        script = "\n".join(line.removesuffix(" ...") for line in lines if line not in usage)
        script = re.sub(r"(?:source|\.) \.venv[\w-]*/bin/activate", "true", script.replace(".ci/run", "ci_run"))
        script = re.sub(r"\.venv[\w-]*/bin/", "", script)
        run(ABSOLUTE.sub("root/", script), self.folder, self.commands.answers())

    def python(self, text: str) -> None:
        """Runs a program, or looks up its names."""
        if any(sign in text for sign in page_python.NOT_HERE):
            check_python(text)
        else:
            self.stand_ins.supply(re.findall(r"[\"']([\w./-]+)[\"']", text))
            run_python(text, self.names)

    def files(self, text: str) -> None:
        """Looks for listed files among what the commands of the page wrote, and in a finished run."""
        made = sorted(self.folder.glob("*/*/"), key=lambda each: each.stat().st_mtime)
        check_files(text, [self.stand_ins.finished / "run", self.stand_ins.library / "data/code-contests", *made])

    def text(self, text: str) -> None:
        """Checks commands in diagrams and output."""
        for line in re.findall(r"(?:^|[`\s])(dojang [a-z][^`\n]*)", text):
            check_usage(line)


def _check_variables(text: str) -> None:
    for name in set(_VARIABLE.findall(text)):
        found = any(name in path.read_text() for folder in ("src", "tests") for path in (ROOT / folder).rglob("*.py"))
        assert found, f"no program reads the environment variable {name}"


@pytest.fixture
def reader(finished: Path, library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    found = Reader(folder, finished, library)
    play_clusters(found.commands, monkeypatch)
    modules = set(sys.modules)
    yield found
    found.console.close()
    for name in set(sys.modules) - modules:  # the reader's own, which another page may have, too
        if str(folder) in (getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES if blocks(page)])
def test_every_block_works(page: str, reader: Reader) -> None:
    if page in OF_ITS_OWN:
        pytest.skip(OF_ITS_OWN[page])
    wrong = []
    for block in blocks(ROOT / page):
        try:
            reader.read(block)
        except Exception as error:
            wrong.append(f"{block.place}: {type(error).__name__}: {error}")
    if wrong:
        pytest.fail("\n\n".join(["", *wrong]), pytrace=False)
