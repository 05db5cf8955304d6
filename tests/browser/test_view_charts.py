"""Charts of the viewer and of a report: values, zoom, smoothing, scales, gaps."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tabs import PHONE, OpenTab

from dojang.viewer.report import write_report

STEPS = 5000


@pytest.fixture
def curves(tmp_path: Path) -> Path:
    """A run with a long curve with a single spike, one with gaps, and one of few evaluations."""
    run = tmp_path / "curves"
    run.mkdir()
    (run / "config.yaml").write_text(f"steps: {STEPS}\n")
    lines = []
    for step in range(1, STEPS + 1):
        line: dict[str, Any] = {"step": step, "critic/rewards/mean": math.sin(step / 300)}
        line["actor/grad_norm"] = 1000.0 if step == 3333 else 1.0 + step % 7 / 10
        if step <= 30:
            line["actor/entropy"] = None if step == 15 else math.nan if step == 16 else float(step)
        lines.append(json.dumps(line))
        if step % 1000 == 0:
            lines.append(json.dumps({"step": step, "val/accuracy": step / STEPS}))
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return run


def chart(page: Page, name: str) -> Any:
    card = page.locator(f"[data-metric='{name}']")
    card.scroll_into_view_if_needed()
    expect(card.locator(".line").first).to_be_attached()
    return card


def points(card: Any, kind: str = "line") -> int:
    return len(re.findall("[ML]", card.locator(f"path.{kind}").first.get_attribute("d")))


def test_long_series_keep_spikes_and_few_points(open_tab: OpenTab, serve: Callable[..., str], curves: Path) -> None:
    page = open_tab(serve(curves)).go("charts?runs=curves&smooth=0")
    card = chart(page, "actor/grad_norm")
    assert 1000 < points(card) <= 2000
    assert "1,000" in card.locator(".tick").all_text_contents()


def test_hover_drag_and_reset(open_tab: OpenTab, serve: Callable[..., str], curves: Path) -> None:
    page = open_tab(serve(curves)).go("charts?runs=curves&smooth=0")
    card = chart(page, "val/accuracy")
    box = card.locator("svg.plot").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] - 14, box["y"] + 60)
    expect(card.locator(".chart-tip")).to_contain_text("step 5,000")
    expect(card.locator(".chart-tip")).to_contain_text("100.0%")
    page.mouse.move(box["x"] + 120, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 220, box["y"] + 90, steps=3)
    page.mouse.up()
    expect(card.get_by_role("button", name="Reset zoom")).to_be_visible()
    ticks = [int(each.replace(",", "")) for each in card.locator("text.tick[text-anchor=middle]").all_text_contents()]
    assert ticks
    assert max(ticks) - min(ticks) < 2000
    card.get_by_role("button", name="Reset zoom").click()
    expect(card.get_by_role("button", name="Reset zoom")).to_be_hidden()
    card.locator("svg.plot").focus()
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    expect(card.locator(".chart-tip")).to_contain_text("step 2,000")
    expect(card.locator("svg.plot")).to_have_attribute("aria-label", re.compile("step 2000: .*40.0%"))


def test_smoothing_draws_the_raw_line_behind(open_tab: OpenTab, serve: Callable[..., str], curves: Path) -> None:
    page = open_tab(serve(curves)).go("charts?runs=curves")
    card = chart(page, "actor/grad_norm")
    assert card.locator("path.raw").count() == 1
    assert chart(page, "val/accuracy").locator("path.raw").count() == 0  # few points
    page.get_by_label("Smoothing").fill("0")
    assert card.locator("path.raw").count() == 0
    page.wait_for_url("**smooth=0*")
    page.get_by_label("Log scale").check()
    assert set(card.locator("text.tick[text-anchor=end]").all_text_contents()) >= {"1", "10", "100", "1,000"}


def test_missing_values_are_gaps(open_tab: OpenTab, serve: Callable[..., str], curves: Path) -> None:
    page = open_tab(serve(curves)).go("charts?runs=curves&smooth=0")
    card = chart(page, "actor/entropy")
    assert card.locator("path.line").get_attribute("d").count("M") == 2
    assert card.locator(".mark").count() == 28


def test_metrics_are_found_by_name(open_tab: OpenTab, serve: Callable[..., str], curves: Path) -> None:
    page = open_tab(serve(curves)).go("charts?runs=curves")
    page.keyboard.press("/")
    page.keyboard.type("norm")
    expect(page.locator(".chart-card:visible")).to_have_count(1)
    page.keyboard.type("nothing of that name")
    expect(page.locator("main")).to_contain_text("No metric matches")


def test_runs_are_compared_in_one_chart(viewer: str, open_tab: OpenTab) -> None:
    page = open_tab(viewer).go("charts?runs=code")
    page.get_by_role("group", name="Runs").get_by_role("button", name="other").click()
    page.wait_for_url("**runs=code%2Cother*")
    card = chart(page, "critic/rewards/mean")
    expect(card.locator("path.line")).to_have_count(2)
    dashes = card.locator("path.line").evaluate_all("all => all.map(each => getComputedStyle(each).strokeDasharray)")
    assert len(set(dashes)) == 2  # told apart without colours
    card.get_by_role("button", name="other").click()
    expect(card.locator("path.line")).to_have_count(1)


@pytest.mark.parametrize("javascript", [True, False])
def test_report_can_be_read(trained: Path, open_tab: OpenTab, tmp_path: Path, javascript: bool) -> None:
    path = write_report(trained, tmp_path / "report.html")
    for width in (1280, PHONE):
        tab = open_tab("file://", width=width, java_script_enabled=javascript)
        tab.page.goto(f"file://{path}")
        expect(tab.page.locator(".verdict")).to_contain_text("held-out accuracy")
        assert tab.page.locator("figure svg.plot path.line").count() > 5
        assert tab.page.locator("figure .chart").count() == (tab.page.locator("figure").count() if javascript else 0)
        expect(tab.page.locator(".sample").first).to_contain_text("best of the first step")
        if javascript:
            assert tab.overflow() == 0
            tab.page.locator("svg.plot").first.hover()
            expect(tab.page.locator(".chart-tip").first).to_contain_text("step")
