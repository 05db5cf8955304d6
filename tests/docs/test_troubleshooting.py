"""docs/troubleshooting.md quotes messages and findings that exist."""

import ast
import re
from pathlib import Path

import pytest

from dojang.core import errors

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
SOURCE = ROOT / "src" / "dojang"
NO_MESSAGE = re.compile(r"[a-z_]+(/[a-z_]+)+|[a-z]+(\.[a-z_]+)+|[a-z_]+|[A-Z_]+|dojang .*")
"""Code that is no message: metrics, settings, findings and outcomes, commands."""


def cells(column: str) -> list[str]:
    """Cells of all columns whose heading begins with `column`."""
    found, heading = [], list[str]()
    for line in PAGE.read_text().splitlines():
        row = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("|"))] if line.startswith("|") else []
        if not row or not heading:
            heading = row
        elif set(line) - set("|-"):
            found += [cell for name, cell in zip(heading, row, strict=True) if name.startswith(column)]
    return found


def texts(folder: Path) -> list[str]:
    """String literals of a folder, with a gap in place of each value."""
    found = []
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(str(each.value) if isinstance(each, ast.Constant) else "\0" for each in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[.\d]*[sdf]", "\0", node.value))
    return found


def messages() -> list[str]:
    quoted = [each for cell in (*cells("you see"), *cells("message")) for each in re.findall(r"`([^`]+)`", cell)]
    return [each for each in quoted if not NO_MESSAGE.fullmatch(each)] + ["has too little memory for"]


def test_quoted_messages_exist() -> None:
    known = texts(SOURCE)
    assert len(messages()) > 25
    missing = []
    for message in messages():
        parts = [re.escape(part.strip()) for part in message.split("...") if part.strip()]
        pattern = re.compile(r"[^\n]*\0[^\n]*".join(parts))
        missing += [message] if not any(pattern.search(text) for text in known) else []
    assert missing == []


def test_findings_exist() -> None:
    known = set(texts(SOURCE / "diagnosis"))
    named = {name for cell in cells("why: finding") for name in re.findall(r"`([a-z_]+)`", cell)}
    assert len(named) > 12
    assert named <= known


def test_every_exit_code_is_explained() -> None:
    codes = {code.strip() for cell in cells("exit code") for code in cell.split(",")}
    raised = {each.exit_code for each in vars(errors).values() if isinstance(each, type)}
    assert codes == {str(code) for code in raised - {1}}


@pytest.mark.parametrize("name", ["you see", "message", "exit code", "why: finding"])
def test_the_tables_are_read(name: str) -> None:
    assert cells(name)
