"""The page of a sample: tokens, tests, group, a second verdict."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import expect
from tabs import OpenTab

from dojang.viewer.records import RunRecords
from rollout_files import row, write

TOKENS = 10_000


def address(run: str, sample: dict[str, Any]) -> str:
    keys = ("step", "prompt_index", "index", "role", "turn")
    return f"rollout?run={run}&kind=train&" + "&".join(f"{key}={sample[key]}" for key in keys)


@pytest.fixture(scope="module")
def failed(trained: Path) -> dict[str, Any]:
    """A sample of the real run that failed a test and has others in its group."""
    for batch in RunRecords(trained).rollouts("train", columns=RunRecords(trained).columns):
        for sample in batch.to_pylist():
            if sample["tests"] and sample["outcome"] not in ("accepted", "judge_error"):
                return sample
    raise AssertionError("all programs of the run are right")


@pytest.fixture
def long_run(tmp_path: Path) -> Path:
    """A sample of 10,000 tokens with values of the trainer, several versions and a vocabulary."""
    run = tmp_path / "long"
    run.mkdir()
    (run / "config.yaml").write_text("steps: 1\n")
    length = TOKENS + 5
    mask = [False] * 5 + [True] * TOKENS
    logprobs = [0.0] * 5 + [-(place % 40) / 10 for place in range(TOKENS)]
    spans = [{"version": 1, "start": 0, "end": 5000}, {"version": 2, "start": 5000, "end": length}]
    texts = ["a", " word", "\n", "\u00e9", "\u202e", "<b>", "7", "\x1b", "\u6f22", " "]
    tokens = [place % 10 for place in range(length)]
    response = "".join(texts[each] for each in tokens[5:])
    sample = row(1, tokens=tokens, mask=mask, logprobs=logprobs, spans=spans, response=response, advantage=-1.5)
    write(run, "train", 1, [sample | {"response_length": TOKENS}, row(1, index=1, prompt_index=0, advantage=3.0)])
    pq.write_table(
        pa.table({"bytes": pa.array([text.encode() for text in texts], pa.binary())}), run / "vocabulary.parquet"
    )
    values = {
        "prompt_index": pa.array([0], pa.int64()),
        "index": pa.array([0], pa.int32()),
        "role": ["policy"],
        "turn": pa.array([0], pa.int32()),
        "trainer_logprobs": pa.array([[each + 0.25 for each in logprobs[5:]]], pa.list_(pa.float32())),
        "entropies": pa.array([[place % 7 / 2 for place in range(TOKENS)]], pa.list_(pa.float32())),
    }
    (run / "token_values").mkdir()
    pq.write_table(pa.table(values), run / "token_values" / "train-000001.parquet")
    return run


def test_verdict_and_tests_of_a_program(viewer: str, open_tab: OpenTab, failed: dict[str, Any]) -> None:
    page = open_tab(viewer).go(address("code", failed))
    expect(page.locator("h1")).to_have_text(failed["problem"])
    expect(page.get_by_label("question")).to_have_text(failed["question"])
    expect(page.locator("main")).to_contain_text(f"{failed['passed']} of {failed['total']} passed")
    table = page.get_by_role("table", name="Tests")
    assert table.locator("tbody tr:not(.test-detail)").count() == len(failed["tests"])
    first = next(each for each in failed["tests"] if each["outcome"] != "accepted")
    detail = table.locator("tr.test-detail:not([hidden])")
    expect(detail).to_contain_text(first["detail"])  # the first failed test is open
    button = table.get_by_role("button", name=str(first["test"]), exact=True)
    button.click()
    expect(button).to_have_attribute("aria-expanded", "false")
    expect(detail).to_have_count(0)


def test_expected_and_got_are_compared_by_lines(open_tab: OpenTab, viewer: str, failed: dict[str, Any]) -> None:
    """The answer of the server is replaced: runs of the quickstart print one line only."""
    tab = open_tab(viewer)

    def answer(route: Any) -> None:
        found = route.fetch().json()
        same = "\n".join(f"line {place}" for place in range(50))
        found["tests"] = [
            {"test": 0, "outcome": "wrong", "expected": f"{same}\nfive\nend", "output": f"{same}\nfour \nend\n"}
        ]
        route.fulfill(body=json.dumps(found), content_type="application/json")

    tab.page.route("**/api/runs/code/rollout?*", answer)
    page = tab.go(address("code", failed))
    lines = page.locator(".diff > div").all_inner_texts()
    assert [line.replace("\n", "").strip() for line in lines] == [
        "\u22ef47 equal lines",
        "line 47",
        "line 48",
        "line 49",
        "\u2212expected:five",
        "+got:four",
        "end",
    ]


def test_group_is_side_by_side(viewer: str, open_tab: OpenTab, failed: dict[str, Any], trained: Path) -> None:
    batches = RunRecords(trained).rollouts("train", [failed["step"]], ["prompt_index", "index", "outcome", "response"])
    group = [one for batch in batches for one in batch.to_pylist() if one["prompt_index"] == failed["prompt_index"]]
    page = open_tab(viewer).go(address("code", failed))
    members = page.locator(".member")
    assert members.count() == len(group)
    for place, one in enumerate(sorted(group, key=lambda each: each["index"])):
        expect(members.nth(place)).to_contain_text(one["outcome"])
        assert members.nth(place).locator("pre").inner_text() == one["response"]
    expect(page.locator(".member.here")).to_contain_text(f"#{failed['index']}")
    other = next(one["index"] for one in group if one["index"] != failed["index"])
    page.locator(".member").get_by_role("link", name=f"#{other}").click()
    expect(page.locator(".sample-head")).to_contain_text(f"sample {other}")


def test_judge_again_gives_the_recorded_verdict(viewer: str, open_tab: OpenTab, failed: dict[str, Any]) -> None:
    page = open_tab(viewer).go(address("code", failed))
    page.get_by_role("button", name="Judge again").click()
    expect(page.locator(".judged")).to_contain_text("same verdict", timeout=120_000)
    table = page.get_by_role("table", name="Recorded verdict and verdict now")
    expect(table.locator("tbody tr").first).to_contain_text(failed["outcome"])


def test_ten_thousand_tokens_are_coloured_quickly(open_tab: OpenTab, serve: Any, long_run: Path) -> None:
    tab = open_tab(serve(long_run))
    page = tab.go("rollout?run=long&kind=train&step=1&prompt_index=0&index=0&role=policy&turn=0")
    page.wait_for_selector(".tokens[data-done]")
    assert page.locator(".tok").count() == TOKENS
    names = page.get_by_role("group", name="Colour tokens by").get_by_role("button").all_inner_texts()
    assert names == ["Plain", "Advantage", "Log-prob", "Trainer \u2212 engine", "Entropy", "Version"]
    expected = {"Advantage": {"dn3"}, "Trainer \u2212 engine": {"dp6"}, "Version": {"v0", "v1"}, "Plain": set()}
    for name in names:
        started = page.evaluate("performance.now()")
        page.get_by_role("button", name=name, exact=True).click()
        shades = set(page.eval_on_selector_all(".tok", "all => all.map(each => each.className.slice(4).trim())"))
        assert page.evaluate("performance.now()") - started < 3000
        if name in expected:
            assert shades - {""} == expected[name]
        else:
            assert len(shades) > 5
    page.locator(".tok").nth(11).hover()
    tip = page.locator(".token-tip")
    expect(tip).to_contain_text("log-prob\u22121.1")
    expect(tip).to_contain_text("trainer\u22120.85")
    expect(tip).to_contain_text("difference+0.25")
    expect(tip).to_contain_text("entropy2")
    expect(tip).to_contain_text("version1")
    page.mouse.move(0, 0)
    expect(tip).to_be_hidden()
    page.locator(".tokens").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(tip).to_contain_text("place6")
    page.keyboard.press("t")  # goes on with the next value, here from the first
    shown = page.locator(".tokens").inner_text()
    assert "\u202e" not in shown
    assert "\x1b" not in shown
    assert "\u27e8U+202E\u27e9" in shown
    page.get_by_role("button", name="Show the 5 tokens of the prompt").click()
    assert page.locator(".tok").count() == TOKENS + 5


def test_input_and_expected_output_are_read_when_asked_for(
    viewer: str, open_tab: OpenTab, failed: dict[str, Any]
) -> None:
    page = open_tab(viewer).go(address("code", failed))
    detail = page.get_by_role("table", name="Tests").locator("tr.test-detail:not([hidden])")
    detail.get_by_role("button", name="Show input and expected output").click()
    expect(detail.get_by_label("Input")).to_have_text(re.compile(r"\d"), timeout=120_000)
    expect(detail).to_contain_text("xpected")
