"""How much of a problem's text stands in one of another set: the share of its runs of n words.

Words are letters and digits, in lower case. What a set says in all problems (an instruction before them, one after) is
taken off first, and runs that many problems of the other set have in common ("the first line contains a single integer
...") do not count. A text of fewer than n words is one run: it is found where it is all of a text, and, if it is not
too short for that, where it stands whole within one.

Not covered: paraphrases, translations, and the same question about other numbers.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from dojang.types import Problem

__all__ = ["Overlap", "Texts", "statement", "stripped"]

_WORD = re.compile(r"[^\W_]+")
_BELIEVED = 10
"""So many problems of one source have to begin or end alike before that is taken for an instruction."""
_USUAL_SHARE, _USUAL = 0.01, 2
"""A run that more problems than this have is a turn of phrase."""
_WHOLE = 8
"""Words of a text that is worth looking for in longer ones."""

Run = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Overlap:
    """Where most of a text was found again."""

    share: float
    """Of the runs of the shorter text."""
    id: str


def statement(problem: Problem) -> str:
    """What is asked: the last turn, without examples and instructions that come before it."""
    return problem.messages[-1].content


class Texts:
    """The problems of a set, to look for others in."""

    def __init__(self, problems: Sequence[Problem], n: int) -> None:
        self._n = n
        self._sizes: dict[str, int] = {}
        self._runs: defaultdict[Run, list[str]] = defaultdict(list)
        for problem, words in zip(problems, stripped(problems), strict=True):
            runs = _runs(words, n)
            self._sizes[problem.id] = len(runs)
            for run in runs:
                self._runs[run].append(problem.id)
        most = max(_USUAL, int(_USUAL_SHARE * len(problems)))
        self._usual = {run for run, names in self._runs.items() if len(names) > most}
        for run in self._usual:
            for name in self._runs.pop(run):
                self._sizes[name] -= 1
        self._short = sorted({len(run) for run in self._runs if _WHOLE <= len(run) < n})

    def search(self, words: Sequence[str]) -> Overlap | None:
        """The problem that has most of this one's runs, if any has one."""
        runs = _runs(words, self._n) - self._usual
        found = Counter(name for run in runs for name in self._runs.get(run, ()))
        for length in self._short:
            if length < min(self._n, len(words)):
                found.update(name for run in _runs(words, length) for name in self._runs.get(run, ()))
        shares = {name: min(1.0, count / min(len(runs) or 1, self._sizes[name])) for name, count in found.items()}
        if not shares:
            return None
        best = max(shares, key=lambda name: shares[name])
        return Overlap(shares[best], best)


def stripped(problems: Sequence[Problem], believed: int = _BELIEVED) -> list[list[str]]:
    """The words of each problem, without those that all of its source begin or end with, if these are `believed`
    problems or more."""
    words = [_WORD.findall(statement(each).lower()) for each in problems]
    sources: defaultdict[str, list[list[str]]] = defaultdict(list)
    for problem, text in zip(problems, words, strict=True):
        sources[problem.source].append(text)
    ends = {
        source: (_alike(texts, believed), _alike([each[::-1] for each in texts], believed))
        for source, texts in sources.items()
    }
    return [
        text[ends[problem.source][0] : len(text) - ends[problem.source][1]]
        for problem, text in zip(problems, words, strict=True)
    ]


def _alike(texts: Sequence[Sequence[str]], believed: int) -> int:
    """With how many words all begin alike; none, if there are few of them, or if nothing else would be left."""
    if len(texts) < believed:
        return 0
    count = sum(1 for _ in takewhile(lambda each: len(set(each)) == 1, zip(*texts, strict=False)))
    return count if count < min(map(len, texts)) else 0


def _runs(words: Sequence[str], n: int) -> set[Run]:
    length = min(n, len(words))
    return set(_windows(words, length)) if length else set()


def _windows(words: Sequence[str], length: int) -> Iterable[Run]:
    return (tuple(words[start : start + length]) for start in range(len(words) - length + 1))
