"""Fuzzing: any submission gets a judgement, never an exception or a judge error.

A case depends only on the seed and its number, so a failure can be repeated alone:

    DOJANG_FUZZ_CASES=2000 DOJANG_FUZZ_SEED=7 pytest tests/corpus/test_fuzz.py
"""

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

import pytest

from dojang.core.paths import cache_root
from dojang.judge.checkers import compare, digest_decides, normalize
from dojang.judge.pool import JudgePool
from dojang.programs import CallTest, Checker, IoTest, Judgement, Limits, Stop, Submission, TestSuite
from dojang.types import Outcome

T = TypeVar("T")
CASES = int(os.environ.get("DOJANG_FUZZ_CASES", "200"))
SEED = int(os.environ.get("DOJANG_FUZZ_SEED", "0"))
BOUND = 180.0
"""Timeout of one judgement in seconds. Limits here are small; a hanging checker gets thirty seconds, three times."""

RIGHT = Submission(
    "python3", "print(sum(map(int, input().split())))", TestSuite((IoTest("1 2", "3"),), Limits(cpu_s=10))
)
RIGHT_CPP = Submission(
    "cpp17",
    "#include <cstdio>\nint main() { int a, b; scanf(\"%d%d\", &a, &b); printf(\"%d\", a + b); }",
    TestSuite((IoTest("1 2", "3"),), Limits(cpu_s=10)),
)  # fmt: skip
STEADY = Limits(cpu_s=2.0, wall_s=5.0, compile_s=60.0)
LIMITS = {Outcome.TIME_LIMIT, Outcome.MEMORY_LIMIT, Outcome.OUTPUT_LIMIT}
"""Outcomes of endless programs; which limit they hit first is random."""

