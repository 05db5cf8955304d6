"""Whether the judge of this machine works: right verdicts, limits that hold, and no way out for what it judges.

Every program of the table goes through a real pool. Besides, the precompiled header must be there inside the jail, and
the compiler must take it: without it everything works, at a multiple of the cost.
"""

import asyncio
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dojang.core.errors import ConfigError
from dojang.judge.pool import JudgePool
from dojang.judge.selftest_programs import CHECKS, ENVIRONMENT, Check, import_check
from dojang.programs import Exam, IoTest, Isolation, Judgement, Submission
from dojang.types import Outcome

__all__ = ["Found", "selftest"]

State = Literal["ok", "failed", "skipped"]

_HEADER = "#include <bits/stdc++.h>\n"
_SLOW = "C++ programs would compile several times slower"
_COMPILER_S = 60


@dataclass(frozen=True, slots=True)
class Found:
    """What came of one check."""

    name: str
    language: str
    state: State
    found: str
    """What happened; why, if it was skipped."""
    meaning: str
    """What it means if it failed."""


async def selftest(pool: JudgePool) -> AsyncIterator[Found]:
    """Try everything, and tell it in the order of the table. ConfigError if there is no isolation to be had."""
    unjudgeable = await asyncio.to_thread(_cpp_problem, pool)
    with _secret():
        checks = [*CHECKS, *map(import_check, pool.premises.packages)]
        trials = [asyncio.create_task(_try(pool, check, unjudgeable)) for check in checks]
        trials.append(asyncio.create_task(_precompiled(pool, unjudgeable)))
        try:
            for trial in trials:
                yield await trial
        finally:
            for trial in trials:
                trial.cancel()
            await asyncio.gather(*trials, return_exceptions=True)


@contextmanager
def _secret() -> Iterator[None]:
    name, value = ENVIRONMENT
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def _cpp_problem(pool: JudgePool) -> str:
    """Why C++ cannot be judged here; empty if it can. Builds the headers if need be."""
    _ = pool.isolation  # without one, Python cannot be judged either
    try:
        pool.premises.how_to_run("cpp17", _HEADER)
    except ConfigError as error:
        return str(error)
    return ""


async def _try(pool: JudgePool, check: Check, unjudgeable: str) -> Found:
    if check.language != "python3" and unjudgeable:
        return Found(check.name, check.language, "skipped", unjudgeable, check.meaning)
    if check.escape and pool.isolation is Isolation.NONE:
        return Found(check.name, check.language, "skipped", "isolation none keeps nobody in", check.meaning)
    judgement = await pool.judge(Submission(check.language, check.source, check.exam))
    problem = _problem(check, judgement)
    return Found(check.name, check.language, "failed" if problem else "ok", problem or _ended(judgement), check.meaning)


def _problem(check: Check, judgement: Judgement) -> str:
    told = [judgement.detail, *(text for ran in judgement.ran for text in (ran.detail, ran.output, ran.errors))]
    if check.hides and any(check.hides in text for text in told):
        return f"the judgement tells what is in the file ({check.hides!r})"
    killed = judgement.outcome is Outcome.RUNTIME_ERROR and all(ran.signal == "SIGSYS" for ran in judgement.ran)
    if judgement.outcome is check.outcome or (check.killed and killed):
        return ""
    return f"expected {check.outcome}, got {_ended(judgement)}"


def _ended(judgement: Judgement) -> str:
    first = judgement.first_failure
    detail = first.detail if first else judgement.detail
    return f"{judgement.outcome}: {detail.strip().splitlines()[0][:200]}" if detail.strip() else str(judgement.outcome)


async def _precompiled(pool: JudgePool, unjudgeable: str) -> Found:
    name = "precompiled header"
    if unjudgeable:
        return Found(name, "cpp17", "skipped", unjudgeable, _SLOW)
    command = (await asyncio.to_thread(pool.premises.how_to_run, "cpp17", _HEADER))["commands"][0]
    folder = next((word.removeprefix("-I") for word in command if word.startswith("-I")), "")
    if not folder:
        return Found(name, "cpp17", "failed", "the compiler is not told about it", _SLOW)
    # Only the compiler inside the jail can say whether it is there; it has no words for whether it is used.
    source = f'{_HEADER}#if !__has_include("{folder}/bits/stdc++.h.gch")\n#error missing\n#endif\nint main() {{}}\n'
    judgement = await pool.judge(Submission("cpp17", source, Exam((IoTest("", ""),))))
    if judgement.outcome is not Outcome.ACCEPTED:
        return Found(name, "cpp17", "failed", f"the compiler does not find it: {_ended(judgement)}", _SLOW)
    refusal = await asyncio.to_thread(_refusal, pool)
    return Found(name, "cpp17", "failed" if refusal else "ok", refusal or "found and used", _SLOW)


def _refusal(pool: JudgePool) -> str:
    """Why the compiler, outside the jail, does not take the header; empty if it does."""
    tools = pool.premises.toolchain
    assert tools is not None
    (command, *_), _ = tools.commands(_HEADER, "gnu++17", tools.headers, shared=False, audit=False)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.cpp").write_text(_HEADER + "int main() {}\n")
        try:
            # -H lists what is included, a precompiled header that is used with an exclamation mark.
            result = subprocess.run([*command, "-H"], capture_output=True, text=True, timeout=_COMPILER_S, cwd=folder)
        except (OSError, subprocess.SubprocessError) as error:
            return f"the compiler cannot be asked: {error}"
    used = any(line.startswith("! ") and line.endswith(".gch") for line in result.stderr.splitlines())
    return "" if used else "the compiler does not take it"
