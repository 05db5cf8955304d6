"""Chunked log-probs against torch's own, value and gradient."""

import pytest
import torch

from dojang.train import logprobs
from dojang.train.logprobs import chosen_logprobs


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("rows", [1, 3, 7, 100])
def test_value_and_gradient(dtype: torch.dtype, temperature: float, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "_CHUNK", 11 * rows)
    torch.manual_seed(0)
    x, head = torch.randn(7, 5, dtype=dtype, requires_grad=True), torch.randn(11, 5, dtype=dtype, requires_grad=True)
    target, weight = torch.randint(0, 11, (7,)), torch.randn(7, dtype=dtype)
    logp, entropy = chosen_logprobs(x, head, target, temperature)
    expected = (x @ head.T / temperature).log_softmax(-1)
    torch.testing.assert_close(logp, expected.gather(-1, target[:, None]).squeeze(-1))
    torch.testing.assert_close(entropy, -(expected.exp() * expected).sum(-1))
    assert not entropy.requires_grad
    mine = torch.autograd.grad((logp * weight).sum(), (x, head))
    theirs = torch.autograd.grad((expected.gather(-1, target[:, None]).squeeze(-1) * weight).sum(), (x, head))
    torch.testing.assert_close(mine, theirs)


def test_a_frozen_head_gets_no_gradient() -> None:
    x, head = torch.randn(3, 4, requires_grad=True), torch.randn(6, 4)
    logp, _ = chosen_logprobs(x, head, torch.tensor([1, 2, 3]), 1.0)
    logp.sum().backward()
    assert x.grad is not None
    assert head.grad is None


def test_half_precision_is_summed_in_single() -> None:
    torch.manual_seed(0)
    x, head = torch.randn(9, 16).bfloat16(), torch.randn(50, 16).bfloat16()
    target = torch.arange(9)
    logp, entropy = chosen_logprobs(x, head, target, 1.0)
    assert logp.dtype is entropy.dtype is torch.float32
    expected = (x @ head.T).float().log_softmax(-1)
    torch.testing.assert_close(logp, expected.gather(-1, target[:, None]).squeeze(-1))


def test_scores_of_extreme_size_stay_finite() -> None:
    x, head = torch.tensor([[1e4], [-1e4]], requires_grad=True), torch.tensor([[1.0], [-1.0], [0.5]])
    logp, entropy = chosen_logprobs(x, head, torch.tensor([1, 1]), 1.0)
    logp.sum().backward()
    assert torch.isfinite(logp).all()
    assert torch.isfinite(entropy).all()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
