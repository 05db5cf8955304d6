"""Finds problems with several right answers, which comparing outputs with the expected one judges wrongly.

A problem is suspected if its statement allows several answers ("print any of them", "in any order"), or if its tests
expect different outputs for the same input. Problems with a checker program, or whose checker accepts what the
statement allows, are not suspected. `dojang data audit` also runs known-good programs and reports those that disagree.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError, DataError
from dojang.data.overlap import statement
from dojang.data.statement_rules import suspicions
from dojang.judge.checkers import compare
from dojang.programs import CallTest, Checker, IoTest, encoded
from dojang.tasks.code import read_reference
from dojang.tasks.section import TaskSection
from dojang.types import Problem

__all__ = ["contradiction", "has_multiple_answers", "leave_out", "stated"]


def leave_out(config: RunConfig, problems: Sequence[Problem]) -> Sequence[Problem]:
    """Drops suspected training problems if data.filter_multiple_answers is set. Raises DataError if none is left."""
    if not config.data.filter_multiple_answers:
        return problems
    if not config.task.runs_programs:
        raise ConfigError(
            f"data.filter_multiple_answers=true needs tests of programs, which task.name={config.task.name} does "
            "not have; leave it out, or use task.name=code"
        )
    kept = [problem for problem in problems if not has_multiple_answers(config.task, problem)]
    if problems and not kept:
        raise DataError(
            f"data.filter_multiple_answers leaves no training problem: all {len(problems):,} may have several right "
            "answers; give them checker programs (docs/judge.md), or set data.filter_multiple_answers=false"
        )
    return kept


def has_multiple_answers(config: TaskSection, problem: Problem) -> bool:
    """Reports whether the problem is suspected; False if it cannot be judged at all, which another check reports."""
    try:
        checker = config.judge_input(problem).test_suite.checker
        reference = read_reference(problem.reference)
    except ValueError:
        return False
    tests = (*reference.public, *reference.private)
    return bool(stated(problem, tests, checker) or contradiction(tests, checker))


def stated(problem: Problem, tests: Sequence[IoTest | CallTest], checker: Checker) -> str:
    """Phrase of the statement that allows several answers; empty if none, or if the checker accepts them too."""
    if checker.name in ("program", "unordered") or not any(isinstance(test, IoTest) for test in tests):
        return ""
    return dict(suspicions(statement(problem))).get("several_answers", "")


def contradiction(tests: Sequence[IoTest | CallTest], checker: Checker) -> str:
    """Describes two tests with equal input and outputs that the checker tells apart; empty if none."""
    if checker.name == "program":
        return ""
    for given, (first, *more) in _outputs(tests):
        for other in more:
            if compare(checker, encoded(first), encoded(other)) is not None:
                return f"for the input {given[:60]!r}, {first.strip()[:40]!r} and {other.strip()[:40]!r} are expected"
    return ""


def _outputs(tests: Sequence[IoTest | CallTest]) -> Iterator[tuple[str, list[str]]]:
    """Outputs by input, with whitespace of inputs normalized."""
    outputs = defaultdict[str, list[str]](list)
    for test in tests:
        if isinstance(test, IoTest):
            outputs[" ".join(test.input.split())].append(test.output)
    yield from outputs.items()
