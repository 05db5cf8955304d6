"""What is found about problems that programs solve."""

import asyncio
import re
from io import StringIO
from typing import Any

import pytest
from audit_fakes import FakeJudge, problem, sums
from rich.console import Console

from dojang.audit.findings import Audited, Thoroughness
from dojang.audit.programs import ProgramAudit
from dojang.audit.report import as_json, figures, show
from dojang.data.prepare_rows import Known
from dojang.programs import Submission
from dojang.tasks.code import CodeConfig
from dojang.types import Outcome

AC, WA, TLE, IE = Outcome.ACCEPTED, Outcome.WRONG, Outcome.TIME_LIMIT, Outcome.JUDGE_ERROR
GOOD = "a, b = map(int, input().split())\nprint(a + b)"


def right(submission: Submission) -> bool:
    """Whether it is the known-good program, whatever else is around it."""
    return submission.source.strip() == GOOD


def honest(submission: Submission, _: int) -> list[Outcome]:
    return [AC if right(submission) else WA] * len(submission.exam.tests)


def audit(
    reference: Any, judge: FakeJudge | None = None, *, known: Known | None = None, statement: str = "", **how: Any
) -> Audited:
    audited = Audited(problem(reference, statement or "Add the numbers."), "train")
    auditor = ProgramAudit(CodeConfig(), judge or FakeJudge(honest), Thoroughness(**how))
    asyncio.run(auditor.audit(audited, Known((GOOD,)) if known is None else known))
    return audited


def details(audited: Audited, name: str) -> list[str]:
    return [each.detail for each in audited.findings if each.name == name]


def test_a_good_problem_has_no_findings() -> None:
    audited = audit(sums())
    assert audited.findings == []
    assert [each.kind for each in audited.attempts] == ["known-good", "again", "mutated"]
    assert [each.full for each in audited.attempts] == [True, True, False]


def test_the_same_program_is_judged_anew() -> None:
    judge = FakeJudge(honest)
    audit(sums(), judge, repeats=4)
    sources = [each.source for each in judge.seen if right(each)]
    assert len(set(sources)) == len(sources) == 4, "a pool would remember equal ones"


def test_known_good_answers_that_are_refused() -> None:
    audited = audit(sums(), FakeJudge(lambda submission, _: [AC] * 5 + [WA]))
    (detail,) = details(audited, "refused")
    assert detail == "1 of 1: wrong, as it was told"
    assert audited.of("mutated") == [], "there is nothing right to be changed"


def test_a_problem_that_cannot_be_judged() -> None:
    assert audit({"private": []}).names == {"unusable"}
    assert audit("not tests at all").names == {"unusable"}
    assert audit(sums(), FakeJudge(lambda submission, _: [IE])).names == {"unusable"}


def test_failures_of_the_machinery_are_not_wrong_answers() -> None:
    judge = FakeJudge(lambda submission, _: [AC] * 6 if right(submission) else [IE])
    audited = audit(sums(), judge)
    assert audited.names == {"unjudged"}
    assert len(judge.seen) == 2 + 3, "it was tried three times"
    assert [each.judged for each in audited.attempts] == [True, True, False]


def test_a_failure_that_passes_is_forgotten() -> None:
    assert audit(sums(), FakeJudge(lambda each, before: [IE] if before == 0 else honest(each, before))).findings == []


def test_a_program_that_solves_nothing_is_tried_again_as_well() -> None:
    judge = FakeJudge(lambda submission, before: [WA if before > 1 else IE] * len(submission.exam.tests))
    audited = audit(sums(), judge, known=Known(), repeats=1)
    assert [each.judged for each in audited.attempts] == [True]
    assert len(judge.seen) == 3


def test_verdicts_that_differ() -> None:
    def says(submission: Submission, before: int) -> list[Outcome]:
        return [AC] * (6 if before != 1 else 5) + [TLE] * (before == 1)

    audited = audit(sums(), FakeJudge(says), mutants=0)
    assert details(audited, "flaky") == ["judged 2 times: accepted with 6 passed or time_limit with 5 passed"]


def test_slow_programs() -> None:
    limits = {"cpu_s": 2.0}
    assert "slow" not in audit(sums(limits=limits), FakeJudge(honest, cpu_s=0.9)).names
    assert details(audit(sums(limits=limits), FakeJudge(honest, cpu_s=1.1)), "slow") == ["1.10 s of 2 s"]


def test_mutated_programs_that_pass() -> None:
    audited = audit(sums(), FakeJudge(lambda submission, _: [AC] * 6))
    assert details(audited, "weak_tests") == ["1 of 1 mutated programs pass"]


def test_mutated_programs_are_not_waited_for() -> None:
    judge = FakeJudge(honest)
    audit(sums(limits={"cpu_s": 10.0}), judge)
    assert [each.exam.limits.cpu_s for each in judge.seen] == [10.0, 10.0, 1.0]


