"""Completions with right and wrong answers to a problem.

A number becomes its successor, its negative or its tenfold. In a formula one number is changed; without a number, 1 is
added. Not covered: a formula whose value does not change; check accepted ones by hand.
"""

import re
from collections.abc import Callable, Iterator

from dojang.tasks.answers import read_number

__all__ = ["right_and_wrong", "wrong_answers"]

_PLAIN = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")
_DIGITS = re.compile(r"(?<![0-9])[0-9]{1,18}(?![0-9])")


def right_and_wrong(reference: str, form: Callable[[str], str]) -> tuple[list[str], list[str]]:
    """Completions with the right answer and with wrong ones or none; `form` writes an answer as a completion."""
    return [form(reference)], [*map(form, wrong_answers(reference)), form(""), ""]


def wrong_answers(answer: str) -> Iterator[str]:
    plain = answer.replace(",", "").strip().lstrip("$")
    if _PLAIN.fullmatch(plain):
        value = read_number(plain)
        if value is not None:
            places = len(plain.partition(".")[2])
            changed = [value + 1, *((-value, value * 10) if value else ())]
            yield from (f"{float(each):.{places}f}" if places else str(each) for each in changed)
            return
    found = list(_DIGITS.finditer(answer))
    for each in {place.span(): place for place in (found[:1] + found[-1:])}.values():
        yield f"{answer[: each.start()]}{int(each[0]) + 1}{answer[each.end() :]}"
    if not found:
        yield f"{answer} + 1"