PYTHON = (
    "a, b = map(int, input().split())\nprint(a + b)\n",
    "import sys\ndata = sys.stdin.buffer.read()\nprint(len(data), sum(data) % 1000)\n",
    "from collections import Counter\nfor word, n in sorted(Counter(input().split()).items()): print(word, n)\n",
    "def solve(n):\n    return 1 if n < 2 else n * solve(n - 1)\n\nprint(solve(20))\n",
    "import sys\nfor line in sys.stdin:\n    print(line[::-1], end='')\n",
    "class A:\n    def __init__(self, x=1): self.x = x\n    def f(self, *a, **k): return self.x, a, k\n"
    "print(A(3).f(1, y=2))\ntry:\n    raise ValueError('x')\nexcept ValueError as e:\n    print(e)\n",
    "x = [i * i for i in range(100) if i % 3]\nprint(f'{sum(x):>10}|{x[-1]!r}')\nassert x, 'no'\n",
    "import heapq, math\nh = []\nfor i in (5, 1, 4): heapq.heappush(h, i)\nprint(heapq.heappop(h), math.gcd(12, 18))\n",
)
CPP = (
    "#include <cstdio>\nint main() { int a, b; if(scanf(\"%d%d\", &a, &b) <2) return 1; printf(\"%d\\n\", a + b); }\n",
    "#include <iostream>\n#include <vector>\n#include <algorithm>\nusing namespace std;\n"
    "int main() { vector<int> v; int x; while (cin >> x) v.push_back(x); sort(v.begin(), v.end());\n"
    "for (int y : v) cout << y << ' '; cout << endl; }\n",
    "#include <string>\n#include <iostream>\ntemplate<class T> T twice(T x) { return x + x; }\n"
    "struct P { int a = 1; virtual int f() const { return a; } };\n"
    "int main() { std::string s; std::getline(std::cin, s); std::cout << twice(s).size() << P().f(); return 0; }\n",
)  # fmt: skip
FUNCTIONS = "def f(a, b=2):\n    return a + b\n\nclass Solution:\n    def g(self, x):\n        return sorted(x)\n"
CALLS = (
    ("assert candidate(1) == 3\nassert f(1, b=1) == 2\n", "f"),
    ("assert g([3, 1, 2]) == [1, 2, 3]\nx = [2, 1]\nassert candidate(x) is not x\n", "g"),
    ("try:\n    candidate(None)\nexcept TypeError:\n    pass\nelse:\n    assert False\n", "f"),
    ("def check(f):\n    assert f('a', 'b') == 'ab'\n\ncheck(candidate)\n", "f"),
    ("import math\nassert math.isclose(candidate(0.1, 0.2), 0.3)\n", "f"),
)
SNIPPETS = (
    "\0", "\ud800", "\udcff", "\ufeff", "\x1a", "\x0c", "\r", "\u2028", "\U0010ffff", "'''", '"""', "(" * 50, "{" * 300,
    "\\", "\\\n", "#", "/*", "??/", "0x", "1e999", "9" * 500, "\u00e9", "\ufb01", "\t", "        ", "f'{", "lambda: ",
    "*" * 70, "~" * 400, "import os\n", "raise SystemExit(7)\n", "exit()\n", "return 1\n", "yield\n", "await x\n",
    "async def q(): pass\n", "# -*- coding: utf-16 -*-\n", "# coding: nonsense\n", "#include <bits/stdc++.h>\n",
    "#include __FILE__\n", "#line 0\n", "#define main niam\n", "#pragma once\n", "#if 0\n", 'asm("nop");', 'R"(',
    'u8"\\xff"', "::", "<<<", "[[nodiscard]]", "__builtin_trap();", "int main();", "%:include <cstdio>\n", "goto x;",
    "throw 1;", "1/0", "auto", "constexpr ", "\\u0041", "#error Killed signal terminated program cc1plus\n",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """A submission and its expectations."""

    submission: Submission
    faulty: bool
    """Whether the test suite itself may be invalid."""
    steady: bool
    """Whether all limits are wide enough for a stable outcome."""


def made(number: int) -> Case:
    random = Random(f"{SEED} {number}")
    kind = random.choices((_scrap, _mutant, _whole, _called, _checked), (5, 6, 4, 3, 2))[0]
    return kind(random)


def _scrap(random: Random) -> Case:
    """Random text."""
    source = _garbage(random, random.choice((0, 1, 10, 1000, 20_000)))
    return _case(random, _language(random, 0.3), source, _tests(random))


def _mutant(random: Random) -> Case:
    """A mutated program."""
    language = _language(random, 0.2)
    return _case(random, language, _mutated(random, _program(random, language)), _tests(random))


def _whole(random: Random) -> Case:
    """A valid program on any input, with limits from their whole range."""
    language = _language(random, 0.15)
    limits, steady = _any_limits(random)
    tests = _tests(random, large=True)
    submission = Submission(
        language, _program(random, language), TestSuite(tests, limits, _checker(random)), _stop(random)
    )
    return Case(submission, faulty=False, steady=steady)


def _called(random: Random) -> Case:
    code, function = random.choice(CALLS)
    source = FUNCTIONS if random.random() < 0.5 else _mutated(random, FUNCTIONS)
    faulty = random.random() < 0.4
    if faulty:
        code = random.choice((_garbage(random, 100), _mutated(random, code), ""))
        function = random.choice((function, "", "__builtins__", "\ud800", "no such", "os", "x" * 1000, "\0"))
    limits = _narrow_limits(random) if faulty else STEADY
    suite = TestSuite((CallTest(code, function),) * random.choice((1, 3)), limits)
    return Case(Submission(_language(random, 0.05), source, suite, _stop(random)), faulty=True, steady=not faulty)


def _checked(random: Random) -> Case:
    """A problem with a random checker program."""
    body = random.choice(
        (
            "import sys\nsys.exit({})\n",
            "import sys\nprint({})\n",
            "import sys\na, b, c = (open(n, 'rb').read() for n in sys.argv[1:])\nsys.exit(b.split() != c.split())\n",
            "raise ValueError({})\n",
            "import os\nos.kill(os.getpid(), {} % 32)\n",
        )
    )
    source = body.format(random.choice((0, 1, 2, 3, 7, 100, 255, 0.0, 0.5)))
    if random.random() < 0.3:
        source = _mutated(random, source) or "x"
    checker = Checker("program", language=random.choice(("python3", "python3", "python3", "cpp17")), source=source)
    suite = TestSuite(_tests(random)[:2], Limits(cpu_s=2.0), checker)
    return Case(Submission("python3", random.choice(PYTHON), suite, _stop(random)), faulty=True, steady=True)


def _case(random: Random, language: str, source: str, tests: tuple[IoTest, ...]) -> Case:
    steady = random.random() < 0.7
    limits = STEADY if steady else _narrow_limits(random)
    suite = TestSuite(tests, limits, _checker(random))
    return Case(Submission(language, source, suite, _stop(random)), faulty=False, steady=steady)


def _language(random: Random, native: float) -> str:
    return random.choice(("cpp17", "cpp20")) if random.random() < native else "python3"


def _program(random: Random, language: str) -> str:
    return random.choice(PYTHON if language == "python3" else CPP)


def _stop(random: Random) -> Stop:
    return random.choice(list(Stop))


def _garbage(random: Random, size: int) -> str:
    data = random.randbytes(size)
    return random.choice(
        (
            lambda: data.decode("latin-1"),
            lambda: data.decode("utf-8", "surrogateescape"),
            lambda: data.decode("utf-8", "replace"),
            lambda: "".join(map(chr, random.choices(range(0x110000), k=size))),
            lambda: "".join(random.choices((*SNIPPETS, " ", "\n"), k=min(size, 200))),
            lambda: chr(random.choice((0, 9, 10, 32, 40, 45, 91, 0xD800))) * size,
        )
    )()


def _mutated(random: Random, text: str) -> str:
    for _ in range(random.choice((1, 1, 2, 5, 20))):
        a, b = sorted(random.choices(range(len(text) + 1), k=2))
        text = random.choice(
            (
                lambda a=a, b=b, t=text: t[:a],
                lambda a=a, b=b, t=text: t[:a] + t[min(b, a + 20) :],
                lambda a=a, b=b, t=text: t[:a] + random.choice(SNIPPETS) + t[a:],
                lambda a=a, b=b, t=text: t[:a] + t[a : a + 1].swapcase() + t[a + 1 :],
                lambda a=a, b=b, t=text: t[:a] + chr(random.randrange(128)) + t[a + 1 :],
                lambda a=a, b=b, t=text: t[:b] + t[a:b] + t[b:],
                lambda a=a, b=b, t=text: t[:a] + t[a:b][::-1] + t[b:],
            )
        )()[:50_000]
    return text


def _tests(random: Random, *, large: bool = False) -> tuple[IoTest, ...]:
    return tuple(IoTest(_input(random, large=large), _output(random)) for _ in range(random.choice((1, 1, 2, 5))))


def _input(random: Random, *, large: bool) -> str:
    size = random.choice((0, 1, 100, 1 << 22 if large and random.random() < 0.3 else 5000))
    return random.choice(
        (
            lambda: "1 2\n",
            lambda: "x" * size,
            lambda: "\n" * size,
            lambda: "7 " * (size // 2),
            lambda: random.randbytes(size).decode("latin-1"),
            lambda: random.randbytes(size).decode("utf-8", "surrogateescape"),
            lambda: " ".join(str(random.getrandbits(70)) for _ in range(size // 20)),
            lambda: "\0" * size,
            lambda: "\ud800\n" * (size // 4),
        )
    )()


def _output(random: Random) -> str:
    return random.choice(("3\n", "", "2432902008176640000", "x", "1 2 3", "nan", "1e999", _garbage(random, 50)))


def _checker(random: Random) -> Checker:
    name = random.choice(("tokens", "tokens", "exact", "floats", "caseless", "unordered"))
    return Checker(name, tolerance=random.choice((0.0, 1e-6, 0.5, 1e300, 5e-324)))  # type: ignore[arg-type]


def _narrow_limits(random: Random) -> Limits:
    """Limits for programs that may not end."""
    return Limits(
        cpu_s=random.choice((0.01, 0.1, 0.5)),
        wall_s=random.choice((None, 0.01, 0.5)),
        memory_mb=random.choice((8, 20, 64, 256)),
        output_mb=random.choice((0.001, 0.1, 16)),
        processes=random.choice((1, 2, 16)),
        file_mb=random.choice((0.0, 0.5)),
        stack_mb=random.choice((None, 1, 8)),
        compile_s=random.choice((0.1, 5.0)),
    )


def _any_limits(random: Random) -> tuple[Limits, bool]:
    """Limits for programs that end, and whether they are too wide to matter."""
    steady = random.random() < 0.6
    low = Limits(cpu_s=20, wall_s=60, memory_mb=256, output_mb=64, processes=8, file_mb=0, stack_mb=8, compile_s=60)

    def between(name: str, least: float, most: float) -> float:
        least = getattr(low, name) if steady else least
        return random.choice(
            (least, most, least * (most / least) ** random.random() if least else most * random.random())
        )

    return Limits(
        cpu_s=between("cpu_s", 0.01, 3600),
        wall_s=between("wall_s", 0.01, 36000),
        memory_mb=int(between("memory_mb", 8, 2**20)),
        output_mb=between("output_mb", 0.001, 1024),
        processes=int(between("processes", 1, 4096)),
        file_mb=between("file_mb", 0, 1024),
        stack_mb=int(between("stack_mb", 1, 2**20)),
        compile_s=between("compile_s", 0.1, 3600),
    ), steady


# Judging ------------------------------------------------------------------------------------------------------------


def run(waiting: Awaitable[T]) -> T:
    async def whole() -> T:
        return await waiting

    return asyncio.run(whole())


async def judged(pool: JudgePool, submissions: Sequence[Submission]) -> list[Judgement | BaseException]:
    """Judge a few at a time, so that queueing does not count against the timeout."""
    turns = asyncio.Semaphore(pool.workers)

    async def one(submission: Submission) -> Judgement:
        async with turns:
            return await asyncio.wait_for(pool.judge(submission), BOUND)

    return await asyncio.gather(*map(one, submissions), return_exceptions=True)


@pytest.fixture(scope="module")
def make() -> Iterator[Callable[[], JudgePool]]:
    pools: list[JudgePool] = []

    def one() -> JudgePool:
        pools.append(JudgePool(cache=cache_root(), workers=4))  # programs that wait use no processor
        return pools[-1]

    yield one
    for pool in pools:
        run(pool.close())


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [made(number) for number in range(CASES)]


@pytest.fixture(scope="module")
def first(make: Callable[[], JudgePool], cases: list[Case]) -> tuple[JudgePool, list[Judgement | BaseException]]:
    pool = make()
    return pool, run(judged(pool, [case.submission for case in cases]))


def shown(number: int, case: Case, found: Any) -> str:
    submission = case.submission
    return f"case {number}: {submission.language} {submission.source[:200]!r} {submission.test_suite.limits}: {found}"[
        :1500
    ]


def test_cases_can_be_repeated(cases: list[Case]) -> None:
    assert [made(number) for number in range(0, CASES, 20)] == cases[::20]


def test_anything_gets_a_judgement(first: Any, cases: list[Case]) -> None:
    wrong = [
        shown(number, case, found)
        for number, (case, found) in enumerate(zip(cases, first[1], strict=True))
        if not isinstance(found, Judgement) or (found.outcome is Outcome.JUDGE_ERROR and not case.faulty)
    ]
    assert wrong == []


def test_judgements_are_consistent(first: Any, cases: list[Case]) -> None:
    for number, (case, found) in enumerate(zip(cases, first[1], strict=True)):
        assert found.total == len(case.submission.test_suite.tests)
        assert [result.test for result in found.results] == list(range(len(found.results)))
        if found.outcome is Outcome.ACCEPTED:
            assert found.passed == found.total, shown(number, case, found)
        if case.submission.stop is Stop.NEVER and found.outcome not in (Outcome.COMPILE_ERROR, Outcome.JUDGE_ERROR):
            assert len(found.results) == found.total, shown(number, case, found)


def test_cases_are_of_many_kinds(first: Any) -> None:
    assert len(Counter(found.outcome for found in first[1])) >= 5


def test_the_judge_is_as_good_as_before(first: Any) -> None:
    after = run(judged(first[0], [RIGHT, RIGHT_CPP]))
    assert [getattr(each, "outcome", each) for each in after] == [Outcome.ACCEPTED] * 2


def test_another_judge_says_the_same(first: Any, make: Callable[[], JudgePool], cases: list[Case]) -> None:
    steady = [(number, case) for number, case in enumerate(cases) if case.steady]
    again = run(judged(make(), [case.submission for _, case in steady]))
    differ = []
    for (number, case), there in zip(steady, again, strict=True):
        here = first[1][number]
        if _end(here) != _end(there):
            differ.append(shown(number, case, f"{here}, then {there}"))
    assert differ == []


def _end(found: Judgement | BaseException) -> object:
    outcome = getattr(found, "outcome", found)
    return "a limit" if outcome in LIMITS else outcome


def test_digests_and_comparisons_agree() -> None:
    """Workers trust digests where the pool would compare; both must agree for any bytes."""
    random = Random(SEED)
    words = [
        b"a",
        b"A",
        b"1",
        b"1.0",
        b"\xff",
        "ß".encode(),
        b"SS",
        b"ss",
        "İ".encode(),
        b"\0",
        b"\xc3",
        b"\x9f",
        b"-0",
        b"No",
        b"NO",
        b"1.",
    ]
    blanks = [b" ", b"\n", b"\r\n", b"\t", b"\x0b", b"\x0c", b"\x1c", "\u00a0".encode(), b"", b"\n\n"]
    for _ in range(3000):
        pieces = [random.choice(words if place % 2 else blanks) for place in range(random.randrange(8))]
        other = list(pieces)
        for _ in range(random.randrange(3)):
            if other:
                place = random.randrange(len(other))
                other[place] = random.choice(blanks if other[place] in blanks else words)
        one, two = b"".join(pieces), b"".join(other)
        for name in ("tokens", "exact", "caseless", "unordered", "floats", "contest"):
            checker = Checker(name)  # type: ignore[arg-type]
            same = normalize(checker, one) == normalize(checker, two)
            accepted = compare(checker, one, two) is None
            assert same == accepted or (accepted and not digest_decides(checker, one)), (name, one, two)
