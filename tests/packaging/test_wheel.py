"""The built wheel, installed in a clean environment: what it contains, and that its commands work anywhere."""

import os
import re
import subprocess
import sys
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="needs hatchling: make install")

ROOT = Path(__file__).parents[2]
LOCAL_LINK = re.compile(r"\]\((?!https://|#)[^)]*\)")


def run(*command: object, cwd: Path, expect: int = 0) -> str:
    """Runs a command without the settings that make this checkout importable; returns its output."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=clean, capture_output=True, text=True, timeout=120)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    (found,) = folder.glob("*.whl")
    return found


def test_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    package = ROOT / "src" / "dojang"
    files = {path.relative_to(package.parent).as_posix() for path in package.rglob("*") if path.is_file()}
    expected = {path for path in files if "__pycache__" not in path}
    built = set(zipfile.ZipFile(wheel).namelist())
    assert expected - built == set()
    assert {"dojang/py.typed", "dojang/engine/cpu_ops.cpp", "dojang/recipes/quickstart.yaml"} <= built
    assert {path.split("/")[0].removesuffix(".dist-info") for path in built} == {"dojang", wheel.name.split("-py3")[0]}


def test_package_page_has_no_links_into_the_repository(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (path for path in archive.namelist() if path.endswith("METADATA"))
    about = message_from_bytes(archive.read(name))
    page = about.get_payload()
    assert isinstance(page, str)
    assert "# dojang" in page
    assert LOCAL_LINK.findall(page) == []
    assert about["License-Expression"] == "Apache-2.0"


@pytest.mark.parametrize("base", ["", "https://host/org/dojang"])
def test_links_become_absolute_or_text(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    from hatch_build import LINK, absolute

    text = "![chart](docs/a.png) [data](docs/data.md#rows) [TRL](https://hf.co) [below](#below)"
    expected = (
        f"![chart]({base}/raw/HEAD/docs/a.png) [data]({base}/blob/HEAD/docs/data.md#rows)" if base else " data"
    ) + " [TRL](https://hf.co) [below](#below)"
    assert LINK.sub(lambda link: absolute(link, base), text) == expected


@pytest.mark.slow
def test_commands_of_an_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    """Dependencies are those of this environment, by a .pth file; dojang itself is the wheel's."""
    environment, empty = tmp_path / "environment", tmp_path / "empty"
    venv.create(environment)
    empty.mkdir()
    bin_folder = environment / "bin"
    python = bin_folder / "python"
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--no-compile",
        "--no-deps",
        "--no-index",
        wheel,
        cwd=empty,
    )
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("-packages")))
    where = run(python, "-c", "import dojang; print(dojang.__file__)", cwd=empty)
    assert Path(where.strip()).is_relative_to(packages)
    dojang = bin_folder / "dojang"
    assert run(dojang, "--version", cwd=empty).strip() == wheel.name.split("-")[1]
    assert "smollm2-gsm8k" in run(dojang, "train", cwd=empty, expect=2)
    assert "would run" in run(dojang, "train", "quickstart", "--dry-run", cwd=empty)
    assert list(empty.iterdir()) == []
