"""Run directories as they are read: while a run goes on, damaged, of two models, with benchmarks."""

import json
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import dojang
from dojang.core.errors import RunDirError
from dojang.core.rollout_schema import rollout_schema
from dojang.core.run_dir import RunDir
from dojang.viewer.records import COLUMNS, SHORT_COLUMNS, RunRecords, response_lengths
from rollout_files import row, write


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text("steps: 3\nmodel: {name: tiny}\n")
    for step in (1, 2, 3):
        write(tmp_path, "train", step, [row(step, index) for index in range(4)])
    write(tmp_path, "test", 0, [row(0)])
    write(tmp_path, "test-human-eval", 25, [row(25)])
    return tmp_path


def rows(records: RunRecords, *arguments: Any, **options: Any) -> list[dict[str, Any]]:
    return [each for batch in records.rollouts(*arguments, **options) for each in batch.to_pylist()]


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    few = {"eval": {"problems": 4, "every": 2}, "rollout": {"prompts_per_step": 2, "group_size": 4}}
    dojang.train("quickstart", steps=2, run_dir=run, **few)
    return run


def test_a_real_run_is_read_as_it_was_written(quickstart: Path) -> None:
    records = RunRecords(quickstart)
    assert records.config["steps"] == 2
    assert records.run["recipe"] == "quickstart"
    assert records.summary is not None
    assert records.summary["status"] == "finished"
    assert records.metrics() == [json.loads(line) for line in (quickstart / "metrics.jsonl").read_text().splitlines()]
    assert (records.kinds, records.steps(), records.steps("test")) == (("test", "train"), [1, 2], [0, 2])
    found = rows(records, columns=COLUMNS)
    assert found == [each for step in (1, 2) for each in pq.read_table(_train(quickstart, step)).to_pylist()]
    assert len(found) == 2 * 2 * 4
    masks = next(records.rollouts(columns=["mask"]))["mask"]
    assert response_lengths(masks).tolist() == [sum(each) for each in masks.to_pylist()]
    result = dojang.RunResult(quickstart)
    assert result.rollouts.to_pylist() == found
    assert result.eval_rollouts.num_rows == 8


def _train(run: Path, step: int) -> Path:
    return RunDir(run).rollouts("train", step)


def test_kinds_and_steps_come_from_the_file_names(run: Path) -> None:
    (run / "rollouts" / ".train-000004.parquet.x.tmp").write_text("being written")
    (run / "rollouts" / "notes.parquet").write_text("not ours")
    records = RunRecords(str(run))
    assert records.kinds == ("test", "test-human-eval", "train")
    assert records.steps() == [1, 2, 3]
    assert records.steps("test-human-eval") == [25]
    assert records.steps("test-other") == []
    assert records.summary is None
    assert records.metrics() == []
    assert records.run == {}


def test_text_is_read_only_when_asked_for(run: Path) -> None:
    batch = next(RunRecords(run).rollouts())
    assert tuple(batch.schema.names) == SHORT_COLUMNS
    assert not {"response", "prompt", "question", "tokens", "logprobs", "mask"} & set(SHORT_COLUMNS)
    assert next(RunRecords(run).rollouts(columns=["response"])).schema.names == ["response"]


def test_filters_choose_files_and_rows(run: Path) -> None:
    records = RunRecords(run)
    found = rows(records, steps=[1, 3], where=pc.field("outcome") == "wrong", columns=["step", "problem"])
    assert found == [{"step": step, "problem": f"sums/{index}"} for step in (1, 3) for index in (1, 3)]
    assert rows(records, steps=[9]) == []
    assert rows(records, "test-human-eval", columns=["step"]) == [{"step": 25}]


def test_files_of_other_steps_are_not_opened(run: Path) -> None:
    _train(run, 1).write_bytes(b"damaged")
    records = RunRecords(run)
    assert len(rows(records, steps=[2])) == 4
    assert records.notes == []


