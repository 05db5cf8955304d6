"""The table of bench/curves.py, from files of today and from published ones."""

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["val/accuracy", "val/score"])
def test_held_out_accuracy_is_read_under_both_names(name: str, tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("curves", ROOT / "bench" / "curves.py")
    assert spec is not None
    assert spec.loader is not None
    curves = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(curves)
    step = {"critic/rewards/mean": 0.5, "actor/loss": 0.0}
    rows = [{"step": 0, name: 0.25}, {"step": 1, **step}, {"step": 1, name: 0.75}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "| 25%, 75% |" in curves.table({"a run": tmp_path / "metrics.jsonl"})
