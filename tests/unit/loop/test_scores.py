"""Groups become figures."""

import pytest

from dojang.core.errors import HealthError
from dojang.loop.scores import Scores
from dojang.loop.statistics import pass_at_k
from dojang.types import Group, Message, Outcome, Problem, Sample, Verdict

RIGHT, WRONG = Verdict(Outcome.ACCEPTED, 1.0, passed=1), Verdict(Outcome.WRONG, 0.25)
LOST = Verdict(Outcome.JUDGE_ERROR, None, detail="it hung")


def group(name: str, *verdicts: Verdict, tier: str = "") -> Group:
    samples = [
        Sample((1, 2, 3), (False, True, True), (0.0, -1.0, -1.0), "", "stop", 0, verdict) for verdict in verdicts
    ]
    return Group(
        Problem(name, "set", (Message("user", "?"),), None, tier),
        0,
        tuple(each for each in samples if each.verdict is not LOST),
        tuple(each for each in samples if each.verdict is LOST),
    )


def test_figures_over_problems() -> None:
    scores = Scores.of(
        [
            group("a", RIGHT, WRONG, WRONG, WRONG, tier="easy"),
            group("b", RIGHT, RIGHT, RIGHT, LOST, tier="easy"),
            group("c", WRONG, WRONG, LOST, LOST, tier="hard"),
            group("d", LOST, LOST, LOST, LOST, tier="hard"),
        ]
    )
    assert scores.accuracy.value == pytest.approx((0.25 + 1 + 0) / 3)
    assert scores.accuracy.low <= scores.accuracy.value <= scores.accuracy.high
    assert (scores.judge_errors, scores.accuracy.problems) == (7, 3)
    assert scores.outcomes == {"wrong": 5 / 9, "accepted": 4 / 9}
    two, four, eight = scores.pass_at(2), scores.pass_at(4), scores.pass_at(8)
    assert two is not None
    assert two.value == pytest.approx((pass_at_k(4, 1, 2) + 1 + 0) / 3)
    assert four is not None
    assert (four.value, four.problems, eight) == (1.0, 1, None)
    assert {name: each.value for name, each in scores.tiers.items()} == {"easy": 0.625, "hard": 0.0}
    told = scores.as_json([1, 2, 8])
    assert list(told["pass_at"]) == ["1", "2"]
    assert told["length"] == 2.0
    assert told["reward"] == pytest.approx(((1 + 3 * 0.25) / 4 + 1 + 0.25) / 3)


def test_single_answers_have_the_interval_of_a_share() -> None:
    estimate = Scores.of([group(str(at), RIGHT) for at in range(20)]).accuracy
    assert (estimate.value, estimate.high) == (1.0, 1.0)
    assert estimate.low == pytest.approx(0.8316, abs=1e-4)  # Clopper-Pearson: 1 - 0.025 ** (1 / 20)


def test_nothing_judged_is_an_error() -> None:
    with pytest.raises(HealthError, match="could be judged; the last failure was: it hung"):
        Scores.of([group("a", LOST)])
