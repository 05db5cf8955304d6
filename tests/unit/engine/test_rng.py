import itertools

import numpy as np
import pytest

from dojang.engine.rng import uniforms


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Philox4x64-10 by the book (Salmon et al., 2011): four words for a counter and a key."""
    word = 2**64
    for _ in range(10):
        high0, low0 = divmod(0xD2E7470EE14C6C93 * counter[0], word)
        high1, low1 = divmod(0xCA5A826395121157 * counter[2], word)
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0]
        key = [(key[0] + 0x9E3779B97F4A7C15) % word, (key[1] + 0xBB67AE8584CAA73B) % word]
    return counter


@pytest.mark.parametrize(("seed", "prompt_index", "index"), [(0, 0, 0), (3, 1, 4), (2**32 + 7, 10**6, 255)])
def test_the_numbers_are_philox_counted_from_one(seed: int, prompt_index: int, index: int) -> None:
    words = [word for block in (1, 2) for word in philox([block, index, prompt_index, 0], [seed, 0])]
    assert uniforms(seed, prompt_index, index, 8).tolist() == [(word >> 11) / 2**53 for word in words]


def test_the_numbers_are_pinned() -> None:
    # Changing any of these changes what every recorded run would sample.
    assert uniforms(0, 0, 0, 3).tolist() == [0.011546754286331562, 0.24154919656271812, 0.11142585551493822]
    assert uniforms(2**32 + 7, 41, 3, 2).tolist() == [0.677551784098363, 0.5554787001559676]


@pytest.mark.parametrize("shorter", [0, 1, 3, 4, 5, 63])
def test_a_stream_does_not_depend_on_how_much_of_it_is_taken(shorter: int) -> None:
    np.testing.assert_array_equal(uniforms(5, 6, 7, shorter), uniforms(5, 6, 7, 64)[:shorter])


def test_opening_one_stream_does_not_disturb_another() -> None:
    first = uniforms(0, 0, 0, 16)
    uniforms(0, 0, 1, 16)
    np.testing.assert_array_equal(uniforms(0, 0, 0, 16), first)


def test_streams_differ_by_seed_prompt_index_and_index() -> None:
    names = list(itertools.product([0, 1, 2**32], [0, 1, 1000], [0, 1, 7]))
    numbers = np.concatenate([uniforms(*name, 100) for name in names])
    assert len(np.unique(numbers)) == 100 * len(names)  # no stream is another one shifted, either


def test_neighbouring_streams_are_uncorrelated() -> None:
    table = np.stack([uniforms(0, prompt_index, index, 2000) for prompt_index in range(4) for index in range(4)])
    correlation = np.corrcoef(table) - np.eye(16)
    assert np.abs(correlation).max() < 0.1


def test_numbers_are_uniform_on_the_half_open_interval() -> None:
    numbers = np.concatenate([uniforms(1, prompt_index, 0, 64) for prompt_index in range(1000)])
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    counts, _ = np.histogram(numbers, bins=64, range=(0, 1))
    expected = len(numbers) / 64
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert chi_squared < 110  # 63 degrees of freedom: the mean is 63, one in 5,000 exceeds this
