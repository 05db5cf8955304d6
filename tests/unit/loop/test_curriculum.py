"""The curriculum: which prompts are skipped, and that a run repeats and resumes with it."""

import itertools

import pytest

from dojang.loop.curriculum import Curriculum
from dojang.loop.prompt_sampler import draw_prompts, problem_at
from dojang.types import Group, Message, Outcome, Problem, Sample, Verdict

PROBLEMS = [Problem(f"p/{place}", "p", (Message("user", str(place)),), str(place)) for place in range(40)]


def sample(outcome: Outcome, role: str = "policy") -> Sample:
    verdict = Verdict(outcome, None if outcome is Outcome.JUDGE_ERROR else float(outcome is Outcome.ACCEPTED))
    return Sample([1], [True], [0.0], "", "stop", 0, verdict, role=role)


def group(problem: Problem, *accepted: bool, role: str = "policy") -> Group:
    outcomes = (Outcome.ACCEPTED if each else Outcome.WRONG for each in accepted)
    return Group(problem, 0, tuple(sample(each, role) for each in outcomes))


def share_drawn(curriculum: Curriculum, problem: Problem, visits: int = 4000) -> float:
    return sum(not curriculum.skips(index, problem) for index in range(visits)) / visits


def test_problems_without_a_signal_are_drawn_rarely() -> None:
    unsolved, solved, mixed, new = PROBLEMS[:4]
    curriculum = Curriculum(seed=0, keep=0.1)
    curriculum.observe([group(unsolved, False, False), group(solved, True, True), group(mixed, True, False)])
    assert share_drawn(curriculum, unsolved) == pytest.approx(0.1, abs=0.02)
    assert share_drawn(curriculum, solved) == pytest.approx(0.1, abs=0.02)
    assert share_drawn(curriculum, mixed) == share_drawn(curriculum, new) == 1.0


def test_the_last_visit_counts() -> None:
    curriculum = Curriculum(seed=0, keep=0.1)
    curriculum.observe([group(PROBLEMS[0], False, False)])
    curriculum.observe([group(PROBLEMS[0], False, True)])
    assert share_drawn(curriculum, PROBLEMS[0]) == 1.0


def test_a_group_that_could_not_be_judged_says_nothing() -> None:
    curriculum = Curriculum(seed=0, keep=0.1)
    unjudged = (sample(Outcome.JUDGE_ERROR),)
    curriculum.observe([Group(PROBLEMS[0], 0, (), unjudged)])
    assert curriculum.state() == {}


def test_a_tester_does_not_count() -> None:
    curriculum = Curriculum(seed=0, keep=0.1)
    both = (*group(PROBLEMS[0], True, False, role="coder").samples, *group(PROBLEMS[0], True, role="tester").samples)
    curriculum.observe([Group(PROBLEMS[0], 0, both)])
    assert curriculum.state() == {"p/0": 0.5}


def test_nothing_is_skipped_by_default() -> None:
    curriculum = Curriculum()
    curriculum.observe([group(PROBLEMS[0], False)])
    assert share_drawn(curriculum, PROBLEMS[0]) == 1.0
    assert (curriculum.state(), curriculum.metrics()) == ({}, {})


def test_prompts_are_drawn_in_the_same_order_without_the_skipped_ones() -> None:
    curriculum = Curriculum(seed=3, keep=0.2)
    curriculum.observe(group(each, False) for each in PROBLEMS[:20])
    drawn = draw_prompts(PROBLEMS, 3, 5, 30, curriculum.skips)
    assert len(drawn) == 30
    again = Curriculum(seed=3, keep=0.2)
    again.restore(curriculum.state())
    kept = ((index, problem_at(PROBLEMS, 3, index)) for index in itertools.count(5))
    assert drawn == list(itertools.islice((each for each in kept if not again.skips(*each)), 30))


def test_metrics_count_what_was_skipped_since_the_last_step() -> None:
    curriculum = Curriculum(seed=0, keep=0.01)
    curriculum.observe([group(PROBLEMS[0], False), group(PROBLEMS[1], True), group(PROBLEMS[2], True, False)])
    skipped = sum(curriculum.skips(index, PROBLEMS[0]) for index in range(50))
    assert curriculum.metrics() == {
        "curriculum/skipped": float(skipped),
        "curriculum/unsolved": 1.0,
        "curriculum/solved": 1.0,
    }
    assert curriculum.metrics()["curriculum/skipped"] == 0.0