def test_programs_that_the_data_call_wrong() -> None:
    audited = audit(sums(), FakeJudge(lambda submission, _: [AC] * 6), known=Known((), ("print(1)", "print(2)")))
    assert details(audited, "weak_tests") == ["2 of 2 programs that the data call wrong pass"]


def test_known_good_programs_that_disagree() -> None:
    def says(submission: Submission, _: int) -> list[Outcome]:
        return [AC] * 6 if right(submission) else [AC, AC, WA, AC, AC, AC]

    audited = audit(sums(), FakeJudge(says), known=Known((GOOD, "print(0)")), mutants=0)
    assert details(audited, "several_answers") == ["known-good programs disagree on test 2"]
    assert "refused" in audited.names


def by_checker(submission: Submission, _: int) -> list[Outcome]:
    """A rounding program is right for contest and floats, one in capitals for contest and caseless."""
    suits = {"rounds": ("contest", "floats"), "shouts": ("contest", "caseless"), "exact": ("tokens",), "off": ()}
    if submission.source.strip() == "crashes":
        return [Outcome.RUNTIME_ERROR] * len(submission.exam.tests)
    (names,) = (names for word, names in suits.items() if word in submission.source)
    return [AC if submission.exam.checker.name in names else WA] * len(submission.exam.tests)


def test_each_choice_of_checker_is_tried() -> None:
    judge = FakeJudge(by_checker)
    reference = sums(checker={"name": "contest"})
    known = Known(("rounds", "shouts", "exact", "crashes"), ("off",))
    audited = audit(reference, judge, known=known, solutions=4, mutants=0, repeats=1)
    told = figures([audited])["checkers"]
    assert list(told) == ["tokens", "contest", "floats", "caseless"]
    assert [each["known_good_accepted"] for each in told.values()] == [1, 3, 2, 2]
    assert [each["known_wrong_accepted"] for each in told.values()] == [0, 0, 0, 0]
    assert {(each["known_good"], each["known_wrong"]) for each in told.values()} == {(4, 1)}
    tried = [(each.source.strip(), each.exam.checker.name) for each in judge.seen]
    assert tried.count(("exact", "floats")) == 0, "what tokens accepts need not be run again"
    assert tried.count(("crashes", "tokens")) == 0, "nor what no checker can accept"
    console = Console(file=StringIO(), width=120)
    show(console, as_json({}, [audited], complete=True), [audited])
    assert re.search(r"contest +3/4 +0/1", console.file.getvalue())


def test_checkers_are_not_tried_where_they_do_not_matter() -> None:
    call = {"code": "assert candidate(1) == 2", "function": "f"}
    assert figures([audit({"private": [call] * 6, "language": "python3"})])["checkers"] == {}
    program = {"name": "program", "language": "python3", "source": "pass"}
    assert figures([audit(sums(checker=program))])["checkers"] == {}


def test_contest_checker_covers_what_statements_allow() -> None:
    rounded = "The absolute or relative error must not exceed 0.001."
    any_case = "You can print each letter in any case."
    tests = [{"input": f"{at} {at}", "output": f"{at}.5\nYes"} for at in range(6)]
    reference = {"private": tests, "language": "python3", "checker": {"name": "contest"}}
    assert audit(reference, statement=f"{rounded} {any_case}").findings == []
    assert audit(sums(checker={"name": "contest"}), statement=rounded).names == {"tolerance"}, "integers are exact"
    shouted = [{**test, "output": f"Alice {at}"} for at, test in enumerate(tests)]
    assert audit({**reference, "private": shouted}, statement=any_case).names == {"any_case"}


def test_statements_are_read_where_texts_are_compared() -> None:
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
    assert details(audited, "few_tests") == ["2 where 5 were wanted"]
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
def test_programs_that_solve_nothing(outputs: list[str], name: str, words: str) -> None:
    tests = [{"input": f"in {at}", "output": each} for at, each in enumerate(outputs)]

    def says(submission: Submission, _: int) -> list[Outcome]:
        return [AC] * (6 if name == "trivial" else 5) + [WA] * (name == "guessable")

    audited = audit({"private": tests, "language": "cpp17"}, FakeJudge(says), known=Known())
    assert details(audited, name) == [words]
    assert audited.attempts[0].kind == words.removeprefix("a program that ").partition(" passes")[0]
    assert audited.attempts[1].kind == "again", "something is judged twice even if nothing is known"


def test_without_known_good_programs_one_is_judged_all_the_same() -> None:
    audited = audit(sums(), FakeJudge(lambda submission, before: [WA] * 6), known=Known())
    assert audited.findings == []
    assert len(audited.attempts) == 2
