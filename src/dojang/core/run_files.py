"""Files of a run, in a local directory or in S3 (s3://BUCKET/PREFIX), read only.

Both are read through pyarrow's file systems. Parquet files are read by ranges: the footer, then the columns asked for.
For S3, credentials and the region come from the usual AWS chain (environment, profile, role of the machine), and
AWS_ENDPOINT_URL names another service with the same API.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dojang.core.errors import ConfigError, RunDirError
from dojang.core.run_dir import RunDir

__all__ = ["FileInfo", "RunFiles", "is_remote"]

SCHEME = "s3://"
_TIMEOUT_S = 20.0
_STEP = re.compile("[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class FileInfo:
    """Size and time of a file; a replaced file differs in one of them."""

    name: str
    """Path within the run directory."""
    size: int
    modified_ns: int


class RunFiles:
    """The files of one directory. Names are relative to it, with slashes."""

    def __init__(self, location: Path | str) -> None:
        """Raises ConfigError if an S3 address has no bucket, RunDirError if S3 cannot be reached."""
        self.is_remote = is_remote(location)
        if self.is_remote:
            bucket, _, prefix = str(location).removeprefix(SCHEME).partition("/")
            if not bucket:
                raise ConfigError(f"{location} names no bucket; give s3://BUCKET/PREFIX of a run directory")
            root = "/".join(part for part in (bucket, *prefix.split("/")) if part)
            self._system, self._root, self.location = _s3(bucket), root, SCHEME + root
        else:
            from pyarrow.fs import LocalFileSystem

            path = RunDir(Path(location)).path
            self._system, self._root, self.location = LocalFileSystem(), os.path.abspath(path), str(path)

    @property
    def name(self) -> str:
        """Last part of the location."""
        return self._root.rstrip("/").rpartition("/")[2] or self._root

    @property
    def path(self) -> Path:
        """The directory on this machine. Raises RunDirError for S3."""
        if self.is_remote:
            raise RunDirError(f"{self.location} is in S3; copy it to this machine first")
        return Path(self._root)

    def below(self, name: str) -> "RunFiles":
        """Files of a directory in this one."""
        found = object.__new__(RunFiles)
        found.is_remote, found._system = self.is_remote, self._system
        found._root, found.location = f"{self._root}/{name}", f"{self.location.rstrip('/')}/{name}"
        return found

    def info(self, name: str) -> FileInfo | None:
        """Size and time of a file or directory; None if it does not exist."""
        with self._errors(name):
            found = self._system.get_file_info(self._at(name))
        return _info(name, found)

    def listing(self, folder: str = "") -> dict[str, FileInfo]:
        """Files of a folder, by their names in it; without directories and hidden files."""
        return {name: info for name, (info, is_file) in self._entries(folder).items() if is_file}

    def folders(self) -> list[str]:
        """Names of the directories in this one."""
        return [name for name, (_, is_file) in self._entries("").items() if not is_file]

    def rollouts(self) -> dict[tuple[str, int], FileInfo]:
        """Rollout files by kind (train, test, test-NAME) and step."""
        found: dict[tuple[str, int], FileInfo] = {}
        for name, info in self.listing("rollouts").items():
            kind, _, number = name.removesuffix(".parquet").rpartition("-")
            if name.endswith(".parquet") and kind and _STEP.fullmatch(number):
                found[kind, int(number)] = info
        return dict(sorted(found.items()))

    def read(self, name: str, start: int = 0) -> bytes | None:
        """Content of a file from a byte on; None if it does not exist. Raises RunDirError if it cannot be read."""
        try:
            with self._errors(name), self._system.open_input_file(self._at(name)) as file:
                size = file.size()
                return bytes(file.read_at(size - start, start)) if start < size else b""
        except FileNotFoundError:
            return None

    def open_parquet(self, name: str) -> Any:
        """A pyarrow ParquetFile that reads ranges. Raises OSError or ArrowException if it is missing or damaged."""
        import pyarrow.parquet as pq

        return pq.ParquetFile(self._system.open_input_file(self._at(name)), pre_buffer=self.is_remote)

    def open_dataset(self, name: str, schema: Any) -> Any:
        """A pyarrow dataset of one Parquet file. Raises FileNotFoundError if it does not exist."""
        import pyarrow.dataset as ds

        return ds.dataset(self._at(name), schema=schema, format="parquet", filesystem=self._system)

    def _entries(self, folder: str) -> dict[str, tuple[FileInfo, bool]]:
        from pyarrow.fs import FileSelector, FileType

        with self._errors(folder):
            found = self._system.get_file_info(FileSelector(self._at(folder), allow_not_found=True))
        prefix = f"{folder}/" if folder else ""
        return {
            each.base_name: (info, each.type == FileType.File)
            for each in found
            if not each.base_name.startswith(".") and (info := _info(prefix + each.base_name, each))
        }

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        """Turns errors of reading into RunDirErrors with a remedy."""
        try:
            yield
        except FileNotFoundError:
            raise
        except OSError as error:
            where = f"{self.location}/{name}" if name else self.location
            hint = "check credentials, region and AWS_ENDPOINT_URL" if self.is_remote else "check its permissions"
            raise RunDirError(f"cannot read {where}: {str(error).splitlines()[0]}; {hint}") from error


def is_remote(location: Path | str) -> bool:
    """Reports whether a location is in S3."""
    return str(location).startswith(SCHEME)


def _info(name: str, found: Any) -> FileInfo | None:
    from pyarrow.fs import FileType

    if found.type == FileType.NotFound:
        return None
    return FileInfo(name, found.size or 0, found.mtime_ns or 0)


def _s3(bucket: str) -> Any:
    from pyarrow import fs

    system = getattr(fs, "S3FileSystem", None)
    if system is None:
        raise ConfigError("this build of pyarrow cannot read S3; install pyarrow from PyPI, or copy the run directory")
    options: dict[str, Any] = {"connect_timeout": _TIMEOUT_S, "request_timeout": _TIMEOUT_S}
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if endpoint := os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
        scheme, _, host = endpoint.rpartition("://")
        options |= {"endpoint_override": host.rstrip("/"), "scheme": scheme or "https"}
    elif not region:
        try:
            region = fs.resolve_s3_region(bucket)
        except OSError as error:
            raise RunDirError(
                f"cannot find the region of s3://{bucket}: {str(error).splitlines()[0]}; "
                "check the bucket's name and the network, or set AWS_REGION"
            ) from error
    return system(region=region, **options) if region else system(**options)
