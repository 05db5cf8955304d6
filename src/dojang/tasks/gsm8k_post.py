"""Reward functions of the AWS post on GRPO with GSM8K, with the post's own behaviour, defects included.

`gsm8k_post_format` searches the completion for a line break and `#### The final answer is `, then digits.
`gsm8k_post_correct` takes the first digits and commas that follow `####` on the same line and compares them as floats,
with an absolute tolerance of 1e-3. Both read the whole completion, also what follows a further "Question:".

Known defects of `gsm8k_post_correct`, which `correct` does not have: a reference with a thousands comma or a minus
sign is never matched (82 of the 7,473 training problems), "#### So, the answer is 18" scores 0 because the comma is
taken for the number, and a reference of 0.0009 accepts 0.
"""

import re

__all__ = ["post_correct", "post_format"]

_FORMAT = re.compile(r"\n#### The final answer is \d+")
_NUMBER = re.compile(r"[\d,]+(?:\.\d+)?")
_TOLERANCE = 1e-3


def post_format(text: str) -> bool:
    """Returns whether the completion contains the post's answer format."""
    return _FORMAT.search(text) is not None


def post_correct(text: str, reference: object) -> bool:
    """Returns whether the first number after `####` is within 1e-3 of the reference."""
    number = _first_number(text)
    if number is None:
        return False
    try:
        return abs(float(number.replace(",", "")) - float(str(reference))) < _TOLERANCE
    except ValueError:
        return False


def _first_number(text: str) -> str | None:
    """First match of the post's pattern `####.*?([\\d,]+(?:\\.\\d+)?)`, in linear time: searching for the pattern
    itself takes quadratic time on a line of many `#`."""
    for line in text.split("\n"):
        _, marker, rest = line.partition("####")
        if marker and (found := _NUMBER.search(rest)):
            return found[0]
    return None
