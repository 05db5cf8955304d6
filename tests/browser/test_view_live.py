"""Runs that go on while they are looked at, and a server that goes away."""

import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import expect
from tabs import OpenTab

from dojang.core.run_dir import append_whole
from dojang.viewer.server import Viewer
from rollout_files import row, write


@pytest.fixture
def growing(tmp_path: Path) -> tuple[Path, Callable[[int], None]]:
    """A run that goes on, and a function that adds a step to it as training does."""
    run = tmp_path / "growing"
    run.mkdir()
    (run / "config.yaml").write_text("steps: 9\n")

    def add(step: int) -> None:
        write(run, "train", step, [row(step, index) for index in range(4)])
        line = {"step": step, "critic/rewards/mean": step / 10}
        append_whole(run / "metrics.jsonl", json.dumps(line).encode() + b"\n")

    add(1)
    return run, add


def test_new_steps_appear_without_reloading(
    open_tab: OpenTab, serve: Callable[..., str], growing: tuple[Path, Callable[[int], None]]
) -> None:
    run, add = growing
    url = serve(run)
    table, charts, overview = (open_tab(url) for _ in range(3))
    table.go("rollouts?run=growing")
    charts.go("charts?runs=growing&smooth=0")
    overview.go()
    expect(table.page.locator("main h1 + p")).to_have_text("4 samples")
    expect(charts.page.locator(".mark").first).to_be_attached()
    for tab in (table, charts, overview):
        tab.page.evaluate("window.same = true")
    add(2)
    expect(table.page.locator("main h1 + p")).to_have_text("8 samples", timeout=15_000)
    expect(table.page.locator("tr[data-row='0'] td").nth(1)).to_have_text("2")  # the newest first
    expect(charts.page.locator("[data-metric='critic/rewards/mean'] .mark")).to_have_count(2, timeout=15_000)
    expect(overview.page.locator(".run-card")).to_contain_text("step 2 of 9", timeout=15_000)
    expect(overview.page.locator("#live")).to_have_text("live, step 2 of 9")
    summary = {"recipe": "x", "steps": 2, "seconds": 1.0, "eval": None, "status": "finished"}
    (run / "summary.json").write_text(json.dumps(summary))
    expect(overview.page.locator(".run-card .badge").first).to_have_text("finished", timeout=15_000)
    expect(overview.page.locator("#live")).to_have_text("")
    assert all(tab.page.evaluate("window.same") for tab in (table, charts, overview))


def test_a_filter_that_is_being_typed_is_kept(
    open_tab: OpenTab, serve: Callable[..., str], growing: tuple[Path, Callable[[int], None]]
) -> None:
    run, add = growing
    page = open_tab(serve(run)).go("rollouts?run=growing")
    page.get_by_role("spinbutton", name="Step", exact=True).press_sequentially("1")
    add(2)
    expect(page.locator("main h1 + p")).to_have_text("8 samples", timeout=15_000)
    expect(page.get_by_role("spinbutton", name="Step", exact=True)).to_have_value("1")
    page.keyboard.press("Enter")
    expect(page.locator("main h1 + p")).to_have_text("4 samples")


def test_a_lost_connection_is_shown_and_ends(open_tab: OpenTab, growing: tuple[Path, Callable[[int], None]]) -> None:
    run, add = growing
    viewer = Viewer([run])
    viewer.__enter__()
    url = viewer.url.rstrip("/")
    tab = open_tab(url)
    tab.offline = True
    page = tab.go("rollouts?run=growing")
    banner = page.locator("#connection")
    expect(banner).to_be_hidden()
    viewer.close()
    expect(banner).to_contain_text("Connection lost", timeout=15_000)
    expect(page.locator("tr[data-row]")).to_have_count(4)  # what was loaded stays
    page.locator("tr[data-row] a").first.click()
    expect(page.get_by_role("alert").last).to_contain_text("does not answer")
    add(2)
    port = int(re.sub(r".*:", "", url))
    for _ in range(100):
        try:
            again = Viewer([run], port=port)
            break
        except Exception:  # the port may still be closing
            time.sleep(0.1)
    with again:
        expect(banner).to_be_hidden(timeout=15_000)
        expect(page.locator("h1")).to_have_text(re.compile("sums/"))  # the page that failed loads by itself
        page.keyboard.press("Escape")
        expect(page.locator("main h1 + p")).to_have_text("8 samples", timeout=15_000)


def test_a_run_that_is_deleted_is_an_error_of_the_page(
    open_tab: OpenTab, serve: Callable[..., str], growing: tuple[Path, Callable[[int], None]]
) -> None:
    run, _ = growing
    tab = open_tab(serve(run))
    page = tab.go("rollouts?run=growing")
    shutil.rmtree(run)
    tab.offline = True
    page.locator("tr[data-row] a").first.click()
    expect(page.get_by_role("alert").locator("p")).not_to_be_empty()
