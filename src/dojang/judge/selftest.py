"""Self-test of this machine's judge: verdicts are right, limits hold, and programs cannot break out.

Every program of the table runs through a real pool. The precompiled header must also be visible inside the jail and
usable by the compiler: without it everything works, several times slower.
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
from dojang.programs import IoTest, Isolation, Judgement, Submission, TestSuite
from dojang.types import Outcome

__all__ = ["CheckResult", "selftest"]

State = Literal["ok", "failed", "skipped"]

_HEADER = "#include <bits/stdc++.h>\n"
_SLOW = "C++ programs would compile several times slower"
_COMPILER_S = 60


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check."""

    name: str
    language: str
    state: State
    found: str
    """The outcome; the reason, if it was skipped."""
    meaning: str
    """Consequence if it failed."""


async def selftest(pool: JudgePool) -> AsyncIterator[CheckResult]:
    """Run all checks and yield results in the order of the table. Raises ConfigError without any isolation."""
    unjudgeable = await asyncio.to_thread(_cpp_problem, pool)
    with _secret():
        checks = [*CHECKS, *map(import_check, pool.host.packages)]
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
    """Reason why C++ cannot be judged here; empty if it can. Builds the headers if needed."""
    _ = pool.isolation  # without isolation, Python cannot be judged either
    try:
        pool.host.launch_spec("cpp17", _HEADER)
    except ConfigError as error:
        return str(error)
    return ""


async def _try(pool: JudgePool, check: Check, unjudgeable: str) -> CheckResult:
    if check.language != "python3" and unjudgeable:
        return CheckResult(check.name, check.language, "skipped", unjudgeable, check.meaning)
    if check.escape and pool.isolation is Isolation.NONE:
        return CheckResult(
            check.name, check.language, "skipped", "isolation none does not confine programs", check.meaning
        )
    judgement = await pool.judge(Submission(check.language, check.source, check.test_suite))
    problem = _problem(check, judgement)
    return CheckResult(
        check.name, check.language, "failed" if problem else "ok", problem or _ended(judgement), check.meaning
    )


def _problem(check: Check, judgement: Judgement) -> str:
    told = [
        judgement.detail,
        *(text for result in judgement.results for text in (result.detail, result.output, result.errors)),
    ]
    if check.hides and any(check.hides in text for text in told):
        return f"the judgement reveals the file's content ({check.hides!r})"
    killed = judgement.outcome is Outcome.RUNTIME_ERROR and all(
        result.signal == "SIGSYS" for result in judgement.results
    )
    if judgement.outcome is check.outcome or (check.killed and killed):
        return ""
    return f"expected {check.outcome}, got {_ended(judgement)}"


def _ended(judgement: Judgement) -> str:
    first = judgement.first_failure
    detail = first.detail if first else judgement.detail
    return f"{judgement.outcome}: {detail.strip().splitlines()[0][:200]}" if detail.strip() else str(judgement.outcome)


async def _precompiled(pool: JudgePool, unjudgeable: str) -> CheckResult:
    name = "precompiled header"
    if unjudgeable:
        return CheckResult(name, "cpp17", "skipped", unjudgeable, _SLOW)
    command = (await asyncio.to_thread(pool.host.launch_spec, "cpp17", _HEADER))["commands"][0]
    folder = next((word.removeprefix("-I") for word in command if word.startswith("-I")), "")
    if not folder:
        return CheckResult(name, "cpp17", "failed", "the compile command does not name it", _SLOW)
    # Only the compiler inside the jail can tell that the header is visible; it does not tell whether it is used.
    source = f'{_HEADER}#if !__has_include("{folder}/bits/stdc++.h.gch")\n#error missing\n#endif\nint main() {{}}\n'
    judgement = await pool.judge(Submission("cpp17", source, TestSuite((IoTest("", ""),))))
    if judgement.outcome is not Outcome.ACCEPTED:
        return CheckResult(name, "cpp17", "failed", f"the compiler does not find it: {_ended(judgement)}", _SLOW)
    refusal = await asyncio.to_thread(_refusal, pool)
    return CheckResult(name, "cpp17", "failed" if refusal else "ok", refusal or "found and used", _SLOW)


def _refusal(pool: JudgePool) -> str:
    """Reason why the compiler, outside the jail, does not use the header; empty if it does."""
    tools = pool.host.toolchain
    assert tools is not None
    (command, *_), _ = tools.commands(_HEADER, "gnu++17", tools.headers, shared=False, audit=False)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.cpp").write_text(_HEADER + "int main() {}\n")
        try:
            # -H lists included files and marks a used precompiled header with "!".
            result = subprocess.run([*command, "-H"], capture_output=True, text=True, timeout=_COMPILER_S, cwd=folder)
        except (OSError, subprocess.SubprocessError) as error:
            return f"the compiler cannot be run: {error}"
    used = any(line.startswith("! ") and line.endswith(".gch") for line in result.stderr.splitlines())
    return "" if used else "the compiler does not use it"
