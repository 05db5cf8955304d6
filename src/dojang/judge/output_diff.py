"""Shows how an output differs from the expected one: a few lines around the first difference.

Differences that the checker ignores (whitespace, for example) are ignored here too. Both texts are untrusted and may
have megabytes: only lines near the first difference are aligned, and control characters are escaped.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from rich.cells import cell_len

from dojang.judge.checkers import compare, normalize
from dojang.programs import Checker, encoded

__all__ = ["Line", "difference", "escaped", "truncated"]

MATCHED = 60
"""Lines of each text, from the first difference on, that are aligned."""
SHOWN = 24
BEFORE = 2
"""Equal lines shown before the first difference."""
_BY_WORDS = ("tokens", "caseless", "contest", "floats")


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a report."""

    text: str
    style: str = ""
    """Style as rich names it."""


def escaped(text: str) -> str:
    """Escape characters that a terminal would hide or interpret; show trailing blanks as dots."""
    body = text.rstrip(" ")
    safe = "".join(each if each.isprintable() else repr(each)[1:-1] for each in body)
    return safe + "\u00b7" * (len(text) - len(body))


def truncated(text: str, most: int, width: int, *, end: bool = False) -> Iterator[Line]:
    """First lines of a text, or with `end` the last, each at most `width` wide."""
    lines = _lines(text)
    left_out = len(lines) - most
    note = Line(f"... {_several(left_out, 'earlier line' if end else 'more line')}", "dim")
    if left_out > 0 and end:
        yield note
    for line in lines[-most:] if end else lines[:most]:
        yield Line(_cut(line, 0, width))
    if left_out > 0 and not end:
        yield note


def difference(checker: Checker, expected: str, actual: str, width: int) -> Iterator[Line]:
    """Yield expected lines with -, printed lines with +, and a caret below the first difference."""
    if checker.name == "program":
        checker = Checker()  # only the checker program knows what it accepts
    wanted, got = _lines(expected), _lines(actual)
    if checker.name == "unordered":
        wanted, got = (sorted(" ".join(line.split()) for line in each if line.split()) for each in (wanted, got))
    elif checker.name in _BY_WORDS and _differ_in_layout(checker, wanted, got):
        got = _laid_out(got, wanted)
        yield Line("(line breaks do not matter; printed words are shown where they are expected)", "dim")
    yield from _around(checker, wanted, got, width)


def _around(checker: Checker, wanted: Sequence[str], got: Sequence[str], width: int) -> Iterator[Line]:
    start = _common(checker, wanted, got)
    if start == len(wanted) == len(got):
        yield Line("(no line differs)", "dim")
        return
    ends = _common(checker, wanted[start:][::-1], got[start:][::-1])
    wanted_middle, got_middle = wanted[start : len(wanted) - ends], got[start : len(got) - ends]
    shown = list(_matched(checker, wanted_middle[:MATCHED], got_middle[:MATCHED], width))
    if start > BEFORE:
        yield Line(f"... {_several(start - BEFORE, 'line')} as expected", "dim")
    yield from (Line("  " + _cut(line, 0, width)) for line in wanted[max(0, start - BEFORE) : start])
    yield from shown[:SHOWN]
    if len(shown) > SHOWN or max(len(wanted_middle), len(got_middle)) > MATCHED:
        yield Line(f"... and so on: {_several(len(wanted), 'line')} expected, {len(got):,} printed", "dim")
    elif ends:
        yield Line(f"... {_several(ends, 'line')} as expected", "dim")


def _matched(checker: Checker, wanted: Sequence[str], got: Sequence[str], width: int) -> Iterator[Line]:
    ours, theirs = ([normalize(checker, encoded(line)) for line in each] for each in (wanted, got))
    marked = False
    for kind, low, high, first, last in SequenceMatcher(None, ours, theirs, autojunk=False).get_opcodes():
        if kind == "equal":
            yield from _equal(wanted[low:high], width)
            continue
        paired = min(high - low, last - first)
        for one, other in zip(wanted[low:high], got[first:last], strict=False):
            yield from _pair(one, other, width, mark=not marked)
            marked = True
        yield from (Line("- " + _cut(line, 0, width), "green") for line in wanted[low + paired : high])
        yield from (Line("+ " + _cut(line, 0, width), "red") for line in got[first + paired : last])


def _equal(lines: Sequence[str], width: int) -> Iterator[Line]:
    left_out = len(lines) - 2 * BEFORE
    if left_out <= 1:
        yield from (Line("  " + _cut(line, 0, width)) for line in lines)
        return
    yield from (Line("  " + _cut(line, 0, width)) for line in lines[:BEFORE])
    yield Line(f"... {_several(left_out, 'line')} as expected", "dim")
    yield from (Line("  " + _cut(line, 0, width)) for line in lines[-BEFORE:])


def _pair(expected: str, actual: str, width: int, *, mark: bool) -> Iterator[Line]:
    """Two corresponding lines, cut so that their first difference is visible."""
    pairs = enumerate(zip(expected, actual, strict=False))
    place = next((at for at, (one, other) in pairs if one != other), min(len(expected), len(actual)))
    yield Line("- " + _cut(expected, place, width), "green")
    yield Line("+ " + _cut(actual, place, width), "red")
    if mark:
        start = _start(place, width)
        before = ("..." if start else "") + escaped(actual[start:place] + "|").removesuffix("|")
        yield Line("  " + " " * cell_len(before) + "^", "dim")


def _start(place: int, width: int) -> int:
    """First column to show, so that this position is visible."""
    return max(0, place - width // 2) if place > width * 3 // 4 else 0


def _cut(line: str, place: int, width: int) -> str:
    start = _start(place, width)
    text = escaped(line[start : start + width])
    if len(line) <= start + width:
        return ("..." if start else "") + text
    text = escaped(line[start : start + width] + "|").removesuffix("|")  # blanks at a cut are not trailing
    return f"{'...' if start else ''}{text}... ({len(line)} characters)"


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _common(checker: Checker, wanted: Sequence[str], got: Sequence[str]) -> int:
    """Number of equal lines before the first difference."""
    pairs = enumerate(zip(wanted, got, strict=False))
    return next((at for at, pair in pairs if not _same(checker, *pair)), min(len(wanted), len(got)))


def _same(checker: Checker, expected: str, actual: str) -> bool:
    return expected == actual or compare(checker, encoded(expected), encoded(actual)) is None


def _differ_in_layout(checker: Checker, wanted: Sequence[str], got: Sequence[str]) -> bool:
    """Whether the first differing lines would agree, up to the shorter one, if they had the same line breaks."""
    at = _common(checker, wanted, got)
    if at >= min(len(wanted), len(got)):
        return False
    one, other = wanted[at].split(), got[at].split()
    most = min(len(one), len(other))
    return len(one) != len(other) and _same(checker, " ".join(one[:most]), " ".join(other[:most]))


def _laid_out(got: Sequence[str], like: Sequence[str]) -> list[str]:
    """The same words, with as many on each line as `like` has."""
    words = [word for line in got for word in line.split()]
    lines, start = [], 0
    for line in like:
        if start >= len(words):
            break
        count = len(line.split())
        lines.append(" ".join(words[start : start + count]))
        start += count
    return lines + ([" ".join(words[start:])] if start < len(words) else [])


def _several(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
