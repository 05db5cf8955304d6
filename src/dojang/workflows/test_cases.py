"""Test cases of the tester: its prompt, the parser of its completion, and the feedback to the coder.

Parsing is strict: the last finished ```json block of the completion, {"inputs": [...], "outputs": [...]}, with exactly
the requested number of cases and no input twice. For programs, inputs and outputs are strings; for a function, an input
is the list of its arguments. Whether cases are valid is decided in coder_tester.py.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dojang.programs import CallTest, IoTest, Judgement
from dojang.types import Message, Outcome, Problem

__all__ = ["Case", "InvalidCases", "feedback", "make_tester_prompt", "parse_cases", "without_examples"]

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
"""Matches a heading of examples: Examples, Sample Input 1, -----Example-----."""
_AFTERWARDS = re.compile(r"^[ \t#*-]*(?:constraints?|limit(?:ation)?s|scoring|begin with this)\b", re.I | re.MULTILINE)
"""Matches headings that end the examples. Notes are not among them, since they mostly explain the examples."""
_LEAST = 0.25
"""Minimum fraction of a statement that must remain; below it, the removed part was more than examples."""


class InvalidCases(ValueError):
    """Raised if a completion cannot be parsed as test cases."""


@dataclass(frozen=True, slots=True)
class Case:
    """One test case: input and expected output."""

    given: Any
    wanted: Any
    test: IoTest | CallTest


def make_tester_prompt(problem: Problem, answer: str, *, count: int, function: str, strip: bool) -> tuple[Message, ...]:
    """Builds the tester's prompt for `count` cases. `function` is the name of the tested function, "" for a program."""
    task = "\n\n".join(turn.content for turn in problem.messages if turn.role in ("user", "text"))
    task = without_examples(task) if strip else task
    meaning = _CALL.format(name=function) if function else _TEXT
    return (Message("user", _ASK.format(task=task.strip(), answer=answer.strip(), count=count, meaning=meaning)),)


def without_examples(statement: str) -> str:
    """Removes the examples, found by their headings, from a statement; keeps them if little else would remain."""
    begins = _EXAMPLES.search(statement)
    if begins is None:
        return statement
    ends = _AFTERWARDS.search(statement, begins.end())
    rest = statement[: begins.start()] + (statement[ends.start() :] if ends else "")
    return rest if len(rest) >= _LEAST * len(statement) else statement


def parse_cases(text: str, *, count: int, function: str) -> tuple[Case, ...]:
    """Parses the cases in a completion. Raises InvalidCases with the reason if it cannot."""
    try:
        found = json.loads(_block(text), parse_constant=_no_number)
        json.dumps(found, ensure_ascii=False).encode()  # lone surrogates cannot be encoded in a prompt
    except InvalidCases:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidCases(f"the block is not JSON: {error}") from None
    if not isinstance(found, dict) or found.keys() != {"inputs", "outputs"}:
        raise InvalidCases("the block is not an object of inputs and outputs")
    given, wanted = found["inputs"], found["outputs"]
    if not isinstance(given, list) or not isinstance(wanted, list):
        raise InvalidCases("inputs and outputs are not both lists")
    if not len(given) == len(wanted) == count:
        raise InvalidCases(f"{len(given)} inputs and {len(wanted)} outputs where {count} cases were asked for")
    if len({json.dumps(each) for each in given}) < count:
        raise InvalidCases("an input is there twice")
    return tuple(Case(*pair, _test(*pair, function)) for pair in zip(given, wanted, strict=True))


def feedback(cases: Sequence[Case], judgement: Judgement) -> Message:
    """Builds the feedback to the coder: input, expected output and result of each case."""
    passed = {result.test for result in judgement.results if result.outcome is Outcome.ACCEPTED}
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
    """Returns the last finished JSON block after the reasoning (</think>)."""
    said = text.rpartition("</think>")[2]
    if "<think>" in said:
        raise InvalidCases("it was still thinking")
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
        raise InvalidCases("there is no finished block of JSON")
    return found


def _test(given: Any, wanted: Any, function: str) -> IoTest | CallTest:
    if function:
        if not isinstance(given, list):
            raise InvalidCases(f"an input is not the list of arguments of {function}")
        return CallTest.of(function, given, wanted)
    if not isinstance(given, str) or not isinstance(wanted, str):
        raise InvalidCases("an input or an output is not a string")
    return IoTest(given, wanted)


def _no_number(name: str) -> Any:
    raise InvalidCases(f"{name} is not JSON")


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
