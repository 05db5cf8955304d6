"""Evaluates a model on one dataset or several: `evaluate` and `evaluate_cases`, which `dojang eval` calls.

OUTPUT/settings.json   model and configuration of each case; --resume compares them
OUTPUT/samples.jsonl   one line per completion: prompt, completion, extracted answer, verdict (samples.py)

samples.jsonl grows by one problem at a time, so an interrupted evaluation keeps its samples. With `resume` it goes on
with the problems that are missing. Samples depend only on the seed and the prompt, so the results are those of one
uninterrupted evaluation.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dojang.config.recipe import to_tree
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError
from dojang.core.paths import writable
from dojang.core.run_dir import write_atomic
from dojang.core.section import flatten
from dojang.evaluation.cases import Case
from dojang.evaluation.samples import SampleRecord, read_samples, to_lines, to_records, write_samples
from dojang.loop.scores import Estimate, Scores
from dojang.protocols import Task
from dojang.types import Group, Problem

if TYPE_CHECKING:
    from dojang.evaluation.evaluator import Evaluator

__all__ = ["SAMPLES", "EvalResult", "OnProgress", "evaluate", "evaluate_cases", "holds_evaluation", "open_output"]

SAMPLES, SETTINGS = "samples.jsonl", "settings.json"
_KS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

OnProgress = Callable[[Case, int, int], None]
"""Called after each problem with the case, the number of problems done, and that of all."""


def _quiet(case: Case, done: int, total: int) -> None:
    """Reports nothing."""


@dataclass(frozen=True)
class EvalResult:
    """Result of one evaluation."""

    model: str
    data: str
    shots: int | None
    config: RunConfig
    samples: tuple[SampleRecord, ...]
    """Every completion, in the order of the problems."""
    scores: Scores
    overlong_prompts: int
    """Number of overlong prompts left out."""
    seconds: float
    output: Path | None
    """Directory of samples.jsonl; None if nothing was written."""

    @property
    def accuracy(self) -> Estimate:
        """Mean accuracy over the problems, with its 95% interval."""
        return self.scores.accuracy

    @property
    def reward(self) -> float:
        """Mean reward over the problems."""
        return self.scores.reward

    @property
    def parts(self) -> Mapping[str, float]:
        """Mean of each part of the reward."""
        return self.scores.parts

    @property
    def pass_at(self) -> dict[int, Estimate]:
        """pass@k for the powers of two up to the number of samples per problem."""
        found = {k: self.scores.pass_at(k) for k in _KS if k <= self.config.eval.samples}
        return {k: each for k, each in found.items() if each is not None}

    def as_json(self) -> dict[str, Any]:
        """Returns the entry of results.json."""
        finish = Counter(each.finish for each in self.samples)
        return {
            "data": self.data,
            "shots": self.shots,
            **self.scores.as_json(list(self.pass_at)),
            "finish": {name: count / len(self.samples) for name, count in finish.most_common()},
            "overlong_prompts": self.overlong_prompts,
            "config": to_tree(self.config),
            "answers": [asdict(each) for each in self.scores.answers],
        }


async def evaluate(
    config: RunConfig,
    *,
    problems: Sequence[Problem] | None = None,
    task: Task | None = None,
    output: Path | None = None,
    resume: bool = False,
    on_progress: OnProgress = _quiet,
) -> EvalResult:
    """Evaluates the model of `config.model` on the test split of `config.data`, graded by `config.task`.

    `config.eval` has the number of samples, the temperature and the number of problems; `config.rollout` the engine and
    max_tokens; other sections are not used. `problems` and `task` replace those of the configuration, for problems and
    reward functions made in Python. With `output`, samples are kept there as they come, and `resume` goes on with them.

        config = resolve("my evaluation", {"model": {"name": "dojang-tiny"}, "data": {"name": "arithmetic"}})
        result = await evaluate(config)
        result.accuracy.value, result.samples[0].completion
    """
    case = Case(config.data.name, None, config, problems, task)
    (result,) = await evaluate_cases([case], output=output, resume=resume, on_progress=on_progress)
    return result


async def evaluate_cases(
    cases: Sequence[Case], *, output: Path | None = None, resume: bool = False, on_progress: OnProgress = _quiet
) -> list[EvalResult]:
    """Evaluates one model on several cases, which have the same `model` and `rollout` sections. See `evaluate`."""
    done = open_output(output, cases, resume=resume) if output is not None else []
    from dojang.runs.training import import_build

    try:
        import_build()
        from dojang.evaluation.evaluator import Evaluator

        evaluator = Evaluator(cases[0].config)
        try:
            return [await _evaluate(evaluator, case, done, output, on_progress) for case in cases]
        finally:
            await evaluator.close()
    finally:
        if output is not None:
            _remove_if_empty(output)


async def _evaluate(
    evaluator: "Evaluator", case: Case, done: Iterable[SampleRecord], output: Path | None, on_progress: OnProgress
) -> EvalResult:
    """Evaluates one case, apart from the problems whose samples are `done`."""
    started = time.monotonic()
    samples = [each for each in done if (each.data, each.shots) == (case.data, case.shots)]
    before = {each.prompt_index: each.problem for each in samples}
    finished = len(before)

    def keep(group: Group, task: Task, total: int) -> None:
        nonlocal finished
        records = to_records(case.data, case.shots, group, task)
        samples.extend(records)
        if output is not None:
            write_samples(output / SAMPLES, records)
        finished += 1
        on_progress(case, finished, total)

    overlong = await evaluator.evaluate(case, before, keep)
    samples.sort(key=lambda each: (each.prompt_index, each.sample))
    return EvalResult(
        model=case.config.model.name,
        data=case.data,
        shots=case.shots,
        config=case.config,
        samples=tuple(samples),
        scores=Scores.of_samples(samples),
        overlong_prompts=overlong,
        seconds=time.monotonic() - started,
        output=output,
    )


def open_output(output: Path, cases: Sequence[Case], *, resume: bool) -> list[SampleRecord]:
    """Prepares an output directory. Returns the samples of finished problems, which `resume` keeps.

    Raises ConfigError if the directory is in use, or if resumed settings differ.
    """
    settings = [{"data": each.data, "shots": each.shots, "config": to_tree(each.config)} for each in cases]
    file, samples = output / SETTINGS, output / SAMPLES
    if holds_evaluation(output) and not resume:
        raise ConfigError(
            f"the output directory {output} already holds an evaluation; go on with it (--resume, in Python "
            "resume=True), or choose another"
        )
    kept: list[SampleRecord] = []
    with writable("the output directory", output):
        output.mkdir(parents=True, exist_ok=True)
        if resume and file.exists():
            _check_same(output, json.loads(file.read_text()), settings)
            kept = _whole_problems(read_samples(samples), cases)
            write_atomic(samples, to_lines(kept))
        else:
            write_atomic(file, json.dumps(settings, indent=1).encode())
            samples.touch()
    return kept


def _remove_if_empty(output: Path) -> None:
    """Removes an output directory without samples, so that a corrected command can use it."""
    if not (output / SAMPLES).stat().st_size:
        for name in (SAMPLES, SETTINGS):
            (output / name).unlink()
        with suppress(OSError):  # it has other files
            output.rmdir()


def holds_evaluation(output: Path) -> bool:
    """Whether a directory holds an evaluation, finished or not."""
    return (output / SETTINGS).exists()


def _check_same(output: Path, before: list[Any], now: list[Any]) -> None:
    """Raises ConfigError if an evaluation is resumed with other settings: the samples would not go together."""
    old, new = (
        {f"{each['data']}, {key}": value for each in some for key, value in flatten(each)} for some in (before, now)
    )
    changed = {key: (old.get(key), new.get(key)) for key in {**old, **new} if old.get(key) != new.get(key)}
    if changed:
        listing = "\n".join(f"  - {key}: was {was!r}, now {given!r}" for key, (was, given) in changed.items())
        raise ConfigError(
            f"the evaluation in {output} was started with other settings:\n{listing}\n"
            "give the same ones to resume it, or choose another output directory"
        )


def _whole_problems(records: Iterable[SampleRecord], cases: Sequence[Case]) -> list[SampleRecord]:
    """Returns the records of problems that have all their samples."""
    found: dict[tuple[str, int | None, int], list[SampleRecord]] = {}
    for each in records:
        found.setdefault((each.data, each.shots, each.prompt_index), []).append(each)
    counts = {(each.data, each.shots): each.config.eval.samples for each in cases}
    return [each for key, some in found.items() if len(some) == counts.get(key[:2]) for each in some]
