"""Audits problems solved by a program: judges known-good, known-wrong, mutated and trivial programs."""

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice

from dojang.audit.checker_choices import accepting_checkers
from dojang.audit.findings import Audited, GradedAnswer
from dojang.audit.grading import RecordingJudge, add_grading_findings
from dojang.audit.options import AuditSettings
from dojang.audit.test_suites import statement_findings, test_suite_findings, trivial_pass_rates
from dojang.data.prepare_rows import KnownAnswers
from dojang.programs import Isolation, JudgeInput, Judgement, Stop, Submission, TestSuite
from dojang.protocols import Judge, Task
from dojang.tasks.code import read_reference
from dojang.tasks.mutation import mutants
from dojang.tasks.section import TaskSection
from dojang.tasks.trivial_programs import TrivialProgram
from dojang.types import Outcome, Verdict
from dojang.workflows.grade_with_retries import grade_with_retries, judge_with_retries

__all__ = ["ProgramAudit"]

_LEAST_S, _SLOWER = 1.0, 5.0
"""Time limit of mutated programs: at least this many seconds, or this multiple of a known-good program's time."""


class ProgramAudit:
    """Audits problems; several may run concurrently."""

    def __init__(self, config: TaskSection, judge: Judge, settings: AuditSettings) -> None:
        self._config, self._judge, self._settings = config, judge, settings

    async def audit(self, audited: Audited, known: KnownAnswers) -> None:
        """Judges programs and adds findings."""
        try:
            judge_input = self._config.judge_input(audited.problem)
            reference = read_reference(audited.problem.reference)
        except ValueError as error:
            audited.find("unusable", str(error))
            return
        audited.findings += test_suite_findings(reference, judge_input.test_suite, self._settings.min_tests)
        audited.findings += statement_findings(audited.problem, judge_input.test_suite)
        await _Session(audited, judge_input, self._config, self._judge, self._settings).run(known)
        add_grading_findings(audited, self._settings, judge_input.test_suite.limits.cpu_s)


