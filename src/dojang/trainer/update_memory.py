"""GPU memory that updates will allocate, measured before the first rollout; errors of updates that run out of it.

An engine on the same GPU sizes its KV cache at its first request, before the first update. It must leave room for
gradients, activations, optimizer state and published weights.
"""

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar

import torch
from torch import Tensor

from dojang.core import cuda_sync
from dojang.core.out_of_memory import explain_out_of_memory
from dojang.trainer.fsdp import local_part
from dojang.trainer.memory import optimizer_bytes
from dojang.types import Completion, Metrics, Outcome, Sample, Verdict

__all__ = [
    "explains_out_of_memory",
    "full_micro_batch",
    "gradient_bytes",
    "memory_metrics",
    "missing_state_bytes",
    "peak_bytes",
]

T = TypeVar("T", bound=type)

_PROMPT = 16
_MORE_MEMORY = (
    "set train.gradient_checkpointing=true, lower train.max_tokens_per_microbatch, rollout.max_tokens or "
    "rollout.engine.kv_cache_gb, set train.offload, or train a LoRA; `dojang plan` shows what needs memory"
)
_NEEDS = {
    "forward_backward": "an update",
    "optim_step": "the optimizer step of an update",
    "score": "the log-probs of samples",
    "compute_values": "the critic's values",
    "ref_logprobs": "the reference model's log-probs",
    "teacher_logprobs": "the teacher's log-probs",
    "publish": "publishing the weights",
    "save": "saving a checkpoint",
    "restore": "restoring a checkpoint",
}
"""Methods of a Trainer that allocate memory, and what for."""


def explains_out_of_memory(trainer: T) -> T:
    """Class decorator of a Trainer: its methods raise OutOfMemory, which says what to do, when memory runs out."""
    for name, what in _NEEDS.items():
        setattr(trainer, name, _explained(getattr(trainer, name), what))
    return trainer


def _explained(method: Callable[..., Awaitable[Any]], what: str) -> Callable[..., Awaitable[Any]]:
    @wraps(method)
    async def explained(*arguments: Any, **named: Any) -> Any:
        with explain_out_of_memory(what, _MORE_MEMORY):
            return await method(*arguments, **named)

    return explained


def full_micro_batch(tokens: int, max_tokens: int) -> list[Sample]:
    """Makes up samples of one prompt, each `max_tokens` tokens long, that fill a micro-batch of `tokens` tokens."""
    answer = Completion((0,) * max_tokens, (0.0,) * max_tokens, "", "length", 0)
    sample = Sample.of((0,) * _PROMPT, answer, Verdict(Outcome.WRONG, 0.0))
    return [sample] * max(1, (tokens - _PROMPT) // max_tokens)


def peak_bytes(device: torch.device, compute: Callable[[], None]) -> int:
    """Computes, and returns the bytes of GPU memory that it allocates at its peak. Raises OutOfMemory if there is not
    enough."""
    cuda_sync.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    with explain_out_of_memory(_NEEDS["forward_backward"], _MORE_MEMORY):
        compute()
    cuda_sync.synchronize(device)
    peak = torch.cuda.max_memory_allocated(device) - before
    with cuda_sync.capturing:  # freeing memory waits for the whole GPU, too
        torch.cuda.empty_cache()  # other CUDA streams cannot use what this one has cached
    return peak


def memory_metrics(device: torch.device) -> Metrics:
    """Most GPU memory that this process has used so far, in GB; nothing on a CPU."""
    if device.type != "cuda":
        return {}
    return {
        "perf/max_memory_allocated_gb": torch.cuda.max_memory_allocated(device) / 1e9,
        "perf/max_memory_reserved_gb": torch.cuda.max_memory_reserved(device) / 1e9,
    }


def gradient_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the gradients of all trained weights."""
    return sum(each.nbytes for each in _parameters(optimizer))


def missing_state_bytes(name: str, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of optimizer state that are not allocated yet: all of them before the first step, none after it or after a
    restore. For muon it is more than will be needed."""
    if optimizer.state:
        return 0
    parameters = _parameters(optimizer)
    itemsize = max((each.element_size() for each in parameters), default=0)
    return int(optimizer_bytes(name, itemsize, 0, sum(each.numel() for each in parameters)))


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """This rank's part of the trained weights."""
    return [local_part(each) for group in optimizer.param_groups for each in group["params"]]
