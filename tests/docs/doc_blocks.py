"""Reads the code blocks of the documentation pages, and tells what each block is.

A fence names its language. An indented block, or a fence without a language, is told by its content. A block that is
none of the kinds gets the kind "", and tests/docs/test_blocks.py says what to do.
"""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from dojang.config.run_config import RunConfig

__all__ = ["PAGES", "ROOT", "Block", "blocks", "code_spans", "program_of"]

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "ARCHITECTURE.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("examples/**/*.md")),
]
LANGUAGES = {"bash": "shell", "sh": "shell", "python": "python", "yaml": "yaml", "json": "json", "cpp": "cpp"}
SUFFIXES = {"python": ("py",), "yaml": ("yaml", "yml"), "json": ("json", "jsonl"), "cpp": ("cpp",)}
PROGRAMS = {
    *("dojang", "python", "python3", "pip", "make", "pytest", "torchrun", "ray", "vllm", "wandb", "tensorboard"),
    *("mlflow", "prometheus", "grafana", "aws", "git", "docker", "srun", "sbatch", "ssh", "curl", "trl", "mkdocs"),
    *("export", "exec", "cd", "mkdir", "source", ".ci/run"),
}
"""First words of the commands of a page."""
_ASSIGNMENT = re.compile(r"^\w+=\S*\s+")
_DRAWN = re.compile("[─│└┐┘├►▲▼]")
_FILE_NAME = re.compile(r"[\w.-]+\.(?:py|ya?ml|jsonl?|cpp|csv)")


@dataclass(frozen=True)
class Block:
    """A code block: its page, the line it begins at, its kind (shell, console, python, yaml, json, cpp, text or "") and
    its text; the name of the file that the page says it is, or empty."""

    page: Path
    line: int
    kind: str
    text: str
    file: str = ""

    @property
    def place(self) -> str:
        """Where the block is, as an editor opens it."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """All code blocks of a page, from top to bottom."""
    tokens = MarkdownIt().parse(page.read_text())
    found = []
    for at, token in enumerate(tokens):
        if token.type in ("fence", "code_block"):
            assert token.map is not None
            language = token.info.split()[0] if token.info.strip() else ""
            kind = _kind(language, token.content)
            line = token.map[0] + (2 if token.type == "fence" else 1)
            found.append(Block(page, line, kind, token.content, _file_name(token.content, tokens[:at], kind)))
    return found


def code_spans(page: Path) -> Iterator[tuple[int, str]]:
    """Code within sentences and tables, with the line of its paragraph."""
    line = 0
    for token in MarkdownIt().enable("table").parse(page.read_text()):
        line = token.map[0] + 1 if token.map else line
        for inner in token.children or ():
            if inner.type == "code_inline":
                yield line, inner.content


def program_of(line: str) -> str:
    """First word of a command, after assignments to environment variables."""
    while _ASSIGNMENT.match(line):
        line = _ASSIGNMENT.sub("", line, count=1)
    return line.split()[0] if line.split() else ""


def _kind(language: str, text: str) -> str:
    if text.startswith("$ ") and language in ("", "text", "console"):
        return "console"
    if language in ("text", "console"):
        return "text"
    return LANGUAGES.get(language, "") if language else _kind_by_content(text)


def _kind_by_content(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if text.startswith("#!/bin/bash") or (lines and program_of(lines[0]) in PROGRAMS):
        return "shell"
    if _DRAWN.search(text):
        return "text"
    if _is_json(text):
        return "json"
    if _is_settings(text):
        return "yaml"
    if re.match(r"[\w.-]+/", text) and all(map(_lists_files, text.splitlines())):
        return "files"
    return "python" if _is_python(text) else ""


def _is_json(text: str) -> bool:
    try:
        return all(isinstance(json.loads(line), dict) for line in text.splitlines())
    except ValueError:
        return False


def _is_settings(text: str) -> bool:
    """Whether this is a recipe, or some of its sections."""
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError:
        return False
    return isinstance(found, dict) and found.keys() <= RunConfig.model_fields.keys()


def _is_python(text: str) -> bool:
    """Whether this is Python that does something: a formula may parse, too."""
    try:
        found = list(ast.walk(compile(text, "", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)))
    except SyntaxError:
        return False
    does = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Await, ast.AsyncWith)
    calls = [each.func for each in found if isinstance(each, ast.Call)]
    return any(isinstance(each, does) for each in found) or any(isinstance(each, ast.Attribute) for each in calls)


def _file_name(text: str, before: list[Token], kind: str) -> str:
    """Name of the file in the first line of a block (`# mine.py`), or alone at the start of the sentence before it."""
    first = text.partition("\n")[0]
    said = re.match(rf"(?:#|//) ({_FILE_NAME.pattern})\b", first)
    if said:
        return said[1]
    sentence = next((each.content for each in reversed(before) if each.type == "inline"), "")
    named = (
        re.match(rf"`({_FILE_NAME.pattern})`", sentence) if before and before[-1].type == "paragraph_close" else None
    )
    suffix = named[1].rpartition(".")[2] if named else ""
    return named[1] if named and suffix in SUFFIXES.get(kind, ()) else ""


def _lists_files(line: str) -> bool:
    """Whether a line is of a list of files: a path with or without a description, or a description that goes on."""
    return re.match(r"\s*[\w.-]+(?:[/.]|,)|\s{8,}", line) is not None
