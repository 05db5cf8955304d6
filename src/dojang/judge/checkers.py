"""Compares a program's output with the expected output.

    tokens      equal words; blanks and line ends between them do not matter
    exact       equal bytes, except for one newline at the end
    caseless    tokens, ignoring case
    unordered   equal lines (each read as tokens) in any order; empty lines do not matter
    floats      tokens, and numbers may differ by the tolerance
    contest     tokens as contests compare them: if the expected word is a decimal, a number within the tolerance;
                if it is yes or no, that word in any case; otherwise the same word

Words are separated by ASCII blanks. Under floats, two numbers that are both written as integers must be the same
text, because a double cannot tell 9007199254740993 from its neighbour; if either has a point or an exponent, the
tolerance decides. So "5.0" for an expected "5" is accepted under floats and rejected under tokens. Only plain
decimals are numbers: nan, inf, 1e999, 0x10, 1_000 and numbers of more than LONGEST characters are ordinary words.

Under contest, a decimal has a point or an exponent. An expected integer stays exact: "5.0" for "5" is rejected, "5"
for "5.0" is accepted.

Outputs are untrusted and may be 16 MB of anything. Comparing takes linear time (except for sorting lines), never
raises because of the bytes, and splits them piece by piece: millions of tiny words would take many times their size
as Python objects.

Checker programs run elsewhere; `parse_checker_score` interprets their exit code and output.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product, zip_longest

from dojang.programs import Checker, CheckerName

__all__ = ["compare", "digest_decides", "normalize", "parse_checker_score"]

PIECE = 1 << 16
"""Bytes split into words at a time."""
LONGEST = 10_000
"""Maximum length of a number: parsing one takes quadratic time."""
SHOWN = 40
"""Characters of a word or line quoted in a message."""

_BLANK = re.compile(rb"[ \t\n\r\x0b\x0c]")  # the blanks of bytes.split()
_NEWLINE = re.compile(rb"\n")
# Adjacent repetitions share no characters, so matching takes linear time.
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INTEGER = re.compile(rb"[+-]?[0-9]+")
_DECIMAL = rb"[+-]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
_IS_DECIMAL = re.compile(_DECIMAL)
_HAS_DECIMAL = re.compile(rb"(?<![^ \t\n\r\x0b\x0c])" + _DECIMAL + rb"(?![^ \t\n\r\x0b\x0c])")
_YES_NO: Mapping[bytes, bytes] = {
    bytes(each): word for word in (b"yes", b"no") for each in product(*zip(word, word.upper(), strict=True))
}
"""yes and no in every case, each with its lower case."""


def normalize(checker: Checker, data: bytes) -> bytes:
    """Normalize an output: outputs with equal normal forms are equally accepted; see `digest_decides` for others.

    A keyed digest of the normal form recognises a correct output without knowing the expected one. For a checker
    program it is the data itself: only the program can tell whether even the expected output is accepted.
    """
    return _FORMS[checker.name](data)


def digest_decides(checker: Checker, expected: bytes) -> bool:
    """Whether every output with a different normal form (and so a different digest) is rejected."""
    if checker.name == "contest":
        maybe = any(mark in expected for mark in (b".", b"e", b"E"))
        return not (maybe and _HAS_DECIMAL.search(expected))
    return checker.name not in ("floats", "program")


def compare(checker: Checker, expected: bytes, actual: bytes) -> str | None:
    """Return None if the actual output is accepted, otherwise a sentence about the first difference.

    Raises ValueError for a checker program, which must be run.
    """
    if checker.name == "program":
        raise ValueError("the checker is a program: run it instead of comparing here")
    if expected == actual:
        return None
    if checker.name == "exact":
        return _bytes_differ(_chomped(expected), _chomped(actual))
    if checker.name == "unordered":
        return _lines_differ(expected, actual)
    same: Callable[[bytes, bytes], bool] = bytes.__eq__
    if checker.name == "caseless":
        same = _same_but_for_case
    elif checker.name == "floats":
        same = partial(_same_number, checker.tolerance)
    elif checker.name == "contest":
        same = partial(_same_in_contests, checker.tolerance)
    return _tokens_differ(expected, actual, same)


def parse_checker_score(exit_code: int, stdout: bytes) -> bool | None:
    """Verdict of a checker program: accepted, rejected, or None if the checker failed."""
    if exit_code in (1, 2):
        return False
    if exit_code != 0:
        return None
    words = stdout.split(None, 1)
    return not (len(words) == 1 and _NUMBER.fullmatch(words[0]) and float(words[0]) == 0)


def _pieces(data: bytes, cut: re.Pattern[bytes]) -> Iterator[bytes]:
    """Split the data into pieces of about PIECE bytes, each ending at a match of `cut`."""
    start = 0
    while start < len(data):
        found = cut.search(data, start + PIECE)
        end = found.end() if found else len(data)
        yield data[start:end]
        start = end


def _tokens(data: bytes) -> Iterator[bytes]:
    for piece in _pieces(data, _BLANK):
        yield from piece.split()


def _lines(data: bytes) -> Iterator[bytes]:
    """Every non-empty line, with one space between words and no newline."""
    for piece in _pieces(data, _NEWLINE):
        for line in piece.split(b"\n"):
            if words := line.split():
                yield b" ".join(words)


def _chomped(data: bytes) -> bytes:
    return data.removesuffix(b"\n").removesuffix(b"\r") if data.endswith(b"\n") else data


def _joined(data: bytes) -> bytes:
    words = (b" ".join(piece.split()) for piece in _pieces(data, _BLANK))
    return b" ".join(filter(None, words))


def _caseless(data: bytes) -> bytes:
    """Case folding works per character and creates no blanks, so whole texts and words fold alike."""
    if data.isascii():
        return data.lower()
    return data.decode("utf-8", "surrogateescape").casefold().encode("utf-8", "surrogateescape")


def _contest_form(data: bytes) -> bytes:
    words = (b" ".join([_YES_NO.get(word, word) for word in piece.split()]) for piece in _pieces(data, _BLANK))
    return b" ".join(filter(None, words))


_FORMS: Mapping[CheckerName, Callable[[bytes], bytes]] = {
    "tokens": _joined,
    "exact": _chomped,
    "caseless": lambda data: _caseless(_joined(data)),
    "unordered": lambda data: b"\n".join(sorted(_lines(data))),
    "floats": _joined,
    "contest": _contest_form,
    "program": lambda data: data,
}


def _same_but_for_case(expected: bytes, actual: bytes) -> bool:
    return expected == actual or _caseless(expected) == _caseless(actual)


def _same_number(tolerance: float, expected: bytes, actual: bytes) -> bool:
    if expected == actual:
        return True
    if not (_NUMBER.fullmatch(expected) and _NUMBER.fullmatch(actual)):
        return False
    if _INTEGER.fullmatch(expected) and _INTEGER.fullmatch(actual):
        return False
    return _close(tolerance, expected, actual)


def _same_in_contests(tolerance: float, expected: bytes, actual: bytes) -> bool:
    if expected == actual:
        return True
    if expected in _YES_NO:
        return _YES_NO[expected] == _YES_NO.get(actual)
    if _IS_DECIMAL.fullmatch(expected) and _NUMBER.fullmatch(actual):
        return _close(tolerance, expected, actual)
    return False


def _close(tolerance: float, expected: bytes, actual: bytes) -> bool:
    """Whether two numbers are within the tolerance, absolute or relative to the expected one."""
    if max(len(expected), len(actual)) > LONGEST:
        return False
    wanted, got = float(expected), float(actual)
    if not (math.isfinite(wanted) and math.isfinite(got)):
        return False
    scale = max(1.0, abs(wanted))
    # Parsing rounds both numbers; the doubles of 0.333333 and 0.333334 are a little more than 1e-6 apart.
    rounding = 2 * math.ulp(scale) if tolerance else 0.0
    return abs(wanted - got) <= tolerance * scale + rounding


def _tokens_differ(expected: bytes, actual: bytes, same: Callable[[bytes, bytes], bool]) -> str | None:
    wanted_words, got_words = _tokens(expected), _tokens(actual)
    for place, (wanted, got) in enumerate(zip_longest(wanted_words, got_words), start=1):
        if wanted is None:
            return _counts_differ(place - 1, place + sum(1 for _ in got_words))
        if got is None:
            return _counts_differ(place + sum(1 for _ in wanted_words), place - 1)
        if not same(wanted, got):
            quoted, against = _quoted(got, wanted)
            return f"token {place} is {quoted}, expected {against}"
    return None


def _counts_differ(expected: int, actual: int) -> str:
    return f"{_several(actual, 'token')} where {expected} {'is' if expected == 1 else 'are'} expected"


def _several(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _lines_differ(expected: bytes, actual: bytes) -> str | None:
    # Only the expected lines, whose number the dataset chooses, are held in memory at once.
    left = Counter(_lines(expected))
    for line in _lines(actual):
        if line not in left:
            return f"line {_quoted(line)[0]} is not expected"
        if not left[line]:
            return f"line {_quoted(line)[0]} comes too often"
        left[line] -= 1
    missing = next((line for line, times in left.items() if times), None)
    return None if missing is None else f"line {_quoted(missing)[0]} is missing"


def _bytes_differ(expected: bytes, actual: bytes) -> str | None:
    if expected == actual:
        return None
    place = _first_difference(expected, actual)
    number = expected.count(b"\n", 0, place) + 1
    if place == len(actual):
        return f"the output ends in line {number}, {_several(len(expected) - place, 'byte')} early"
    if place == len(expected):
        return f"the output goes on in line {number}, {_several(len(actual) - place, 'byte')} too far"
    start = expected.rfind(b"\n", 0, place) + 1
    quoted, against = _quoted(_line_at(actual, start, place), _line_at(expected, start, place))
    return f"line {number} is {quoted}, expected {against}"


def _line_at(data: bytes, start: int, place: int) -> bytes:
    end = data.find(b"\n", place)
    return data[start : end if end >= 0 else len(data)]


def _first_difference(one: bytes, other: bytes) -> int:
    """Index of the first difference. Halving compares at memory speed."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _quoted(data: bytes, other: bytes = b"") -> tuple[str, str]:
    """Both as short printable text; for long ones, the part around their first difference."""
    place = _first_difference(data, other) if max(len(data), len(other)) > SHOWN else 0
    start = max(0, place - SHOWN // 2)
    return _excerpt(data, start), _excerpt(other, start)


def _excerpt(data: bytes, start: int) -> str:
    text = repr(data[start : start + SHOWN].decode("utf-8", "replace"))
    before = "..." if start else ""
    after = f"... ({len(data)} bytes)" if len(data) > start + SHOWN else ""
    return f"{before}{text}{after}"
