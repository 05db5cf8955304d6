"""The commands around the judge: judge one program, serve others, and test the judge itself.

Nothing here loads torch: these commands are also for machines that only judge.
"""

import asyncio
import json
import os
import sys
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rich.console import Console
from rich.text import Text

from dojang.core.errors import ConfigError, DataError, Interrupted, JudgeError
from dojang.core.paths import cache_root
from dojang.judge.host_capabilities import REMEDIES
from dojang.judge.json_schema import dump_judgement
from dojang.judge.languages import LANGUAGES, OTHER_NAMES, language
from dojang.judge.output_diff import Line
from dojang.judge.pool import JudgePool
from dojang.judge.problem_file import Which, read_problem
from dojang.judge.report import report
from dojang.judge.selftest import Found, selftest
from dojang.programs import CallTest, Exam, IoTest, Isolation, Judgement, Stop, Submission
from dojang.types import Outcome

if TYPE_CHECKING:
    from dojang.judge.service import ServiceOptions

__all__ = ["NOT_ACCEPTED", "run", "selftest_command", "serve"]

T = TypeVar("T")

NOT_ACCEPTED = 1
"""What `judge run` ends with when the program was judged and is not right."""
SUFFIXES = {".cpp": "cpp17", ".cc": "cpp17", ".cxx": "cpp17", ".py": "python3"}
KEPT = 3900
"""An output of this many bytes may be cut: a judgement keeps 4000, and the last character may be more than one."""
WARM_UP = {
    "cpp17": "#include <bits/stdc++.h>\nint main() {}\n",
    "python3": "pass\n",
}
TABLE = "{:8}{:10}{:32}{}"
STYLES = {"ok": "green", "failed": "bold red", "skipped": "yellow"}


def run(
    file: str,
    problem: Path,
    *,
    language_name: str,
    tests: Which,
    isolation: str,
    packages: Sequence[str],
    stop: str,
    as_json: bool,
) -> int:
    """Judge one program and show what came of it. Returns the exit code."""
    chosen = _language(file, language_name)
    exam = _exam(problem, tests)
    submission = Submission(chosen, _source(file), exam, Stop(stop))
    judgement, printed = _waiting_for(_judged(_pool(isolation, packages), submission))
    console = _console()
    if as_json:
        sys.stdout.write(dump_judgement(judgement).decode() + "\n")
    if judgement.outcome is Outcome.JUDGE_ERROR:
        raise JudgeError(f"{file} could not be judged: {judgement.detail}")
    if not as_json:
        _print(console, report(judgement, exam, printed, min(max(console.width, 50), 160) - 10))
    return 0 if judgement.outcome is Outcome.ACCEPTED else NOT_ACCEPTED


def serve(
    *,
    host: str,
    port: int,
    workers: int,
    queue: int,
    isolation: str,
    python: str,
    packages: Sequence[str],
    token_env: str,
) -> None:
    """Judge for others until told to stop."""
    from dojang.judge.service import ServiceOptions

    token = os.environ.get(token_env)
    pool = _pool(isolation, packages, workers, python)
    level, languages = _waiting_for(asyncio.to_thread(_looked_over, pool))
    options = ServiceOptions(
        token=token,
        queue=queue,
        workers=pool.workers,
        isolation=level,
        languages=(*languages, *(name for name, ours in OTHER_NAMES.items() if ours in languages)),
    )
    try:
        _waiting_for(_served(pool, options, host, port, languages))
    except ConfigError as error:
        if token is None and "token" in str(error):
            raise ConfigError(f"{error} (the token is read from the environment variable {token_env})") from None
        raise
    _console().print("closed", highlight=False)


def selftest_command(*, isolation: str, packages: Sequence[str], as_json: bool) -> None:
    """Try the judge of this machine. JudgeError if it does not do what it should."""
    pool = _pool(isolation, packages)
    console = _console()
    found = _waiting_for(_tried(pool, None if as_json else console))
    level, offers = pool.isolation, pool.premises.offers
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
            "do not train on its verdicts before that is put right"
        )


async def _judged(pool: JudgePool, submission: Submission) -> tuple[Judgement, str | None]:
    """The judgement, and all that the first wrong test printed if the judgement does not keep all of it."""
    async with pool:
        await asyncio.to_thread(_prepared, pool, submission)
        judgement = await pool.judge(submission)
        failure = judgement.first_failure
        if failure is None or failure.outcome is not Outcome.WRONG or len(failure.output.encode()) < KEPT:
            return judgement, None
        test = submission.exam.tests[failure.test]
        if isinstance(test, CallTest):
            return judgement, None
        again = await pool.run(submission.language, submission.source, test.input, submission.exam.limits)
        return judgement, again.stdout.decode(errors="replace") if again.ran else None


