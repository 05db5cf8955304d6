"""Static checks of tests, without running a program: their number, duplicates, contradictions, and the pass rates of
trivial programs."""

import re
from collections.abc import Iterator

from dojang.audit.findings import Finding
from dojang.build.multiple_answers import contradiction, stated
from dojang.data.overlap import statement
from dojang.data.statement_rules import suspicions
from dojang.judge.checkers import compare
from dojang.programs import IoTest, TestSuite, encoded
from dojang.tasks.code import CodeReference
from dojang.tasks.trivial_programs import TrivialProgram, checks, trivial_programs
from dojang.types import Problem

__all__ = ["statement_findings", "test_suite_findings", "trivial_pass_rates"]

_LENIENT = {"tolerance": "floats", "any_case": "caseless"}
"""Checker that fits each allowance of a statement; a checker program may fit any."""
_WORD = re.compile(r"[A-Za-z]+")
_DECIMAL = re.compile(r"\d\.\d")


def test_suite_findings(reference: CodeReference, suite: TestSuite, min_tests: int) -> Iterator[Finding]:
    """Yields defects of the tests. Looks for contradictions in all tests, not only in the selected ones."""
    count = sum(map(checks, suite.tests))
    if count < min_tests:
        yield Finding("few_tests", f"{count}, fewer than {min_tests}")
    repeated = len(suite.tests) - len(set(suite.tests))
    if repeated:
        yield Finding("duplicate_tests", f"{repeated} of {len(suite.tests)}")
    shown = set(reference.public)
    if reference.public and (hidden := [test for test in reference.private if test in shown]):
        yield Finding("shown_tests", f"{len(hidden)} of {len(reference.private)} hidden tests")
    everything = (*reference.public, *reference.private)
    if found := contradiction(everything, suite.checker):
        yield Finding("contradicting_tests", found)
        yield Finding("several_answers", found)


def statement_findings(problem: Problem, suite: TestSuite) -> Iterator[Finding]:
    """Yields allowances of the statement that the checker does not accept."""
    if not any(isinstance(test, IoTest) for test in suite.tests):
        return
    if said := stated(problem, suite.tests, suite.checker):
        yield Finding("several_answers", said)
    for name, words in suspicions(statement(problem)):
        if (
            name in _LENIENT
            and suite.checker.name not in ("program", _LENIENT[name])
            and not _contest_covers(name, suite)
        ):
            yield Finding(name, words)


def _contest_covers(name: str, suite: TestSuite) -> bool:
    """Returns whether the contest checker accepts all that the statement allows: rounding of decimals, and any case of
    yes and no."""
    outputs = [test.output for test in suite.tests if isinstance(test, IoTest)]
    if suite.checker.name != "contest":
        return False
    if name == "tolerance":
        return all(_DECIMAL.search(output) for output in outputs)
    return all(word.lower() in ("yes", "no") for output in outputs for word in _WORD.findall(output))


def trivial_pass_rates(suite: TestSuite) -> Iterator[tuple[TrivialProgram, float | None]]:
    """Yields trivial programs with the share of tests each passes; None if that needs a run."""
    texts = [test for test in suite.tests if isinstance(test, IoTest)]
    for program in trivial_programs(suite.tests):
        if program.output is None or suite.checker.name == "program" or len(texts) < len(suite.tests):
            yield program, None
            continue
        passed = sum(
            compare(suite.checker, encoded(test.output), encoded(program.output(test.input))) is None for test in texts
        )
        yield program, passed / len(texts)
