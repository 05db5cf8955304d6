"""Pages over a million rollouts open about as fast as over ten thousand."""

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import expect
from tabs import OpenTab, Tab

from dojang.viewer.server import Viewer
from synthetic_run import make_run

ROUTES = {
    "rollouts": "rollouts?run=run&sort=-reward",
    "filtered": "rollouts?run=run&outcome=wrong,timeout&min_reward=0.2&sort=response_length",
    "far": "rollouts?run=run&offset=9000",
    "sample": "rollout?run=run&kind=train&step=1&prompt_index=100&index=2&role=policy&turn=0",
    "problems": "problems?run=run&sort=-samples",
    "charts": "charts?runs=run",
}
ROUNDS = 3
NOISE_S = 0.15
"""Difference that a busy machine makes at pages that open in a tenth of a second."""


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, str]]:
    """Viewers over runs of both sizes; problems are the same 5,000."""
    folder = tmp_path_factory.mktemp("sizes")
    found = {}
    with ExitStack() as stack:
        for size, per_step in ((10_000, 1000), (1_000_000, 4000)):
            run = make_run(folder / str(size) / "run", size, per_step=per_step, tokens=4, characters=60)
            viewer = stack.enter_context(Viewer([run]))
            assert all(each.index.wait(120) for each in viewer.runs.all())
            found[size] = viewer.url.rstrip("/")
        yield found


def seconds(tab: Tab, name: str) -> float:
    """Time from a new page to its content."""
    began = time.perf_counter()
    content = {"charts": ".plot .line", "sample": ".tok"}.get(name, "tr[data-row]")
    tab.go(ROUTES[name]).wait_for_selector(content, state="attached")
    return time.perf_counter() - began


def test_a_million_rollouts_open_as_fast_as_ten_thousand(open_tab: OpenTab, addresses: dict[int, str]) -> None:
    tabs = {size: open_tab(url) for size, url in addresses.items()}
    expect(tabs[1_000_000].go(ROUTES["rollouts"]).locator("main h1 + p")).to_have_text("1,000,000 samples")
    slow = {}
    for name in ROUTES:
        times: dict[int, list[float]] = {size: [] for size in tabs}
        for place in range(ROUNDS + 1):
            for size, tab in tabs.items():
                taken = seconds(tab, name)
                if place:  # the first fills caches
                    times[size].append(taken)
        small, large = (statistics.median(times[size]) for size in (10_000, 1_000_000))
        print(f"{name:10} 10,000: {small:.3f} s  1,000,000: {large:.3f} s")  # noqa: T201
        if large > max(2 * small, small + NOISE_S):
            slow[name] = (small, large)
    assert slow == {}


def test_search_in_a_million_rollouts(open_tab: OpenTab, addresses: dict[int, str]) -> None:
    page = open_tab(addresses[1_000_000]).go("rollouts?run=run")
    page.get_by_role("searchbox").fill("Quixotic")
    expect(page.locator("main h1 + p")).to_have_text("250 samples", timeout=120_000)  # one in each step
    assert page.locator("tr[data-row]").count() == 100
