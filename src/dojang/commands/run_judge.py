"""`dojang judge`: judges one program, serves the judge over HTTP, or tests the judge.

This module does not import torch: these commands also run on machines that only judge.
"""

import asyncio
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from dojang.commands.cli_judge import RunOptions, ServeOptions
from dojang.core.errors import ConfigError, DataError, JudgeError
from dojang.core.paths import cache_root
from dojang.judge.host_capabilities import REMEDIES
from dojang.judge.json_schema import dump
from dojang.judge.languages import LANGUAGES, OTHER_NAMES, language
from dojang.judge.output_diff import Line
from dojang.judge.pool import JudgePool
from dojang.judge.problem_file import Which, read_problem
from dojang.judge.report import report
from dojang.judge.selftest import CheckResult, selftest
from dojang.programs import CallTest, IoTest, Isolation, Judgement, Stop, Submission, TestSuite
from dojang.types import Outcome

if TYPE_CHECKING:
    from dojang.judge.service import ServiceOptions

__all__ = ["NOT_ACCEPTED", "run", "selftest_command", "serve"]


NOT_ACCEPTED = 1
"""Exit code of `judge run` for a program that is not accepted."""
SUFFIXES = {".cpp": "cpp17", ".cc": "cpp17", ".cxx": "cpp17", ".py": "python3"}
MAY_BE_CUT = 3900
"""Bytes from which an output may be cut: a judgement keeps 4000, and the last character may have several bytes."""
WARM_UP = {
    "cpp17": "#include <bits/stdc++.h>\nint main() {}\n",
    "python3": "pass\n",
}
TABLE = "{:8}{:10}{:32}{}"
STYLES = {"ok": "green", "failed": "bold red", "skipped": "yellow"}


def run(file: str, problem: Path, options: RunOptions) -> int:
    """Judges one program, prints the judgement and returns the exit code."""
    name = _language(file, options.language)
    suite = _suite(problem, options.tests.value)
    submission = Submission(name, _source(file), suite, Stop(options.stop))
    judgement, printed = asyncio.run(_judged(_pool(options.isolation, options.packages), submission))
    console = _console()
    if options.as_json:
        sys.stdout.write(dump(judgement).decode() + "\n")
    if judgement.outcome is Outcome.JUDGE_ERROR:
        raise JudgeError(f"{file} could not be judged: {judgement.detail}")
    if not options.as_json:
        _print(console, report(judgement, suite, printed, min(max(console.width, 50), 160) - 10))
    return 0 if judgement.outcome is Outcome.ACCEPTED else NOT_ACCEPTED


def serve(chosen: ServeOptions) -> None:
    """Serves the judge over HTTP until told to stop."""
    from dojang.judge.service import ServiceOptions

    token = os.environ.get(chosen.token_env)
    pool = _pool(chosen.isolation, chosen.packages, chosen.workers, chosen.python)
    level, languages = asyncio.run(asyncio.to_thread(_isolation_and_languages, pool))
    options = ServiceOptions(
        token=token,
        queue=chosen.queue,
        workers=pool.workers,
        isolation=level,
        languages=(*languages, *(name for name, ours in OTHER_NAMES.items() if ours in languages)),
    )
    try:
        asyncio.run(_served(pool, options, chosen.host, chosen.port, languages))
    except ConfigError as error:
        if token is None and "token" in str(error):
            raise ConfigError(f"{error} (the token is read from the environment variable {chosen.token_env})") from None
        raise
    _console().print("closed", highlight=False)


def selftest_command(*, isolation: str, packages: str, as_json: bool) -> None:
    """Tests the judge of this machine. Raises JudgeError if a check fails."""
    pool = _pool(isolation, packages)
    console = _console()
    found = asyncio.run(_tried(pool, None if as_json else console))
    level, offers = pool.isolation, pool.host.features
    failed = [each.name for each in found if each.state == "failed"]
    if as_json:
        lacking = {name: {"why": why, "remedy": REMEDIES[name]} for name, why in offers.items() if why}
        checks = [asdict(each) for each in found]
        sys.stdout.write(json.dumps({"isolation": level, "lacking": lacking, "checks": checks}) + "\n")
    else:
        _print(console, _conclusion(found, level, offers))
    if failed:
        raise JudgeError(
            f"the judge failed {len(failed)} of {len(found)} checks ({', '.join(failed)}); "
            "fix this before you train on its verdicts"
        )


async def _judged(pool: JudgePool, submission: Submission) -> tuple[Judgement, str | None]:
    """Judgement, and the full output of the first wrong test if the judgement cut it."""
    async with pool:
        await asyncio.to_thread(_check_tools, pool, submission)
        judgement = await pool.judge(submission)
        failure = judgement.first_failure
        if failure is None or failure.outcome is not Outcome.WRONG or len(failure.output.encode()) < MAY_BE_CUT:
            return judgement, None
        test = submission.test_suite.tests[failure.test]
        if isinstance(test, CallTest):
            return judgement, None
        again = await pool.run(submission.language, submission.source, test.input, submission.test_suite.limits)
        return judgement, again.stdout.decode(errors="replace") if again.result else None


