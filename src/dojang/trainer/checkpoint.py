"""What a trainer keeps of itself: weights as a Hugging Face directory, and what the optimizer remembers.

The latter is written by every rank, each its own part (torch.distributed.checkpoint), and by name, so that any number
of ranks can take it up again.
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
from dojang.trainer.fsdp import whole

__all__ = [
    "load_tensors",
    "readable",
    "recall",
    "remember",
    "save_tensors",
    "save_weights",
    "take_up",
    "weights_of",
]

State = dict[str, Any]


def save_weights(path: Path, model: PreTrainedModel, *, write: bool) -> None:
    """All ranks must take part; one of them writes."""
    own = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}  # tied weights are in it once
    state = {}
    for name, tensor in model.state_dict().items():
        if name in own:
            gathered = whole(tensor.detach())
            if write:
                state[name] = gathered.cpu()
    if write:
        model.save_pretrained(path, state_dict=state)


def weights_of(path: Path, model: PreTrainedModel) -> State:
    """What was saved, whole, in the precision of this model."""
    loaded: Any = AutoModelForCausalLM.from_pretrained(path, dtype=model.dtype, output_loading_info=True)
    found, report = loaded
    if missing := sorted(report["missing_keys"]):  # transformers would make them up
        raise ValueError(f"{len(missing)} weights are missing, such as {missing[0]}")
    state: State = found.state_dict()
    return state


def take_up(model: PreTrainedModel, weights: State) -> None:
    """Go on with what the first rank has read; each takes its part."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict  # takes long to load

    several = dist.is_initialized()
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=several, strict=False)
    set_model_state_dict(model, weights, options=options)


def remember(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, **more: Any) -> None:
    """Write down what the optimizer knows of each weight, but not its settings, which are the run's; and whatever else.
    All ranks must take part."""
    from torch.distributed.checkpoint.state_dict_saver import save

    state = {"optimizer": _by_name(model, optimizer), **more}
    with _unasked():
        save(state, checkpoint_id=folder, no_dist=not dist.is_initialized())


def save_tensors(folder: Path, tensors: State) -> None:
    """Write tensors by name, each rank its own part. All ranks must take part."""
    from torch.distributed.checkpoint.state_dict_saver import save

    with _unasked():
        save(tensors, checkpoint_id=folder, no_dist=not dist.is_initialized())


def load_tensors(folder: Path, tensors: State) -> None:
    """Read what `save_tensors` wrote, in place. All ranks must take part."""
    from torch.distributed.checkpoint.state_dict_loader import load

    with _unasked():
        load(tensors, checkpoint_id=folder, no_dist=not dist.is_initialized())


def recall(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, **more: Any) -> State:
    """Let the optimizer know what was written down, and read the rest into what is given: tensors in place."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    written = FileSystemReader(folder).read_metadata().state_dict_metadata
    _prime(optimizer)
    known = _by_name(model, optimizer)
    for name, parameter in model.named_parameters():
        if name in known and not any(key.startswith(f"optimizer.{name}.") for key in written):
            del known[name], optimizer.state[parameter]
    state: State = {"optimizer": known, **more}
    with _unasked():
        load(state, checkpoint_id=folder, no_dist=not dist.is_initialized())
    return state


def _by_name(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> State:
    named = model.named_parameters()
    return {name: optimizer.state[parameter] for name, parameter in named if parameter in optimizer.state}


def _prime(optimizer: torch.optim.Optimizer) -> None:
    """Let it make what it keeps for each weight, by a step of no length: something to read into."""
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
def _unasked() -> Iterator[None]:
    """torch warns a process that is alone that it is; and what it raises here is no Exception."""
    from torch.distributed.checkpoint.api import CheckpointException

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        try:
            yield
        except CheckpointException as error:
            raise RuntimeError(str(error)) from error


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """torch, safetensors and transformers each have their own error for a damaged file."""
    try:
        yield
    except Exception as error:
        raise RunDirError(f"checkpoint {path} cannot be read ({error!r}); delete it to fall back") from error
