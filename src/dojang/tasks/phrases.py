"""Finding words in a text: terms, terms that stand together, and ideas that can be put in several ways.

A term is found as a whole word (`dose` is not in `doses`), whatever blanks or line breaks lie between its words.
Capitals do not matter unless they are said to, and neither do typographic quotes, dashes, ligatures and blanks. All
of that takes time proportional to the length of the text; patterns, which may not, have a deadline.

Not covered: inflections and synonyms, which are spellings to be listed, and sentences told apart by grammar: one ends
at . ! or ? before a blank and anything but a small letter, at an empty line, and where an item of a list begins.
"""

import re
import time
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["Reading", "Within", "together"]

Within = Literal["text", "sentence"] | int
"""Where terms stand together: anywhere, in one sentence, or among so many words in a row."""

_PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "‐": "-", "–": "-", "—": "-", "\u00ad": None})  # noqa: RUF001
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s++(?![a-z])|(?<=[。！？])|\n\s*\n|\n(?=[ \t]*(?:[-*+•#]|\d+[.)]))")  # noqa: RUF001
_WORD = re.compile(r"\w+(?:[-'.]\w+)*")
_PIECE = re.compile(r"(?s).{1,1000}(?=[\x00-\x7f\u3000-\u3020]|\Z)|.{1,1000}")
"""Normalizing a long run of accents takes quadratic time, and holds up all threads. The cuts are in front of characters
that are never combined with what is before them, where there are any."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How texts are read."""

    case: bool = False
    whole_words: bool = True
    timeout_s: float = 10.0

    def prepared(self, text: str) -> str:
        """The text as terms and patterns are compared with it."""
        return "".join(unicodedata.normalize("NFKC", piece) for piece in _PIECE.findall(text)).translate(_PLAIN)

    def term(self, spellings: Sequence[str]) -> re.Pattern[str]:
        """What finds any of the spellings; ValueError if one is empty."""
        words = [[re.escape(word) for word in self.prepared(each).split()] for each in spellings]
        if not words or not all(words):
            raise ValueError(f"{list(spellings)!r} holds an empty term")
        found = "|".join(r"\s+".join(each) for each in sorted(words, key=lambda each: -sum(map(len, each))))
        edges = r"(?<!\w)(?:%s)(?!\w)" if self.whole_words else "(?:%s)"
        return re.compile(edges % found, re.NOFLAG if self.case else re.IGNORECASE)

    def says(self, text: str, patterns: Sequence[str], deadline: float) -> bool:
        """Whether one of the patterns is in the text; TimeoutError once time.monotonic() is past the deadline."""
        import regex  # not before there is a pattern: it takes a while to load

        flags = regex.NOFLAG if self.case else regex.IGNORECASE
        for pattern in patterns:
            left = max(1e-3, deadline - time.monotonic())
            # concurrent: others may go on while it looks.
            if regex.compile(pattern, flags).search(text, timeout=left, concurrent=True):
                return True
        return False


def together(text: str, terms: Sequence[re.Pattern[str]], within: Within) -> bool:
    """Whether all terms stand together somewhere."""
    if within == "text":
        return all(term.search(text) for term in terms)
    if within == "sentence":
        sentences = _SENTENCE_END.split(text)
        return any(all(term.search(sentence) for term in terms) for sentence in sentences)
    return _narrowest(text, terms) <= within


def _narrowest(text: str, terms: Sequence[re.Pattern[str]]) -> float:
    """The fewest words in a row that hold all terms."""
    starts = [word.start() for word in _WORD.finditer(text)]
    found = sorted(
        (bisect_right(starts, match.end() - 1), bisect_right(starts, match.start()), number)
        for number, term in enumerate(terms)
        for match in term.finditer(text)
    )
    fewest = float("inf")
    latest: dict[int, int] = {}
    """Of each term, where the one begins that began last among those that have ended."""
    for end, begin, number in found:
        latest[number] = max(begin, latest.get(number, begin))
        if len(latest) == len(terms):
            fewest = min(fewest, end - min(latest.values()) + 1)
    return fewest
