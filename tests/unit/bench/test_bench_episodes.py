"""bench/episodes.py, small: equal tokens with and without turns, and environments that sleep at the same time."""

import json
import re
import sys

import pytest

import episodes

SMALL = ["--episodes", "60", "--turns", "3", "--sleep", "0.3", "--length", "4", "--max-tokens", "8", "--rounds", "1"]


def test_environments_sleep_at_the_same_time(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["episodes.py", "--json", "--device", "cpu", *SMALL])
    episodes.main()
    printed = capsys.readouterr()
    rows = json.loads(printed.out)["rows"]
    assert [row["baseline"] for row in rows] == ["requests", "completions"]
    assert all("54 s of sleep in all" in row["case"] and row["ratio"] > 0 for row in rows)
    (tokens,) = {int(each) for each in re.findall(r"tokens=(\d+)", printed.err)}  # the same in every round
    assert 60 * 3 <= tokens <= 60 * 3 * 8
    asleep = re.search(r"up to (\d+) environments asleep", rows[0]["notes"])
    assert asleep is not None
    assert int(asleep[1]) > 10
