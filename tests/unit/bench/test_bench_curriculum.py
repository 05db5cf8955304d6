"""The curriculum benchmark: its problems, and its table from the metrics of two runs."""

import json
from pathlib import Path

import pytest

import dojang_process
from curriculum import HELD_OUT, SOLVABLE, TOO_HARD, compare, parser, shares, table, write_problems
from curriculum import run as train_once


def read(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_problems_are_sums_that_can_be_learned_and_sums_that_are_too_hard(tmp_path: Path) -> None:
    write_problems(tmp_path)
    train, test = read(tmp_path / "train.jsonl"), read(tmp_path / "test.jsonl")
    lengths = [len(each["prompt"].split()[2]) for each in train]
    assert (lengths.count(2), len(lengths)) == (SOLVABLE, SOLVABLE + TOO_HARD)
    assert len(test) == HELD_OUT
    assert {len(each["prompt"].split()[2]) for each in test} == {2}
    assert not {each["id"] for each in train} & {each["id"] for each in test}


def run(folder: Path, alike: list[float], scores: dict[int, float]) -> Path:
    folder.mkdir()
    rows = [{"step": step, "groups/total": 4.0, "groups/zero_variance": count} for step, count in enumerate(alike, 1)]
    rows += [{"step": step, "val/accuracy": score} for step, score in scores.items()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_the_table_has_a_row_per_third_and_evaluation(tmp_path: Path) -> None:
    ours = run(tmp_path / "ours", [2, 2, 1, 1, 0, 0], {0: 0.25, 8: 0.75})
    theirs = run(tmp_path / "theirs", [2, 2, 3, 3, 4, 4], {0: 0.25, 8: 0.5})
    assert shares(ours) == [0.5, 0.25, 0.0]
    rows = [*compare(0, ours, theirs), *compare(1, ours, theirs)]
    assert [each.ratio for each in rows[:4]] == [1.0, 3.0, None, 1.5]
    lines = table(rows).splitlines()
    assert lines[3] == "| groups without a signal | second third | 75% (75%, 75%) | 25% (25%, 25%) |"
    assert lines[5] == "| held-out accuracy | step 8 | 50% (50%, 50%) | 75% (75%, 75%) |"


def test_runs_of_other_settings_are_not_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = []

    def dojang(log: Path, *arguments: str) -> None:
        started.append((log.name, "--resume" in arguments))
        directory = Path(arguments[arguments.index("--run-dir") + 1])
        directory.mkdir(exist_ok=True)
        status = "finished" if "--resume" in arguments else "failed"
        (directory / "summary.json").write_text(json.dumps({"status": status}))

    monkeypatch.setattr(dojang_process, "dojang", dojang)
    for _ in range(3):
        train_once(tmp_path, 0, 0.125, [])
    assert started == [("seed-0-keep-12.5.log", False), ("seed-0-keep-12.5.log", True)]
    with pytest.raises(SystemExit, match=r"has results of 'quickstart .*train.lr=1e-4'; choose another directory"):
        train_once(tmp_path, 0, 0.125, ["train.lr=1e-4"])
    (tmp_path / "seed-0-keep-12.5.json").unlink()
    with pytest.raises(SystemExit, match="has results of an unknown command"):
        train_once(tmp_path, 0, 0.125, [])
    assert len(started) == 2


def test_it_needs_a_folder() -> None:
    with pytest.raises(SystemExit):
        parser().parse_args([])
