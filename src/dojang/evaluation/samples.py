"""samples.jsonl: one line per completion, with its prompt and its verdict."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from dojang.core.errors import DataError
from dojang.core.paths import writable
from dojang.core.run_dir import append_whole
from dojang.protocols import Task
from dojang.types import Finish, Group, Problem, Sample

__all__ = ["SampleRecord", "read_samples", "to_lines", "to_records", "write_samples"]


@runtime_checkable
class ExtractsAnswer(Protocol):
    """A Task that can say which part of a completion it grades."""

    def extract(self, problem: Problem, text: str) -> str | None:
        """Answer in a completion, as it is graded; None without one."""


@dataclass(frozen=True, slots=True)
class SampleRecord:
    """One completion of an evaluation, with its prompt and its verdict."""

    data: str
    """Dataset, as named in the results."""
    shots: int | None
    """Number of few-shot examples; None if the dataset has none."""
    prompt_index: int
    """Index of the problem among those evaluated."""
    problem: str
    """Id of the problem."""
    source: str
    tier: str
    sample: int
    """Index of the sample among those of its problem."""
    prompt: Sequence[Mapping[str, str]]
    """Messages {role, content}."""
    completion: str
    answer: str | None
    """Answer extracted from the completion: the answer line, the program, ...; None without one."""
    reference: str | None
    """Reference answer, if it is text or a number; tests of programs are not repeated here."""
    outcome: str
    """accepted, wrong, no_answer, ...; judge_error if it could not be judged."""
    reward: float | None
    """None if it could not be judged."""
    parts: Mapping[str, float]
    """Each reward before its weight."""
    passed: int
    """Tests passed, of `total`."""
    total: int
    detail: str
    """The judge's reason."""
    finish: Finish
    """stop, or length if the completion was cut at max_tokens."""
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    """Time of grading."""
    isolation: str
    """Sandbox isolation of the judged program."""


def to_records(data: str, shots: int | None, group: Group, task: Task) -> list[SampleRecord]:
    """Returns the records of a group, in the order of its samples."""
    samples = sorted((*group.samples, *group.unjudged), key=lambda each: each.index)
    return [_record(data, shots, group, sample, task) for sample in samples]


def _record(data: str, shots: int | None, group: Group, sample: Sample, task: Task) -> SampleRecord:
    problem, verdict = group.problem, sample.verdict
    known = isinstance(problem.reference, str | int | float)
    return SampleRecord(
        data=data,
        shots=shots,
        prompt_index=group.prompt_index,
        problem=problem.id,
        source=problem.source,
        tier=problem.tier,
        sample=sample.index,
        prompt=[{"role": each.role, "content": each.content} for each in problem.messages],
        completion=sample.text,
        answer=task.extract(problem, sample.text) if isinstance(task, ExtractsAnswer) else None,
        reference=str(problem.reference) if known else None,
        outcome=verdict.outcome.value,
        reward=verdict.reward,
        parts=dict(verdict.parts),
        passed=verdict.passed,
        total=verdict.total,
        detail=verdict.detail,
        finish=sample.finish,
        prompt_tokens=len(sample.tokens) - sample.response_length,
        completion_tokens=sample.response_length,
        seconds=verdict.seconds,
        isolation=verdict.isolation,
    )


def write_samples(path: Path, records: Sequence[SampleRecord]) -> None:
    """Appends records as lines, all or none of them, so that an interrupted evaluation keeps whole problems."""
    with writable("--output", path):
        append_whole(path, to_lines(records))


def to_lines(records: Sequence[SampleRecord]) -> bytes:
    return "".join(json.dumps(asdict(each)) + "\n" for each in records).encode()


def read_samples(path: Path) -> Iterator[SampleRecord]:
    """Yields the records of a file; of a last line that was cut off by a crash, nothing."""
    names = {each.name for each in fields(SampleRecord)}
    lines = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
    for number, line in enumerate(lines[:-1], start=1):  # whole lines end with a newline
        try:
            found: dict[str, Any] = json.loads(line)
            yield SampleRecord(**{name: found[name] for name in names})
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path}, line {number} is not a sample of `dojang eval` ({error!r})") from None
