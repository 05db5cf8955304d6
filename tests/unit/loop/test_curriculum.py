"""The curriculum: which prompts are skipped, and that a run repeats and resumes with it."""

import itertools
import json

import pytest

from dojang.loop.curriculum import Curriculum
from dojang.loop.prompt_sampler import draw_prompts, problem_at
from dojang.types import Group, Message, Outcome, Problem, Sample, Verdict

PROBLEMS = [Problem(f"p/{place}", "p", (Message("user", str(place)),), str(place)) for place in range(40)]
NUMBERS = itertools.count()


def sample(outcome: Outcome, role: str = "policy", index: int = 0, reward: float | None = None) -> Sample:
    given = float(outcome is Outcome.ACCEPTED) if reward is None else reward
    verdict = Verdict(outcome, None if outcome is Outcome.JUDGE_ERROR else given)
    return Sample([1], [True], [0.0], "", "stop", 0, verdict, role=role, index=index)


def group(problem: Problem, *accepted: bool, role: str = "policy") -> Group:
    """Returns the group of a further visit."""
    outcomes = (Outcome.ACCEPTED if each else Outcome.WRONG for each in accepted)
    samples = tuple(sample(each, role, index) for index, each in enumerate(outcomes))
    return Group(problem, next(NUMBERS), samples)


def share_drawn(curriculum: Curriculum, problem: Problem, visits: int = 4000) -> float:
    return sum(not curriculum.skips(index, problem) for index in range(visits)) / visits


def test_problems_without_a_signal_are_drawn_rarely() -> None:
    unsolved, solved, mixed, new = PROBLEMS[:4]
    curriculum = Curriculum(seed=0, keep=0.1)
    curriculum.observe([group(unsolved, False, False), group(solved, True, True), group(mixed, True, False)])
    assert share_drawn(curriculum, unsolved) == pytest.approx(0.1, abs=0.02)
    assert share_drawn(curriculum, solved) == pytest.approx(0.1, abs=0.02)
    assert share_drawn(curriculum, mixed) == share_drawn(curriculum, new) == 1.0


def test_all_visits_count_the_later_ones_more() -> None:
    curriculum = Curriculum(seed=0, keep=0.1)
    shares = []
    for accepted in ([False, False], [False, True], [True, True], [True, True], [True, True]):
        curriculum.observe([group(PROBLEMS[0], *accepted)])
        ((_, _, signal, _),) = curriculum.state().values()
        shares.append(signal)
    assert shares == pytest.approx([0, 1 / 1.5, 0.5 / 1.75, 0.25 / 1.875, 0.125 / 1.9375])
    assert share_drawn(curriculum, PROBLEMS[0]) == pytest.approx(0.1, abs=0.02)


def test_graded_rewards_that_differ_are_a_signal() -> None:
    curriculum = Curriculum(seed=0, keep=0.1)
    samples = tuple(sample(Outcome.WRONG, index=index, reward=reward) for index, reward in enumerate((0.25, 0.5)))
    curriculum.observe([Group(PROBLEMS[0], 0, samples)])
    alike = tuple(sample(Outcome.WRONG, index=index, reward=0.25) for index in range(2))
    curriculum.observe([Group(PROBLEMS[1], 1, alike)])
    assert share_drawn(curriculum, PROBLEMS[0]) == 1.0
    assert share_drawn(curriculum, PROBLEMS[1]) == pytest.approx(0.1, abs=0.02)


def test_a_group_that_could_not_be_judged_says_nothing() -> None:
    curriculum = Curriculum(seed=0, keep=0.1)
    unjudged = (sample(Outcome.JUDGE_ERROR),)
    curriculum.observe([Group(PROBLEMS[0], 0, (), unjudged), Group(PROBLEMS[1], 1, (sample(Outcome.WRONG),), unjudged)])
    assert curriculum.state() == {}


def test_a_tester_does_not_count() -> None:
    curriculum = Curriculum(seed=0, keep=0.1)
    both = (*group(PROBLEMS[0], True, False, role="coder").samples, *group(PROBLEMS[0], True, role="tester").samples)
    curriculum.observe([Group(PROBLEMS[0], 3, both)])
    assert curriculum.state() == {"p/0": (3, 1.0, 1.0, 0.5)}


def test_a_group_that_is_delivered_again_counts_once() -> None:
    curriculum = Curriculum(seed=0, keep=0.1)
    first, second = group(PROBLEMS[0], True, False), group(PROBLEMS[0], True, True)
    curriculum.observe([first, second])
    state = curriculum.state()
    curriculum.observe([second])
    assert curriculum.state() == state


def test_nothing_is_skipped_by_default() -> None:
    curriculum = Curriculum()
    curriculum.observe([group(PROBLEMS[0], False, False)])
    assert share_drawn(curriculum, PROBLEMS[0]) == 1.0
    assert (curriculum.state(), curriculum.metrics()) == ({}, {})


def test_prompts_are_drawn_in_the_same_order_without_the_skipped_ones() -> None:
    curriculum = Curriculum(seed=3, keep=0.2)
    curriculum.observe(group(each, False, False) for each in PROBLEMS[:20])
    curriculum.observe(group(each, False, index % 2 == 0) for index, each in enumerate(PROBLEMS[:20]))
    drawn = draw_prompts(PROBLEMS, 3, 5, 30, curriculum.skips)
    assert len(drawn) == 30
    again = Curriculum(seed=3, keep=0.2)
    again.restore(json.loads(json.dumps(curriculum.state())))
    assert again.state() == curriculum.state()
    kept = ((index, problem_at(PROBLEMS, 3, index)) for index in itertools.count(5))
    assert drawn == list(itertools.islice((each for each in kept if not again.skips(*each)), 30))


def test_metrics_count_what_was_skipped_since_the_last_step() -> None:
    curriculum = Curriculum(seed=0, keep=0.01)
    curriculum.observe(
        [group(PROBLEMS[0], False, False), group(PROBLEMS[1], True, True), group(PROBLEMS[2], True, False)]
    )
    skipped = sum(curriculum.skips(index, PROBLEMS[0]) for index in range(50))
    assert curriculum.metrics() == {
        "curriculum/skipped": float(skipped),
        "curriculum/unsolved": 1.0,
        "curriculum/solved": 1.0,
    }
    assert curriculum.metrics()["curriculum/skipped"] == 0.0
