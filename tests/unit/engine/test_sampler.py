from itertools import product

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from dojang.engine import decode
from dojang.engine.decode import StepInputs
from dojang.engine.sampler import Truncation, sample_tokens
from dojang.types import Sampling

LAST = 1 - 2.0**-53  # the largest number a stream can give


def draw(logits: torch.Tensor, temperature: float, uniforms: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """One row per uniform number, all with the same logits."""
    rows = len(uniforms)
    heat = torch.full((rows,), temperature, dtype=logits.dtype)
    drawn = sample_tokens(logits.expand(rows, -1), heat, torch.from_numpy(uniforms))
    return drawn.token_B, drawn.logp_B


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


@pytest.mark.numerical
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("temperature", [1.0, 0.7, 3.0])
def test_log_probs_are_those_of_the_distribution_sampled_from(dtype: torch.dtype, temperature: float) -> None:
    logits = random_logits(300).to(dtype)
    tokens, logprobs = draw(logits, temperature, np.random.default_rng(2).random(50))
    expected = (logits.double() / temperature).log_softmax(-1)[tokens]
    assert logprobs.dtype == dtype
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(logprobs.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.numerical
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
    tokens = sample_tokens(logits, torch.tensor([0.0, 1.0]), torch.tensor([0.0, 0.0], dtype=torch.float64)).token_B
    assert tokens.tolist() == [1, 0]


def test_rows_do_not_see_each_other() -> None:
    logits = torch.stack([random_logits(700, seed) for seed in range(5)])
    temperature = torch.tensor([1.0, 0.0, 0.5, 2.0, 1.0])
    uniform = torch.linspace(0.1, 0.9, 5, dtype=torch.float64)
    together = sample_tokens(logits, temperature, uniform).token_B
    alone = [sample_tokens(logits[row, None], temperature[row, None], uniform[row, None]).token_B for row in range(5)]
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


def test_top_k_top_p_min_p_truncate() -> None:
    logits = random_logits(500)
    rows, order = 2000, logits.argsort(descending=True)
    uniform = (torch.arange(rows, dtype=torch.float64) + 0.5) / rows

    def drawn(top_k: int, top_p: float) -> tuple[set[int], torch.Tensor, torch.Tensor]:
        limits = Truncation(torch.full((rows,), top_k), torch.full((rows,), top_p).double(), torch.zeros(rows))
        result = sample_tokens(logits.expand(rows, -1), torch.ones(rows), uniform, limits)
        return set(result.token_B.tolist()), result.token_B, result.logp_B

    taken, tokens, logprobs = drawn(7, 1.0)
    assert taken == set(order[:7].tolist())
    kept = torch.full_like(logits, -torch.inf).index_copy(0, order[:7], logits[order[:7]])
    assert logprobs.tolist() == pytest.approx(kept.log_softmax(-1)[tokens].tolist())
    mass = logits.softmax(-1)[order].cumsum(-1)
    for top_p in (0.3, 0.9):
        count = int((mass < top_p).sum()) + 1
        assert drawn(0, top_p)[0] == set(order[:count].tolist())
    assert drawn(3, 0.9)[0] == set(order[:3].tolist())
    assert drawn(0, 1e-9)[0] == {int(order[0])}


def test_truncated_log_probs_are_those_of_transformers_warpers() -> None:
    """Temperature, then top-k, then top-p of what is left, then min-p; each row has its own."""
    grid = [
        Sampling(temperature, 1, top_k=top_k, top_p=top_p, min_p=min_p)
        for temperature, top_k, top_p, min_p in product((0.6, 1.0, 1.7), (0, 1, 9), (1.0, 0.9, 0.4), (0.0, 0.05, 0.7))
    ]
    logits_BV = torch.stack([random_logits(300, seed) for seed in range(len(grid))])
    warped_BV = torch.cat([warped(logits_BV[at, None], each) for at, each in enumerate(grid)]).log_softmax(-1)
    for uniform in np.linspace(0.01, 0.99, 15):
        drawn = decode.sample(logits_BV, StepInputs(grid, np.full((1, len(grid)), uniform)))
        expected_B = warped_BV.gather(-1, torch.from_numpy(drawn.token_RN[0])[:, None])[:, 0]
        np.testing.assert_allclose(drawn.logp_RN[0], expected_B, atol=1e-9)  # also: no token that was cut off


def warped(logits_BV: torch.Tensor, how: Sampling) -> torch.Tensor:
    warpers = [TemperatureLogitsWarper(how.temperature)] if how.temperature != 1 else []
    warpers += [TopKLogitsWarper(how.top_k)] if how.top_k else []
    warpers += [TopPLogitsWarper(how.top_p)] if how.top_p < 1 else []
    warpers += [MinPLogitsWarper(how.min_p)] if how.min_p else []
    for step in warpers:
        logits_BV = step(None, logits_BV)
    return logits_BV


def test_truncation_is_per_row() -> None:
    logits = random_logits(300).expand(3, -1)
    limits = Truncation(torch.tensor([0, 1, 0]), torch.tensor([1.0, 1.0, 0.2], dtype=torch.float64), torch.zeros(3))
    uniform = torch.full((3,), 0.9, dtype=torch.float64)
    together = sample_tokens(logits, torch.ones(3), uniform, limits)
    free = sample_tokens(logits, torch.ones(3), uniform)
    assert together.token_B[0] == free.token_B[0]
    assert together.logp_B[0] == pytest.approx(float(free.logp_B[0]))
    assert together.logp_B[1] == 0


def test_log_probs_before_temperature_and_bias_are_the_model_s_own() -> None:
    logits = random_logits(300).expand(4, -1)
    bias = torch.zeros(4, 300, dtype=torch.float64)
    bias[:, 17] = 30.0
    result = sample_tokens(logits, torch.tensor([0.5, 1.0, 2.0, 0.0]), torch.full((4,), 0.4), bias_BV=bias)
    assert result.token_B.tolist() == [17] * 4
    assert result.plain_logp_B.tolist() == pytest.approx([float(logits[0].log_softmax(-1)[17])] * 4)
    assert result.logp_B[1] == pytest.approx(float((logits[0] + bias[0]).log_softmax(-1)[17]))


def test_many_logits_are_sampled_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """With rows of every kind, so that each part must get its own."""
    logits_NV = torch.randn(7, 50, generator=torch.Generator().manual_seed(0))
    samplings = [
        Sampling(
            temperature=at / 3,
            max_tokens=1,
            top_k=at % 3,
            top_p=1 - at / 20,
            min_p=at / 90,
            bias=((at, 1.5),) * (at % 2),
        )
        for at in range(7)
    ]
    inputs = StepInputs(samplings, np.random.default_rng(0).random((1, 7)))
    whole = decode.sample(logits_NV, inputs)
    monkeypatch.setattr(decode, "_LOGITS_PER_CALL", 150)
    parts = decode.sample(logits_NV, inputs)
    for name in ("token_RN", "logp_RN", "plain_RN"):
        assert (getattr(whole, name) == getattr(parts, name)).all()
        assert getattr(parts, name).shape == (1, 7)
