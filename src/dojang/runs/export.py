"""`dojang export`: a checkpoint as a plain Hugging Face directory, for transformers, vLLM and whoever reads those.

The checkpoint is read whole before anything is written, since a run that goes on may delete it at any moment; what is
written is written aside and renamed. An adapter is merged into its base model.

Importing this is cheap; torch is loaded once it is clear what to export and where to.
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
"""Where a checkpoint of two models holds the second."""


def export(source: Path, output: Path, *, precision: str, which: str | None) -> None:
    """Write the model of a run, or of one checkpoint, to `output`, and say so."""
    output = output.resolve()
    _check_output(output)
    checkpoint = _find(source, which)
    with _whole(checkpoint):
        model, tokenizer = _read(checkpoint, precision)
    size = _write(model, tokenizer, output)
    sys.stdout.write(
        f"{checkpoint.name} is in {output}: {size / 1e6:,.1f} MB, {precision}\n"
        f"{_beside(checkpoint)}"
        f'load it with AutoModelForCausalLM.from_pretrained("{output}"), or: vllm serve {output}\n'
    )


def _beside(checkpoint: Path) -> str:
    """What else there would have been to export."""
    if not (other := checkpoint / TESTER).is_dir():
        return ""
    return f"that is the coder; the tester is a model of its own: dojang export {other} DIR\n"


def _check_output(output: Path) -> None:
    if output.exists() and not output.is_dir():
        raise ConfigError(f"OUTPUT {output} is a file; give a directory that is empty or not there yet")
    if output.is_dir() and any(output.iterdir()):
        raise ConfigError(f"OUTPUT {output} is not empty; give a directory that is empty or not there yet")
    for folder in output.parents:
        if folder == RunDir(folder.parent).checkpoints and RunDir(folder.parent).run.exists():
            raise ConfigError(f"OUTPUT {output} is among the checkpoints of a run; give a directory outside {folder}")


def _find(source: Path, which: str | None) -> Path:
    """The checkpoint that is meant, by the name it keeps: `best` may lead to another one the next moment."""
    if any((source / name).is_file() for name in (MODEL, ADAPTER)):
        if which is not None:
            raise ConfigError(f"--which={which} chooses among the checkpoints of a run, but {source} is one model")
        return source.resolve()
    run = RunDir(source)
    if not (run.run.is_file() or run.checkpoints.is_dir()):
        raise RunDirError(
            f"{source} is neither a run directory nor a checkpoint: it has no run.json, {MODEL} or {ADAPTER}; give "
            "what `dojang train` printed as its run directory, or a directory below its checkpoints/"
        )
    found = run.checkpoint_names()
    if not found:
        raise RunDirError(f"the run in {source} has no checkpoint yet; the first comes after its first evaluation")
    if (name := which or "best") not in found:
        raise ConfigError(f"there is no checkpoint {name!r} in {source}; choose with --which among {', '.join(found)}")
    return found[name]


@contextmanager
def _whole(checkpoint: Path) -> Iterator[None]:
    """What is read inside is all of one checkpoint, or there is an error that says why not."""
    gone = RunDirError(
        f"checkpoint {checkpoint} was deleted or replaced while it was being read, by a run that goes on; nothing was "
        "written. Try again: best and last lead to what is there now"
    )
    before = _identity(checkpoint)
    try:
        yield
    except Exception as error:  # torch, safetensors and transformers each have their own for a damaged file
        if before is None or _identity(checkpoint) != before:
            raise gone from error
        if isinstance(error, DojangError):
            raise
        raise RunDirError(f"checkpoint {checkpoint} cannot be read ({error!r}); export another one") from error
    if _identity(checkpoint) != before:  # some files may be missing, and nobody would miss a chat template
        raise gone


def _identity(path: Path) -> tuple[int, int] | None:
    """The same as long as it is the same directory."""
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
    words = str(checkpoint)
    if (checkpoint / ADAPTER).is_file():
        base = models.base_of(checkpoint)
        if not (checkpoint / "tokenizer_config.json").is_file():
            words = base
        model = merge(checkpoint, base)
        torch.nn.Module.to(model, wanted)
    else:
        model = load_whole(str(checkpoint), wanted)
    if bad := [name for name, weight in model.named_parameters() if not bool(weight.isfinite().all())]:
        raise ModelError(
            f"{bad[0]} of {checkpoint} is not finite in {precision}; try --dtype=float32, and if that says the same, "
            "the model is lost: export an earlier checkpoint"
        )
    return model, AutoTokenizer.from_pretrained(words)


def _write(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", output: Path) -> int:
    """Give `output` its name once everything in it is on disk; its size in bytes."""
    aside = output.parent / f".{output.name}.tmp"
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        aside.mkdir()
    except OSError as error:
        if aside.is_dir():
            raise RunDirError(
                f"{aside} is there already: another export to {output} is under way, or was killed; then delete it"
            ) from error
        raise RunDirError(f"cannot write to {output}: {error.strerror}; choose another OUTPUT") from error
    try:
        need, free = sum(weight.nbytes for weight in model.parameters()), shutil.disk_usage(aside).free
        if need > free:
            raise RunDirError(f"{output} needs {need / 1e6:,.1f} MB, but its disk has {free / 1e6:,.1f} MB free")
        model.save_pretrained(aside)
        tokenizer.save_pretrained(aside)
        for weights in aside.glob("*.safetensors"):  # made for their owner alone; a model is for sharing
            shutil.copymode(aside / MODEL, weights)
        sync_tree(aside)
        os.rename(aside, output)
    except BaseException as error:
        shutil.rmtree(aside, ignore_errors=True)
        if not isinstance(error, Exception) or isinstance(error, DojangError):
            raise
        raise RunDirError(f"cannot write to {output}: {error}; nothing was left there") from error
    return sum(file.stat().st_size for file in output.iterdir())
