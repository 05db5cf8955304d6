"""Reads the numeric answer from a completion, and compares it with the reference.

The answer line is the first line that begins with `####`, in the text before the next "Question:". So it never helps
to list several answers, on one line or on many, or to continue with an invented next question. Examples:

    #### The final answer is 1,080      counts for the format and as an answer
    #### 18, #### $18., #### So, 18     an answer, but not in the format
    #### 18 or 19, #### 9 * 2 = 18      no answer: exactly one number must be on the line
    #### Step 1                         the answer 1: a heading of this depth is read as the answer line
    ##### 18                            an answer: GSM8K's own pattern and veRL's find `#### 18` in it

Text around the number (currency, percent sign, units, emphasis) is ignored: "50%" is 50, "18 thousand" is 18. A sign
adjoins its number; "1/2" and "1e3" are numbers. Values are compared as fractions, not as floats: two long numbers that
differ in the last digit do differ. The tolerance is 1e-3, relative to references below 1 and absolute above: 0.333 is
1/3, and neither 0 nor 0.002 is 0.001.

Not covered: symbolic answers (surds, intervals, units that matter), and decimal commas.
"""

import re
from fractions import Fraction

__all__ = [
    "ANSWER_MARK",
    "NEXT_QUESTION",
    "answer_line",
    "answer_line_end",
    "follows_format",
    "is_correct",
    "read_number",
]

ANSWER_MARK = "####"
"""Beginning of the answer line."""

NEXT_QUESTION = "Question:"
"""Prefix of each question in datasets with few-shot examples."""
TOLERANCE = Fraction(1, 1000)
"""Largest accepted error: relative for references below 1 in magnitude, absolute for larger ones."""
LONGEST_NUMBER = 40
"""Maximum characters of a number; a longer run of digits is noise, and must be cheap to reject."""

# Hyphen and typographic dashes stand for minus.
_MINUS = "-\N{MINUS SIGN}\N{EN DASH}"
_SIGN = rf"[{re.escape(_MINUS)}+]"
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?"

# No pattern has nested repetitions that could match the same characters, and those that span a line start at its
# beginning: parsing takes linear time on any text.
_ANSWER_LINE = re.compile(r"^[ \t]*####(.*)$", re.MULTILINE)
_FORMAT = re.compile(rf"^[ \t]*#### The final answer is (?P<number>{_SIGN}?\$?{_DIGITS})%?\.?[ \t\r]*$", re.MULTILINE)
_NUMBER = re.compile(
    rf"""
    (?P<prefix> (?<!\w){_SIGN}[$€£]? | [$€£]{_SIGN}? )?  # a dash after a letter or digit is a hyphen
    (?P<digits> {_DIGITS} | \.[0-9]+ )
    (?P<exponent> [eE][+-]?[0-9]{{1,2}}(?![0-9]) )?
    (?: / (?P<divisor> [0-9]+ ) )?
    """,
    re.VERBOSE,
)


def answer_line(text: str) -> str | None:
    """Returns the text after `####` on the first line that begins with it."""
    found = _ANSWER_LINE.search(_before_next_question(text))
    return found[1].strip() if found else None


def answer_line_end(text: str) -> int | None:
    """Returns the position at which the answer line ends; None without one."""
    found = _ANSWER_LINE.search(_before_next_question(text))
    return found.end() if found else None


def follows_format(text: str) -> bool:
    """Returns whether some line is `#### The final answer is N`.

    N may have a sign, a dollar sign, thousands commas, decimals and a percent sign. Blanks around the line and a full
    stop at its end are allowed.
    """
    return any(len(found["number"]) <= LONGEST_NUMBER for found in _FORMAT.finditer(_before_next_question(text)))


def is_correct(text: str, reference: object) -> bool:
    """Returns whether the answer line holds the reference's number. Raises ValueError if the reference is no number."""
    expected = read_number(str(reference))
    if expected is None:
        raise ValueError(f"the reference {str(reference)[:80]!r} is not a number; no answer can be judged")
    line = answer_line(text)
    number = None if line is None else read_number(line)
    return number is not None and abs(number - expected) <= min(TOLERANCE, TOLERANCE * abs(expected))


def read_number(text: str) -> Fraction | None:
    """Returns the only number in the text; None if it has none, several, or one that is too long."""
    numbers = _NUMBER.finditer(text)
    first = next(numbers, None)
    if first is None or next(numbers, None) is not None or _has_foreign_numeral(text):
        return None
    return _value(first)


def _before_next_question(text: str) -> str:
    """Cuts off an invented next question."""
    return text.partition(NEXT_QUESTION)[0]


def _has_foreign_numeral(text: str) -> bool:
    """Returns whether the text has a numeral that the pattern does not match: in "2½" and "2²" the 2 is no number."""
    return any(char.isnumeric() and not char.isascii() for char in text)


def _value(found: re.Match[str]) -> Fraction | None:
    if len(found[0]) > LONGEST_NUMBER:
        return None
    value = Fraction(found["digits"].replace(",", "") + (found["exponent"] or ""))
    if found["divisor"] is not None:
        divisor = int(found["divisor"])
        if divisor == 0:
            return None
        value /= divisor
    return -value if set(found["prefix"] or "") & set(_MINUS) else value
