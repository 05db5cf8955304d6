"""Problems that are solved by a program: known-good ones, ones with a mistake in them, and ones that solve nothing."""

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

from dojang.audit.checker_choices import accepting_checkers
from dojang.audit.findings import Attempt, Audited, Thoroughness
from dojang.audit.grading import Listener, conclude
from dojang.audit.test_suites import faults, guesses, wording
from dojang.data.prepare_rows import Known
from dojang.programs import Exam, Isolation, Judgement, Stop, Submission
from dojang.protocols import Judge, Task
from dojang.tasks.code import CodeConfig, Posed, pose, read_reference
from dojang.tasks.mutation import mutants
from dojang.tasks.trivial_programs import Trivial
from dojang.types import Outcome, Verdict
from dojang.workflows.grade_with_retries import graded, insist

__all__ = ["ProgramAudit"]

_LEAST_S, _SLOWER = 1.0, 5.0
"""Seconds a mutated program is given, and how much slower than a known-good one it may be."""


class ProgramAudit:
    """Audits one such problem after the other; several may be under way."""

    def __init__(self, config: CodeConfig, judge: Judge, how: Thoroughness) -> None:
        self._config, self._judge, self._how = config, judge, how

    async def audit(self, audited: Audited, known: Known) -> None:
        """Judge programs and note what is found."""
        try:
            posed = pose(self._config, audited.problem)
            reference = read_reference(audited.problem.reference)
        except ValueError as error:
            audited.find("unusable", str(error))
            return
        audited.findings += faults(reference, posed.exam, self._how.min_tests)
        audited.findings += wording(audited.problem, posed.exam)
        await _Session(audited, posed, self._config, self._judge, self._how).run(known)
        conclude(audited, self._how, posed.exam.limits.cpu_s)


