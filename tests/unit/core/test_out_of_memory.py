"""Out-of-memory errors say what needed memory, which processes hold it, and what to do."""

import pytest
import torch

from dojang.core.errors import OutOfMemory, TrainingError
from dojang.core.out_of_memory import explain_out_of_memory

TORCH = (
    "CUDA out of memory. Tried to allocate 256.00 MiB. GPU 0 has a total capacity of 139.80 GiB of which 28.00 MiB is "
    "free. Process 7 has 38.00 GiB memory in use. Of the allocated memory 98.00 GiB is allocated by PyTorch."
)
GIB = 2**30


def explained(error: RuntimeError) -> str:
    with pytest.raises(OutOfMemory) as caught, explain_out_of_memory("an update", "train a LoRA"):
        raise error
    assert caught.value.__cause__ is error
    return str(caught.value)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """A GPU, by its free and total memory and what this process holds, in GiB."""
    memory = {"free": 0.1, "total": 140.0, "reserved": 101.0, "allocated": 97.0}
    cuda = {
        "mem_get_info": lambda: (int(memory["free"] * GIB), int(memory["total"] * GIB)),
        "memory_reserved": lambda: int(memory["reserved"] * GIB),
        "memory_allocated": lambda: int(memory["allocated"] * GIB),
    }
    for name, told in cuda.items():
        monkeypatch.setattr(torch.cuda, name, told)
    return memory


def test_memory_of_other_processes_is_told(gpu: dict[str, float]) -> None:
    assert explained(torch.OutOfMemoryError(TORCH)) == (
        "the GPU has too little memory for an update: train a LoRA. Of its 140.0 GiB, this process holds 101.0 GiB "
        "(97.0 GiB in use) and 0.1 GiB are free; other processes hold about 38.9 GiB (`nvidia-smi` lists them): end "
        "them or use another GPU. (CUDA out of memory. Tried to allocate 256.00 MiB)"
    )


def test_a_process_alone_on_its_gpu_is_not_told_of_others(gpu: dict[str, float]) -> None:
    gpu["reserved"] = 139.0  # the rest is its CUDA context
    found = explained(torch.OutOfMemoryError(TORCH))
    assert "this process holds 139.0 GiB (97.0 GiB in use) and 0.1 GiB are free. (CUDA" in found


def test_without_figures_another_process_is_a_possible_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("no driver")

    monkeypatch.setattr(torch.cuda, "mem_get_info", broken)
    assert "Another process on the GPU may hold the memory." in explained(torch.OutOfMemoryError(TORCH))


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "the GPU"),
        ("CUDA error: out of memory\nCUDA kernel errors might be reported later", "the GPU"),
        ("err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.", "this machine"),
    ],
)
def test_allocations_outside_of_torchs_gpu_allocator_are_known(text: str, where: str) -> None:
    found = explained(RuntimeError(text))
    assert found.startswith(f"{where} has too little memory for an update: train a LoRA.")
    assert text.splitlines()[0] in found


def test_an_error_without_text_is_explained() -> None:
    assert explained(torch.OutOfMemoryError()).startswith("the GPU has too little memory")


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="shapes differ"), explain_out_of_memory("an update", "train a LoRA"):
        raise RuntimeError("shapes differ")


def test_it_ends_a_run_like_other_errors_of_training() -> None:
    assert OutOfMemory("").exit_code == TrainingError("").exit_code