def _check_tools(pool: JudgePool, submission: Submission) -> None:
    """Checks for missing tools, such as a compiler, which would otherwise look like a failure of the judge."""
    _spec(pool)
    pool.host.check_supported(submission)
    pool.host.launch_spec(submission.language, submission.source)
    checker = submission.test_suite.checker
    if checker.source:
        pool.host.launch_spec(checker.language, checker.source)


def _spec(pool: JudgePool) -> None:
    try:
        _ = pool.isolation, pool.host.spec
    except OSError as error:
        raise ConfigError(
            f"cannot set up the judge: {error} (its cache is {pool.host.cache}; set DOJANG_CACHE for another)"
        ) from error


def _isolation_and_languages(pool: JudgePool) -> tuple[Isolation, list[str]]:
    """Isolation level, and the languages that can be judged."""
    _spec(pool)
    compiled = pool.host.toolchain is not None
    return pool.isolation, [name for name, row in LANGUAGES.items() if compiled or row.kind == "python"]


async def _served(pool: JudgePool, options: "ServiceOptions", host: str, port: int, languages: Iterable[str]) -> None:
    from dojang.judge import server

    warm: list[asyncio.Task[Judgement]] = []

    def announce(url: str) -> None:
        access = "for clients with the token" if options.token else "for all users of this machine"
        _print(
            _console(),
            [
                Line(f"judging at {url} {access}; Ctrl-C stops it", "bold"),
                Line(f"{options.workers} workers, isolation {options.isolation}, languages {', '.join(languages)}"),
            ],
        )
        # Warm up: the first program of a language waits for parts that are built once per machine.
        first = [Submission(name, source, TestSuite((IoTest("", ""),))) for name, source in WARM_UP.items()]
        warm.extend(asyncio.create_task(pool.judge(each)) for each in first if each.language in languages)

    try:
        await server.serve(pool, options, host=host, port=port, announce=announce)
    finally:
        await asyncio.gather(*warm, return_exceptions=True)


async def _tried(pool: JudgePool, console: Console | None) -> list[CheckResult]:
    found = []
    async with pool:
        await asyncio.to_thread(_spec, pool)
        if console is not None:
            _print(console, [Line(TABLE.format("", "language", "check", "meaning of a failure"), "bold")])
        async for each in selftest(pool):
            found.append(each)
            if console is not None:
                _print(console, _row(each))
    return found


def _row(found: CheckResult) -> Iterable[Line]:
    mark = "FAILED" if found.state == "failed" else found.state
    yield Line(TABLE.format(mark, found.language, found.name, found.meaning), STYLES[found.state])
    if found.state == "failed":
        yield Line(f"{'':8}{found.found}")


def _conclusion(found: Iterable[CheckResult], level: Isolation, offers: dict[str, str]) -> Iterable[Line]:
    states = [each.state for each in found]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("ok", "failed", "skipped") if state in states)
    yield Line("")
    yield Line(f"{counts}; isolation {level}", "bold")
    for reason in dict.fromkeys(each.found for each in found if each.state == "skipped"):
        yield Line(f"skipped: {reason}")
    for name, why in offers.items():
        if why:
            yield Line(f"not available here: {name}: {why}. Remedy: {REMEDIES[name]}")


def _language(file: str, given: str) -> str:
    if given:
        language(given)
        return given
    suffix = Path(file).suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(
            f"unknown language of {'standard input' if file == '-' else file}; set --language ({', '.join(LANGUAGES)})"
        )
    return SUFFIXES[suffix]


def _source(file: str) -> str:
    return _decoded("standard input", sys.stdin.buffer.read()) if file == "-" else _text(Path(file))


def _suite(path: Path, tests: Which) -> TestSuite:
    text = _text(path)
    try:
        return read_problem(text.removeprefix("\ufeff"), tests)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _text(path: Path) -> str:
    try:
        return _decoded(str(path), path.read_bytes())
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _decoded(name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8 text: {error.reason} at byte {error.start}; save it as UTF-8") from None


def _pool(isolation: str, packages: str, workers: int = 0, python: str = "") -> JudgePool:
    """Makes the judge; `packages` are separated by commas."""
    names = tuple(name.strip() for name in packages.split(",") if name.strip())
    return JudgePool(cache=cache_root(), workers=workers, isolation=isolation, python=python, packages=names)


def _console() -> Console:
    """Console that escapes characters which the terminal or pipe cannot encode: programs may print anything."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    return Console()


def _print(console: Console, lines: Iterable[Line]) -> None:
    for line in lines:
        console.print(Text(line.text, style=line.style), soft_wrap=True, highlight=False)
