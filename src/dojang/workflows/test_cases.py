"""Test cases of the tester: its prompt, the parser of its completion, and the feedback to the coder.

    program     the last finished ```json block of the completion, {"inputs": [...], "outputs": [...]}, all strings
    function    the last finished block of Python with assertions, `assert f(1, [2]) == 3` (assertions.py)

Parsing is strict: exactly the requested number of cases, no input twice, and no assertion that the task shows. Whether
cases are valid is decided in coder_tester.py.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dojang.programs import CallTest, IoTest, Judgement
from dojang.types import Message, Outcome, Problem
from dojang.workflows.assertions import Assertion, find_assertions

__all__ = ["Case", "InvalidCases", "feedback", "make_tester_prompt", "parse_cases", "statement", "without_examples"]

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

All are strings: what is on standard input, and on standard output."""
_ASK_CALLS = """\
A programmer's task:

<task>
{task}
</task>

The answer:

<answer>
{answer}
</answer>

Is it right? Write exactly {count} test cases that show it: arguments that it may get wrong and that the task does \
not use, and results that you are sure of. Do not repeat the function. End with one block of {count} lines:

```python
{assertions}
```"""
_FEEDBACK = """\
Your program was run on test cases that another programmer wrote, who may be mistaken:

{cases}

Look for what is wrong, and answer once more with the whole program, in the same form as before."""
_CASE = "Case {number}: {result}\n{shown}"

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
    task = statement(problem)
    task, answer = (without_examples(task) if strip else task).strip(), answer.strip()
    if not function:
        return (Message("user", _ASK.format(task=task, answer=answer, count=count)),)
    assertions = "\n".join([f"assert {function}(...) == ..."] * count)
    asked = _ASK_CALLS.format(task=task, answer=answer, count=count, name=function, assertions=assertions)
    return (Message("user", asked),)


def statement(problem: Problem) -> str:
    """Returns the text of the problem's prompt."""
    return "\n\n".join(turn.content for turn in problem.messages if turn.role in ("user", "text"))


def without_examples(text: str) -> str:
    """Removes the examples, found by their headings, from a statement; keeps them if little else would remain."""
    begins = _EXAMPLES.search(text)
    if begins is None:
        return text
    ends = _AFTERWARDS.search(text, begins.end())
    rest = text[: begins.start()] + (text[ends.start() :] if ends else "")
    return rest if len(rest) >= _LEAST * len(text) else text


def parse_cases(text: str, *, count: int, function: str, shown: str = "") -> tuple[Case, ...]:
    """Parses the cases in a completion. `shown`: statement whose assertions are not accepted as cases. Raises
    InvalidCases with the reason if it cannot."""
    pairs = _parse_assertions(text, function, shown) if function else _parse_json(text)
    if len(pairs) != count:
        raise InvalidCases(f"{len(pairs)} cases where {count} were asked for")
    if len({repr(given) for given, _ in pairs}) < count:
        raise InvalidCases("an input is there twice")
    return tuple(Case(given, wanted, _test(given, wanted, function)) for given, wanted in pairs)


def _parse_json(text: str) -> list[tuple[Any, Any]]:
    """Returns inputs and outputs of the last finished block of JSON."""
    blocks = [code for language, code in _blocks(_said(text)) if language == "json"]
    if not blocks:
        raise InvalidCases("there is no finished block of JSON")
    try:
        found = json.loads(blocks[-1], parse_constant=_no_number)
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
    if len(given) != len(wanted):
        raise InvalidCases(f"{len(given)} inputs and {len(wanted)} outputs")
    return list(zip(given, wanted, strict=True))


def _parse_assertions(text: str, function: str, shown: str) -> list[Assertion]:
    """Returns arguments and results of the last finished block of Python with assertions."""
    blocks = [code for code in _python(_said(text)) if "assert" in code]
    if not blocks:
        raise InvalidCases("there is no finished block of assertions")
    try:
        found = find_assertions(blocks[-1], function)
    except ValueError as error:
        raise InvalidCases(str(error)) from None
    known = {repr(given) for code in _python(shown) for given, _ in _readable(code, function)}
    if any(repr(given) in known for given, _ in found):
        raise InvalidCases("an assertion is one that the task shows")
    return found


def _readable(code: str, function: str) -> list[Assertion]:
    """Assertions in a statement; none if it has others than these, such as calls with objects."""
    try:
        return find_assertions(code, function)
    except ValueError:
        return []


def feedback(cases: Sequence[Case], judgement: Judgement) -> Message:
    """Builds the feedback to the coder: input, expected output and result of each case."""
    passed = {result.test for result in judgement.results if result.outcome is Outcome.ACCEPTED}
    told = [
        _CASE.format(number=at + 1, result="PASS" if at in passed else "FAIL", shown=_shown(case))
        for at, case in enumerate(cases)
    ]
    return Message("user", _FEEDBACK.format(cases="\n\n".join(told)))


def _shown(case: Case) -> str:
    if isinstance(case.test, CallTest):
        return f"assert {case.test.function}({', '.join(map(repr, case.given))}) == {case.wanted!r}"
    return f"Input:\n{case.given}\nExpected output:\n{case.wanted}"


def _python(text: str) -> list[str]:
    return [code for language, code in _blocks(text) if language in ("python", "py", "python3", "")]


def _said(text: str) -> str:
    """Returns the text after the reasoning (</think>)."""
    said = text.rpartition("</think>")[2]
    if "<think>" in said:
        raise InvalidCases("it was still thinking")
    return said


def _blocks(text: str) -> list[tuple[str, str]]:
    """Returns language and text of the finished blocks."""
    found: list[tuple[str, str]] = []
    language, lines = "", list[str]()
    is_open = False
    for line in text.split("\n"):
        mark = line.strip()
        if mark.startswith("```") and (mark != "```" or not is_open):  # with a language it is never the end of a block
            language, lines, is_open = mark[3:].strip().lower(), [], True
        elif mark == "```":
            found.append((language, "\n".join(lines)))
            is_open = False
        else:
            lines.append(line)
    return found


def _test(given: Any, wanted: Any, function: str) -> IoTest | CallTest:
    if function:
        return CallTest.of_literals(function, given, wanted)
    if not isinstance(given, str) or not isinstance(wanted, str):
        raise InvalidCases("an input or an output is not a string")
    return IoTest(given, wanted)


def _no_number(name: str) -> Any:
    raise InvalidCases(f"{name} is not JSON")
