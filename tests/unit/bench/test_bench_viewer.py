"""The benchmark of the viewer, over runs that are small."""

import json
import sys
from pathlib import Path

import pytest

import viewer


def test_every_request_is_answered_and_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(viewer, "SMALL", 600)
    monkeypatch.setattr(viewer, "LARGE", 1200)
    monkeypatch.setattr(viewer, "ROUNDS", 2)
    monkeypatch.setattr(sys, "argv", ["viewer", "--json", "--folder", str(tmp_path)])
    viewer.main()
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["case"] for row in rows][-3:] == ["search, first matches", "indexing", "peak memory of the server"]
    assert len(rows) == len(viewer.CASES) + 3
    assert all(row["value"] > 0 and row["baseline_value"] > 0 for row in rows)
    assert (tmp_path / "1200" / "run" / "config.yaml").exists()
