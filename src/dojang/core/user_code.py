"""Describes exceptions of the user's code by the file and line that raised them."""

import os
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from dojang.core.safe_text import replace_surrogates

__all__ = ["describe_exception", "message_of"]

_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_INSTALLED = tuple(sysconfig.get_paths()[kind] + os.sep for kind in ("purelib", "platlib"))
_MESSAGE_CHARS = 300


def describe_exception(error: BaseException) -> str:
    """Type and message, and the last line of the user's code in the traceback: `KeyError: 'x' (mine.py, line 15)`."""
    said = replace_surrogates(f"{type(error).__name__}: {message_of(error)}".removesuffix(": "))
    if len(said) > _MESSAGE_CHARS:
        said = f"{said[:_MESSAGE_CHARS]}..."
    frames = list(_frames(error))
    # The user's own files first; then installed packages, where the whole function may be.
    own = [each for each in frames if not each[0].startswith(_INSTALLED)]
    where = (own or frames)[-1:]
    return "".join([said, *(f" ({_shortened(file)}, line {line})" for file, line in where)])


def message_of(error: BaseException) -> str:
    """The message of an exception, whatever its own `__str__` does."""
    try:
        return str(error)
    except Exception:  # a __str__ of the user
        return "(its message cannot be read)"


def _frames(error: BaseException) -> Iterator[tuple[str, int]]:
    """Yields the lines of a traceback outside dojang and the standard library."""
    for frame in traceback.extract_tb(error.__traceback__):
        file = frame.filename
        outside = not file.startswith((_PACKAGE, "<")) and (file.startswith(_INSTALLED) or not file.startswith(_STDLIB))
        if outside and frame.lineno is not None:
            yield file, frame.lineno


def _shortened(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