class _Session:
    """The attempts at one problem, one after the other."""

    def __init__(self, audited: Audited, posed: Posed, config: CodeConfig, judge: Judge, how: Thoroughness) -> None:
        self._audited, self._posed, self._how = audited, posed, how
        self._listener = Listener(judge)
        self._task: Task = config.make({"audit": [audited.problem]}, self._listener)

    async def run(self, known: Known) -> None:
        good = await self._solutions(known.good[: self._how.solutions])
        await self._mistaken(known.bad[: self._how.solutions], good)
        await self._trivial()

    async def _solutions(self, programs: Iterable[str]) -> str | None:
        """Known-good programs; returns one that is accepted."""
        accepted, heard = None, list[Judgement]()
        for number, program in enumerate(programs):
            attempt = await self._grade("known-good", program)
            judgement = self._listener.last
            await self._try_checkers()
            if attempt.full and accepted is None:
                accepted = program
            if judgement is not None:
                heard.append(judgement)
            for time in range(1, self._how.repeats if number == 0 else 1):
                await self._grade("again", program, again=time)
        if self._posed.exam.checker.name != "program" and (test := _disagreement(heard)) is not None:
            self._audited.find("several_answers", f"known-good programs disagree on test {test}")
        return accepted

    async def _mistaken(self, wrong: Iterable[str], good: str | None) -> None:
        """Programs that the data call wrong, and mutated ones."""
        for program in wrong:
            await self._grade("called wrong", program)
            await self._try_checkers()
        called = self._audited.of("called wrong")
        if passed := sum(each.full for each in called):
            self._audited.find("weak_tests", f"{passed} of {len(called)} programs that the data call wrong pass")
        if good is None:
            return
        # Many a mutated program never ends; that need not be waited for as long as a slow solution is.
        self._listener.cpu_s = max(_LEAST_S, _SLOWER * max(each.cpu_s for each in self._audited.of("known-good")))
        for program in islice(mutants(good, self._posed.language), self._how.mutants):
            await self._grade("mutated", program)
        self._listener.cpu_s = math.inf
        tried = [each for each in self._audited.of("mutated") if each.verdict.outcome is not Outcome.COMPILE_ERROR]
        if passed := sum(each.full for each in tried):
            self._audited.find("weak_tests", f"{passed} of {len(tried)} mutated programs pass")

    async def _trivial(self) -> None:
        """Run what cannot be told without running it, or else what passes most tests, if those are many. If nothing
        has been judged yet, that one is run anyway, to see that the problem can be judged at all."""
        first = not self._audited.attempts
        known = list(guesses(self._posed.exam))
        best = max((share for _, share in known if share is not None), default=0.0)
        worth = first or best >= self._how.guess
        chosen = [program for program, share in known if share is None or (worth and share == best)]
        if best:
            chosen = chosen[:1]
        for program in chosen:
            self._tell(await self._run(program))
        if first and chosen:
            for time in range(1, self._how.repeats):
                await self._run(chosen[0], again=time)

    def _tell(self, attempt: Attempt) -> None:
        passed, total = attempt.verdict.passed, attempt.verdict.total
        if attempt.full:
            self._audited.find("trivial", f"a program that {attempt.kind}")
        elif attempt.judged and passed >= self._how.guess * total:
            self._audited.find("guessable", f"a program that {attempt.kind} passes {passed} of {total}")

    async def _run(self, program: Trivial, again: int = 0) -> Attempt:
        """Past the task, which wants programs in the problem's own language."""
        self._listener.again = again
        exam: Exam = self._posed.exam
        submission = Submission("python3", program.source, exam, Stop.TIME_LIMIT)

        def lost(why: str) -> Judgement:
            return Judgement(Outcome.JUDGE_ERROR, (), len(exam.tests), Isolation.NONE, why)

        judgement = await insist(lambda: self._listener.judge(submission), lost)
        failed = judgement.outcome is Outcome.JUDGE_ERROR
        fraction = judgement.passed / len(exam.tests)
        verdict = Verdict(
            judgement.outcome,
            None if failed else fraction,
            judgement.passed,
            len(exam.tests),
            {} if failed else {"fraction": fraction},
            judgement.detail,
            judgement.seconds,
        )
        return self._note("again" if again else program.name, verdict)

    async def _grade(self, kind: str, program: str, again: int = 0) -> Attempt:
        """Through the task, as an answer that a model could have written."""
        self._listener.last, self._listener.again = None, again
        verdict = await graded(self._task, self._audited.problem, _fenced(program, self._posed.language))
        return self._note(kind, verdict)

    async def _try_checkers(self) -> None:
        """Notes which checkers accept the program that was graded last."""
        judgement, submission = self._listener.last, self._listener.submitted
        if judgement is not None and submission is not None:
            found = await accepting_checkers(self._listener, submission, judgement)
            self._audited.attempts[-1] = replace(self._audited.attempts[-1], checkers=found)

    def _note(self, kind: str, verdict: Verdict) -> Attempt:
        ran = self._listener.last.ran if self._listener.last else ()
        # Mutated programs may say much; the first line is enough to know why they fail.
        short = replace(verdict, detail=verdict.detail[:300])
        attempt = Attempt(kind, short, max((each.cpu_s for each in ran), default=0.0))
        self._audited.attempts.append(attempt)
        return attempt


def _fenced(program: str, language: str) -> str:
    longest = max((len(run) for run in re.findall("`+", program)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{'python' if language == 'python3' else 'cpp'}\n{program.rstrip()}\n{fence}\n"


def _disagreement(heard: Iterable[Judgement]) -> int | None:
    """A test that one program passes and another answers otherwise."""
    passed, otherwise = set[int](), set[int]()
    for judgement in heard:
        passed |= {ran.test for ran in judgement.ran if ran.outcome is Outcome.ACCEPTED}
        otherwise |= {ran.test for ran in judgement.ran if ran.outcome is Outcome.WRONG}
    return min(passed & otherwise, default=None)
