"""Test cases that a model writes: how it is asked for them, how they are read, what is said of them.

They are read strictly: the last finished ```json block of the reply, {"inputs": [...], "outputs": [...]}, with exactly
as many cases as were asked for and no input twice. For text in and text out both are strings; for a function an input
is the list of its arguments. Whether cases are right is not known here.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dojang.programs import CallTest, IoTest, Judgement
from dojang.types import Message, Outcome, Problem

__all__ = ["Case", "Malformed", "ask", "feedback", "read", "without_examples"]

_ASK = """\
A programmer's task:

{task}

The answer:

{answer}

Is it right? Write exactly {count} test cases that tell: inputs that it may get wrong, outputs that you are sure of. \
Reason first; end with

```json
{{"inputs": [...], "outputs": [...]}}
```

{meaning}"""
_TEXT = "All are strings: what is on standard input, and on standard output."
_CALL = "An input is a list of the arguments of {name}, an output what it must return."
_FEEDBACK = """\
Your program was run on test cases that another programmer wrote, who may be mistaken:

{cases}

Look for what is wrong, and answer once more with the whole program, in the same form as before."""
_CASE = "Case {number}: {result}\nInput:\n{given}\nExpected output:\n{wanted}"

_EXAMPLES = re.compile(r"^[ \t#*-]*(?:example|sample)s?\b[\w ]{0,24}[ \t:*-]*$", re.IGNORECASE | re.MULTILINE)
"""A line that is a heading: Examples, Sample Input 1, -----Example-----."""
_AFTERWARDS = re.compile(r"^[ \t#*-]*(?:constraints?|limit(?:ation)?s|scoring|begin with this)\b", re.I | re.MULTILINE)
"""What may come behind examples and is none; notes mostly explain them."""
_LEAST = 0.25
"""If less than this would remain of a statement, what looked like examples was more than that."""


class Malformed(ValueError):
    """What a model wrote cannot be read as the cases it was asked for."""


@dataclass(frozen=True, slots=True)
class Case:
    """What a program is given, and what it should make of that."""

    given: Any
    wanted: Any
    test: IoTest | CallTest


def ask(problem: Problem, answer: str, *, count: int, function: str, strip: bool) -> tuple[Message, ...]:
    """For cases that tell whether an answer is right; `function` is what they call, "" for text in and text out."""
    task = "\n\n".join(turn.content for turn in problem.messages if turn.role in ("user", "text"))
    task = without_examples(task) if strip else task
    meaning = _CALL.format(name=function) if function else _TEXT
    return (Message("user", _ASK.format(task=task.strip(), answer=answer.strip(), count=count, meaning=meaning)),)


def without_examples(statement: str) -> str:
    """A statement without its examples, as far as headings tell; whole if little else would remain."""
    begins = _EXAMPLES.search(statement)
    if begins is None:
        return statement
    ends = _AFTERWARDS.search(statement, begins.end())
    rest = statement[: begins.start()] + (statement[ends.start() :] if ends else "")
    return rest if len(rest) >= _LEAST * len(statement) else statement


def read(text: str, *, count: int, function: str) -> tuple[Case, ...]:
    """The cases in a reply; Malformed says why there are none."""
    try:
        found = json.loads(_block(text), parse_constant=_no_number)
        json.dumps(found, ensure_ascii=False).encode()  # half a character could not be shown to a model
    except Malformed:
        raise
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the block is not JSON: {error}") from None
    if not isinstance(found, dict) or found.keys() != {"inputs", "outputs"}:
        raise Malformed("the block is not an object of inputs and outputs")
    given, wanted = found["inputs"], found["outputs"]
    if not isinstance(given, list) or not isinstance(wanted, list):
        raise Malformed("inputs and outputs are not both lists")
    if not len(given) == len(wanted) == count:
        raise Malformed(f"{len(given)} inputs and {len(wanted)} outputs where {count} cases were asked for")
    if len({json.dumps(each) for each in given}) < count:
        raise Malformed("an input is there twice")
    return tuple(Case(*pair, _test(*pair, function)) for pair in zip(given, wanted, strict=True))


def feedback(cases: Sequence[Case], judgement: Judgement) -> Message:
    """What a programmer is told of a program that was run on these cases."""
    passed = {ran.test for ran in judgement.ran if ran.outcome is Outcome.ACCEPTED}
    told = [
        _CASE.format(
            number=at + 1,
            result="PASS" if at in passed else "FAIL",
            given=_shown(case.given),
            wanted=_shown(case.wanted),
        )
        for at, case in enumerate(cases)
    ]
    return Message("user", _FEEDBACK.format(cases="\n\n".join(told)))


def _block(text: str) -> str:
    """The last finished one of what was said after thinking."""
    said = text.rpartition("</think>")[2]
    if "<think>" in said:
        raise Malformed("it was still thinking")
    found: str | None = None
    lines: list[str] | None = None
    for line in said.split("\n"):
        if lines is None:
            lines = [] if line.strip().lower() == "```json" else None
        elif line.strip() == "```":
            found, lines = "\n".join(lines), None
        else:
            lines.append(line)
    if found is None:
        raise Malformed("there is no finished block of JSON")
    return found


def _test(given: Any, wanted: Any, function: str) -> IoTest | CallTest:
    if function:
        if not isinstance(given, list):
            raise Malformed(f"an input is not the list of arguments of {function}")
        return CallTest.of(function, given, wanted)
    if not isinstance(given, str) or not isinstance(wanted, str):
        raise Malformed("an input or an output is not a string")
    return IoTest(given, wanted)


def _no_number(name: str) -> Any:
    raise Malformed(f"{name} is not JSON")


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
