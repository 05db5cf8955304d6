"""SandboxFusion's `/run_code` protocol: request, reply, and their mapping to the judge.

Its clients (veRL among them) send one program and one standard input at a time and compare the output themselves.
Files, command-line arguments, Jupyter and other languages are not supported: the reply is a SandboxError that says
so, which clients count as an infrastructure error.
"""

import json
from dataclasses import dataclass, field
from signal import Signals
from typing import Annotated, Any

from pydantic import Field

from dojang.judge.execution import Execution
from dojang.programs import Limits, TestResult
from dojang.types import Outcome

__all__ = ["RunCodeRequest", "run_code_reply", "sandbox_error"]

UNLIMITED_MB = 2048
"""Memory limit for requests without one."""
INTERPRETED = ("python", "python3")

Seconds = Annotated[float, Field(ge=0.1, le=3600.0, allow_inf_nan=False)]


@dataclass(frozen=True)
class RunCodeRequest:
    """SandboxFusion's request. Unknown fields are ignored, as SandboxFusion does."""

    code: str
    language: str
    stdin: str | None = None
    compile_timeout: Seconds = 10.0
    run_timeout: Seconds = 10.0
    memory_limit_MB: Annotated[int, Field(le=2**20)] = -1
    files: dict[str, str | None] = field(default_factory=dict)
    fetch_files: list[str] = field(default_factory=list)
    args: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if 0 < self.memory_limit_MB < 8:
            raise ValueError(f"memory_limit_MB={self.memory_limit_MB} is too small; choose 8 or more, or -1")

    @property
    def limits(self) -> Limits:
        """run_timeout is wall time there; here it limits CPU time and idle time separately."""
        return Limits(
            cpu_s=self.run_timeout,
            wall_s=self.run_timeout,
            memory_mb=self.memory_limit_MB if self.memory_limit_MB > 0 else UNLIMITED_MB,
            compile_s=self.compile_timeout,
        )

    def unsupported(self, languages: tuple[str, ...]) -> str:
        """Unsupported features of the request; empty if none."""
        if self.language not in languages:
            return f"language {self.language!r} is not supported; this judge runs {', '.join(languages)}"
        asked = [name for name in ("files", "fetch_files", "args") if getattr(self, name)]
        return f"{' and '.join(asked)} not supported by this judge; send an empty value" if asked else ""


def sandbox_error(message: str) -> bytes:
    return _reply("SandboxError", message, None, None)


def run_code_reply(language: str, done: Execution) -> bytes:
    """Convert an execution to SandboxFusion's reply."""
    if done.outcome is Outcome.JUDGE_ERROR:
        why = done.result.detail if done.result is not None else ""
        return sandbox_error(why or done.compile_log or "the judge failed")
    if language in INTERPRETED:  # no compile step there: a syntax error is a failed run
        if done.compiled:
            return _reply(_status(done), "", None, _run_result(done))
        return _reply("Failed", "", None, _result("Finished", 0.0, 1, b"", done.compile_log.encode("utf-8", "replace")))
    return _reply(_status(done), "", _compile_result(done), _run_result(done))


def _status(done: Execution) -> str:
    return "Success" if done.compiled and _ended_well(done) else "Failed"


def _ended_well(done: Execution) -> bool:
    return done.outcome in (Outcome.ACCEPTED, Outcome.WRONG)  # the client compares the output


def _compile_result(done: Execution) -> dict[str, Any]:
    log = done.compile_log.encode("utf-8", "replace")
    if done.compiled:
        return _result("Finished", None, 0, b"", log)
    if done.outcome is Outcome.TIME_LIMIT:
        return _result("TimeLimitExceeded", None, None, b"", log)
    return _result("Finished", None, 1, b"", log)


def _run_result(done: Execution) -> dict[str, Any] | None:
    if done.result is None:
        return None
    if done.outcome is Outcome.TIME_LIMIT:
        return _result("TimeLimitExceeded", done.result.wall_s, None, done.stdout, done.stderr)
    code = 0 if _ended_well(done) else _failure_code(done.result)
    return _result("Finished", done.result.wall_s, code, done.stdout, done.stderr or done.result.detail.encode())


def _failure_code(result: TestResult) -> int:
    """Exit code as in subprocess: minus the signal's number. Never 0, which would mean success."""
    if result.signal is not None:
        return -Signals[result.signal] if result.signal in Signals.__members__ else -Signals.SIGKILL
    return result.exit_code or 1


def _result(status: str, seconds: float | None, code: int | None, stdout: bytes, stderr: bytes) -> dict[str, Any]:
    return {
        "status": status,
        "execution_time": seconds,
        "return_code": code,
        "stdout": stdout.decode("utf-8", "replace"),
        "stderr": stderr.decode("utf-8", "replace"),
    }


def _reply(
    status: str, message: str, compile_result: dict[str, Any] | None, run_result: dict[str, Any] | None
) -> bytes:
    reply = {
        "status": status,
        "message": message,
        "compile_result": compile_result,
        "run_result": run_result,
        "executor_pod_name": None,
        "files": {},
    }
    return json.dumps(reply).encode()
