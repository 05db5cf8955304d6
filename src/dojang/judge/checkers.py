"""Comparing what a program wrote with what was expected.

    tokens      the same words; blanks and line ends between them do not matter
    exact       the same bytes, but for one newline at the end
    caseless    tokens, in whatever case
    unordered   the same lines (each read as tokens) in any order; empty lines do not matter
    floats      tokens, and numbers may be off by the tolerance
    contest     tokens as contests compare them: where the expected word is a decimal, a number within the tolerance;
                where it is yes or no, that word in any case; otherwise the same word

A word is what ASCII blanks separate. Under floats, two numbers that are both written as integers must be the
same text, because a double cannot tell 9007199254740993 from its neighbour; if either has a point or an
exponent, the tolerance decides. So "5.0" for an expected "5" is accepted under floats, and refused under
tokens. Only plain decimals are numbers: nan, inf, 1e999, 0x10, 1_000 and numbers of more than LONGEST characters are
words like any other.

Under contest, a decimal has a point or an exponent. An expected integer stays exact: "5.0" for "5" is refused, "5" for
"5.0" is accepted.

An output is a stranger's: it may be 16 MB of anything. All of this takes time proportional to the length (sorting
lines aside), never raises because of the bytes, and splits them piece by piece so that millions of tiny words do
not cost their many times larger weight in Python objects.

Not covered: running a checker program. What its exit code and output mean is said by `reads_score`.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import product, zip_longest

from dojang.programs import Checker, CheckerName

__all__ = ["compare", "complete", "normal_form", "reads_score"]

PIECE = 1 << 16
"""Bytes that are split into words at a time."""
LONGEST = 10_000
"""Characters of a number: reading one takes time that grows with the square of its length."""
SHOWN = 40
"""Characters of a word or line that a message quotes."""

_BLANK = re.compile(rb"[ \t\n\r\x0b\x0c]")  # what bytes.split() splits at
_NEWLINE = re.compile(rb"\n")
# No two neighbouring repetitions share characters: reading takes time proportional to the length.
_NUMBER = re.compile(rb"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INTEGER = re.compile(rb"[+-]?[0-9]+")
_DECIMAL = rb"[+-]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
_IS_DECIMAL = re.compile(_DECIMAL)
_HAS_DECIMAL = re.compile(rb"(?<![^ \t\n\r\x0b\x0c])" + _DECIMAL + rb"(?![^ \t\n\r\x0b\x0c])")
_YES_NO: Mapping[bytes, bytes] = {
    bytes(each): word for word in (b"yes", b"no") for each in product(*zip(word, word.upper(), strict=True))
}
"""The two words in every case, each with its lower case."""


def normal_form(checker: Checker, data: bytes) -> bytes:
    """Outputs with the same normal form are equally good; `complete` says whether others are always refused.

    A keyed digest of it lets an output be recognised where the expected one must not be known. For a checker
    program it is the data itself: whether even the expected output is accepted, only the program can say.
    """
    return _FORMS[checker.name](data)


def complete(checker: Checker, expected: bytes) -> bool:
    """Whether every output with another normal form than the expected one is refused."""
    if checker.name == "contest":
        maybe = any(mark in expected for mark in (b".", b"e", b"E"))
        return not (maybe and _HAS_DECIMAL.search(expected))
    return checker.name not in ("floats", "program")


def compare(checker: Checker, expected: bytes, actual: bytes) -> str | None:
    """None if the actual output is accepted, else a sentence about the first difference.

    ValueError for a checker program: it has to be run.
    """
    if checker.name == "program":
        raise ValueError("a checker program has to be run; there is nothing to compare without it")
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


def reads_score(exit_code: int, stdout: bytes) -> bool | None:
    """What a checker program says of an output: accepted, refused, or (None) nothing, because it failed itself."""
    if exit_code in (1, 2):
        return False
    if exit_code != 0:
        return None
    words = stdout.split(None, 1)
    return not (len(words) == 1 and _NUMBER.fullmatch(words[0]) and float(words[0]) == 0)


def _pieces(data: bytes, cut: re.Pattern[bytes]) -> Iterator[bytes]:
    """The data in pieces of about PIECE bytes, each ending where `cut` matches."""
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
    """Every line that is not empty, with one space between words. No line contains a newline."""
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
    """Folding works character by character and makes no blanks, so a text can be folded whole or in words."""
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
    # Reading rounds both numbers; the doubles of 0.333333 and 0.333334 are a little more than 1e-6 apart.
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
    # Only the expected lines, whose number is the dataset's choice, are ever held all at once.
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
    """Where two byte strings part. Halving lets the comparison run at the speed of memory."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _quoted(data: bytes, other: bytes = b"") -> tuple[str, str]:
    """Both as short printable text. Of long ones, the part around their first difference."""
    place = _first_difference(data, other) if max(len(data), len(other)) > SHOWN else 0
    start = max(0, place - SHOWN // 2)
    return _excerpt(data, start), _excerpt(other, start)


def _excerpt(data: bytes, start: int) -> str:
    text = repr(data[start : start + SHOWN].decode("utf-8", "replace"))
    before = "..." if start else ""
    after = f"... ({len(data)} bytes)" if len(data) > start + SHOWN else ""
    return f"{before}{text}{after}"