class _Session:
    """Grades the answers to one problem, one after the other."""

    def __init__(
        self, audited: Audited, judge_input: JudgeInput, config: TaskSection, judge: Judge, settings: AuditSettings
    ) -> None:
        self._audited, self._judge_input, self._settings = audited, judge_input, settings
        self._recorder = RecordingJudge(judge)
        self._task: Task = config.make({"audit": [audited.problem]}, self._recorder)

    async def run(self, known: KnownAnswers) -> None:
        good = await self._solutions(known.good[: self._settings.solutions])
        await self._mistaken(known.bad[: self._settings.solutions], good)
        await self._trivial()

    async def _solutions(self, programs: Iterable[str]) -> str | None:
        """Grades known-good programs; returns one that is accepted."""
        accepted, judgements = None, list[Judgement]()
        for number, program in enumerate(programs):
            answer = await self._grade("known-good", program)
            judgement = self._recorder.last
            await self._try_checkers()
            if answer.full and accepted is None:
                accepted = program
            if judgement is not None:
                judgements.append(judgement)
            for time in range(1, self._settings.repeats if number == 0 else 1):
                await self._grade("again", program, again=time)
        if self._judge_input.test_suite.checker.name != "program" and (test := _disagreement(judgements)) is not None:
            self._audited.find("several_answers", f"known-good programs disagree on test {test}")
        return accepted

    async def _mistaken(self, wrong: Iterable[str], good: str | None) -> None:
        """Grades programs that the data call wrong, and mutated ones."""
        for program in wrong:
            await self._grade("called wrong", program)
            await self._try_checkers()
        called = self._audited.of("called wrong")
        if passed := sum(each.full for each in called):
            self._audited.find("weak_tests", f"{passed} of {len(called)} programs that the data call wrong pass")
        if good is None:
            return
        # Many mutated programs never end: give them less time than a slow solution.
        self._recorder.cpu_s = max(_LEAST_S, _SLOWER * max(each.cpu_s for each in self._audited.of("known-good")))
        for program in islice(mutants(good, self._judge_input.language), self._settings.mutants):
            await self._grade("mutated", program)
        self._recorder.cpu_s = math.inf
        tried = [each for each in self._audited.of("mutated") if each.verdict.outcome is not Outcome.COMPILE_ERROR]
        if passed := sum(each.full for each in tried):
            self._audited.find("weak_tests", f"{passed} of {len(tried)} mutated programs pass")

    async def _trivial(self) -> None:
        """Runs trivial programs whose pass rate needs a run; otherwise the one with the highest pass rate, if high. If
        nothing has been judged yet, runs that one anyway, to check that the problem can be judged at all."""
        first = not self._audited.answers
        known = list(trivial_pass_rates(self._judge_input.test_suite))
        best = max((share for _, share in known if share is not None), default=0.0)
        worth = first or best >= self._settings.guess
        chosen = [program for program, share in known if share is None or (worth and share == best)]
        if best:
            chosen = chosen[:1]
        for program in chosen:
            self._add_findings(await self._run(program))
        if first and chosen:
            for time in range(1, self._settings.repeats):
                await self._run(chosen[0], again=time)

    def _add_findings(self, answer: GradedAnswer) -> None:
        passed, total = answer.verdict.passed, answer.verdict.total
        if answer.full:
            self._audited.find("trivial", f"a program that {answer.kind}")
        elif answer.judged and passed >= self._settings.guess * total:
            self._audited.find("guessable", f"a program that {answer.kind} passes {passed} of {total}")

    async def _run(self, program: TrivialProgram, again: int = 0) -> GradedAnswer:
        """Judges the program without the task, which expects programs in the problem's language."""
        self._recorder.again = again
        suite: TestSuite = self._judge_input.test_suite
        submission = Submission("python3", program.source, suite, Stop.TIME_LIMIT)

        def failure(why: str) -> Judgement:
            return Judgement(Outcome.JUDGE_ERROR, (), len(suite.tests), Isolation.NONE, why)

        judgement = await judge_with_retries(lambda: self._recorder.judge(submission), failure)
        failed = judgement.outcome is Outcome.JUDGE_ERROR
        fraction = judgement.passed / len(suite.tests)
        verdict = Verdict(
            judgement.outcome,
            None if failed else fraction,
            judgement.passed,
            len(suite.tests),
            {} if failed else {"fraction": fraction},
            judgement.detail,
            judgement.seconds,
        )
        return self._note("again" if again else program.name, verdict)

    async def _grade(self, kind: str, program: str, again: int = 0) -> GradedAnswer:
        """Grades with the task, like a completion of a model."""
        self._recorder.last, self._recorder.again = None, again
        verdict = await grade_with_retries(
            self._task, self._audited.problem, _fenced(program, self._judge_input.language)
        )
        return self._note(kind, verdict)

    async def _try_checkers(self) -> None:
        """Records which checkers accept the program graded last."""
        judgement, submission = self._recorder.last, self._recorder.submitted
        if judgement is not None and submission is not None:
            found = await accepting_checkers(self._recorder, submission, judgement)
            self._audited.answers[-1] = replace(self._audited.answers[-1], checkers=found)

    def _note(self, kind: str, verdict: Verdict) -> GradedAnswer:
        results = self._recorder.last.results if self._recorder.last else ()
        # Mutated programs may print much; the beginning shows why they fail.
        short = replace(verdict, detail=verdict.detail[:300])
        answer = GradedAnswer(kind, short, max((each.cpu_s for each in results), default=0.0))
        self._audited.answers.append(answer)
        return answer


def _fenced(program: str, language: str) -> str:
    longest = max((len(run) for run in re.findall("`+", program)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{'python' if language == 'python3' else 'cpp'}\n{program.rstrip()}\n{fence}\n"


def _disagreement(judgements: Iterable[Judgement]) -> int | None:
    """Returns a test that one program passes and another fails with a wrong answer."""
    passed, otherwise = set[int](), set[int]()
    for judgement in judgements:
        passed |= {result.test for result in judgement.results if result.outcome is Outcome.ACCEPTED}
        otherwise |= {result.test for result in judgement.results if result.outcome is Outcome.WRONG}
    return min(passed & otherwise, default=None)
