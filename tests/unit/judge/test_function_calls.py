"""Function-call tests see objects in the program's process as plain Python would show them."""

import asyncio
import itertools
from typing import Any

import pytest

from dojang.core.paths import cache_root
from dojang.judge.pool import JudgePool
from dojang.judge.sandbox.names import find
from dojang.programs import CallTest, Judgement, Stop, Submission, TestSuite
from dojang.types import Outcome

PROGRAM = """
import itertools
from collections import OrderedDict, UserDict
from dataclasses import dataclass, field


@dataclass
class Point:
    x: int
    y: int = 0
    near: list = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    x: int


class Plain:
    def __init__(self, x):
        self.x = x

    def __format__(self, spec):
        return spec + "!"


class Agreeable:
    def __eq__(self, other):
        return True

    def __hash__(self):
        return hash(5)

    def __lt__(self, other):
        return True


class Counting:
    def __init__(self, stop):
        self.at, self.stop = 0, stop

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == self.stop:
            raise StopIteration
        self.at += 1
        return self.at


def endless():
    return itertools.count(5)


def squares(stop):
    for n in range(stop):
        yield n * n


def fails_after(n):
    yield from range(n)
    raise ValueError(f"after {n}")


def drain(items):
    return list(items)


f = None


class Solution:
    def f(self, x):
        return x + 1

    def g(self):
        return "method"


def g():
    return "function"
"""

RIGHT = [
    "assert next(endless()) == 5",
    "import itertools\nassert list(itertools.islice(endless(), 3)) == [5, 6, 7]",
    "g = endless()\nassert [next(g), next(g)] == [5, 6] and next(iter(g)) == 7",
    "for n, value in enumerate(endless()):\n    assert value == n + 5\n    if n == 300:\n        break",
    "assert list(squares(4)) == [0, 1, 4, 9] and sum(squares(4)) == 14 and sorted(squares(3))[-1] == 4",
    "assert list(squares(5000)) == [n * n for n in range(5000)]",
    "s = squares(3)\nassert list(s) == [0, 1, 4] and list(s) == []",
    "assert next(squares(0), 'none') == 'none'",
    "try:\n    next(squares(0))\nexcept StopIteration:\n    pass\nelse:\n    assert False",
    "c = Counting(4)\nassert list(zip(c, c)) == [(1, 2), (3, 4)] and c.at == 4",
    "c = Counting(9)\nassert next(c) == 1 and c.at == 1 and drain(c)[0] == 2",
    "assert 49 in squares(100) and 50 not in squares(100)",
    "for n in (0, 3, 64, 65, 200):\n    got = []\n    try:\n        for each in fails_after(n):\n"
    "            got.append(each)\n    except ValueError as error:\n        assert str(error) == f'after {n}'\n"
    "    else:\n        assert False\n    assert got == list(range(n))",
    "assert repr(Point(1, 2)) == 'Point(x=1, y=2, near=[])' == str(Point(1, 2)) == f'{Point(1, 2)}'",
    "assert f'{Plain(1):>5}' == '>5!' and repr(squares(1)).startswith('<generator object squares')",
    "assert Point(1, 2) == Point(1, 2) and Point(1, 2) != Point(1, 3) and not Point(1, 2) == Point(1, 3)",
    "assert [Point(1), Point(2)] == [Point(1), Point(2)] and Point(2) in [Point(1), Point(2)]",
    "assert Point(1) != (1, 0) and Point(1) != None and not Point(1) == 1",
    "assert Frozen(1) in {Frozen(1), Frozen(2)} and {Frozen(1): 'a'}[Frozen(1)] == 'a' and Frozen(3) != Frozen(1)",
    "try:\n    hash(Point(1))\nexcept TypeError:\n    pass\nelse:\n    assert False",
    "p = Plain(1)\nassert p == p and Plain(1) != p and p in {p}",
    "assert isinstance(Point(1), Point) and not isinstance(Plain(1), Point) and not isinstance(3, Point)",
    "assert candidate({'a': 1}).keys() == {'a'}",
    "assert dict.keys(candidate({'a': 1})) & {'a', 'b'} == {'a'}",
    "assert UserDict({'a': 1}).keys().__class__ is not None",
    "assert views({'a': 1, 'b': 2})[0] == {'a', 'b'} and {'a', 'b'} == views({'a': 1, 'b': 2})[0]",
    "assert views({'a': 1})[0] | {'b'} == {'a', 'b'} and 'a' in views({'a': 1})[0] and len(views({'a': 1})[1]) == 1",
    "assert list(views({'a': 1, 'b': 2})[1]) == [1, 2] and views({'a': [1]})[2] == {'a': [1]}.items()",
    "k, v, m = views({'a': 1}, True)\nassert k == {'a'} and list(v) == [1] and ('a', 1) in m and drain(k) == ['a']",
    "assert f(2) == 3 and g() == 'function'",
]
WRONG = [
    "assert Agreeable() == 5",
    "assert 5 == Agreeable()",
    "assert [Agreeable()] == [5]",
    "assert Agreeable() in (4, 5)",
    "assert Agreeable() in {5}",
    "assert Agreeable() < 5",
    "assert next(squares(2)) == 1",
    "assert Point(1) == Point(2)",
    "assert next(squares(0)) == 0",
]
PROGRAM += "\n\ndef same(value):\n    return value\n"
PROGRAM += (
    "\n\ndef views(d, ordered=False):\n    d = OrderedDict(d) if ordered else d\n"
    "    return d.keys(), d.values(), d.items()\n"
)


def judge(tests: list[str], function: str) -> Judgement:
    async def one() -> Judgement:
        async with JudgePool(cache=cache_root(), workers=1) as pool:
            suite = TestSuite(tuple(CallTest(test, function) for test in tests))
            return await pool.judge(Submission("python3", PROGRAM, suite, Stop.NEVER))

    return asyncio.run(one())


def test_expressions_about_handles_behave_as_in_plain_python() -> None:
    for test in RIGHT:
        names: dict[str, Any] = {"__name__": "solution"}
        exec(PROGRAM, names)
        names["f"] = names["Solution"]().f  # the one that can be called is meant
        exec(test, {**names, "candidate": names["same"]})
    judged = judge(RIGHT, "same")
    assert {
        RIGHT[result.test]: result.detail for result in judged.results if result.outcome is not Outcome.ACCEPTED
    } == {}
    assert len(judged.results) == len(RIGHT)


def test_object_equal_to_everything_equals_no_plain_value() -> None:
    judged = judge(WRONG, "same")
    assert {
        WRONG[result.test]: result.outcome for result in judged.results if result.outcome is not Outcome.WRONG
    } == {}
    assert len(judged.results) == len(WRONG)
    assert "'<' not supported between instances of 'ProgramObject' and 'int'" in judged.results[5].detail


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("f = None\nclass Solution:\n    def f(self): return 2", 2),
        ("def f(): return 1\nclass Solution:\n    def f(self): return 2", 1),
        ("f = 7\nclass Solution:\n    f = 8", 7),
        ("f = 7\nclass Solution: pass", 7),
        ("from math import gcd as f\nclass Solution:\n    def f(self): return 2", 2),
    ],
)
def test_callable_definition_takes_precedence(program: str, found: int) -> None:
    module = type(itertools)("solution")
    exec(program, module.__dict__)
    thing = find(module, "f")
    assert (thing() if callable(thing) else thing) == found
