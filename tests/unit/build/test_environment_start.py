"""A run, dry or not, starts an episode of the environment before anything else."""

import importlib
import sys
import time
from pathlib import Path

import pytest

from dojang.config import recipe as recipes
from dojang.core.errors import ConfigError
from dojang.runs.dry_run import describe

ENVIRONMENTS = """
import asyncio
import sys
import time
import dojang

class Base(dojang.Environment):
    made = closed = 0

    def __init__(self):
        type(self).made += 1

    def reset(self, problem):
        return f"{problem.reference}: go"

    def step(self, reply):
        return 1.0

    def close(self):
        type(self).closed += 1

class Short(Base):
    pass

class Flaky(Base):
    def reset(self, problem):
        if self.made < 3:
            raise OSError("warming up")
        return "go"

class FirstIsBad(Base):
    def reset(self, problem):
        if problem.reference == "0":
            raise OSError("no such level")
        return "go"

class Long(Base):
    def reset(self, problem):
        return "word " * 5000

class Down(Base):
    def reset(self, problem):
        raise OSError("no server answers")

class Slow(Base):
    async def reset(self, problem):
        await asyncio.sleep(60)

class Leaves(Base):
    async def reset(self, problem):
        sys.exit(0)

class Cancels(Base):
    async def reset(self, problem):
        raise asyncio.CancelledError

class WrongTools(Base):
    def tools(self):
        return [self.nothing]

class NoTools(Base):
    def tools(self):
        return "search"

class SlowTools(Base):
    def tools(self):
        time.sleep(1)

class ToolsOfReset(Base):
    def reset(self, problem):
        self.levels = []
        return "go"

    def tools(self):
        return self.levels

class FlakyToMake(Base):
    tried = 0

    def __init__(self):
        FlakyToMake.tried += 1
        if FlakyToMake.tried < 3:
            raise OSError("no free port")
        super().__init__()

class NotMade(Base):
    def __init__(self):
        raise OSError("no free port")

class SlowToMake(Base):
    def __init__(self):
        time.sleep(0.5)
        super().__init__()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "starts.py").write_text(ENVIRONMENTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "starts", raising=False)
    return "starts"


def check(module: str, name: str) -> None:
    workflow = (
        f"workflow={{name: custom, make_with: '{module}:{name}', timeout_s: {0.1 if name.startswith('Slow') else 60}}}"
    )
    describe(recipes.load("quickstart", ["data={name: episodes}", "task={name: environment}", workflow]))


@pytest.mark.parametrize(
    ("name", "closed"), [("Short", 1), ("Flaky", 3), ("FirstIsBad", 4), ("FlakyToMake", 1), ("ToolsOfReset", 1)]
)
def test_an_environment_that_starts_now_and_then_is_accepted(module: str, name: str, closed: int) -> None:
    check(module, name)
    found = getattr(importlib.import_module(module), name)
    assert found.closed == closed


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Long", "a prompt of 25003 tokens and rollout.max_tokens=32 do not fit .*; the environment writes it"),
        ("Down", r"an episode of episodes/0: Down.reset raised OSError: no server answers \(.*starts.py, line \d+\)"),
        ("Slow", "Slow.reset took longer than workflow.timeout_s=0.1"),
        ("Leaves", "Leaves.reset raised SystemExit: 0"),
        ("Cancels", "Cancels.reset raised CancelledError"),
        (
            "NotMade",
            r"workflow.make_with='starts:NotMade': calling it raised OSError: no free port \(.*starts.py, line",
        ),
        ("SlowToMake", "the constructor took longer than workflow.timeout_s=0.1"),
        ("SlowTools", "SlowTools.tools took longer than workflow.timeout_s=0.1"),
        ("NoTools", r"workflow: `tools` returned 'search'"),
        ("WrongTools", "WrongTools.tools raised AttributeError: .*nothing"),
    ],
)
def test_an_environment_that_cannot_start_is_refused(module: str, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        check(module, name)
    found = getattr(importlib.import_module(module), name)
    assert name != "Long" or "data." not in str(error.value), "the data are not to blame"
    deadline = time.monotonic() + 20
    while name == "SlowToMake" and (found.made < 3 or found.closed < 3) and time.monotonic() < deadline:
        time.sleep(0.05)  # those that are made too late are closed as well
    assert found.made == (0 if name == "NotMade" else found.closed)
    assert name != "SlowToMake" or found.made == 3
