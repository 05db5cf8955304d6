"""Records a run: metrics.jsonl, and rollouts in one Parquet file per step or evaluation."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerBase

from dojang.core.rollout_schema import rollout_schema, token_values_schema
from dojang.core.run_dir import RunDir, append_whole, disk_errors, write_atomic
from dojang.protocols import TokenValues
from dojang.track.config import TestResults
from dojang.types import Group, Metrics, Outcome, Sample, TestResult

__all__ = ["FileTracker"]

_FLOATS: Any = {
    "compression": "zstd",
    "use_dictionary": ["role"],
    "use_byte_stream_split": ["trainer_logprobs.list.element", "entropies.list.element"],
}
"""Settings of a file of floats: bytes of the same place in each number are compressed together."""
_GROUP_ROWS = 128
"""Rows per row group: a reader of one sample, as `dojang view`, decodes its group only, and in S3 reads no more."""
NONE: Mapping[str, PreTrainedTokenizerBase] = MappingProxyType({})


class FileTracker:
    """A Tracker that writes into a run directory."""

    def __init__(
        self,
        directory: RunDir,
        tokenizer: PreTrainedTokenizerBase,
        others: Mapping[str, PreTrainedTokenizerBase] = NONE,
        test_results: TestResults = "all",
    ) -> None:
        """`others` maps roles to their tokenizers, where they differ from `tokenizer`. `test_results`: which results of
        tests to write."""
        self._directory = directory
        self._tokenizer = tokenizer
        self._others = others
        self._test_results = test_results

    def metrics(self, step: int, values: Metrics) -> None:
        line = json.dumps({"step": step, **values}, allow_nan=False) + "\n"
        with disk_errors(self._directory.path):
            append_whole(self._directory.metrics, line.encode())

    def groups(self, step: int, split: str, groups: Sequence[Group]) -> None:
        rows = [self._row(step, group, sample) for group in groups for sample in (*group.samples, *group.unjudged)]
        table = pa.Table.from_pylist(rows, schema=rollout_schema())
        write_atomic(
            self._directory.rollouts(split, step),
            lambda path: pq.write_table(table, path, compression="zstd", row_group_size=_GROUP_ROWS),
        )

    def token_values(self, step: int, values: Sequence[TokenValues]) -> None:
        columns = {
            **{name: [getattr(each, name) for each in values] for name in ("prompt_index", "index", "role", "turn")},
            "trainer_logprobs": [each.logprobs for each in values],
            "entropies": [each.entropies for each in values],
        }
        table = pa.Table.from_pydict(columns, schema=token_values_schema())
        write_atomic(self._directory.token_values("train", step), partial(pq.write_table, table, **_FLOATS))

    def close(self) -> None:
        return None

    def _row(self, step: int, group: Group, sample: Sample) -> dict[str, Any]:
        first = int(sample.mask.argmax()) if sample.mask.any() else len(sample.tokens)
        prompt = sample.tokens[:first].tolist()
        return {
            "step": step,
            "prompt_index": group.prompt_index,
            "index": sample.index,
            "problem": group.problem.id,
            "data_source": group.problem.source,
            "question": group.problem.messages[-1].content,
            "prompt": self._others.get(sample.role, self._tokenizer).decode(prompt),
            "response": sample.text,
            "tokens": sample.tokens.tolist(),
            "mask": sample.mask.tolist(),
            "logprobs": sample.logprobs.tolist(),
            "response_length": sample.response_length,
            "version": sample.version,
            "finish": sample.finish,
            "role": sample.role,
            "turn": sample.turn,
            "outcome": str(sample.verdict.outcome),
            "reward": sample.verdict.reward,
            "reward_parts": list(sample.verdict.parts.items()),
            "passed": sample.verdict.passed,
            "total": sample.verdict.total,
            "advantage": sample.advantage,
            "detail": sample.verdict.detail,
            "isolation": sample.verdict.isolation,
            "turns": [asdict(each) for each in sample.turns],
            "spans": [asdict(each) for each in sample.spans],
            "tests": [_test_row(each) for each in self._recorded(sample.verdict.tests)],
        }

    def _recorded(self, tests: Sequence[TestResult]) -> Sequence[TestResult]:
        if self._test_results == "failed":
            return [each for each in tests if each.outcome is not Outcome.ACCEPTED]
        return tests if self._test_results == "all" else ()


def _test_row(result: TestResult) -> dict[str, Any]:
    return {**asdict(result), "outcome": str(result.outcome)}