def _prepared(pool: JudgePool, submission: Submission) -> None:
    """Find out now what would otherwise look like a failure of the judge: a compiler that is not there, say."""
    _spec(pool)
    pool.premises.refuse_unfit(submission)
    pool.premises.how_to_run(submission.language, submission.source)
    checker = submission.exam.checker
    if checker.source:
        pool.premises.how_to_run(checker.language, checker.source)


def _spec(pool: JudgePool) -> None:
    try:
        _ = pool.isolation, pool.premises.spec
    except OSError as error:
        raise ConfigError(
            f"the judge cannot be set up: {error} (its cache is {pool.premises.cache}; DOJANG_CACHE names another)"
        ) from error


def _looked_over(pool: JudgePool) -> tuple[Isolation, list[str]]:
    """What programs will be kept in by, and which languages can be judged."""
    _spec(pool)
    compiled = pool.premises.toolchain is not None
    return pool.isolation, [name for name, row in LANGUAGES.items() if compiled or row.kind == "python"]


async def _served(pool: JudgePool, options: "ServiceOptions", host: str, port: int, languages: Iterable[str]) -> None:
    from dojang.judge import server

    warm: list[asyncio.Task[Judgement]] = []

    def announce(url: str) -> None:
        access = "for those who have the token" if options.token else "for everybody on this machine"
        _print(
            _console(),
            [
                Line(f"judging at {url} {access}; Ctrl-C ends it", "bold"),
                Line(f"{options.workers} workers, isolation {options.isolation}, languages {', '.join(languages)}"),
            ],
        )
        # The first program of a language waits for what is made once per machine; better this one than a client's.
        first = [Submission(name, source, Exam((IoTest("", ""),))) for name, source in WARM_UP.items()]
        warm.extend(asyncio.create_task(pool.judge(each)) for each in first if each.language in languages)

    try:
        await server.serve(pool, options, host=host, port=port, announce=announce)
    finally:
        await asyncio.gather(*warm, return_exceptions=True)


async def _tried(pool: JudgePool, console: Console | None) -> list[Found]:
    found = []
    async with pool:
        await asyncio.to_thread(_spec, pool)
        if console is not None:
            _print(console, [Line(TABLE.format("", "language", "what is tried", "what a failure would mean"), "bold")])
        async for each in selftest(pool):
            found.append(each)
            if console is not None:
                _print(console, _row(each))
    return found


def _row(found: Found) -> Iterable[Line]:
    mark = "FAILED" if found.state == "failed" else found.state
    yield Line(TABLE.format(mark, found.language, found.name, found.meaning), STYLES[found.state])
    if found.state == "failed":
        yield Line(f"{'':8}{found.found}")


def _conclusion(found: Iterable[Found], level: Isolation, offers: dict[str, str]) -> Iterable[Line]:
    states = [each.state for each in found]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("ok", "failed", "skipped") if state in states)
    yield Line("")
    yield Line(f"{counts}; isolation {level}", "bold")
    for reason in dict.fromkeys(each.found for each in found if each.state == "skipped"):
        yield Line(f"skipped: {reason}")
    for name, why in offers.items():
        if why:
            yield Line(f"not to be had here: {name}: {why}. Remedy: {REMEDIES[name]}")


def _language(file: str, given: str) -> str:
    if given:
        language(given)
        return given
    suffix = Path(file).suffix.lower()
    if suffix not in SUFFIXES:
        raise ConfigError(
            f"the language of {'standard input' if file == '-' else file} is not known; "
            f"name it with --language ({', '.join(LANGUAGES)})"
        )
    return SUFFIXES[suffix]


def _source(file: str) -> str:
    return _decoded("standard input", sys.stdin.buffer.read()) if file == "-" else _text(Path(file))


def _exam(path: Path, tests: Which) -> Exam:
    text = _text(path)
    try:
        return read_problem(text.removeprefix("\ufeff"), tests)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _text(path: Path) -> str:
    try:
        return _decoded(str(path), path.read_bytes())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error


def _decoded(name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8 text: {error.reason} at byte {error.start}; save it as UTF-8") from None


def _pool(isolation: str, packages: Sequence[str], workers: int = 0, python: str = "") -> JudgePool:
    return JudgePool(cache=cache_root(), workers=workers, isolation=isolation, python=python, packages=packages)


def _waiting_for(work: Coroutine[Any, Any, T]) -> T:
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        raise Interrupted("interrupted") from None


def _console() -> Console:
    """What programs print may be anything; a terminal or pipe that cannot take it must not end the command."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    return Console()


def _print(console: Console, lines: Iterable[Line]) -> None:
    for line in lines:
        console.print(Text(line.text, style=line.style), soft_wrap=True, highlight=False)
