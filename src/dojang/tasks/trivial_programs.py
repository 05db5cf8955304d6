"""Trivial programs: a model gets their reward without solving the problem.

For input/output tests they print nothing, the most common answer, or part of their input; for tests that call a
function they return None, the most common result, or their first argument. All are in Python, whatever the problem's
language: a test cannot tell. An answer is guessable if several tests expect it, or if it is a short word.
"""

import ast
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from dojang.programs import CallTest, IoTest
from dojang.tasks.mutation import parsed

__all__ = ["TrivialProgram", "checks", "trivial_programs"]

_SHOWN = 30
_WORD = 5
"""Maximum letters of a short word."""


@dataclass(frozen=True, slots=True)
class TrivialProgram:
    """A program that does not solve the problem."""

    name: str
    source: str
    output: Callable[[str], str] | None = None
    """Its output for an input, if known without running it."""


def trivial_programs(tests: Sequence[IoTest | CallTest]) -> Iterator[TrivialProgram]:
    """Yields trivial programs that could pass such tests."""
    different = dict.fromkeys(tests)
    texts = [test for test in different if isinstance(test, IoTest)]
    if texts:
        yield from _printing(_commonest(test.output for test in texts))
    calls = [test for test in different if isinstance(test, CallTest)]
    names = dict.fromkeys(test.function for test in calls if test.function)
    if names and not texts:
        yield from _returning(list(names), [each for test in calls for each in _expected(test.code)])


def checks(test: IoTest | CallTest) -> int:
    """Counts the checks of a test: one, or the number of its assertions."""
    if isinstance(test, IoTest):
        return 1
    try:
        return max(1, sum(isinstance(node, ast.Assert) for node in ast.walk(parsed(test.code))))
    except (SyntaxError, ValueError, RecursionError):
        return 1


def _printing(constant: str | None) -> Iterator[TrivialProgram]:
    yield TrivialProgram("prints nothing", "", lambda _: "")
    if constant is not None:
        source = f"import sys\nsys.stdout.write({constant!r})\n"
        yield TrivialProgram(f"always prints {_short(constant)}", source, lambda _: constant)
    yield TrivialProgram("echoes its input", "import sys\nsys.stdout.write(sys.stdin.read())\n", lambda given: given)
    for word, cut in (("first", slice(1)), ("last", slice(-1, None))):
        yield TrivialProgram(
            f"prints the {word} word of its input",
            f"import sys\nsys.stdout.write(' '.join(sys.stdin.read().split()[{cut}]))\n",
            lambda given, cut=cut: " ".join(given.split()[cut]),  # type: ignore[misc]
        )


def _returning(names: Sequence[str], expected: Sequence[str]) -> Iterator[TrivialProgram]:
    results = {"None": "returns None", "arguments[0] if arguments else None": "returns its first argument"}
    if (constant := _commonest(expected)) is not None:
        results.setdefault(constant, f"always returns {constant[:_SHOWN]}")
    for result, name in results.items():
        yield TrivialProgram(
            name, "".join(f"def {each}(*arguments, **named):\n    return {result}\n" for each in names)
        )


def _expected(code: str) -> Iterator[str]:
    """Yields the expected values of assertions, as source text."""
    try:
        tree = parsed(code)
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assert):
            continue
        match node.test:
            case ast.Compare(ops=[ast.Eq()], comparators=[ast.Call(args=[ast.Constant(str() as text)])]):
                try:
                    yield repr(json.loads(text))
                except ValueError:
                    continue
            case ast.Compare(left=ast.Call(), ops=[ast.Eq() | ast.Is()], comparators=[wanted]):
                try:
                    yield repr(ast.literal_eval(wanted))
                except (ValueError, TypeError, MemoryError, RecursionError):
                    continue
            case ast.Call():
                yield "True"
            case ast.UnaryOp(op=ast.Not(), operand=ast.Call()):
                yield "False"


def _commonest(answers: Iterable[str]) -> str | None:
    """Returns the most common guessable answer."""
    for answer, times in Counter(answers).most_common():
        if times > 1 or (len(answer.strip()) <= _WORD and len(answer.split()) <= 1):
            return answer
    return None


def _short(text: str) -> str:
    shown = text.strip()
    return repr(shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "...")
