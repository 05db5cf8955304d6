"""Lock of a run directory: a file that the process which trains there holds with flock, with its process id."""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

__all__ = ["LOCK", "RunLock"]

LOCK = "run.lock"


class RunLock:
    """A lock that ends with the process, even if it is killed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: IO[str] | None = None

    def acquire(self) -> str | None:
        """Makes the directory and locks it. Returns the id of the process that holds the lock, None if this one does.
        Raises OSError if the directory cannot be used."""
        if self._file is not None:
            return None
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:  # the path cannot exist, e.g. below /proc
            raise PermissionError(errno.EACCES, error.strerror) from error
        file = (self._directory / LOCK).open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            file.close()
            return holder
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        self._file = file
        return None

    @property
    def is_removed(self) -> bool:
        """Whether another process removed the directory before this one had locked it."""
        return self._file is not None and os.fstat(self._file.fileno()).st_nlink == 0

    def remove_directory(self) -> None:
        """Removes the locked directory, which must be empty, and the one above it if that is empty then."""
        with suppress(OSError):
            (self._directory / LOCK).unlink()
            self._directory.rmdir()
            self._directory.parent.rmdir()

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
