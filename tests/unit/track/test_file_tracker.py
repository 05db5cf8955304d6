import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from dojang.core.errors import RunDirError
from dojang.core.rollout_schema import ROLLOUT_COLUMNS
from dojang.core.run_dir import RunDir
from dojang.protocols import TokenValues
from dojang.track.config import TestResults
from dojang.track.file_tracker import FileTracker
from dojang.types import Group, Message, Outcome, Problem, Sample, Span, TestResult, Verdict


@pytest.fixture
def directory(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def group(tokenizer) -> Group:
    prompt, answer = tokenizer.encode("what is 1+1?"), tokenizer.encode("the answer is 2")
    sample = Sample(
        tokens=(*prompt, *answer),
        mask=(False,) * len(prompt) + (True,) * len(answer),
        logprobs=(0.0,) * len(prompt) + tuple(-0.1 * place for place in range(len(answer))),
        text="the answer is 2",
        finish="stop",
        version=3,
        verdict=Verdict(Outcome.ACCEPTED, 1.5, passed=1, parts={"format": 1.0, "correct": 1.0}, detail="fine"),
        index=2,
        advantage=0.7,
    )
    problem = Problem("sums/1", "sums", (Message("user", "what is 1+1?"),), "2")
    return Group(problem, 41, (sample, sample))


def test_rollouts_read_back_unchanged(directory: RunDir, tokenizer) -> None:
    FileTracker(directory, tokenizer).groups(5, "train", [group(tokenizer)])
    table = pq.read_table(directory.rollouts("train", 5))
    assert table.column_names == list(ROLLOUT_COLUMNS)
    sample = group(tokenizer).samples[0]
    first = table.to_pylist()[0]
    assert len(table) == 2
    assert (first["step"], first["prompt_index"], first["index"], first["version"]) == (5, 41, 2, 3)
    assert first["tokens"] == sample.tokens.tolist()
    assert first["mask"] == sample.mask.tolist()
    assert first["logprobs"] == sample.logprobs.tolist()  # float64: not one bit lost
    assert first["response_length"] == sum(first["mask"])
    assert (first["question"], first["prompt"], first["response"]) == ("what is 1+1?", "what is 1+1?", sample.text)
    assert (first["outcome"], first["reward"], first["advantage"]) == ("accepted", 1.5, 0.7)
    assert dict(first["reward_parts"]) == {"format": 1.0, "correct": 1.0}


TESTS = (
    TestResult(0, Outcome.ACCEPTED, cpu_s=0.25, wall_s=0.5, memory_mb=8.0, exit_code=0),
    TestResult(1, Outcome.RUNTIME_ERROR, signal="SIGSEGV", detail="killed", output="4 \x00", errors="oh"),
)


@pytest.mark.parametrize(("kept", "numbers"), [("all", [0, 1]), ("failed", [1]), ("none", [])])
def test_weight_versions_and_results_of_tests_are_recorded(
    directory: RunDir, tokenizer, kept: TestResults, numbers: list[int]
) -> None:
    made = group(tokenizer)
    first = made.samples[0]
    size = len(first.tokens)
    verdict = replace(first.verdict, tests=TESTS)
    sample = replace(first, verdict=verdict, spans=(Span(3, size - 4, size - 1), Span(5, size - 1, size)))
    FileTracker(directory, tokenizer, test_results=kept).groups(5, "train", [replace(made, samples=(sample,))])
    (row,) = pq.read_table(directory.rollouts("train", 5)).to_pylist()
    assert row["spans"] == [
        {"version": 3, "start": size - 4, "end": size - 1},
        {"version": 5, "start": size - 1, "end": size},
    ]
    assert [each["test"] for each in row["tests"]] == numbers
    if kept == "all":
        passed, failed = row["tests"]
        assert (passed["outcome"], passed["cpu_s"], passed["exit_code"], passed["signal"]) == (
            "accepted",
            0.25,
            0,
            None,
        )
        assert (failed["outcome"], failed["signal"], failed["errors"]) == ("runtime_error", "SIGSEGV", "oh")


def test_unjudged_samples_are_recorded_without_reward(directory: RunDir, tokenizer, make_group) -> None:
    FileTracker(directory, tokenizer).groups(1, "train", [make_group([1.0], errors=["the judge slept"])])
    rows = pq.read_table(directory.rollouts("train", 1)).to_pylist()
    assert [row["outcome"] for row in rows] == ["accepted", "judge_error"]
    assert [row["reward"] for row in rows] == [1.0, None]
    assert rows[1]["detail"] == "the judge slept"


def test_step_without_samples_has_a_file(directory: RunDir, tokenizer) -> None:
    FileTracker(directory, tokenizer).groups(1, "train", [])
    assert pq.read_table(directory.rollouts("train", 1)).num_rows == 0


def test_metrics_are_one_json_object_per_line(directory: RunDir, tokenizer) -> None:
    tracker = FileTracker(directory, tokenizer)
    tracker.metrics(1, {"a": 0.25})
    tracker.metrics(2, {"b": 1.0})
    assert directory.metrics.read_text() == '{"step": 1, "a": 0.25}\n{"step": 2, "b": 1.0}\n'


def test_non_finite_metric_is_refused(directory: RunDir, tokenizer) -> None:
    with pytest.raises(ValueError, match="JSON"):
        FileTracker(directory, tokenizer).metrics(1, {"a": float("nan")})


def test_full_disk_leaves_whole_lines(directory: RunDir, tokenizer, monkeypatch) -> None:
    tracker = FileTracker(directory, tokenizer)
    tracker.metrics(1, {"a": 0.25})
    real = Path.open

    class Half:
        """A file that accepts half of each write, like a disk that fills up."""

        def __init__(self, file) -> None:
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *error) -> None:
            self.file.close()

        def fileno(self) -> int:
            return self.file.fileno()

        def truncate(self, size: int) -> None:
            os.ftruncate(self.file.fileno(), size)

        def write(self, line: bytes) -> int:
            return self.file.write(line[: len(line) // 2])

    monkeypatch.setattr(Path, "open", lambda path, *rest, **options: Half(real(path, *rest, **options)))
    with pytest.raises(RunDirError, match="is full"):
        tracker.metrics(2, {"a": 0.5})
    monkeypatch.undo()
    assert [json.loads(line) for line in directory.metrics.read_text().splitlines()] == [{"step": 1, "a": 0.25}]


def test_prompt_is_decoded_with_the_tokenizer_of_its_role(directory: RunDir, tokenizer) -> None:
    class Another:
        def decode(self, tokens: list[int]) -> str:
            return f"{len(tokens)} words of another language"

    first = group(tokenizer)
    mine = replace(first, samples=tuple(replace(each, role="coder") for each in first.samples))
    other = replace(first, samples=tuple(replace(each, role="tester") for each in first.samples))
    FileTracker(directory, tokenizer, {"tester": Another()}).groups(1, "train", [mine, other])
    prompts = pq.read_table(directory.rollouts("train", 1))["prompt"].to_pylist()
    count = sum(not each for each in first.samples[0].mask)
    assert prompts == ["what is 1+1?"] * 2 + [f"{count} words of another language"] * 2


def test_token_values_read_back_unchanged(directory: RunDir, tokenizer) -> None:
    logprobs, entropies = np.float32([-0.1, -2.5]), np.float32([0.3, 1.7])
    values = [TokenValues(41, 2, "policy", 1, logprobs, entropies), TokenValues(42, 0, "tester", 0, logprobs[:0], [])]
    FileTracker(directory, tokenizer).token_values(3, values)
    first, second = pq.read_table(directory.token_values("train", 3)).to_pylist()
    assert (first["prompt_index"], first["index"], first["role"], first["turn"]) == (41, 2, "policy", 1)
    assert np.float32(first["trainer_logprobs"]).tobytes() == logprobs.tobytes()
    assert np.float32(first["entropies"]).tobytes() == entropies.tobytes()
    assert (second["role"], second["trainer_logprobs"], second["entropies"]) == ("tester", [], [])
