"""docs/agents.md: its agents train, and its server records sessions."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from run_page import run_page

DOCS = Path(__file__).resolve().parents[2] / "docs"

pytestmark = pytest.mark.slow


def test_the_agents_of_the_page_are_trained_and_its_sessions_recorded(tmp_path: Path) -> None:
    said = run_page(DOCS / "agents.md", tmp_path)
    assert "3 episodes/sessions.jsonl" in said
    rows = [json.loads(line) for line in (tmp_path / "episodes" / "sessions.jsonl").read_text().splitlines()]
    assert [row["session"] for row in rows] == ["episode-0", "episode-1", "episode-2"]
    assert all(row["reward"] in (0.0, 1.0) and row["streams"] for row in rows)
    for name, replies in (("careful", 2), ("program", 1)):
        files = sorted((tmp_path / "runs" / name / "rollouts").glob("train-*.parquet"))
        turns = [row["turns"] for file in files for row in pq.read_table(file, columns=["turns"]).to_pylist()]
        assert turns
        assert all(sum(turn["role"] == "assistant" for turn in each) == replies for each in turns)
