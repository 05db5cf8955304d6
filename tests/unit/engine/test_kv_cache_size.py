"""Size of the KV cache on a GPU, alone and shared, with faked free memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dojang.core.errors import ConfigError
from dojang.engine import kv_cache
from dojang.engine.kv_cache import default_kv_cache_bytes
from dojang.engine.kv_cache_size import kv_budget
from dojang.engine.torch_engine import TorchEngine
from dojang.inference import vllm
from dojang.weight_sync.versions import WeightVersions

GIB = 1 << 30


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes torch see GPUs of 80 GiB with so many GiB free."""

    def see(*free: float) -> None:
        def info(device: Any = 0) -> tuple[int, int]:
            at = device if isinstance(device, int) else device.index or 0
            return int(free[at] * GIB), 80 * GIB

        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free))
        monkeypatch.setattr(torch.cuda, "mem_get_info", info)
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)

    return see


@pytest.mark.parametrize(
    ("free", "alone", "expected"),
    [
        (60, False, 20),
        (60, True, 51),  # 85%
        (8, True, 6),  # 2 GiB are left for activations and weight updates
        (3, True, 1.5),  # of very little, half
        (0, True, 0),
    ],
)
def test_cache_share_depends_on_sharing_the_gpu(free: float, alone: bool, expected: float) -> None:
    assert kv_budget(int(free * GIB), alone=alone) == int(expected * GIB)


@pytest.mark.parametrize(("free", "reserved", "expected"), [(60, 20, 20), (60, 0, 30), (24, 20, 2)])
def test_cache_beside_a_trainer_leaves_what_updates_need(free: int, reserved: int, expected: int) -> None:
    assert kv_budget(free * GIB, alone=False, reserved=reserved * GIB) == expected * GIB


def test_cache_is_never_less_than_a_byte_so_that_the_error_names_it() -> None:
    assert kv_budget(GIB, alone=False, reserved=2 * GIB) == 1


def test_free_memory_is_measured_at_the_first_request(gpus: Callable[..., None]) -> None:
    gpus(60)
    assert default_kv_cache_bytes(torch.device("cuda")) == 20 * GIB
    assert default_kv_cache_bytes(torch.device("cuda"), alone=True) == 51 * GIB
    assert default_kv_cache_bytes(torch.device("cpu"), alone=True) == 4 * GIB


@pytest.mark.parametrize("alone", [False, True])
def test_the_torch_engine_passes_it_on(
    micro_model: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    monkeypatch: pytest.MonkeyPatch,
    alone: bool,
) -> None:
    asked: list[tuple[bool, int]] = []

    def spare(device: torch.device, *, alone: bool, reserved: Callable[[], int]) -> int:
        asked.append((alone, reserved()))
        return GIB

    monkeypatch.setattr("dojang.engine.torch_engine.default_kv_cache_bytes", spare)
    monkeypatch.setattr(kv_cache, "default_kv_cache_bytes", spare)
    engine = TorchEngine(
        micro_model(torch.float32),
        tokenizer,
        WeightVersions(torch.float32),
        max_num_seqs=4,
        alone=alone,
        reserved=lambda: 7,
    )
    assert asked == []  # what is loaded after the engine, such as a trainer, counts too
    engine._scheduler.check(8)
    assert asked == [(alone, 7)]


def test_vllm_alone_on_its_gpus_sizes_its_cache_itself(gpus: Callable[..., None]) -> None:
    gpus(79)
    assert vllm.memory_options(None, alone=True) == {"gpu_memory_utilization": 0.9}
    told = vllm.memory_options(2.0, alone=True)
    assert told == {"gpu_memory_utilization": 0.9, "kv_cache_memory_bytes": 2 * GIB}


def test_vllm_beside_a_trainer_gets_at_most_the_free_memory(gpus: Callable[..., None]) -> None:
    """vLLM refuses to start where less is free than gpu_memory_utilization, its own default being nearly all."""
    gpus(48)
    told = vllm.memory_options(None, alone=False)
    assert told == {"gpu_memory_utilization": 0.59, "kv_cache_memory_bytes": 16 * GIB}


def test_two_vllm_engines_on_one_gpu_divide_what_is_free(gpus: Callable[..., None]) -> None:
    """The second starts when the first has its weights (15 GiB) and its KV cache."""
    gpus(60)
    first = vllm.memory_options(None, alone=False)["kv_cache_memory_bytes"]
    left = 60 - 15 - first / GIB
    gpus(left)
    second = vllm.memory_options(None, alone=False)
    assert second["kv_cache_memory_bytes"] == int(left * GIB) // 3
    assert second["gpu_memory_utilization"] * 80 < left


def test_the_fullest_of_tensor_parallel_gpus_counts(gpus: Callable[..., None]) -> None:
    gpus(30, 75)  # a trainer is on the first
    told = vllm.memory_options(None, 2, alone=False)
    assert told == {"gpu_memory_utilization": 0.36, "kv_cache_memory_bytes": 10 * GIB}
    with pytest.raises(
        ConfigError, match=r"rollout.engine.tensor_parallel_size=4 needs 4 GPUs, and this machine has 2"
    ):
        vllm.memory_options(None, 4, alone=True)


def test_vllm_on_a_cpu_gets_four_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert vllm.memory_options(None, 2, alone=True) == {"kv_cache_memory_bytes": 4 * GIB}


def test_tensor_parallel_workers_are_processes_of_this_machine(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a Ray actor vLLM would otherwise choose Ray for them."""
    told: list[dict[str, Any]] = []

    class Line:
        def __init__(self, options: dict[str, Any]) -> None:
            told.append(options)

    monkeypatch.setattr(vllm, "_InProcessVllm", Line)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for size in (1, 2):
        vllm.VllmEngine(tmp_path, tokenizer, None, tensor_parallel_size=size)
    assert "distributed_executor_backend" not in told[0]
    assert (told[1]["tensor_parallel_size"], told[1]["distributed_executor_backend"]) == (2, "mp")
