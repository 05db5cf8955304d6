"""Packages that judged programs may import."""

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from dojang.core.errors import ConfigError
from dojang.core.paths import cache_root
from dojang.judge.config import JudgeConfig
from dojang.judge.host_capabilities import probe
from dojang.judge.interpreter import find_python
from dojang.judge.pool import JudgePool
from dojang.programs import IoTest, Judgement, Submission, TestSuite
from dojang.types import Outcome

ISOLATIONS = ("namespaces", "landlock", "seccomp", "none")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder of packages that every user can read."""
    place = Path(tempfile.mkdtemp(prefix="dojang-packages-", dir="/var/tmp"))
    try:
        place.chmod(0o755)
        packages = place / "site-packages"
        (packages / "sorted_things").mkdir(parents=True)
        (packages / "sorted_things" / "__init__.py").write_text("from .inner import answer\n")
        (packages / "sorted_things" / "inner.py").write_text("answer = 42\n")
        (packages / "single_file.py").write_text("answer = 42\n")
        (packages / "needs_another.py").write_text("import single_file\n")
        yield packages
    finally:
        shutil.rmtree(place)


@pytest.fixture
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])


def judge(isolation: str, packages: list[str], *sources: str) -> list[Judgement]:
    async def play() -> list[Judgement]:
        async with JudgePool(cache=cache_root(), workers=1, isolation=isolation, packages=packages) as pool:
            return [await pool.judge(Submission("python3", each, TestSuite((IoTest("", "42"),)))) for each in sources]

    return asyncio.run(play())


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_named_packages_are_importable_and_others_are_not(isolation: str, installed: None) -> None:
    if isolation != "none" and (why := probe()[isolation]):
        pytest.skip(f"{isolation} cannot be had here: {why}")
    named, other = judge(
        isolation,
        ["sorted_things"],
        "import sorted_things\nfrom sorted_things.inner import answer\nprint(answer)",
        "import single_file\nprint(single_file.answer)",
    )
    assert named.outcome is Outcome.ACCEPTED, named.detail
    assert other.outcome is Outcome.RUNTIME_ERROR
    assert "No module named 'single_file'" in other.detail
    assert "judge.packages" in other.detail


def test_missing_package_is_config_error(installed: None) -> None:
    with pytest.raises(ConfigError, match=r"judge\.packages: 'no_such_package', 'heapq' not found"):
        find_python("", private_user=False, packages=["single_file", "no_such_package", "heapq"])


def test_missing_dependency_of_a_package_is_found_before_a_run(installed: None) -> None:
    async def check() -> None:
        config = JudgeConfig(packages=["needs_another"], workers=1)
        pool = config.make(cache_root())
        try:
            await config.check(pool, "python3")
        finally:
            await pool.close()

    with pytest.raises(ConfigError, match="No module named 'single_file'"):
        asyncio.run(check())


@pytest.mark.parametrize("name", ["sorted-things", "a.b", "", "1x"])
def test_invalid_package_names_are_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="not a package's import name"):
        JudgeConfig(packages=[name])


def test_a_cache_that_cannot_be_written_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    async def check() -> None:
        config = JudgeConfig()
        judge = config.make(tmp_path / "file" / "cache")
        try:
            await config.check(judge, "python3")
        finally:
            await judge.close()

    with pytest.raises(ConfigError, match="set DOJANG_CACHE to a directory that can be written"):
        asyncio.run(check())
