"""Audit of problems solved by a program."""

import asyncio
import re
from io import StringIO
from typing import Any

import pytest
from audit_fakes import FakeJudge, problem, sums
from rich.console import Console

from dojang.audit.findings import Audited
from dojang.audit.options import AuditSettings
from dojang.audit.programs import ProgramAudit
from dojang.audit.report import as_json, show, summarize
from dojang.data.prepare_rows import KnownAnswers
from dojang.programs import Submission
from dojang.tasks.code import CodeConfig
from dojang.types import Outcome

AC, WA, TLE, IE = Outcome.ACCEPTED, Outcome.WRONG, Outcome.TIME_LIMIT, Outcome.JUDGE_ERROR
GOOD = "a, b = map(int, input().split())\nprint(a + b)"


def right(submission: Submission) -> bool:
    """Returns whether the source contains the known-good program."""
    return submission.source.strip() == GOOD


def honest(submission: Submission, _: int) -> list[Outcome]:
    return [AC if right(submission) else WA] * len(submission.test_suite.tests)


def audit(
    reference: Any,
    judge: FakeJudge | None = None,
    *,
    known: KnownAnswers | None = None,
    statement: str = "",
    **how: Any,
) -> Audited:
    audited = Audited(problem(reference, statement or "Add the numbers."), "train")
    auditor = ProgramAudit(CodeConfig(), judge or FakeJudge(honest), AuditSettings(**how))
    asyncio.run(auditor.audit(audited, KnownAnswers((GOOD,)) if known is None else known))
    return audited


def details(audited: Audited, name: str) -> list[str]:
    return [each.detail for each in audited.findings if each.name == name]


def test_valid_problem_has_no_findings() -> None:
    audited = audit(sums())
    assert audited.findings == []
    assert [each.kind for each in audited.answers] == ["known-good", "again", "mutated"]
    assert [each.full for each in audited.answers] == [True, True, False]


def test_repeated_judgement_bypasses_the_cache() -> None:
    judge = FakeJudge(honest)
    audit(sums(), judge, repeats=4)
    sources = [each.source for each in judge.seen if right(each)]
    assert len(set(sources)) == len(sources) == 4, "a pool would remember equal ones"


def test_refused_known_good_answers_are_found() -> None:
    audited = audit(sums(), FakeJudge(lambda submission, _: [AC] * 5 + [WA]))
    (detail,) = details(audited, "refused")
    assert detail == "1 of 1: wrong, as it was told"
    assert audited.of("mutated") == [], "there is nothing right to be changed"


def test_unusable_problem_is_found() -> None:
    assert audit({"private": []}).names == {"unusable"}
    assert audit("not tests at all").names == {"unusable"}
    assert audit(sums(), FakeJudge(lambda submission, _: [IE])).names == {"unusable"}


def test_judge_errors_are_not_wrong_answers() -> None:
    judge = FakeJudge(lambda submission, _: [AC] * 6 if right(submission) else [IE])
    audited = audit(sums(), judge)
    assert audited.names == {"unjudged"}
    assert len(judge.seen) == 2 + 3, "it was tried three times"
    assert [each.judged for each in audited.answers] == [True, True, False]


def test_transient_judge_error_is_retried() -> None:
    assert audit(sums(), FakeJudge(lambda each, before: [IE] if before == 0 else honest(each, before))).findings == []


def test_trivial_program_is_repeated() -> None:
    judge = FakeJudge(lambda submission, before: [WA if before > 1 else IE] * len(submission.test_suite.tests))
    audited = audit(sums(), judge, known=KnownAnswers(), repeats=1)
    assert [each.judged for each in audited.answers] == [True]
    assert len(judge.seen) == 3


def test_different_verdicts_are_flaky() -> None:
    def says(submission: Submission, before: int) -> list[Outcome]:
        return [AC] * (6 if before != 1 else 5) + [TLE] * (before == 1)

    audited = audit(sums(), FakeJudge(says), mutants=0)
    assert details(audited, "flaky") == ["judged 2 times: accepted with 6 passed or time_limit with 5 passed"]


def test_slow_program_is_found() -> None:
    limits = {"cpu_s": 2.0}
    assert "slow" not in audit(sums(limits=limits), FakeJudge(honest, cpu_s=0.9)).names
    assert details(audit(sums(limits=limits), FakeJudge(honest, cpu_s=1.1)), "slow") == ["1.10 s of 2 s"]


def test_passing_mutants_are_weak_tests() -> None:
    audited = audit(sums(), FakeJudge(lambda submission, _: [AC] * 6))
    assert details(audited, "weak_tests") == ["1 of 1 mutated programs pass"]


def test_mutants_have_a_shorter_time_limit() -> None:
    judge = FakeJudge(honest)
    audit(sums(limits={"cpu_s": 10.0}), judge)
    assert [each.test_suite.limits.cpu_s for each in judge.seen] == [10.0, 10.0, 1.0]


def test_passing_known_wrong_programs_are_weak_tests() -> None:
    audited = audit(sums(), FakeJudge(lambda submission, _: [AC] * 6), known=KnownAnswers((), ("print(1)", "print(2)")))
    assert details(audited, "weak_tests") == ["2 of 2 programs that the data call wrong pass"]


def test_disagreeing_known_good_programs_mean_several_answers() -> None:
    def says(submission: Submission, _: int) -> list[Outcome]:
        return [AC] * 6 if right(submission) else [AC, AC, WA, AC, AC, AC]

    audited = audit(sums(), FakeJudge(says), known=KnownAnswers((GOOD, "print(0)")), mutants=0)
    assert details(audited, "several_answers") == ["known-good programs disagree on test 2"]
    assert "refused" in audited.names


