"""Sizes that bench/recording.py reports, of files whose content is known."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from dojang.core.run_dir import RunDir
from dojang.protocols import TokenValues
from dojang.track.file_tracker import FileTracker
from recording import column_bytes, record_rows
from rollout_files import row, write


def test_bytes_per_thousand_tokens(tmp_path: Path, tokenizer) -> None:
    directory, random = RunDir(tmp_path), np.random.default_rng(0)
    size = 500
    long = {"tokens": [0, *range(size)], "mask": [False, *[True] * size], "logprobs": [0.0, *random.normal(size=size)]}
    for step in (1, 2):
        write(tmp_path, "train", step, [row(step, index, **long) for index in range(2)])
        values = [
            TokenValues(index, index, "policy", 0, *random.normal(size=(2, size)).astype("f")) for index in (0, 1)
        ]
        FileTracker(directory, tokenizer).token_values(step, values)
    directory.timeline.write_text("x" * 300)
    found = {(each.case, each.subject): each for each in record_rows(directory)}
    files = [directory.rollouts("train", step) for step in (1, 2)]
    recorded = found["size on disk", "token values"]
    assert recorded.baseline_value == pytest.approx(sum(path.stat().st_size for path in files) / 2)  # 2,000 tokens
    assert recorded.value > 8_000 * 0.8  # random float32 hardly shrink
    assert recorded.ratio == pytest.approx(recorded.baseline_value / recorded.value)
    assert found["size on disk", "rollouts, column logprobs"].value > 4_000
    assert "150 bytes per step" in found["size on disk", "timeline.jsonl"].notes
    assert found["logprobs", "plain"].ratio == 1
    metadata = pq.read_metadata(files[0]).row_group(0)
    assert sum(column_bytes(files[:1]).values()) == sum(
        metadata.column(place).total_compressed_size for place in range(metadata.num_columns)
    )
