"""Every page of `dojang view` over a real run: contents, filters, keyboard, both themes, a phone's width."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tabs import DESK, PHONE, OpenTab

from dojang.viewer.records import RunRecords

SAMPLE = "kind=train&step=1&prompt_index=0&index=0&role=policy&turn=0"
PAGES = {
    "": "held-out accuracy",
    "charts?runs=code,other": "critic/rewards/mean",
    "rollouts?run=code": "samples",
    "rollouts?run=code&kind=test": "samples",
    f"rollout?run=code&{SAMPLE}": "Response",
    "problems?run=code": "problems",
    "timeline?run=code": "rollout",
    "config?run=code&with=other": "train.lr",
}


def rows(page: Page) -> list[list[str]]:
    return page.eval_on_selector_all(
        "table[aria-label=Rollouts] tr[data-row]", "all => all.map(row => [...row.cells].map(cell => cell.innerText))"
    )


def settled(page: Page) -> None:
    """Waits until the table shows what was asked for."""
    page.wait_for_selector(".table-card:not(.stale)")


@pytest.mark.parametrize("route", PAGES)
def test_pages_open_in_both_themes_and_on_a_phone(viewer: str, open_tab: OpenTab, route: str) -> None:
    for width, theme in ((DESK, "light"), (DESK, "dark"), (PHONE, "light")):
        tab = open_tab(viewer, width=width, theme=theme)
        page = tab.go(route)
        expect(page.locator("main")).to_contain_text(PAGES[route])
        assert tab.overflow() == 0, (width, theme)
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(json.loads(background.replace("rgb(", "[").replace(")", "]"))) < 200) == (theme == "dark")


def test_overview_has_verdicts_and_charts(viewer: str, open_tab: OpenTab) -> None:
    page = open_tab(viewer).go()
    for name in ("code", "other"):
        card = page.get_by_role("article", name=name)
        expect(card.locator(".verdict")).to_contain_text("held-out accuracy")
        expect(card.locator(".plot .line").first).to_be_attached()
        expect(card).to_contain_text("recipe quickstart-code")
    page.locator(".finding summary").first.click()
    expect(page.locator(".finding").first).to_contain_text("evidence")


def test_table_shows_the_rollouts_of_the_run(viewer: str, open_tab: OpenTab, trained: Path) -> None:
    batches = RunRecords(trained).rollouts("train", columns=["step", "outcome", "reward", "problem"])
    recorded = [row for batch in batches for row in batch.to_pylist()]
    page = open_tab(viewer).go("rollouts?run=code")
    expect(page.locator("main")).to_contain_text(f"{len(recorded)} samples")
    assert [int(row[1]) for row in rows(page)] == sorted((row["step"] for row in recorded), reverse=True)
    page.get_by_role("button", name="Reward").click()
    page.wait_for_url("**sort=-reward*")
    settled(page)
    page.wait_for_selector("th[aria-sort=descending] >> text=Reward")
    shown = [float(row[5].replace("\u2212", "-")) for row in rows(page)]
    assert shown == sorted((row["reward"] for row in recorded), reverse=True)
    page.get_by_role("button", name="Reward").click()
    page.wait_for_selector("th[aria-sort=ascending] >> text=Reward")
    assert [float(row[5].replace("\u2212", "-")) for row in rows(page)] == sorted(shown)


def test_filters_and_the_back_button(viewer: str, open_tab: OpenTab, trained: Path) -> None:
    batches = RunRecords(trained).rollouts("train", columns=["outcome", "step"])
    outcomes = [(row["outcome"], row["step"]) for batch in batches for row in batch.to_pylist()]
    name = outcomes[0][0]
    count = sum(outcome == name for outcome, _ in outcomes)
    page = open_tab(viewer).go("rollouts?run=code")
    chip = page.get_by_role("group", name="Outcomes").get_by_role("button", name=name)
    expect(chip).to_have_text(f"{name} {count}")
    chip.click()
    expect(page.locator("main h1 + p")).to_have_text(f"{count} samples")
    assert {row[3].split()[-1] for row in rows(page)} == {name}
    expect(chip).to_have_attribute("aria-pressed", "true")
    expect(chip).to_be_focused()
    page.get_by_role("spinbutton", name="Step", exact=True).fill("2")
    page.keyboard.press("Enter")
    expect(page.locator("main h1 + p")).to_have_text(f"{outcomes.count((name, 2))} samples")
    page.go_back()
    expect(page.locator("main h1 + p")).to_have_text(f"{count} samples")
    page.go_back()
    expect(page.locator("main h1 + p")).to_have_text(f"{len(outcomes)} samples")
    expect(chip).to_have_attribute("aria-pressed", "false")


def test_search_finds_text_and_keeps_the_focus(viewer: str, open_tab: OpenTab, trained: Path) -> None:
    batches = RunRecords(trained).rollouts("train", columns=["response", "question", "problem"])
    texts = [" ".join(row.values()).lower() for batch in batches for row in batch.to_pylist()]
    page = open_tab(viewer).go("rollouts?run=code")
    page.keyboard.press("/")
    search = page.get_by_role("searchbox")
    expect(search).to_be_focused()
    page.keyboard.type("INT(", delay=20)
    expect(page.locator("main h1 + p")).to_have_text(f"{sum('int(' in text for text in texts)} samples")
    expect(search).to_be_focused()
    page.keyboard.press("Escape")
    expect(search).not_to_be_focused()
    search.fill("no such text anywhere")
    expect(page.locator("main")).to_contain_text("No sample matches")
    page.get_by_role("link", name="Clear all filters").click()
    expect(page.locator("main h1 + p")).to_have_text(f"{len(texts)} samples")
    expect(search).to_have_value("")


def test_keyboard_moves_through_table_and_samples(viewer: str, open_tab: OpenTab) -> None:
    page = open_tab(viewer).go("rollouts?run=code")
    names = [(row[0], row[2]) for row in rows(page)]
    for key in "jjjk":
        page.keyboard.press(key)
    expect(page.locator("tr.chosen")).to_have_attribute("data-row", "1")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(names[1][0])
    expect(page.locator(".sample-head")).to_contain_text(f"sample {names[1][1]}")
    page.keyboard.press("j")
    expect(page.locator(".sample-head")).to_contain_text(f"sample {names[2][1]}")
    page.keyboard.press("k")
    page.keyboard.press("k")
    expect(page.locator(".sample-head")).to_contain_text(f"sample {names[0][1]}")
    page.keyboard.press("Escape")
    expect(page.locator("h1")).to_have_text("Rollouts")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Keyboard")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_problems_lead_to_their_samples(viewer: str, open_tab: OpenTab) -> None:
    page = open_tab(viewer).go("problems?run=code&kind=test")
    name = page.locator("tr[data-row] a").first.inner_text()
    page.locator("tr[data-row] a").first.click()
    expect(page.locator("h1")).to_have_text(name)
    expect(page.locator(".plot .line").first).to_be_attached()  # two evaluations
    page.get_by_role("link", name="step 3").click()
    expect(page.locator("main h1 + p")).to_have_text("1 samples")
    assert rows(page)[0][0] == name


def test_theme_switch_is_kept(viewer: str, open_tab: OpenTab) -> None:
    tab = open_tab(viewer, theme="light")
    page = tab.go()
    button = page.locator("#theme")
    for theme in ("light", "dark"):
        button.click()
        expect(page.locator("html")).to_have_attribute("data-theme", theme)
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.go("charts")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
    button.click()
    assert page.evaluate("document.documentElement.dataset.theme") is None


def test_unknown_routes_and_samples_are_explained(viewer: str, open_tab: OpenTab) -> None:
    tab = open_tab(viewer)
    expect(tab.go("nothing").locator("main")).to_contain_text("No such page")
    tab.offline = True  # the server answers with an error, which the console notes
    page = tab.go("rollout?run=code&kind=train&step=99&prompt_index=0&index=0&role=policy&turn=0")
    expect(page.get_by_role("alert").locator("p")).to_contain_text("99")