def test_damaged_files_are_skipped_with_a_note(run: Path) -> None:
    whole = _train(run, 2).read_bytes()
    _train(run, 1).write_bytes(b"")
    _train(run, 2).write_bytes(whole[: len(whole) // 2])
    records = RunRecords(run)
    assert {each["step"] for each in rows(records)} == {3}
    assert [str(_train(run, step)) in note for step, note in zip((1, 2), records.notes, strict=True)] == [True, True]
    with pytest.warns(UserWarning, match="is damaged"):
        assert dojang.RunResult(run).rollouts.num_rows == 4


def test_damaged_pages_are_skipped_with_a_note(run: Path) -> None:
    content = bytearray(_train(run, 2).read_bytes())
    content[4:200] = bytes(196)
    _train(run, 2).write_bytes(bytes(content))
    records = RunRecords(run)
    assert {each["step"] for each in rows(records, columns=COLUMNS)} == {1, 3}
    assert len(records.notes) == 1


def test_files_without_newer_columns_are_read(run: Path) -> None:
    table = pq.read_table(_train(run, 2)).drop_columns(["isolation", "turn"])
    pq.write_table(table, _train(run, 2))
    records = RunRecords(run)
    assert [each["isolation"] for each in rows(records, steps=[2])] == [None] * 4
    assert records.notes == []


def test_a_file_that_a_resumed_run_deletes_is_skipped(run: Path) -> None:
    records = RunRecords(run)
    batches = records.rollouts()
    assert next(batches)["step"].to_pylist() == [1] * 4
    _train(run, 2).unlink()
    assert [each["step"][0].as_py() for each in batches] == [3]
    assert records.notes == []


def test_metrics_of_a_run_that_goes_on(run: Path) -> None:
    (run / "metrics.jsonl").write_bytes(b'{"step": 1, "a": 2.0}\n{"step": 2, "a": 3.0}\n{"step": 3, "a"')
    records = RunRecords(run)
    assert [each["step"] for each in records.metrics()] == [1, 2]
    assert records.notes == []
    (run / "metrics.jsonl").write_bytes(b'{"step": 1}\n\xff\x00\n[1]\n{"step": 2}\n')
    assert [each["step"] for each in records.metrics()] == [1, 2]
    assert len(records.notes) == 2


def test_roles_of_two_models_are_told_apart(run: Path) -> None:
    write(run, "train", 4, [row(4, 0, role="coder"), row(4, 1, role="tester"), row(4, 2, role="coder", turn=1)])
    found = rows(RunRecords(run), steps=[4], where=pc.field("role") == "coder")
    assert [each["turn"] for each in found] == [0, 1]


def test_unknown_columns_are_refused(run: Path) -> None:
    with pytest.raises(ValueError, match="no column answer; there are step, "):
        next(RunRecords(run).rollouts(columns=["answer"]))
    with pytest.raises(pa.ArrowInvalid, match="answer"):
        next(RunRecords(run).rollouts(where=pc.field("answer") == "2"))


def test_a_path_that_is_no_run_is_refused(run: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    for path, says in [
        (run / "nowhere" / "x", "does not exist"),
        (run / "rollouts", f"is part of one: give {run}"),
        (_train(run, 1), f"is part of one: give {run}"),
        (run.parent, f"give one of its folders, such as {run}"),
        (other, "holds no run; give the directory of a run"),
    ]:
        with pytest.raises(RunDirError, match=says):
            RunRecords(path)
    (other / "samples.jsonl").write_text("")
    with pytest.raises(RunDirError, match="results of `dojang eval`"):
        RunRecords(other)


def test_damaged_configurations_are_errors(run: Path) -> None:
    (run / "config.yaml").write_text("a: [")
    (run / "summary.json").write_text("{")
    with pytest.raises(RunDirError, match="cannot read"):
        _ = RunRecords(run).config
    with pytest.raises(RunDirError, match="cannot read"):
        _ = RunRecords(run).summary


@pytest.mark.slow
def test_a_problem_is_found_among_many_samples(run: Path) -> None:
    long = {"response": "x" * 4000, "tokens": list(range(500)), "mask": [True] * 500, "logprobs": [-0.1] * 500}
    table = pa.Table.from_pylist([row(1, index, **long) for index in range(1000)], schema=rollout_schema())
    for step in range(10, 60):
        pq.write_table(table, _train(run, step), compression="zstd")
    write(run, "train", 60, [row(60, 0, problem="rare", response="found")])
    before = time.perf_counter()
    assert rows(RunRecords(run), where=pc.field("problem") == "rare", columns=["response"]) == [{"response": "found"}]
    assert time.perf_counter() - before < 5  # 50 000 samples, of which only the ids are read


@pytest.mark.parametrize("columns", [SHORT_COLUMNS, ["response_length"], ["mask", "response_length"], ["response"]])
def test_lengths_of_files_without_them_are_counted(run: Path, columns: list[str]) -> None:
    expected = rows(RunRecords(run), steps=[2], columns=columns)
    pq.write_table(pq.read_table(_train(run, 2)).drop_columns(["response_length"]), _train(run, 2))
    assert rows(RunRecords(run), steps=[2], columns=columns) == expected
