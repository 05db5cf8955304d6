"""`dojang export`: writes a checkpoint as a Hugging Face directory, for transformers, vLLM and others.

It reads the whole checkpoint before it writes anything, since a training run may delete it at any moment. It writes to
a temporary directory and renames it. It merges a LoRA adapter into its base model.

Importing this module is cheap; torch is imported after the arguments are checked.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dojang import models
from dojang.core.errors import ConfigError, DojangError, ModelError, RunDirError
from dojang.core.run_dir import RunDir, sync_tree
from dojang.models import ADAPTER

if TYPE_CHECKING:
    from torch import dtype
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

__all__ = ["export"]

MODEL = "config.json"
TESTER = "tester"
"""Directory of the second model in a checkpoint of two."""


def export(source: Path, output: Path, *, precision: str, which: str | None) -> None:
    """Writes the model of a run or a checkpoint to `output`, and prints its path and size."""
    output = output.resolve()
    _check_output(output)
    checkpoint = _find(source, which)
    with _whole(checkpoint):
        model, tokenizer = _read(checkpoint, precision)
    size = _write(model, tokenizer, output)
    sys.stdout.write(
        f"{checkpoint.name} is in {output}: {size / 1e6:,.1f} MB, {precision}\n"
        f"{_hint_at_tester(checkpoint)}"
        f'load it with AutoModelForCausalLM.from_pretrained("{output}"), or: vllm serve {output}\n'
    )


def _hint_at_tester(checkpoint: Path) -> str:
    """Hint at the second model of the checkpoint, if it has one."""
    if not (other := checkpoint / TESTER).is_dir():
        return ""
    return f"this is the coder; export the tester with: dojang export {other} DIR\n"


def _check_output(output: Path) -> None:
    if output.exists() and not output.is_dir():
        raise ConfigError(f"OUTPUT {output} is a file; give an empty or new directory")
    if output.is_dir() and any(output.iterdir()):
        raise ConfigError(f"OUTPUT {output} is not empty; give an empty or new directory")
    for folder in output.parents:
        if folder == RunDir(folder.parent).checkpoints and RunDir(folder.parent).run.exists():
            raise ConfigError(f"OUTPUT {output} is among the checkpoints of a run; give a directory outside {folder}")


def _find(source: Path, which: str | None) -> Path:
    """Path of the checkpoint, with links resolved: `best` may point to another one at any moment."""
    if any((source / name).is_file() for name in (MODEL, ADAPTER)):
        if which is not None:
            raise ConfigError(f"--which={which} chooses among the checkpoints of a run, but {source} is one model")
        return source.resolve()
    run = RunDir(source)
    if not (run.run.is_file() or run.checkpoints.is_dir()):
        raise RunDirError(
            f"{source} is neither a run directory nor a checkpoint: it has no run.json, {MODEL} or {ADAPTER}; give "
            "the run directory that `dojang train` printed, or a directory below its checkpoints/"
        )
    found = run.checkpoint_names()
    if not found:
        raise RunDirError(f"the run in {source} has no checkpoint yet; it saves the first after its first evaluation")
    if (name := which or "best") not in found:
        raise ConfigError(f"no checkpoint {name!r} in {source}; choose with --which among {', '.join(found)}")
    return found[name]


@contextmanager
def _whole(checkpoint: Path) -> Iterator[None]:
    """Raises an error if the checkpoint changes while it is read."""
    gone = RunDirError(
        f"a training run deleted or replaced checkpoint {checkpoint} while it was being read; nothing was "
        "written. Try again: best and last point to the current ones"
    )
    before = _identity(checkpoint)
    try:
        yield
    except Exception as error:  # torch, safetensors and transformers raise different errors for a damaged file
        if before is None or _identity(checkpoint) != before:
            raise gone from error
        if isinstance(error, DojangError):
            raise
        raise RunDirError(f"checkpoint {checkpoint} cannot be read ({error!r}); export another one") from error
    if _identity(checkpoint) != before:  # some files may be missing, e.g. the chat template, without an error
        raise gone


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and inode of a directory; None if it does not exist."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _read(checkpoint: Path, precision: str) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    import torch
    from transformers import AutoTokenizer
    from transformers.utils.logging import disable_progress_bar

    from dojang.trainer.merge_lora import load_whole, merge

    disable_progress_bar()  # type: ignore[no-untyped-call]
    wanted: dtype = getattr(torch, precision)
    tokenizer_source = str(checkpoint)
    if (checkpoint / ADAPTER).is_file():
        base = models.base_of(checkpoint)
        if not (checkpoint / "tokenizer_config.json").is_file():
            tokenizer_source = base
        model = merge(checkpoint, base)
        torch.nn.Module.to(model, wanted)
    else:
        model = load_whole(str(checkpoint), wanted)
    if bad := [name for name, weight in model.named_parameters() if not bool(weight.isfinite().all())]:
        raise ModelError(
            f"{bad[0]} of {checkpoint} is not finite in {precision}; try --dtype=float32; if that fails too, export an "
            "earlier checkpoint"
        )
    return model, AutoTokenizer.from_pretrained(tokenizer_source)


def _write(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", output: Path) -> int:
    """Writes the model to a temporary directory, renames it to `output`, and returns its size in bytes."""
    aside = output.parent / f".{output.name}.tmp"
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        aside.mkdir()
    except OSError as error:
        if aside.is_dir():
            raise RunDirError(
                f"{aside} exists: another export to {output} is running; if one was killed, delete that directory"
            ) from error
        raise RunDirError(f"cannot write to {output}: {error.strerror}; choose another OUTPUT") from error
    try:
        need, free = sum(weight.nbytes for weight in model.parameters()), shutil.disk_usage(aside).free
        if need > free:
            raise RunDirError(f"{output} needs {need / 1e6:,.1f} MB, but its disk has {free / 1e6:,.1f} MB free")
        model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        for weights in aside.glob("*.safetensors"):  # safetensors writes private files; share them like the rest
            shutil.copymode(aside / MODEL, weights)
        sync_tree(aside)
        os.rename(aside, output)
    except BaseException as error:
        shutil.rmtree(aside, ignore_errors=True)
        if not isinstance(error, Exception) or isinstance(error, DojangError):
            raise
        raise RunDirError(f"cannot write to {output}: {error}; nothing was left there") from error
    return sum(file.stat().st_size for file in output.iterdir())
