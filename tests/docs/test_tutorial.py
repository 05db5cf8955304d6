"""docs/tutorial.md and docs/write-your-own.md: their commands run in order and do what the pages say."""

import json
from pathlib import Path

import pytest
from run_page import run_page

DOCS = Path(__file__).resolve().parents[2] / "docs"

pytestmark = pytest.mark.slow


def test_the_tutorial_trains_evaluates_and_exports_a_model(tmp_path: Path) -> None:
    said = run_page(DOCS / "tutorial.md", tmp_path)
    assert not (tmp_path / "runs" / "sums-1").exists()  # a dry run makes none
    found = json.loads((tmp_path / "runs" / "sums" / "summary.json").read_text())["eval"]
    assert found["before"] < 0.5 < 0.9 < found["after"]
    assert "The final answer is 108" in said


def test_every_part_of_a_run_can_be_the_readers_own(tmp_path: Path) -> None:
    said = run_page(DOCS / "write-your-own.md", tmp_path)
    assert "off by " in said  # the task's own words

    def metrics(name: str) -> dict[str, float]:
        lines = (tmp_path / "runs" / name / "metrics.jsonl").read_text().splitlines()
        return {key: value for line in lines for key, value in json.loads(line).items()}

    assert "critic/rewards/brevity/mean" in metrics("reward")
    assert "val/accuracy/doubles" in metrics("dataset")
    assert "episodes/turns/mean" in metrics("environment")
    assert metrics("algorithm")["actor/ratio"] == pytest.approx(1, abs=0.1)
    assert {json.loads(line)["step"] for line in (tmp_path / "lines.jsonl").read_text().splitlines()} == {0, 1, 2}
    assert (tmp_path / "my-loop-model" / "config.json").is_file()
