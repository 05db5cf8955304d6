"""BM25 over passages: an inverted index in numpy arrays, so a query costs milliseconds for 100,000 passages.

Scores are those of Lucene's BM25 (k1 = 1.2, b = 0.75), computed for every passage that has a word of the query. Equal
scores are in the order of the corpus. The index is cached on disk, keyed by the files it was made of.
"""

import os
import re
import tempfile
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Bm25", "load_or_build"]

_K1, _B = 1.2, 0.75
_WORD = re.compile(r"\w+")
_MOST_WORDS = 64
"""Distinct words of a query that count."""


@dataclass(frozen=True, slots=True)
class Bm25:
    """The index: the passages of word w, and their scores, are at starts[w] to starts[w + 1]."""

    words: dict[str, int]
    starts: "np.ndarray[Any, np.dtype[np.int64]]"
    passages: "np.ndarray[Any, np.dtype[np.int32]]"
    scores: "np.ndarray[Any, np.dtype[np.float32]]"
    size: int
    """Number of passages."""

    @classmethod
    def build(cls, texts: Sequence[str]) -> "Bm25":
        """Indexes texts."""
        words: dict[str, int] = {}
        found, lengths = array("i"), array("i")
        for text in texts:
            ids = [words.setdefault(word, len(words)) for word in words_of(text)]
            found.extend(ids)
            lengths.append(len(ids))
        count, length = max(1, len(texts)), np.array(lengths, dtype=np.int64)
        passage_of = np.repeat(np.arange(len(texts), dtype=np.int64), length)
        pairs, times = np.unique(np.array(found, dtype=np.int64) * count + passage_of, return_counts=True)
        word, passage = pairs // count, pairs % count
        having = np.bincount(word, minlength=len(words))
        rarity = np.log1p((len(texts) - having + 0.5) / (having + 0.5))
        relative = length / max(1.0, float(length.mean()) if len(length) else 1.0)
        scores = rarity[word] * times * (_K1 + 1) / (times + _K1 * (1 - _B + _B * relative[passage]))
        starts = np.concatenate(([0], np.cumsum(having))).astype(np.int64)
        return cls(words, starts, passage.astype(np.int32), scores.astype(np.float32), len(texts))

    def search(self, query: str, most: int) -> list[tuple[int, float]]:
        """Returns (index, score) of the best passages, best first."""
        total = np.zeros(self.size, dtype=np.float32)
        for word in list(dict.fromkeys(words_of(query)))[:_MOST_WORDS]:
            if (at := self.words.get(word)) is not None:
                part = slice(self.starts[at], self.starts[at + 1])
                total[self.passages[part]] += self.scores[part]
        hits = np.flatnonzero(total)
        if len(hits) > most:
            least = np.partition(total[hits], len(hits) - most)[len(hits) - most]
            hits = hits[total[hits] >= least]
        best = hits[np.lexsort((hits, -total[hits]))][:most]
        return [(int(each), float(total[each])) for each in best]

    def save(self, path: Path) -> None:
        """Writes the index, at once or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        words = np.frombuffer("\n".join(self.words).encode(), dtype=np.uint8)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".npz", delete=False) as file:
            try:
                size, starts = np.array(self.size), self.starts
                np.savez(file, words=words, size=size, starts=starts, passages=self.passages, scores=self.scores)
                file.flush()
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise

    @classmethod
    def load(cls, path: Path) -> "Bm25":
        """Reads an index."""
        with np.load(path) as file:
            named = file["words"].tobytes().decode()
            words = {word: at for at, word in enumerate(named.split("\n"))} if named else {}
            return cls(words, file["starts"], file["passages"], file["scores"], int(file["size"]))


def words_of(text: str) -> list[str]:
    """Words of a text, in lower case."""
    return _WORD.findall(text.lower())


def load_or_build(texts: Sequence[str], path: Path) -> Bm25:
    """Reads the index at `path`, or builds it and writes it there, if it can be written."""
    with suppress(OSError, ValueError, KeyError):
        found = Bm25.load(path)
        if found.size == len(texts):
            return found
    made = Bm25.build(texts)
    with suppress(OSError):  # a cache that cannot be written is only slower
        made.save(path)
    return made
