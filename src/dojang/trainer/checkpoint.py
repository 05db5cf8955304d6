"""Trainer checkpoints: weights as a Hugging Face directory, and the optimizer state.

Every rank writes its own shard of the optimizer state (torch.distributed.checkpoint), by parameter name, so any number
of ranks can resume from it.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, PreTrainedModel

from dojang.core.errors import RunDirError
from dojang.core.out_of_memory import is_out_of_memory
from dojang.trainer.fsdp import full_tensor

__all__ = [
    "checkpoint_errors",
    "load_optimizer",
    "load_tensors",
    "load_weights",
    "read_weights",
    "save_optimizer",
    "save_tensors",
    "save_weights",
]

State = dict[str, Any]


def save_weights(path: Path, model: PreTrainedModel, *, write: bool) -> None:
    """Saves the weights. All ranks must call this; one of them writes."""
    own = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}  # tied weights appear once
    state = {}
    for name, tensor in model.state_dict().items():
        if name in own:
            gathered = full_tensor(tensor.detach())
            if write:
                state[name] = gathered.cpu()
    if write:
        model.save_pretrained(path, state_dict=state)


def read_weights(path: Path, model: PreTrainedModel) -> State:
    """Reads the full weights of a checkpoint in the dtype of this model."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(path, dtype=model.dtype, output_loading_info=True)
    found, report = loaded
    if missing := sorted(report["missing_keys"]):  # transformers would initialise them at random
        raise ValueError(f"{len(missing)} weights are missing, such as {missing[0]}")
    state: State = found.state_dict()
    return state


def load_weights(model: PreTrainedModel, weights: State) -> None:
    """Loads the weights that the first rank has read; every rank takes its shard."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict  # slow to import

    several = dist.is_initialized()
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=several, strict=False)
    set_model_state_dict(model, weights, options=options)


def save_optimizer(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, **more: Any) -> None:
    """Saves the optimizer state of each weight, without hyperparameters, and the values in `more`. All ranks must call
    this."""
    from torch.distributed.checkpoint.state_dict_saver import save

    state = {"optimizer": _by_name(model, optimizer), **more}
    with _quiet_single_process():
        save(state, checkpoint_id=folder, no_dist=not dist.is_initialized())


def save_tensors(folder: Path, tensors: State) -> None:
    """Writes tensors by name, each rank its own shard. All ranks must call this."""
    from torch.distributed.checkpoint.state_dict_saver import save

    with _quiet_single_process():
        save(tensors, checkpoint_id=folder, no_dist=not dist.is_initialized())


def load_tensors(folder: Path, tensors: State) -> None:
    """Reads what `save_tensors` wrote, in place. All ranks must call this."""
    from torch.distributed.checkpoint.state_dict_loader import load

    with _quiet_single_process():
        load(tensors, checkpoint_id=folder, no_dist=not dist.is_initialized())


def load_optimizer(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, **more: Any) -> State:
    """Loads the optimizer state, and reads the values in `more`: tensors in place."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    written = FileSystemReader(folder).read_metadata().state_dict_metadata
    _init_optimizer_state(optimizer)
    known = _by_name(model, optimizer)
    for name, parameter in model.named_parameters():
        if name in known and not any(key.startswith(f"optimizer.{name}.") for key in written):
            del known[name], optimizer.state[parameter]
    state: State = {"optimizer": known, **more}
    with _quiet_single_process():
        load(state, checkpoint_id=folder, no_dist=not dist.is_initialized())
    return state


def _by_name(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> State:
    named = model.named_parameters()
    return {name: optimizer.state[parameter] for name, parameter in named if parameter in optimizer.state}


def _init_optimizer_state(optimizer: torch.optim.Optimizer) -> None:
    """Creates the optimizer state of each weight to load into, by a step with learning rate 0."""
    rates = [settings["lr"] for settings in optimizer.param_groups]
    for settings in optimizer.param_groups:
        settings["lr"] = 0.0
        for parameter in settings["params"]:
            parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    for settings, rate in zip(optimizer.param_groups, rates, strict=True):
        settings["lr"] = rate


@contextmanager
def _quiet_single_process() -> Iterator[None]:
    """Silences torch's warning about a single process; turns CheckpointException, no Exception, into RuntimeError."""
    from torch.distributed.checkpoint.api import CheckpointException

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        try:
            yield
        except CheckpointException as error:
            raise RuntimeError(str(error)) from error


@contextmanager
def checkpoint_errors(path: Path) -> Iterator[None]:
    """Turns every error of reading a damaged file (torch, safetensors, transformers) into RunDirError."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise  # the checkpoint is fine
        raise RunDirError(f"checkpoint {path} cannot be read ({error!r}); delete it to fall back") from error
