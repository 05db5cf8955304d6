"""The command: gather the problems, audit some at a time, write down what was found.

OUTPUT/report.json     every problem, every finding, every verdict
"""

import asyncio
import json
import os
import signal
from collections.abc import Coroutine, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dojang.audit.answers import AnswerAudit
from dojang.audit.contamination import compare_with
from dojang.audit.findings import DEFAULT_EXCLUDED, FINDINGS, Audited, Thoroughness
from dojang.audit.programs import ProgramAudit
from dojang.audit.report import as_json, show
from dojang.audit.sources import SPLITS, Item, Source, open_source
from dojang.audit.write_clean import keep
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError, DataError, Interrupted
from dojang.core.paths import cache_root, check_vacant, claim
from dojang.data.prepare_rows import Known
from dojang.protocols import Judge
from dojang.tasks.answer_line import AnswerLineConfig
from dojang.tasks.code import CodeConfig, pose
from dojang.tasks.maths import MathsConfig

__all__ = ["DISAGREES", "Wanted", "audit"]

DISAGREES = 1
"""What --strict ends with if verifier and data do not agree."""
_GRAVE = ("unusable", "refused", "accepts_wrong", "unjudged")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked of an audit."""

    place: str = ""
    task: str = ""
    settings: Sequence[str] = ()
    split: str = ""
    problems: int = 10**9
    how: Thoroughness = field(default_factory=Thoroughness)
    against: str = ""
    ngram: int = 13
    overlap: float = 0.3
    output: Path | None = None
    keep: Path | None = None
    exclude: Sequence[str] = DEFAULT_EXCLUDED
    strict: bool = False


class _Audit(Protocol):
    async def audit(self, audited: Audited, known: Known) -> None: ...


def audit(name: str, wanted: Wanted) -> int:
    """All of it; returns the exit code."""
    _check(wanted)
    source = open_source(name, wanted.place, wanted.settings, wanted.task)
    items = [each for each in source.items if wanted.split in ("", each.split)][: wanted.problems]
    if not items:
        raise DataError(f"{name} has no problems{f' in the split {wanted.split}' if wanted.split else ''}")
    audited = [Audited(item.problem, item.split) for item in items]
    if wanted.against:
        compare_with(wanted.against, audited, n=wanted.ngram, share=wanted.overlap)
    output = _claimed(name, wanted)
    console = Console()
    done: list[int] = []
    if not asyncio.run(_finished(_run(source.config, items, audited, wanted.how, done, console))):
        _write(output, source, wanted, [audited[place] for place in sorted(done)], complete=False)
        raise Interrupted(f"interrupted after {len(done)} of {len(items)} problems; what was found is in {output}")
    told = _write(output, source, wanted, audited, complete=True)
    for reason, count in source.dropped.most_common():
        console.print(f"{count:,} rows left aside: {reason}", markup=False, highlight=False)
    show(console, told, audited)
    console.print(f"written to {output}", markup=False, highlight=False, soft_wrap=True)
    if wanted.keep is not None:
        try:
            kept = keep(source, items, audited, wanted.exclude, wanted.keep)
        except OSError as error:
            raise DataError(f"{wanted.keep} cannot be written: {error}") from error
        said = f"{kept:,} of {len(items):,} problems kept in {wanted.keep}"
        console.print(said, markup=False, highlight=False, soft_wrap=True)
    return DISAGREES if wanted.strict and any(name in told["findings"] for name in _GRAVE) else 0


def _check(wanted: Wanted) -> None:
    """What can be said before anything is read."""
    for option, folder in (("--output", wanted.output), ("--keep", wanted.keep)):
        if folder is not None:
            check_vacant(option, folder)
    if wanted.split not in ("", *SPLITS):
        raise ConfigError(f"--split {wanted.split} is none of {', '.join(SPLITS)}")
    if wanted.keep is not None and wanted.problems < 10**9:
        raise ConfigError("--keep writes what was audited, which must then be all of it; leave out --problems")
    if unknown := [each for each in wanted.exclude if each not in FINDINGS]:
        raise ConfigError(f"--exclude {', '.join(unknown)}: findings are {', '.join(FINDINGS)}")


def _claimed(name: str, wanted: Wanted) -> Path:
    """The directory for the report, which is there from now on: what cannot be written is known before the work is
    done, and two audits at once do not choose the same one."""
    try:
        for folder in filter(None, (wanted.output, wanted.keep)):
            folder.mkdir(parents=True, exist_ok=True)
        return wanted.output or claim(Path("audits"), Path(name).name or "data")
    except OSError as error:
        raise DataError(f"{error.filename} cannot be written: {error.strerror}") from error


async def _finished(work: Coroutine[Any, Any, None]) -> bool:
    """Do the work; False if Ctrl-C has cut it short. Another Ctrl-C does not cut short what is done in the end."""
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: task.cancelling() or task.cancel())
    try:
        await task
    except asyncio.CancelledError:
        return False
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    return True


async def _run(
    config: RunConfig,
    items: Sequence[Item],
    audited: Sequence[Audited],
    how: Thoroughness,
    done: list[int],
    console: Console,
) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    judge = config.judge.make(cache_root())
    try:
        auditor, at_a_time = await _auditor(config, items, judge, how)
        turns = asyncio.Semaphore(at_a_time)
        with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
            bar = progress.add_task("audit", total=len(items))

            async def one(place: int) -> None:
                async with turns:
                    await auditor.audit(audited[place], items[place].known)
                done.append(place)
                progress.advance(bar)

            await asyncio.gather(*map(one, range(len(items))))
    finally:
        await judge.close()


async def _auditor(config: RunConfig, items: Sequence[Item], judge: Judge, how: Thoroughness) -> tuple[_Audit, int]:
    """Who audits such problems, and how many at a time."""
    cores = len(os.sched_getaffinity(0))
    task = config.task
    if isinstance(task, CodeConfig):
        for language in sorted({*_languages(task, items), "python3"}):
            await config.judge.check(judge, language)
        return ProgramAudit(task, judge, how), 2 * (config.judge.workers or cores)
    problems = {"audit": [item.problem for item in items]}
    if isinstance(task, MathsConfig):
        return AnswerAudit(task.make(problems), "maths", task.timeout_s, how), task.workers or cores
    assert isinstance(task, AnswerLineConfig)
    return AnswerAudit(task.make(problems), "answer_line", task.timeout_s, how), cores


def _languages(task: CodeConfig, items: Sequence[Item]) -> set[str]:
    """Of problems with programs to try; those that cannot be judged are found later."""
    found = set()
    for item in items:
        if item.known.good or item.known.bad:
            try:
                found.add(pose(task, item.problem).language)
            except ValueError:
                continue
    return found


def _write(
    output: Path, source: Source, wanted: Wanted, audited: Sequence[Audited], *, complete: bool
) -> dict[str, Any]:
    about = {
        "data": source.name,
        "task": source.config.task.model_dump(mode="json"),
        "how": {
            **asdict(wanted.how),
            **({"against": wanted.against, "ngram": wanted.ngram, "overlap": wanted.overlap} if wanted.against else {}),
        },
        "rows_left_aside": source.dropped,
    }
    told = as_json(about, audited, complete=complete)
    try:
        (output / "report.json").write_text(json.dumps(told, indent=1) + "\n")
    except OSError as error:
        raise DataError(f"{output} cannot be written: {error}") from error
    return told
