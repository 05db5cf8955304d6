"""The groups of scripts/run_tests.py have every test once, a time limit leaves out heavy groups only, and a run that is
stopped ends its tests."""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import run_tests
from run_tests import GROUPS, Group, Runs, next_group

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
    assert next_group(waiting, [], left, pace) == chosen


def test_groups_that_kill_judges_do_not_run_together() -> None:
    """What one leaves behind for a moment, the other would find."""
    first, second = (Group(name, 10, (), kills_judges=True) for name in ("first", "second"))
    assert next_group([second, PART], [first], 100, 1.0) == PART
    assert next_group([second], [first], 100, 1.0) is None
    assert next_group([second], [PART], 100, 1.0) == second


SCRIPT = """
import signal, sys, time
import run_tests

class Late(run_tests.Runs):
    def stop(self):
        time.sleep(0.5)  # a second signal would come during the teardown
        super().stop()

run_tests.Runs = Late
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
run_tests.GROUPS = (run_tests.Group("waits", 1, [], environment=sys.argv.pop()),)
sys.exit(run_tests.main())
"""
STAND_IN = """
import time
from pathlib import Path
try:
    Path("began").touch()
    time.sleep(60)
finally:
    time.sleep(1)
    Path("torn-down").touch()
"""


def environment(folder: Path, program: str) -> str:
    """An environment whose `python` is a shell script."""
    python = folder / "environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    (folder / "environment" / ".ready").touch()
    return str(folder / "environment")


def wait_for(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_ctrl_c_lets_fixtures_tear_down(tmp_path: Path) -> None:
    """A terminal signals the whole process group of the command."""
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    place = environment(tmp_path, f'cd {tmp_path} && exec "{sys.executable}" stand_in.py')
    command = [sys.executable, "-c", SCRIPT, place]
    path = os.pathsep.join([str(ROOT / "scripts"), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True, env={**os.environ, "PYTHONPATH": path}
    )
    try:
        wait_for((tmp_path / "began").exists)
        os.killpg(process.pid, signal.SIGINT)
        said, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert (tmp_path / "torn-down").exists()
    assert "KeyboardInterrupt" in said
    assert said.endswith("stopped\n")


def test_what_ignores_ctrl_c_is_killed_with_its_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run_tests, "_PATIENCE_S", 0.2)
    program = f"trap '' INT; sleep 60 & echo $! > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/child; wait; sleep 60"
    runs = Runs([])
    runs.start(Group("stubborn", 1, (), environment=environment(tmp_path, program)))
    wait_for((tmp_path / "child").exists)
    runs.stop()
    assert (len(runs), runs.failed) == (0, ["stubborn"])
    child = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    wait_for(lambda: not child.exists() or child.read_text().split()[2] == "Z")


def test_groups_without_an_environment_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ready, begun = environment(tmp_path, "true"), tmp_path / "begun"
    begun.mkdir()
    groups = (Group("one", 1, (), environment=ready), Group("two", 1, (), environment=str(begun)))
    monkeypatch.setattr(sys, "argv", ["run_tests.py"])
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)  # handlers would outlive this test
    for chosen, code, end in ((groups, 0, "all groups passed"), (groups[1:], 1, "no tests were run")):
        monkeypatch.setattr(run_tests, "GROUPS", chosen)
        assert run_tests.main() == code
        said = capfd.readouterr().out
        assert f"left out: tests of two, since {begun} is not set up: make {begun}/.ready\n{end}\n" in said
