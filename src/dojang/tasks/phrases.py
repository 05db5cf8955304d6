"""Finds terms, terms that occur together, and patterns in a text.

A term matches whole words (`dose` is not in `doses`), with any white space between its words. By default matching
ignores case; it always ignores typographic variants of quotes, dashes, ligatures and blanks. This takes linear time;
patterns may not, and have a deadline.

Not covered: inflections and synonyms (list them as spellings), and grammar: a sentence ends at . ! or ? before a blank
and anything but a lower-case letter, at an empty line, and at a list item.
"""

import re
import time
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = ["TextMatcher", "Within", "occur_together"]

Within = Literal["text", "sentence"] | int
"""Range in which terms occur together: the text, one sentence, or a number of consecutive words."""

_PLAIN = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "‐": "-", "–": "-", "—": "-", "\u00ad": None})  # noqa: RUF001
_SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]]*\s++(?![a-z])|(?<=[。！？])|\n\s*\n|\n(?=[ \t]*(?:[-*+•#]|\d+[.)]))")  # noqa: RUF001
_WORD = re.compile(r"\w+(?:[-'.]\w+)*")
_PIECE = re.compile(r"(?s).{1,1000}(?=[\x00-\x7f\u3000-\u3020]|\Z)|.{1,1000}")
"""Pieces to normalize: a long run of accents takes quadratic time and blocks all threads. Cuts are before characters
that never combine with earlier ones, where possible."""


@dataclass(frozen=True, slots=True)
class TextMatcher:
    """Settings of matching."""

    case: bool = False
    whole_words: bool = True
    timeout_s: float = 10.0

    def normalize(self, text: str) -> str:
        return "".join(unicodedata.normalize("NFKC", piece) for piece in _PIECE.findall(text)).translate(_PLAIN)

    def term(self, spellings: Sequence[str]) -> re.Pattern[str]:
        """Compiles a pattern for any of the spellings. Raises ValueError if one is empty."""
        words = [[re.escape(word) for word in self.normalize(each).split()] for each in spellings]
        if not words or not all(words):
            raise ValueError(f"{list(spellings)!r} holds an empty term")
        found = "|".join(r"\s+".join(each) for each in sorted(words, key=lambda each: -sum(map(len, each))))
        edges = r"(?<!\w)(?:%s)(?!\w)" if self.whole_words else "(?:%s)"
        return re.compile(edges % found, re.NOFLAG if self.case else re.IGNORECASE)

    def matches_any(self, text: str, patterns: Sequence[str], deadline: float) -> bool:
        """Returns whether any pattern matches. Raises TimeoutError once time.monotonic() passes the deadline."""
        import regex  # imported late: it takes a while to load

        flags = regex.NOFLAG if self.case else regex.IGNORECASE
        for pattern in patterns:
            left = max(1e-3, deadline - time.monotonic())
            # concurrent: releases the GIL during the search.
            if regex.compile(pattern, flags).search(text, timeout=left, concurrent=True):
                return True
        return False


def occur_together(text: str, terms: Sequence[re.Pattern[str]], within: Within) -> bool:
    if within == "text":
        return all(term.search(text) for term in terms)
    if within == "sentence":
        sentences = _SENTENCE_END.split(text)
        return any(all(term.search(sentence) for term in terms) for sentence in sentences)
    return _narrowest(text, terms) <= within


def _narrowest(text: str, terms: Sequence[re.Pattern[str]]) -> float:
    """Returns the smallest number of consecutive words that contains all terms."""
    starts = [word.start() for word in _WORD.finditer(text)]
    found = sorted(
        (bisect_right(starts, match.end() - 1), bisect_right(starts, match.start()), number)
        for number, term in enumerate(terms)
        for match in term.finditer(text)
    )
    fewest = float("inf")
    latest: dict[int, int] = {}
    """Term -> latest start among its matches that have ended."""
    for end, begin, number in found:
        latest[number] = max(begin, latest.get(number, begin))
        if len(latest) == len(terms):
            fewest = min(fewest, end - min(latest.values()) + 1)
    return fewest
