"""Datasets on the Hugging Face hub: files are downloaded into the hub's cache when they are read.

Without the hub (offline mode, or no answer), the files that the cache already has are used.
"""

from pathlib import Path
from typing import Any

from pyarrow import fs

from dojang.core.errors import DataError
from dojang.core.hub import why_unreachable

__all__ = ["open_hub"]

PREFIX = "datasets/"


def open_hub(name: str) -> tuple[Any, str]:
    """Returns the file system and the root path of org/name, or of a directory or file in it: org/name/subset."""
    if reason := why_unreachable():
        return fs.LocalFileSystem(), str(_cached(name, reason))
    return _HubFiles(), f"{PREFIX}{name}"


class _HubFiles:
    """Lists files on the hub; opens them in the hub's cache."""

    def __init__(self) -> None:
        from huggingface_hub import HfFileSystem  # takes a while to load

        self._remote = fs.PyFileSystem(fs.FSSpecHandler(HfFileSystem()))
        self._local = fs.LocalFileSystem()

    def get_file_info(self, paths: Any) -> Any:
        return self._remote.get_file_info(paths)

    def open_input_file(self, path: str) -> Any:
        return self._local.open_input_file(_download(path))

    def open_input_stream(self, path: str, compression: str) -> Any:
        return self._local.open_input_stream(_download(path), compression=compression)


def _download(path: str) -> str:
    from huggingface_hub import hf_hub_download

    repository, file = _parts(path.removeprefix(PREFIX))
    try:
        return str(hf_hub_download(repository, file, repo_type="dataset"))
    except Exception as error:  # the client raises many kinds
        raise DataError(f"{path.removeprefix(PREFIX)} cannot be downloaded from the hub: {error}") from error


def _cached(name: str, reason: str) -> Path:
    """Returns the path of a dataset in the hub's cache."""
    from huggingface_hub import constants, snapshot_download

    repository, below = _parts(name)
    try:
        found = Path(snapshot_download(repository, repo_type="dataset", local_files_only=True)) / below
    except Exception:  # the client raises many kinds
        found = None
    if found is None or not found.exists():
        raise DataError(
            f"{name} is not a local path, so it was looked for on the Hugging Face hub: {reason}, and it is not in the "
            f"hub's cache ({constants.HF_HUB_CACHE}). Where the hub can be reached, run `hf download --repo-type "
            f"dataset {repository} --local-dir DIR`, and give DIR"
        )
    return found


def _parts(name: str) -> tuple[str, str]:
    """Splits org/name/path/in/it after the name."""
    org, dataset, *below = name.split("/")
    return f"{org}/{dataset}", "/".join(below)
