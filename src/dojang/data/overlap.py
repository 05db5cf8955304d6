"""N-gram overlap: the share of a problem's n-grams that occur in one problem of another set.

Words are letters and digits, in lower case. Text that all problems of a set share (an instruction before or after) is
removed first, and n-grams that many problems of the other set share ("the first line contains a single integer ...") do
not count. A text of fewer than n words is one n-gram: it matches an equal text, and, if it is long enough, a text that
contains it.

Not covered: paraphrases, translations, and the same question about other numbers.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from dojang.types import Problem

__all__ = ["Overlap", "OverlapIndex", "statement", "statement_words"]

_WORD = re.compile(r"[^\W_]+")
_MIN_PROBLEMS = 10
"""Minimum number of problems of a source with a common beginning or end to treat it as an instruction."""
_COMMON_SHARE, _COMMON = 0.01, 2
"""An n-gram in more than this share (or number) of problems is a common phrase."""
_WHOLE = 8
"""Minimum words of a short text to look for in longer ones."""

Run = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Overlap:
    """The problem with the largest overlap."""

    share: float
    """Share of the n-grams of the shorter text."""
    id: str


def statement(problem: Problem) -> str:
    """Returns the last turn, without examples and instructions before it."""
    return problem.messages[-1].content


class OverlapIndex:
    """N-gram index of a set of problems."""

    def __init__(self, problems: Sequence[Problem], n: int) -> None:
        self._n = n
        self._sizes: dict[str, int] = {}
        self._runs: defaultdict[Run, list[str]] = defaultdict(list)
        for problem, words in zip(problems, statement_words(problems), strict=True):
            runs = _runs(words, n)
            self._sizes[problem.id] = len(runs)
            for run in runs:
                self._runs[run].append(problem.id)
        most = max(_COMMON, int(_COMMON_SHARE * len(problems)))
        self._common = {run for run, names in self._runs.items() if len(names) > most}
        for run in self._common:
            for name in self._runs.pop(run):
                self._sizes[name] -= 1
        self._short = sorted({len(run) for run in self._runs if _WHOLE <= len(run) < n})

    def search(self, words: Sequence[str]) -> Overlap | None:
        """Returns the problem with the largest overlap; None without any."""
        runs = _runs(words, self._n) - self._common
        found = Counter(name for run in runs for name in self._runs.get(run, ()))
        for length in self._short:
            if length < min(self._n, len(words)):
                found.update(name for run in _runs(words, length) for name in self._runs.get(run, ()))
        shares = {name: min(1.0, count / min(len(runs) or 1, self._sizes[name])) for name, count in found.items()}
        if not shares:
            return None
        best = max(shares, key=lambda name: shares[name])
        return Overlap(shares[best], best)


def statement_words(problems: Sequence[Problem], min_problems: int = _MIN_PROBLEMS) -> list[list[str]]:
    """Returns the words of each problem, without the common beginning and end of its source, if that has at least
    `min_problems` problems."""
    words = [_WORD.findall(statement(each).lower()) for each in problems]
    sources: defaultdict[str, list[list[str]]] = defaultdict(list)
    for problem, text in zip(problems, words, strict=True):
        sources[problem.source].append(text)
    ends = {
        source: (_common_prefix(texts, min_problems), _common_prefix([each[::-1] for each in texts], min_problems))
        for source, texts in sources.items()
    }
    return [
        text[ends[problem.source][0] : len(text) - ends[problem.source][1]]
        for problem, text in zip(problems, words, strict=True)
    ]


def _common_prefix(texts: Sequence[Sequence[str]], min_problems: int) -> int:
    """Counts the words with which all texts begin; 0 if the texts are few, or if nothing else would be left."""

    if len(texts) < min_problems:
        return 0
    count = sum(1 for _ in takewhile(lambda each: len(set(each)) == 1, zip(*texts, strict=False)))
    return count if count < min(map(len, texts)) else 0


def _runs(words: Sequence[str], n: int) -> set[Run]:
    length = min(n, len(words))
    return set(_windows(words, length)) if length else set()


def _windows(words: Sequence[str], length: int) -> Iterable[Run]:
    return (tuple(words[start : start + length]) for start in range(len(words) - length + 1))
