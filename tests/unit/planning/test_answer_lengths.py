"""The assumed distribution of completion lengths."""

import pytest

from dojang.planning.answer_lengths import mean_square, running_share


@pytest.mark.parametrize(("mean", "longest"), [(10, 1000), (100, 300), (250, 300), (299, 300)])
def test_the_mean_is_the_given_one(mean: float, longest: float) -> None:
    steps = 20_000
    size = longest / steps
    shares = [running_share((step + 0.5) * size, mean, longest) for step in range(steps)]
    assert size * sum(shares) == pytest.approx(mean, rel=1e-3)
    squared = sum(2 * (step + 0.5) * size * size * share for step, share in enumerate(shares))
    assert mean_square(mean, longest) == pytest.approx(squared, rel=1e-3)


def test_completions_of_the_maximum_length_run_until_it() -> None:
    assert running_share(299, 300, 300) == 1
    assert running_share(300, 300, 300) == 0
    assert mean_square(300, 300) == 300 * 300


def test_fewer_run_on_with_every_token() -> None:
    shares = [running_share(length, 50, 200) for length in range(0, 201, 20)]
    assert shares[0] == 1
    assert shares == sorted(shares, reverse=True)
