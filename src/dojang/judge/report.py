"""Formats a judgement as text: verdict, resources used, and the first failing test, cut to the screen."""

from collections import Counter
from collections.abc import Iterator

from dojang.judge.output_diff import Line, difference, truncated
from dojang.programs import CallTest, Judgement, TestResult, TestSuite
from dojang.types import Outcome

__all__ = ["report", "words"]

INPUT_LINES = 12
OUTPUT_LINES = 12
ERROR_LINES = 15
MESSAGE_LINES = 40
CODE_LINES = 16


def report(judgement: Judgement, suite: TestSuite, printed: str | None, width: int) -> Iterator[Line]:
    """Yield the report's lines. `printed`: complete output of the first failing test, if the judgement keeps only
    part."""
    style = "bold green" if judgement.outcome is Outcome.ACCEPTED else "bold red"
    yield Line(f"{words(judgement.outcome)}: {_counts(judgement)}", style)
    yield Line(_costs(judgement, suite))
    if not judgement.results:
        yield Line("")
        yield from _block("messages", truncated(judgement.detail, MESSAGE_LINES, 2 * width))
    elif failure := judgement.first_failure:
        yield Line("")
        yield Line(f"first failure: test {failure.test} (counting from 0): {_reason(failure)}", "bold")
        yield from _shown(failure, suite, failure.output if printed is None else printed, width)


def words(outcome: Outcome) -> str:
    return outcome.replace("_", " ")


def _counts(judgement: Judgement) -> str:
    if not judgement.results:
        return "no test ran"
    text = f"{judgement.passed} of {judgement.total} tests passed"
    failures = Counter(result.outcome for result in judgement.results if result.outcome is not Outcome.ACCEPTED)
    listed = [f"{count} {words(outcome)}" for outcome, count in failures.items()]
    if left_out := judgement.total - len(judgement.results):
        listed.append(f"{left_out} not run")
    return f"{text} ({', '.join(listed)})" if len(listed) > 1 else text


def _costs(judgement: Judgement, suite: TestSuite) -> str:
    parts = [f"isolation {judgement.isolation}"]
    if judgement.results:
        most_time = max(result.cpu_s for result in judgement.results)
        most_memory = max(result.memory_mb for result in judgement.results)
        parts[:0] = [
            f"CPU time up to {most_time:.3f} s of {suite.limits.cpu_s:g} s",
            f"memory up to {most_memory:.1f} MB of {suite.limits.memory_mb} MB",
        ]
    return ", ".join(parts)


def _reason(result: TestResult) -> str:
    reason = " ".join(line.text for line in truncated(result.detail.replace("\n", " "), 1, 400))
    return f"{words(result.outcome)}, {reason}" if reason else words(result.outcome)


def _shown(result: TestResult, suite: TestSuite, printed: str, width: int) -> Iterator[Line]:
    test = suite.tests[result.test]
    if isinstance(test, CallTest):
        # The assertion is at the end of a test, after its definitions.
        yield from _block("test", truncated(test.code, CODE_LINES, width, end=True))
    else:
        yield from _block("input", truncated(test.input, INPUT_LINES, width))
    if isinstance(test, CallTest) or result.outcome is not Outcome.WRONG:
        if printed:
            yield from _block("printed (beginning)", truncated(printed, OUTPUT_LINES, width))
    else:
        yield from _block("difference (- expected, + printed)", difference(suite.checker, test.output, printed, width))
    if result.errors:
        yield from _block("standard error", truncated(result.errors, ERROR_LINES, width, end=True))


def _block(title: str, lines: Iterator[Line]) -> Iterator[Line]:
    yield Line(title, "bold")
    empty = True
    for line in lines:
        empty = False
        yield Line("  " + line.text, line.style)
    if empty:
        yield Line("  (nothing)", "dim")