def by_checker(submission: Submission, _: int) -> list[Outcome]:
    """Accepts a rounding program for contest and floats, and one in capitals for contest and caseless."""
    suits = {"rounds": ("contest", "floats"), "shouts": ("contest", "caseless"), "exact": ("tokens",), "off": ()}
    if submission.source.strip() == "crashes":
        return [Outcome.RUNTIME_ERROR] * len(submission.test_suite.tests)
    (names,) = (names for word, names in suits.items() if word in submission.source)
    return [AC if submission.test_suite.checker.name in names else WA] * len(submission.test_suite.tests)


def test_each_checker_is_compared() -> None:
    judge = FakeJudge(by_checker)
    reference = sums(checker={"name": "contest"})
    known = KnownAnswers(("rounds", "shouts", "exact", "crashes"), ("off",))
    audited = audit(reference, judge, known=known, solutions=4, mutants=0, repeats=1)
    told = summarize([audited])["checkers"]
    assert list(told) == ["tokens", "contest", "floats", "caseless"]
    assert [each["known_good_accepted"] for each in told.values()] == [1, 3, 2, 2]
    assert [each["known_wrong_accepted"] for each in told.values()] == [0, 0, 0, 0]
    assert {(each["known_good"], each["known_wrong"]) for each in told.values()} == {(4, 1)}
    tried = [(each.source.strip(), each.test_suite.checker.name) for each in judge.seen]
    assert tried.count(("exact", "floats")) == 0, "what tokens accepts need not be run again"
    assert tried.count(("crashes", "tokens")) == 0, "nor what no checker can accept"
    console = Console(file=StringIO(), width=120)
    show(console, as_json({}, [audited], complete=True), [audited])
    assert re.search(r"contest +3/4 +0/1", console.file.getvalue())


def test_checkers_are_not_compared_where_unused() -> None:
    call = {"code": "assert candidate(1) == 2", "function": "f"}
    assert summarize([audit({"private": [call] * 6, "language": "python3"})])["checkers"] == {}
    program = {"name": "program", "language": "python3", "source": "pass"}
    assert summarize([audit(sums(checker=program))])["checkers"] == {}


def test_contest_checker_covers_what_statements_allow() -> None:
    rounded = "The absolute or relative error must not exceed 0.001."
    any_case = "You can print each letter in any case."
    tests = [{"input": f"{at} {at}", "output": f"{at}.5\nYes"} for at in range(6)]
    reference = {"private": tests, "language": "python3", "checker": {"name": "contest"}}
    assert audit(reference, statement=f"{rounded} {any_case}").findings == []
    assert audit(sums(checker={"name": "contest"}), statement=rounded).names == {"tolerance"}, "integers are exact"
    shouted = [{**test, "output": f"Alice {at}"} for at, test in enumerate(tests)]
    assert audit({**reference, "private": shouted}, statement=any_case).names == {"any_case"}


def test_statement_allowances_are_found() -> None:
    words = "If there are several answers, print any of them."
    assert audit(sums(), statement=words).names == {"several_answers"}
    program = {"name": "program", "language": "python3", "source": "pass"}
    assert "several_answers" not in audit(sums(checker=program), statement=words).names
    rounded = "The absolute or relative error must not exceed 0.001."
    assert audit(sums(), statement=rounded).names == {"tolerance"}
    assert audit(sums(checker={"name": "floats"}), statement=rounded).findings == []


def test_few_and_repeated_and_shown_tests() -> None:
    test = {"input": "1 4", "output": "5"}
    audited = audit({"private": [test, test], "public": [test], "language": "python3"})
    assert details(audited, "few_tests") == ["2, fewer than 5"]
    assert details(audited, "duplicate_tests") == ["1 of 2"]
    assert details(audited, "shown_tests") == ["2 of 2 hidden tests"]
    assert "few_tests" not in audit(sums(2), min_tests=2).names


def test_contradicting_tests_mean_several_answers() -> None:
    reference = sums(public=[{"input": "0 3", "output": "30"}])
    audited = audit(reference)
    assert audited.names == {"contradicting_tests", "several_answers"}
    assert "'30' and '3' are expected" in details(audited, "contradicting_tests")[0]
    assert audit(sums(public=[{"input": "0 3", "output": " 3\n\n"}])).findings == [], "blanks do not matter"


@pytest.mark.parametrize(
    ("outputs", "name", "words"),
    [
        (["YES"] * 6, "trivial", "a program that always prints 'YES'"),
        (["YES"] * 5 + ["NO"], "guessable", "a program that always prints 'YES' passes 5 of 6"),
        ([f"in {at}" for at in range(6)], "trivial", "a program that echoes its input"),
        ([str(at) for at in range(6)], "trivial", "a program that prints the last word of its input"),
    ],
)
def test_trivial_programs_that_pass_are_found(outputs: list[str], name: str, words: str) -> None:
    tests = [{"input": f"in {at}", "output": each} for at, each in enumerate(outputs)]

    def says(submission: Submission, _: int) -> list[Outcome]:
        return [AC] * (6 if name == "trivial" else 5) + [WA] * (name == "guessable")

    audited = audit({"private": tests, "language": "cpp17"}, FakeJudge(says), known=KnownAnswers())
    assert details(audited, name) == [words]
    assert audited.answers[0].kind == words.removeprefix("a program that ").partition(" passes")[0]
    assert audited.answers[1].kind == "again", "one answer is judged twice even without known answers"


def test_trivial_program_is_judged_without_known_good_ones() -> None:
    audited = audit(sums(), FakeJudge(lambda submission, before: [WA] * 6), known=KnownAnswers())
    assert audited.findings == []
    assert len(audited.answers) == 2
