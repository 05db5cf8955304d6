import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from dojang.core.run_dir import SUMMARY_KEYS, RunDir
from dojang.runs.summary import Ending, finish


@pytest.fixture
def ending(tmp_path: Path) -> Ending:
    directory = RunDir(tmp_path)
    directory.config.write_text("eval: {problems: 200}\n")
    rows = [
        {"step": 0, "val/accuracy": 0.25, "val/reward": -0.5, "timing_s/step": 1.0},
        {"step": 1, "critic/rewards/mean": 0.5, "timing_s/step": 2.0},
        {"step": 2, "critic/rewards/mean": 0.7, "timing_s/step": 2.0},
        {"step": 2, "val/accuracy": 0.75, "val/reward": 1.25, "timing_s/step": 1.0},
        {"step": 0, "val/accuracy/humaneval": 0.125, "val/test_score/humaneval": 0.5},
        {"step": 2, "val/accuracy/humaneval": 0.25, "val/test_score/humaneval": 0.75},
    ]
    directory.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for step, answer in ((0, "guess"), (2, "work")):
        table = [
            {"problem": "a", "question": "1+1?", "response": f"{answer} a", "outcome": "accepted"},
            {"problem": "b", "question": "2+2?", "response": f"{answer} b", "outcome": "accepted" if step else "wrong"},
        ]
        directory.rollouts("test", step).parent.mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(table), directory.rollouts("test", step))
    return Ending("quickstart", 2, "dojang", "dojang train quickstart --resume", directory)


def tell(ending: Ending, status: str) -> tuple[dict, str]:
    output = io.StringIO()
    finish(ending, Console(file=output, width=60), status=status, seconds=6.04)
    return json.loads(ending.directory.summary.read_text()), output.getvalue()


def test_a_finished_run_shows_before_and_after(ending: Ending) -> None:
    summary, output = tell(ending, "finished")
    assert tuple(summary) == SUMMARY_KEYS
    assert summary["eval"] == {"before": 0.25, "after": 0.75, "metric": "held-out accuracy"}
    assert (summary["steps"], summary["seconds"], summary["status"]) == (2, 6.0, "finished")
    assert "held-out accuracy: 25.0% before, 75.0% after" in output
    assert "held-out reward: -0.500 before, 1.250 after" in output
    assert "humaneval accuracy: 12.5% before, 25.0% after" in output
    assert "problem      2+2?" in output  # the one that was learned, not the one it knew
    assert "before       guess b   [wrong]" in output
    assert "after        work b   [accepted]" in output
    assert "dojang train quickstart seed=1" in output
    assert ending.directory.chart.exists()


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_an_unfinished_run_ends_with_its_verdict(ending: Ending, status: str) -> None:
    summary, output = tell(ending, status)
    assert summary["status"] == status
    assert summary["resume"] == "dojang train quickstart --resume"
    assert output.startswith("\nbetter: held-out accuracy 25.0% at step 0, 75.0% at step 2: +50.0%")
    assert "dojang explain" in output
    assert "next:" not in output


def test_a_run_that_never_got_anywhere_has_a_summary_too(tmp_path: Path) -> None:
    ending = Ending("quickstart", 2, "dojang", "again", RunDir(tmp_path))
    summary, _ = tell(ending, "failed")
    assert summary["steps"] == 0
    assert summary["eval"]["before"] is None
