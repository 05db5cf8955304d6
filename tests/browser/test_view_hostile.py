"""Text of models and names of problems that would do harm if a browser took them for markup."""

import json
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect
from tabs import PHONE, OpenTab

from dojang.viewer.report import write_report
from rollout_files import row, write

SCRIPT = (
    "<script>window.owned=1</script><img src=http://example.com/x onerror='window.owned=1'><svg onload=window.owned=1>"
    "</pre></title></textarea><a href='javascript:window.owned=1'>x</a>{{7*7}}${7*7}<!--"
)
CONTROL = "\x00\x07\x1b[2J\x1b]0;owned\x07\r\u202egnorw\u2066\u200f\u2028\ufeff\U000e0041\x9b31m"
PROBLEM = "../a\"b'c<d>/e?f&g#h%20\\i \u202e" + SCRIPT
MEGABYTE = "x" * 2_000_000
ESCAPED = ("\u2400", "\u241b", "\u27e8U+202E\u27e9", "\u27e8U+2028\u27e9", "\u27e8U+FEFF\u27e9", "\u27e8U+009B\u27e9")


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    run = tmp_path / "hostile"
    run.mkdir()
    (run / "config.yaml").write_text(json.dumps({"steps": 2, "model": {"name": SCRIPT}, SCRIPT: CONTROL}))
    (run / "run.json").write_text(json.dumps({"recipe": SCRIPT, "overrides": [SCRIPT]}))
    (run / "environment.json").write_text(json.dumps({SCRIPT: SCRIPT}))
    bad = {"response": SCRIPT + CONTROL, "question": SCRIPT + CONTROL, "prompt": SCRIPT, "detail": SCRIPT + CONTROL}
    bad |= {"problem": PROBLEM, "outcome": SCRIPT[:40], "data_source": SCRIPT, "finish": SCRIPT, "isolation": SCRIPT}
    test = {
        "test": 0,
        "outcome": SCRIPT,
        "detail": SCRIPT + CONTROL,
        "output": SCRIPT,
        "errors": CONTROL,
        "signal": SCRIPT,
    }
    first = row(1, 0, tests=[test], total=2, reward_parts=[(SCRIPT, 1.0)], **bad)
    long = row(1, 1, prompt_index=0, response=MEGABYTE, question="?", advantage=-0.5)
    write(run, "train", 1, [first, long])
    write(run, "train", 2, [row(2, 0, **bad), row(2, 1, role=SCRIPT, prompt_index=0, **bad)])
    line = {"step": 1, "critic/rewards/mean": 1.0, f"judge/outcome/{SCRIPT}": 0.5, SCRIPT: 1.0}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    span = {"step": 1, "who": SCRIPT, "stage": SCRIPT, "start": 0, "end": 1}
    (run / "timeline.jsonl").write_text(json.dumps(span) + "\n")
    return run


def check_inert(page: Page) -> None:
    assert page.evaluate("window.owned") is None
    assert page.locator("main script, main img, main a[href^=javascript]").count() == 0


def test_pages_show_hostile_text_as_text(open_tab: OpenTab, serve: Callable[..., str], hostile: Path) -> None:
    tab = open_tab(serve(hostile))
    at = "kind=train&step=1&prompt_index=0&index=0&role=policy&turn=0"
    routes = ["", "charts?runs=hostile", "rollouts?run=hostile", f"rollout?run=hostile&{at}", "problems?run=hostile"]
    routes += [f"problem?run=hostile&id={quote(PROBLEM, safe='')}", "timeline?run=hostile", "config?run=hostile"]
    for route in routes:
        page = tab.go(route)
        expect(page.locator("main")).to_contain_text("<script>window.owned=1</script>")
        check_inert(page)
        assert tab.overflow() == 0, route
    page = tab.go(f"rollout?run=hostile&{at}")
    text = page.locator("pre[aria-label=question]").inner_text()
    assert all(each in text for each in ESCAPED)
    assert not set(CONTROL) & set(text) & set("\x00\x07\x1b\r\u202e\u2066\u200f\u2028\ufeff\x9b")
    assert page.locator("pre[aria-label=question]").get_attribute("dir") == "ltr"
    check_inert(page)


def test_links_lead_to_problems_with_any_name(open_tab: OpenTab, serve: Callable[..., str], hostile: Path) -> None:
    page = open_tab(serve(hostile)).go("problems?run=hostile")
    page.locator("tr[data-row] a").filter(has_text="../a").click()
    expect(page.locator("h1")).to_contain_text("../a\"b'c<d>/e?f&g#h%20\\i")
    page.get_by_role("link", name="All its samples").click()
    expect(page.locator("main h1 + p")).to_have_text("3 samples")
    page.locator("tr[data-row] a").first.click()
    expect(page.locator("h1")).to_contain_text("../a\"b'c")
    check_inert(page)


def test_megabyte_lines_are_cut(open_tab: OpenTab, serve: Callable[..., str], hostile: Path) -> None:
    tab = open_tab(serve(hostile), width=PHONE)
    page = tab.go("rollout?run=hostile&kind=train&step=1&prompt_index=0&index=1&role=policy&turn=0")
    block = page.locator("pre[aria-label=response]")
    assert len(block.inner_text()) == 4000
    assert tab.overflow() == 0
    page.get_by_role("button", name="Show all 200,000 characters").first.click()
    assert len(block.inner_text()) == 200_000
    assert tab.overflow() == 0
    with page.expect_download() as waiting:
        page.get_by_role("link", name="Download the whole text (2,000,000 characters)").click()
    assert waiting.value.path().read_text() == MEGABYTE


def test_report_shows_hostile_text_as_text(open_tab: OpenTab, hostile: Path) -> None:
    path = write_report(hostile)
    tab = open_tab("file://")
    tab.page.goto(f"file://{path}")
    expect(tab.page.locator("main")).to_contain_text("<script>window.owned=1</script>")
    expect(tab.page.locator(".chart").first).to_be_visible()
    check_inert(tab.page)
    assert tab.overflow() == 0
