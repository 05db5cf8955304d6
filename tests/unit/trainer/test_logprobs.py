"""Chunked log-probs against torch's own, value and gradient."""

import math

import pytest
import torch

from dojang.trainer import logprobs
from dojang.trainer.logprobs import target_logprobs
from error_bounds import UNIT


@pytest.mark.numerical
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("rows", [1, 3, 7, 100])
def test_value_and_gradient(dtype: torch.dtype, temperature: float, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "logits_per_chunk", lambda gpu: 11 * rows)
    torch.manual_seed(0)
    x, head = torch.randn(7, 5, dtype=dtype, requires_grad=True), torch.randn(11, 5, dtype=dtype, requires_grad=True)
    target, weight = torch.randint(0, 11, (7,)), torch.randn(7, dtype=dtype)
    logp, entropy = target_logprobs(x, head, target, temperature)
    exact_x, exact_head = x.double(), head.double()
    expected = (exact_x @ exact_head.T / temperature).log_softmax(-1)
    chosen, disorder = expected.gather(-1, target[:, None]).squeeze(-1), -(expected.exp() * expected).sum(-1)
    # Relative to the largest score made of absolute values, a log-prob goes through 8 roundings (sum of 5 products,
    # temperature, log-softmax). The error of p log p is that times p + p |log p|, and the entropy sums 11 of those.
    # A gradient sums p times that error over 7 rows at most.
    largest = float((exact_x.abs() @ exact_head.abs().T).max().detach()) / temperature
    error, entropy_error = 8 * UNIT[dtype] * largest, (8 * (1 + math.log(11)) + 11) * UNIT[dtype] * largest
    torch.testing.assert_close(logp.double(), chosen, rtol=0, atol=error)
    torch.testing.assert_close(entropy.double(), disorder, rtol=0, atol=entropy_error)
    mine = torch.autograd.grad((logp * weight).sum(), (x, head))
    theirs = torch.autograd.grad((chosen * weight).sum(), (x, head))
    terms = float(torch.cat((x, head)).detach().abs().max() * weight.abs().max()) / temperature
    torch.testing.assert_close(mine, theirs, rtol=0, atol=7 * error * terms)


@pytest.mark.numerical
@pytest.mark.parametrize("softcap", [0.0, 1.5])
@pytest.mark.parametrize("with_logp", [True, False])
def test_gradient_of_the_entropy(with_logp: bool, softcap: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone and beside that of log-probs, in chunks, against autograd through all scores in double precision."""
    monkeypatch.setattr(logprobs, "logits_per_chunk", lambda gpu: 11 * 3)
    torch.manual_seed(0)
    x, head = torch.randn(7, 5).double().requires_grad_(), torch.randn(11, 5).double().requires_grad_()
    target, weight, more = torch.randint(0, 11, (7,)), torch.randn(7).double(), torch.randn(7).double()

    def total(logp: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
        return (entropy * weight).sum() + ((logp * more).sum() if with_logp else 0)

    scores = x @ head.T
    expected = ((softcap * (scores / softcap).tanh() if softcap else scores) / 0.7).log_softmax(-1)
    direct = total(expected.gather(-1, target[:, None])[:, 0], -(expected.exp() * expected).sum(-1))
    mine = torch.autograd.grad(total(*target_logprobs(x, head, target, 0.7, softcap=softcap)), (x, head))
    torch.testing.assert_close(mine, torch.autograd.grad(direct, (x, head)), rtol=0, atol=1e-12)


def test_gradient_of_the_entropy_is_finite_where_tokens_are_impossible() -> None:
    x = torch.tensor([[3e5, 1.0]], requires_grad=True)
    head = torch.tensor([[1.0, 0.0], [-1.0, 0.5], [0.999, 2.0]])
    _, entropy = target_logprobs(x, head, torch.tensor([1]), 1.0)
    (entropy * 1e6).sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


def test_a_frozen_head_gets_no_gradient() -> None:
    x, head = torch.randn(3, 4, requires_grad=True), torch.randn(6, 4)
    logp, _ = target_logprobs(x, head, torch.tensor([1, 2, 3]), 1.0)
    logp.sum().backward()
    assert x.grad is not None
    assert head.grad is None


def test_half_precision_is_summed_in_single() -> None:
    torch.manual_seed(0)
    x, head = torch.randn(9, 16).bfloat16(), torch.randn(50, 16).bfloat16()
    target = torch.arange(9)
    logp, entropy = target_logprobs(x, head, target, 1.0)
    assert logp.dtype is entropy.dtype is torch.float32
    expected = (x @ head.T).float().log_softmax(-1)
    torch.testing.assert_close(logp, expected.gather(-1, target[:, None]).squeeze(-1))


def test_a_float32_head_does_not_round_scores() -> None:
    torch.manual_seed(0)
    x, head = torch.randn(40, 64).bfloat16(), torch.randn(500, 64).bfloat16()
    target = torch.arange(40)
    exact = (x.double() @ head.double().T).log_softmax(-1).gather(-1, target[:, None]).squeeze(-1)
    rounded, _ = target_logprobs(x, head, target, 1.0)
    wide, _ = target_logprobs(x.requires_grad_(), head, target, 1.0, float32_head=True)
    assert (wide - exact).abs().max() < 1e-4 < 1e-2 < (rounded - exact).abs().mean()
    wide.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype is torch.bfloat16


def test_scores_of_extreme_size_stay_finite() -> None:
    x, head = torch.tensor([[1e4], [-1e4]], requires_grad=True), torch.tensor([[1.0], [-1.0], [0.5]])
    logp, entropy = target_logprobs(x, head, torch.tensor([1, 1]), 1.0)
    logp.sum().backward()
    assert torch.isfinite(logp).all()
    assert torch.isfinite(entropy).all()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
