"""A browser, and runs to look at."""

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import NAMES, launch_options
from playwright.sync_api import Browser, sync_playwright
from tabs import DESK, OpenTab, Tab

import commands
from dojang.viewer.server import Viewer


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run that judges programs."""
    run = tmp_path_factory.mktemp("runs") / "code"
    small = ["steps=3", "rollout.prompts_per_step=4", "eval.every=3", "eval.problems=16", "checkpoint.every=100"]
    command = [sys.executable, "-m", "dojang", "train", "quickstart-code", *small, "--run-dir", str(run)]
    done = commands.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return run


@pytest.fixture(scope="session")
def other(trained: Path) -> Path:
    """The same run with another learning rate in its settings."""
    copy = trained.parent / "other"
    shutil.copytree(trained, copy, symlinks=True)
    text = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(re.sub(r"( lr: ).*", r"\g<1>0.25", text, count=1))
    return copy


@pytest.fixture(scope="module")
def browser(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium. Depends on the run: training must not begin while Playwright's event loop is in this thread. Ends with
    the module, so that the tests of other folders can run event loops in this thread."""
    options = launch_options(tmp_path_factory.mktemp("chromium"))
    if options is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} on PATH; `make chromium` fetches one")
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(**options)
        yield found
        found.close()


@pytest.fixture(scope="module")
def viewer(trained: Path, other: Path) -> Iterator[str]:
    """Address of a viewer over the real run and its copy. Ends with the module: its judge would be found by tests that
    look for processes left behind."""
    with Viewer([trained, other]) as started:
        assert all(run.index.wait(60) for run in started.runs.all())
        yield started.url.rstrip("/")


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Starts viewers that end with the test; returns their addresses."""
    started: list[Viewer] = []

    def start(*runs: Path, **options: Any) -> str:
        started.append(Viewer(runs, **options))
        started[-1].__enter__()
        assert all(run.index.wait(120) for run in started[-1].runs.all())
        return started[-1].url.rstrip("/")

    yield start
    for each in started:
        each.close()


@pytest.fixture
def open_tab(browser: Browser, serve: Callable[..., str]) -> Iterator[OpenTab]:
    """Opens tabs, which close before viewers end; the test fails if anything went wrong in one of them."""
    tabs: list[Tab] = []

    def start(url: str, *, width: int = DESK, theme: str = "light", **options: Any) -> Tab:
        context = browser.new_context(viewport={"width": width, "height": 860}, color_scheme=theme, **options)
        tabs.append(Tab(context.new_page(), url))
        return tabs[-1]

    yield start
    for tab in tabs:
        tab.page.context.close()
    assert [fault for tab in tabs for fault in tab.faults] == []
