"""The programs in examples/ run as they are published."""

import json
import os
import sys
from pathlib import Path

import commands

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(tmp_path: Path, *arguments: str) -> str:
    result = commands.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=600, cwd=tmp_path, env={**os.environ}
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def percent(output: str, before: str) -> int:
    return int(output.partition(before)[2].partition("%")[0])


def test_a_custom_training_loop_learns_to_add(tmp_path: Path) -> None:
    said = run(tmp_path, str(EXAMPLES / "rl_loop.py"), "20")
    assert percent(said, "accuracy before: ") < 50
    assert percent(said, "accuracy after: ") > 80
    assert (tmp_path / "rl_loop_model" / "config.json").is_file()


def test_own_rows_are_learned(tmp_path: Path) -> None:
    said = run(tmp_path, str(EXAMPLES / "own_dataset.py"))
    assert percent(said, "right answers: ") < 50
    assert percent(said, "before training, ") > 80


def test_programs_are_judged(tmp_path: Path) -> None:
    said = run(tmp_path, str(EXAMPLES / "judge_programs.py"))
    for line in ("add: accepted, 2 of 2", "overflow: wrong, 1 of 2", "loop: time_limit, 0 of 2", "function: accepted"):
        assert line in said


def test_the_notebook_runs_where_an_event_loop_runs(tmp_path: Path) -> None:
    """Its cells run in order in one coroutine, as in Jupyter, where every cell finds a running event loop."""
    cells = json.loads((EXAMPLES / "own_reward.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(code) >= 4
    program = tmp_path / "cells.py"
    program.write_text(
        "import asyncio, json, sys\n"
        "async def main(cells):\n"
        "    names = {}\n"
        "    for cell in cells:\n"
        "        exec(compile(cell, 'cell', 'exec'), names)\n"
        "    print('accuracy', names['result'].accuracy, 'shorter', names['mean_length'])\n"
        "asyncio.run(main(json.loads(sys.argv[1])))\n"
    )
    assert "accuracy" in run(tmp_path, str(program), json.dumps(code))
