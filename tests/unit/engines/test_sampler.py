import numpy as np
import pytest
import torch

from dojang.engines.sampler import sample_tokens

LAST = 1 - 2.0**-53  # the largest number a stream can give


def draw(logits: torch.Tensor, temperature: float, uniforms: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """One row per uniform number, all with the same logits."""
    rows = len(uniforms)
    heat = torch.full((rows,), temperature, dtype=logits.dtype)
    return sample_tokens(logits.expand(rows, -1), heat, torch.from_numpy(uniforms))


def random_logits(size: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 2, size))


@pytest.mark.parametrize("size", [1000, 256, 255, 257, 512, 3])
@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_the_cumulative_distribution_is_inverted(size: int, temperature: float) -> None:
    logits = random_logits(size)
    grid = (np.arange(4000) + 0.5) / 4000
    tokens, _ = draw(logits, temperature, grid)
    upto = np.cumsum(np.exp(logits.numpy() / temperature - np.logaddexp.reduce(logits.numpy() / temperature)))
    np.testing.assert_array_equal(tokens, np.searchsorted(upto, grid, side="right"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_frequencies_follow_the_softmax(dtype: torch.dtype) -> None:
    logits = random_logits(1000).to(dtype)
    count = 20_000
    tokens, _ = draw(logits, 0.8, np.random.default_rng(1).random(count))
    expected = (logits.double() / 0.8).softmax(-1).numpy() * count
    seen = np.bincount(tokens.numpy(), minlength=1000)
    common = expected > 20
    spread = (seen[common] - expected[common]) / np.sqrt(expected[common])
    assert common.sum() > 100
    assert np.abs(spread).max() < 4.5
    assert abs(seen[~common].sum() - expected[~common].sum()) < 4.5 * np.sqrt(expected[~common].sum())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 3.0])
def test_log_probs_are_those_of_the_distribution_sampled_from(dtype: torch.dtype, temperature: float) -> None:
    logits = random_logits(300).to(dtype)
    tokens, logprobs = draw(logits, temperature, np.random.default_rng(2).random(50))
    expected = (logits.double() / temperature).log_softmax(-1)[tokens]
    assert logprobs.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(logprobs.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_scored_in_single_precision(dtype: torch.dtype) -> None:
    logits = random_logits(300).to(dtype)
    tokens, logprobs = draw(logits, 1.0, np.array([0.3, 0.6]))
    assert logprobs.dtype == torch.float32
    torch.testing.assert_close(logprobs, logits.float().log_softmax(-1)[tokens], rtol=0, atol=1e-6)


def test_temperature_zero_takes_the_likeliest_and_scores_it_at_one() -> None:
    logits = random_logits(1000)
    tokens, logprobs = draw(logits, 0.0, np.array([0.0, 0.5, LAST]))
    assert tokens.tolist() == [int(logits.argmax())] * 3
    assert logprobs.tolist() == pytest.approx([float(logits.log_softmax(-1).max())] * 3)


def test_greedy_and_sampled_rows_share_a_batch() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.5]] * 2, dtype=torch.float64)
    tokens, _ = sample_tokens(logits, torch.tensor([0.0, 1.0]), torch.tensor([0.0, 0.0], dtype=torch.float64))
    assert tokens.tolist() == [1, 0]


def test_rows_do_not_see_each_other() -> None:
    logits = torch.stack([random_logits(700, seed) for seed in range(5)])
    temperature = torch.tensor([1.0, 0.0, 0.5, 2.0, 1.0])
    uniform = torch.linspace(0.1, 0.9, 5, dtype=torch.float64)
    together, _ = sample_tokens(logits, temperature, uniform)
    alone = [sample_tokens(logits[row, None], temperature[row, None], uniform[row, None])[0] for row in range(5)]
    assert together.tolist() == torch.cat(alone).tolist()


def test_the_ends_of_the_interval_are_the_ends_of_the_vocabulary() -> None:
    tokens, _ = draw(torch.zeros(1000, dtype=torch.float64), 1.0, np.array([0.0, LAST]))
    assert tokens.tolist() == [0, 999]


def test_in_single_precision_the_far_end_may_be_missed_but_never_left() -> None:
    tokens, logprobs = draw(torch.zeros(1000, dtype=torch.float32), 1.0, np.array([0.0, 1 - 2.0**-24, LAST]))
    assert tokens[0] == 0
    assert all(768 <= token < 1000 for token in tokens[1:].tolist())  # the last block; the rest of it is padding
    assert logprobs.tolist() == pytest.approx([-np.log(1000)] * 3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1000, 300, 257])
def test_a_token_without_probability_is_never_taken(dtype: torch.dtype, size: int) -> None:
    for possible in ([0], [size - 1], [5, 6], [0, 256], [130, 200]):
        logits = torch.full((size,), -torch.inf, dtype=dtype)
        logits[possible] = torch.tensor([float(place) for place in range(len(possible))], dtype=dtype)
        grid = np.concatenate([[0.0], np.linspace(0, 1, 33)[1:-1], [1 - 2.0**-24, LAST]])
        tokens, logprobs = draw(logits, 1.0, grid)
        assert set(tokens.tolist()) <= set(possible)
        assert tokens[0] == possible[0]
        assert torch.isfinite(logprobs).all()
