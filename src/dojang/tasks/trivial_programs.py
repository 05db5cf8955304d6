"""Programs that solve nothing: what they earn, a model can earn without thinking.

For tests of text they print nothing, the commonest answer, or some of their input; for tests that call a function they
return None, the commonest result, or their first argument. All are in Python, whatever the problem wants: a test cannot
tell. An answer counts as one that can be guessed if several tests expect it, or if it is a short word.
"""

import ast
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from dojang.programs import CallTest, IoTest
from dojang.tasks.mutation import parsed

__all__ = ["Trivial", "checks", "trivial_programs"]

_SHOWN = 30
_WORD = 5
"""Letters of a short word."""


@dataclass(frozen=True, slots=True)
class Trivial:
    """A program that solves nothing."""

    name: str
    source: str
    output: Callable[[str], str] | None = None
    """What it prints for an input, if that is known without running it."""


def trivial_programs(tests: Sequence[IoTest | CallTest]) -> Iterator[Trivial]:
    """Those that could pass such tests."""
    different = dict.fromkeys(tests)
    texts = [test for test in different if isinstance(test, IoTest)]
    if texts:
        yield from _printing(_commonest(test.output for test in texts))
    calls = [test for test in different if isinstance(test, CallTest)]
    names = dict.fromkeys(test.function for test in calls if test.function)
    if names and not texts:
        yield from _returning(list(names), [each for test in calls for each in _expected(test.code)])


def checks(test: IoTest | CallTest) -> int:
    """How many things a test asks: one, or as many as its code has assertions."""
    if isinstance(test, IoTest):
        return 1
    try:
        return max(1, sum(isinstance(node, ast.Assert) for node in ast.walk(parsed(test.code))))
    except (SyntaxError, ValueError, RecursionError):
        return 1


def _printing(constant: str | None) -> Iterator[Trivial]:
    yield Trivial("prints nothing", "", lambda _: "")
    if constant is not None:
        source = f"import sys\nsys.stdout.write({constant!r})\n"
        yield Trivial(f"always prints {_short(constant)}", source, lambda _: constant)
    yield Trivial("echoes its input", "import sys\nsys.stdout.write(sys.stdin.read())\n", lambda given: given)
    yield Trivial(
        "prints the first word of its input",
        "import sys\nsys.stdout.write(' '.join(sys.stdin.read().split()[:1]))\n",
        lambda given: " ".join(given.split()[:1]),
    )
    yield Trivial(
        "prints the last word of its input",
        "import sys\nsys.stdout.write(' '.join(sys.stdin.read().split()[-1:]))\n",
        lambda given: " ".join(given.split()[-1:]),
    )


def _returning(names: Sequence[str], expected: Sequence[str]) -> Iterator[Trivial]:
    results = {"None": "returns None", "arguments[0] if arguments else None": "returns its first argument"}
    if (constant := _commonest(expected)) is not None:
        results.setdefault(constant, f"always returns {constant[:_SHOWN]}")
    for result, name in results.items():
        yield Trivial(name, "".join(f"def {each}(*arguments, **named):\n    return {result}\n" for each in names))


def _expected(code: str) -> Iterator[str]:
    """The values that results are compared with, as they are written."""
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
    """Of those that can be guessed."""
    for answer, times in Counter(answers).most_common():
        if times > 1 or (len(answer.strip()) <= _WORD and len(answer.split()) <= 1):
            return answer
    return None


def _short(text: str) -> str:
    shown = text.strip()
    return repr(shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "...")
