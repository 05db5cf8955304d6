"""GPU memory that updates will allocate; on a GPU it is held to real updates in test_gpu_train.py."""

import pytest
import torch

from dojang.trainer.config import TrainConfig
from dojang.trainer.optimizer import make_optimizer
from dojang.trainer.packing import micro_batches
from dojang.trainer.update_memory import full_micro_batch, gradient_bytes, memory_metrics, missing_state_bytes


@pytest.mark.parametrize(("tokens", "max_tokens"), [(16384, 320), (16384, 16000), (700, 90)])
def test_made_up_samples_fill_a_micro_batch(tokens: int, max_tokens: int) -> None:
    (batch,) = micro_batches(full_micro_batch(tokens, max_tokens), tokens, torch.device("cpu"))
    assert tokens - max_tokens - len(batch.samples) < batch.token_N.numel() <= tokens


def test_sample_longer_than_a_micro_batch_is_alone_in_it() -> None:
    (batch,) = micro_batches(full_micro_batch(100, 300), 100, torch.device("cpu"))
    assert len(batch.samples) == 1
    assert batch.token_N.numel() == 315


def test_optimizer_state_is_missing_until_the_first_step() -> None:
    model = torch.nn.Linear(30, 10)
    optimizer = make_optimizer(model, TrainConfig(lr=1e-3))
    assert gradient_bytes(optimizer) == 4 * 310
    assert missing_state_bytes("adamw", optimizer) == 2 * 4 * 310
    model(torch.zeros(30)).sum().backward()
    optimizer.step()
    assert missing_state_bytes("adamw", optimizer) == 0


def test_a_cpu_has_no_gpu_memory_to_tell() -> None:
    assert memory_metrics(torch.device("cpu")) == {}
