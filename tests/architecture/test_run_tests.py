"""The groups of scripts/run_tests.py have every test once, and a time limit leaves out heavy groups only."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from run_tests import GROUPS, Group, next_group

ROOT = Path(__file__).resolve().parents[2]
OTHER_ENVIRONMENTS = ("cluster", "environments", "on_ray", "sagemaker", "with_trl")
"""Folders of tests with targets of make that set up another environment."""


def files(path: Path) -> list[Path]:
    return sorted(path.rglob("test_*.py")) if path.is_dir() else [path]


def test_every_test_is_in_one_group() -> None:
    grouped = Counter(file for group in GROUPS for path in group.paths for file in files(ROOT / path))
    assert [str(file) for file, count in grouped.items() if count > 1] == []
    assert [str(file) for file in grouped if not file.is_file()] == []
    every = {file for file in files(ROOT / "tests") if file.parts[len(ROOT.parts) + 1] not in OTHER_ENVIRONMENTS}
    assert sorted(map(str, every - grouped.keys())) == []


def test_names_differ() -> None:
    assert len({group.name for group in GROUPS}) == len(GROUPS)


PART, LONG, SHORT = Group("part", 50, ()), Group("long", 100, (), heavy=True), Group("short", 30, (), heavy=True)


@pytest.mark.parametrize(
    ("waiting", "left", "pace", "chosen"),
    [
        ([PART, LONG], 10, 1.0, PART),  # runs in any case
        ([LONG, SHORT], 100, 1.0, LONG),
        ([LONG, SHORT], 100, 2.0, SHORT),  # this machine takes twice as long
        ([LONG, SHORT], 20, 1.0, None),
        ([], 100, 1.0, None),
    ],
)
def test_heavy_groups_start_if_they_fit(
    waiting: Sequence[Group], left: float, pace: float, chosen: Group | None
) -> None:
    assert next_group(waiting, left, pace) == chosen
