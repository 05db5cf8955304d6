"""Feedback on a program that was not accepted, without data of hidden tests.

A program can print its input, also in the message of an exception, and so tell its next version what the hidden tests
are. So of a hidden test only the outcome, the exit code or signal, and the line and built-in type of an exception are
told. Compiler messages know no test. Public tests are part of the problem and shown in full.
"""

import builtins
import re
from collections.abc import Sequence

from dojang.environments.tools import shortened
from dojang.programs import CallTest, IoTest, Judgement
from dojang.tasks.code import CodeReference
from dojang.types import Outcome, TestResult, Verdict

__all__ = ["describe_failure"]

_MOST_CHARS = 1000
"""Longest text of a test or of an error."""
_FRAME = re.compile(r'^  File "[^"]*main\.py", line (\d{1,6}),', re.MULTILINE)
_EXCEPTION = re.compile(r"^([A-Za-z]{1,40})(?::|$)")
_NAMES: dict[Outcome, str] = {
    Outcome.WRONG: "wrong answer",
    Outcome.NO_ANSWER: "there is no program in the reply",
    Outcome.COMPILE_ERROR: "it does not compile",
    Outcome.RUNTIME_ERROR: "it ended with an error",
    Outcome.TIME_LIMIT: "it exceeded the time limit",
    Outcome.MEMORY_LIMIT: "it exceeded the memory limit",
    Outcome.OUTPUT_LIMIT: "it printed too much",
}


def describe_failure(
    verdict: Verdict, reference: CodeReference, public: Judgement | None, hidden: Sequence[IoTest | CallTest]
) -> str:
    """Returns the feedback. `public`: the program on the public tests; `hidden`: tests that may be shown, if any."""
    lines = [f"The program was not accepted: {_NAMES.get(verdict.outcome, verdict.outcome.value)}."]
    if verdict.outcome in (Outcome.NO_ANSWER, Outcome.COMPILE_ERROR):
        return "\n".join([*lines, _cut(verdict.detail)])
    if public is not None and (failed := public.first_failure) is not None:
        return "\n".join([*lines, "It fails a public test.", *_shown(reference.public[failed.test], failed)])
    if public is not None:
        lines.append("It passes the public tests, but not all hidden ones.")
    failed = next((each for each in verdict.tests if each.outcome is not Outcome.ACCEPTED), None)
    if failed is not None and failed.test < len(hidden):
        return "\n".join([*lines, *_shown(hidden[failed.test], failed)])
    if failed is not None and (words := _safe_error(failed, reference)):
        lines.append(words)
    return "\n".join(lines)


def _shown(test: IoTest | CallTest, result: TestResult) -> list[str]:
    """A test in full, with what the program did."""
    if isinstance(test, CallTest):
        return ["Test:", _cut(test.code), "Result:", _cut(result.detail or result.errors)]
    shown = ["Input:", _cut(test.input), "Expected output:", _cut(test.output), "Output of the program:"]
    shown.append(_cut(result.output))
    if result.outcome is not Outcome.WRONG:
        shown += ["Error:", _cut("\n".join(filter(None, [result.detail, result.errors])))]
    return shown


def _safe_error(failed: TestResult, reference: CodeReference) -> str:
    """Type and line of an exception, the signal or the exit code: nothing in which a program can put much data."""
    if failed.outcome is not Outcome.RUNTIME_ERROR:
        return ""
    last = failed.errors.rstrip().rpartition("\n")[2] or failed.detail
    named = _EXCEPTION.match(last)
    kind = getattr(builtins, named[1], None) if named else None
    if named is not None and isinstance(kind, type) and issubclass(kind, BaseException):
        before = reference.prefix.count("\n") + 1 if reference.prefix else 0
        at = [int(each) - before for each in _FRAME.findall(failed.errors)][-1:]
        return f"{named[1]} in line {at[0]} of the program." if at and at[0] > 0 else f"{named[1]}."
    if failed.signal:
        return f"Signal {failed.signal}."
    return "" if failed.exit_code is None else f"Exit code {failed.exit_code}."


def _cut(text: str) -> str:
    return shortened(text.strip("\n"), _MOST_CHARS) or "(nothing)"
