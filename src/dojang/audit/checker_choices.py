"""Compares the choices of task.checker on programs known to be correct or wrong.

Judges a program again only if that can change the verdict: every choice accepts what `tokens` accepts, and none accepts
a program that crashes or exceeds its time limit.
"""

from collections.abc import Mapping
from dataclasses import replace

from dojang.programs import Checker, CheckerName, IoTest, Judgement, Submission
from dojang.protocols import Judge
from dojang.types import Outcome

__all__ = ["CHOICES", "accepting_checkers"]

_STRICTEST: CheckerName = "tokens"
CHOICES: tuple[CheckerName, ...] = (_STRICTEST, "contest", "floats", "caseless")


async def accepting_checkers(judge: Judge, submission: Submission, judgement: Judgement) -> Mapping[str, bool]:
    """Returns whether each choice accepts the program; empty if the problem does not use these checkers, or the judge
    failed. `judgement` is the judgement of the unchanged submission."""
    suite = submission.test_suite
    if suite.checker.name == "program" or not all(isinstance(test, IoTest) for test in suite.tests):
        return {}
    if judgement.outcome is Outcome.JUDGE_ERROR:
        return {}
    outcomes = {result.outcome for result in judgement.results}
    if not outcomes or outcomes - {Outcome.ACCEPTED, Outcome.WRONG}:
        return dict.fromkeys(CHOICES, False)
    found: dict[str, bool] = {}
    if suite.checker.name in CHOICES:
        found[suite.checker.name] = judgement.outcome is Outcome.ACCEPTED
    for name in CHOICES:
        if found.get(_STRICTEST):
            return dict.fromkeys(CHOICES, True)
        if name not in found:
            checker = Checker(name, suite.checker.tolerance)
            again = await judge.judge(replace(submission, test_suite=replace(suite, checker=checker)))
            if again.outcome is Outcome.JUDGE_ERROR:
                return {}
            found[name] = again.outcome is Outcome.ACCEPTED
    return {name: found[name] for name in CHOICES}
