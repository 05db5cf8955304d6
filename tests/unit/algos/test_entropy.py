"""The coefficient of the entropy bonus, and what is refused."""

import pytest
from pydantic import ValidationError

from dojang.algos.entropy import EntropyBonus, EntropyConfig
from dojang.algos.grpo import GrpoConfig


def test_a_fixed_coefficient_never_changes() -> None:
    bonus = EntropyBonus(EntropyConfig(coef=0.01))
    for entropy in (5.0, 0.0):
        assert bonus.coef == 0.01
        bonus.update(entropy)


def test_an_adaptive_coefficient_follows_skywork() -> None:
    """c rises by delta after entropies up to the target, else falls; it is applied after the former alone."""
    bonus = EntropyBonus(EntropyConfig(coef=0.01, target=0.2, delta=0.004, max_coef=0.017, min_coef=0.001))
    applied = []
    for entropy in (0.1, 0.2, 0.1, 0.3, 0.3, 0.3, 0.3, 0.3, 0.2, 0.9):
        applied.append(bonus.coef)
        bonus.update(entropy)
    # c after each: .014 .017 .017 .013 .009 .005 .001 .001 .005 .001
    assert applied == pytest.approx([0, 0.014, 0.017, 0.017, 0, 0, 0, 0, 0, 0.005])


def test_a_checkpoint_keeps_an_adaptive_coefficient() -> None:
    config = EntropyConfig(coef=0.01, target=0.2)
    bonus, again, fixed = EntropyBonus(config), EntropyBonus(config), EntropyBonus(EntropyConfig(coef=0.5))
    bonus.update(0.1)
    again.restore(bonus.state())
    fixed.restore(bonus.state())
    assert again.coef == bonus.coef == pytest.approx(0.015)
    assert fixed.coef == 0.5


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"delta": 0.1}, "set target too"),
        ({"coef": 2.0, "target": 0.2}, "must be between min_coef=0 and max_coef=1"),
        ({"target": 0.0}, "greater than 0"),
    ],
)
def test_invalid_settings_are_refused(settings: dict[str, float], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        EntropyConfig(**settings)


def test_there_is_a_bonus_only_where_one_is_set() -> None:
    assert GrpoConfig().make(9).entropy_bonus is None
    assert GrpoConfig(entropy={"coef": 0.1}).make(9).entropy_bonus is not None
    assert GrpoConfig(entropy={"target": 0.1}).make(9).entropy_bonus is not None
