"""Search as a tool: BM25 over a corpus of your files; the task grades the answer."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from dojang.core.errors import DataError
from dojang.core.paths import cache_root
from dojang.core.section import LocalPath
from dojang.environments.base import Environment
from dojang.environments.section import EnvironmentSection
from dojang.environments.tools import ToolEnvironment, shortened
from dojang.protocols import Task
from dojang.types import Problem

if TYPE_CHECKING:
    from dojang.environments.bm25 import Bm25

__all__ = ["Search", "SearchConfig"]

_TEXT_KEYS = ("text", "contents", "content", "passage")
_INDEX_VERSION = 1
_LOCK = threading.Lock()


class SearchConfig(EnvironmentSection):
    """Search as a tool: BM25 over a corpus of text files."""

    name: Literal["search"] = "search"
    corpus: list[LocalPath] = Field(min_length=1)
    """Files, or folders with files: .jsonl with a passage per line ({"text": ..., "title": ...}), and .txt or .md with
    passages between empty lines. The index is cached."""
    top_k: int = Field(default=3, ge=1, le=100)
    """Number of passages per search."""
    passage_chars: int = Field(default=1000, ge=50, le=100_000)
    """Longest passage in a result; longer ones are cut in the middle."""

    def check_problems(self, task: Task, problems: Sequence[Problem]) -> None:
        """Builds the index. Raises DataError if the corpus cannot be read."""
        _index(_signature(self.corpus))

    def environment(self) -> Environment:
        return Search(_index(_signature(self.corpus)), self.top_k, self.passage_chars)


@dataclass(frozen=True, slots=True)
class _Corpus:
    passages: Sequence[str]
    index: "Bm25"


class Search(ToolEnvironment):
    """Offers `search`."""

    def __init__(self, corpus: _Corpus, top_k: int, passage_chars: int) -> None:
        self._corpus = corpus
        self._top_k = top_k
        self._passage_chars = passage_chars

    def tools(self) -> Sequence[Callable[..., Any]]:
        return [self.search]

    def search(self, query: str) -> str:
        """
        Searches a collection of texts and returns the best passages.

        Args:
            query: Words to search for.
        """
        found = self._corpus.index.search(query, self._top_k)
        texts = [shortened(self._corpus.passages[place], self._passage_chars) for place, _ in found]
        return "\n\n".join(f"[{number}] {text}" for number, text in enumerate(texts, 1)) or "no passage has these words"


_Signature = tuple[tuple[str, int, int], ...]
"""Path, size and time of change of every file."""


def _signature(corpus: Sequence[Path]) -> _Signature:
    """Finds the files. Raises DataError if there are none."""
    files: list[Path] = []
    for path in corpus:
        found = [each for each in sorted(path.rglob("*")) if each.suffix in (".jsonl", ".txt", ".md")]
        if not path.is_dir():
            found = [path]
        if not found or not found[0].is_file():
            raise DataError(f"workflow.corpus: {path} is no file, nor a folder with .jsonl, .txt or .md files")
        files += found
    stats = [(each.absolute(), each.stat()) for each in files]
    return tuple((str(path), stat.st_size, stat.st_mtime_ns) for path, stat in stats)


def _index(signature: _Signature) -> _Corpus:
    with _LOCK:  # so that episodes that start together build it once
        return _load(signature)


@lru_cache(maxsize=2)
def _load(signature: _Signature) -> _Corpus:
    from dojang.environments.bm25 import load_or_build

    passages = [text for path, _, _ in signature for text in _passages(Path(path))]
    if not passages:
        raise DataError(f"workflow.corpus: no passages in {', '.join(path for path, _, _ in signature)[:500]}")
    name = hashlib.sha256(repr((_INDEX_VERSION, signature)).encode()).hexdigest()[:32]
    return _Corpus(passages, load_or_build(passages, cache_root() / "search" / f"{name}.npz"))


def _passages(path: Path) -> Iterator[str]:
    """Yields the passages of a file. Raises DataError for a line that has none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"workflow.corpus: {path} cannot be read: {error}") from error
    if path.suffix != ".jsonl":
        yield from filter(None, (each.strip() for each in text.split("\n\n")))
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield _passage(line, f"{path}, line {number}")


def _passage(line: str, place: str) -> str:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise DataError(f"workflow.corpus: {place} is no valid JSON: {error}") from error
    found = next((row[key] for key in _TEXT_KEYS if key in row), None) if isinstance(row, dict) else row
    if not isinstance(found, str):
        raise DataError(f"workflow.corpus: {place} has no text; it needs one of the keys {', '.join(_TEXT_KEYS)}")
    title = row.get("title") if isinstance(row, dict) else None
    return f"{title}\n{found}" if title else found
