"""Every program of the corpus, honest or hostile, gets its expected outcome, as root and as an ordinary user."""

import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from judging import DIFFERENCES, judge_all, third

import dojang
from corpus import ARCHES, entries
from dojang.core.paths import cache_root
from dojang.judge.host_capabilities import probe

NOBODY = 65534
ALL = bool(os.environ.get("DOJANG_ALL_TESTS"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
    pytest.mark.skipif(platform.machine() not in ARCHES, reason="the judge does not know this architecture"),
]


@pytest.fixture(scope="module")
def offers() -> dict[str, str]:
    return probe()


@pytest.fixture(scope="module")
def binaries() -> Iterator[Path]:
    """Hostile programs, compiled once for all tests of this file."""
    with tempfile.TemporaryDirectory(prefix="dojang-corpus-", dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.mark.parametrize("isolation", DIFFERENCES)
def test_every_program_gets_its_expected_outcome(isolation: str, offers: dict[str, str], binaries: Path) -> None:
    if offers[isolation]:
        pytest.skip(f"{isolation} cannot be had here: {offers[isolation]}")
    chosen = entries(platform.machine())
    if isolation != "namespaces" and not ALL:  # the weaker levels share most of their code with it
        chosen = [entry for entry in chosen if third(entry) or entry.name in DIFFERENCES[isolation]]
    assert asyncio.run(judge_all(isolation, cache_root(), chosen, binaries)) == []


def test_corpus_as_ordinary_user(binaries: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("the tests above ran as an ordinary user already")
    place = Path("/var/tmp") / f"dojang-corpus-{os.getpid()}"  # readable by the user
    try:
        python = _prepare(place)
        command = [python, "-B", str(place / "corpus" / "judging.py"), "auto", str(place / "cache"), str(binaries)]
        os.chown(binaries, NOBODY, NOBODY)
        result = subprocess.run(
            command + ([] if ALL else ["third"]),
            user=NOBODY,
            group=NOBODY,
            extra_groups=[],
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONPATH": str(place / "src")},
            cwd="/",
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout) == []
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _prepare(place: Path) -> str:
    """Copy the judge and the corpus to a folder that every user can read, with a readable interpreter."""
    package = Path(dojang.__file__).parent
    shutil.copytree(package, place / "src" / "dojang", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(Path(__file__).parent, place / "corpus", ignore=shutil.ignore_patterns("__pycache__"))
    (place / "cache").mkdir()
    for headers in cache_root().glob("judge/*/headers"):  # rebuilding them takes 15 seconds
        shutil.copytree(headers, place / "cache" / headers.relative_to(cache_root()))
    subprocess.run(["chown", "-R", str(NOBODY), str(place / "cache")], check=True)
    subprocess.run(["chmod", "-R", "a+rX", str(place)], check=True)
    for python in (os.path.realpath(sys.executable), "/usr/bin/python3", "/usr/local/bin/python3"):
        code = "import sys; sys.exit(sys.version_info < (3, 11))"
        try:
            result = subprocess.run([python, "-c", code], user=NOBODY, cwd="/", env={}, check=False)
        except OSError:
            continue
        if result.returncode == 0:
            return python
    pytest.skip("no interpreter from 3.11 on is within an ordinary user's reach")
