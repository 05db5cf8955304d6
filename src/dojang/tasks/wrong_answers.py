"""Answers in the form a task wants them: the right one, and others that are not right.

A number becomes its neighbour, its opposite or its tenfold. In a formula one number becomes another; where there is
none, 1 is added. Not covered: a formula in which such a change changes nothing; whoever finds one accepted has to look
at it.
"""

import re
from collections.abc import Callable, Iterator, Mapping

from dojang.tasks.answers import read_number

__all__ = ["FORMS", "others"]

FORMS: Mapping[str, Callable[[str], str]] = {
    "maths": lambda answer: f"\\boxed{{{answer}}}",
    "answer_line": lambda answer: f"#### The final answer is {answer}",
}
"""By the name of the task."""
_PLAIN = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?")
_DIGITS = re.compile(r"(?<![0-9])[0-9]{1,18}(?![0-9])")


def others(answer: str) -> Iterator[str]:
    """Answers that are not this one."""
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
