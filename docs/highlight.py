"""MkDocs hook: gives indented code blocks a language, told by their first line, so that they are highlighted."""

import re
from collections.abc import Iterator
from typing import Any

SHELL = re.compile(
    r"(\w+=\S* )*(dojang|pip|python3?|make|torchrun|vllm|mlflow|tensorboard|wandb|ssh|export|exec|ray|aws|curl|#!)"
)
PYTHON = re.compile(r"(import|from|def|class|async|with|for|\w+ = \w+[.(]|\w+\.\w+\()")
YAML = re.compile(r"[a-z_]+:(\s|$)")
LIST_ITEM = re.compile(r"\s*([-*]|\d+\.) ")


def on_page_markdown(markdown: str, **_: Any) -> str:
    return "\n".join(_fenced(markdown.split("\n")))


def _fenced(lines: list[str]) -> Iterator[str]:
    fence, before, at = False, "", 0
    while at < len(lines):
        line = lines[at]
        if line.lstrip().startswith("```"):
            fence = not fence
        if fence or not line.startswith("    ") or LIST_ITEM.match(before) or before.startswith(" "):
            before = line or before
            yield line
            at += 1
            continue
        end = at + _length(lines[at:])
        code = [each[4:] for each in lines[at:end]]
        yield from (f"```{_language(code)}", *code, "```")
        before, at = "", end


def _length(lines: list[str]) -> int:
    """Number of lines of the block that begins here, without blank lines at its end."""
    size = next((at for at, line in enumerate(lines) if line.strip() and not line.startswith("    ")), len(lines))
    while not lines[size - 1].strip():
        size -= 1
    return size


def _language(code: list[str]) -> str:
    first = next((line for line in code if not line.startswith("# ")), code[0])
    for language, pattern in (("bash", SHELL), ("python", PYTHON), ("yaml", YAML)):
        if pattern.match(first):
            return language
    return "text"
