"""docs/agents.md: its agents train. Its server is tested in tests/unit/commands/test_serve_policy.py."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from run_page import run_page

DOCS = Path(__file__).resolve().parents[2] / "docs"

pytestmark = pytest.mark.slow


def test_the_agents_of_the_page_are_trained(tmp_path: Path) -> None:
    run_page(DOCS / "agents.md", tmp_path)
    for name, replies in (("careful", 2), ("program", 1)):
        files = sorted((tmp_path / "runs" / name / "rollouts").glob("train-*.parquet"))
        turns = [row["turns"] for file in files for row in pq.read_table(file, columns=["turns"]).to_pylist()]
        assert turns
        assert all(sum(turn["role"] == "assistant" for turn in each) == replies for each in turns)
