"""Runs an audit: reads the problems, audits several at a time, writes the report.

OUTPUT/report.json     every problem, every finding, every verdict
"""

import asyncio
import json
import os
import signal
from collections.abc import Coroutine, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console

from dojang.audit.answers import AnswerAudit
from dojang.audit.contamination import compare_with
from dojang.audit.findings import DEFAULT_EXCLUDED, FINDINGS, Audited
from dojang.audit.options import AuditOptions, AuditSettings
from dojang.audit.programs import ProgramAudit
from dojang.audit.report import as_json, show
from dojang.audit.sources import SPLITS, Item, Source, open_source
from dojang.audit.write_clean import write_clean
from dojang.config.run_config import RunConfig
from dojang.core.errors import ConfigError, DataError, Interrupted
from dojang.core.paths import cache_root, check_vacant, claim
from dojang.core.progress import ProgressBars
from dojang.data.prepare_rows import KnownAnswers
from dojang.protocols import Judge
from dojang.tasks.section import AuditableSection, TaskSection

__all__ = ["DISAGREES", "audit"]

DISAGREES = 1
"""Exit code of --strict if verifier and data disagree."""
_SEVERE = ("unusable", "refused", "accepts_wrong", "unjudged")


class _Audit(Protocol):
    async def audit(self, audited: Audited, known: KnownAnswers) -> None: ...


def audit(name: str, overrides: Sequence[str], options: AuditOptions) -> int:
    """Runs the audit; returns the exit code."""
    excluded = options.exclude.split(",") if options.exclude else DEFAULT_EXCLUDED
    _check(options, excluded)
    source = open_source(name, options.place, overrides, options.task)
    items = [each for each in source.items if options.split in ("", each.split)][: options.problems]
    if not items:
        raise DataError(f"{name} has no problems{f' in the split {options.split}' if options.split else ''}")
    audited = [Audited(item.problem, item.split) for item in items]
    if options.against:
        compare_with(options.against, audited, n=options.ngram, share=options.overlap)
    output = _claimed(name, options)
    console = Console()
    done: list[int] = []
    if not asyncio.run(_finished(_run(source.config, items, audited, options, done, console))):
        _write(output, source, options, [audited[place] for place in sorted(done)], complete=False)
        raise Interrupted(f"interrupted after {len(done)} of {len(items)} problems; findings so far are in {output}")
    report = _write(output, source, options, audited, complete=True)
    for reason, count in source.dropped.most_common():
        console.print(f"{count:,} rows skipped: {reason}", markup=False, highlight=False)
    show(console, report, audited)
    console.print(f"written to {output}", markup=False, highlight=False, soft_wrap=True)
    if options.keep is not None:
        try:
            kept = write_clean(source, items, audited, excluded, options.keep)
        except OSError as error:
            raise DataError(f"{options.keep} cannot be written: {error}") from error
        said = f"{kept:,} of {len(items):,} problems kept in {options.keep}"
        console.print(said, markup=False, highlight=False, soft_wrap=True)
    return DISAGREES if options.strict and any(name in report["findings"] for name in _SEVERE) else 0


def _check(options: AuditOptions, excluded: Sequence[str]) -> None:
    """Validates options before reading anything."""
    for option, folder in (("--output", options.output), ("--keep", options.keep)):
        if folder is not None:
            check_vacant(option, folder)
    if options.split not in ("", *SPLITS):
        raise ConfigError(f"--split {options.split} is not one of {', '.join(SPLITS)}")
    if options.keep is not None and options.problems < 10**9:
        raise ConfigError("--keep needs an audit of all problems; leave out --problems")
    if unknown := [each for each in excluded if each not in FINDINGS]:
        raise ConfigError(f"--exclude {', '.join(unknown)}: findings are {', '.join(FINDINGS)}")


def _claimed(name: str, options: AuditOptions) -> Path:
    """Creates and returns the report directory before the work starts: an unwritable path fails early, and two
    concurrent audits do not choose the same directory."""
    try:
        for folder in filter(None, (options.output, options.keep)):
            folder.mkdir(parents=True, exist_ok=True)
        return options.output or claim(Path("audits"), Path(name).name or "data")
    except OSError as error:
        raise DataError(f"{error.filename} cannot be written: {error.strerror}") from error


async def _finished(work: Coroutine[Any, Any, None]) -> bool:
    """Awaits the work; returns False if Ctrl-C cancelled it. A second Ctrl-C does not interrupt the cleanup."""
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
    settings: AuditSettings,
    done: list[int],
    console: Console,
) -> None:
    judge = config.judge.make(cache_root())
    try:
        auditor, at_a_time = await _auditor(config, items, judge, settings)
        turns = asyncio.Semaphore(at_a_time)
        with ProgressBars(console) as bars:

            async def one(place: int) -> None:
                async with turns:
                    await auditor.audit(audited[place], items[place].known)
                done.append(place)
                bars.update("audit", len(done), len(items))

            await asyncio.gather(*map(one, range(len(items))))
    finally:
        await judge.close()


async def _auditor(
    config: RunConfig, items: Sequence[Item], judge: Judge, settings: AuditSettings
) -> tuple[_Audit, int]:
    """Returns the auditor for the task, and the number of problems to audit at a time."""
    cores = len(os.sched_getaffinity(0))
    task = config.task
    if task.runs_programs:
        for language in sorted({*_languages(task, items), "python3"}):
            await config.judge.check(judge, language)
        return ProgramAudit(task, judge, settings), 2 * (config.judge.workers or cores)
    problems = {"audit": [item.problem for item in items]}
    assert isinstance(task, AuditableSection), "open_source refuses others"
    return AnswerAudit(task.make(problems), task, settings), task.worker_processes() or cores


def _languages(task: TaskSection, items: Sequence[Item]) -> set[str]:
    """Returns the languages of problems with known programs; the audit reports unusable problems later."""
    found = set()
    for item in items:
        if item.known.good or item.known.bad:
            try:
                found.add(task.judge_input(item.problem).language)
            except ValueError:
                continue
    return found


def _write(
    output: Path, source: Source, options: AuditOptions, audited: Sequence[Audited], *, complete: bool
) -> dict[str, Any]:
    about = {
        "data": source.name,
        "task": source.config.task.model_dump(mode="json"),
        "how": {
            **{each.name: getattr(options, each.name) for each in fields(AuditSettings)},
            **(
                {"against": options.against, "ngram": options.ngram, "overlap": options.overlap}
                if options.against
                else {}
            ),
        },
        "rows_left_aside": source.dropped,
    }
    report = as_json(about, audited, complete=complete)
    try:
        (output / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    except OSError as error:
        raise DataError(f"{output} cannot be written: {error}") from error
    return report
