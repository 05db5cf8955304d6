"""Runs an agent that is a program: its own process group, ended with it.

    OPENAI_BASE_URL, OPENAI_API_KEY, OPENAI_MODEL    the policy, as OpenAI's clients read them
    ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY            the same for Anthropic's
    DOJANG_REWARD_URL                                URL to post {"reward": ...} to
    DOJANG_PROBLEM                                   JSON file: id, messages, columns; never the reference

The last line of its output is its result: {"reward": 1.0, ...} or {"answer": "..."}, or any other text, which is the
answer. No output: the reward that it posted.
"""

import asyncio
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dojang.core.interrupt import CHILD_GROUPS
from dojang.environments.calls import EnvironmentFailed, in_thread
from dojang.environments.policy_server.requests import RequestRefused
from dojang.environments.policy_server.reward import read_reward
from dojang.types import Problem

if TYPE_CHECKING:
    from dojang.environments.agent import AgentConfig
    from dojang.environments.agent_workflow import AgentClient

__all__ = ["run_program"]

_TAIL_BYTES = 1 << 20
_ERROR_CHARS = 300


async def run_program(config: "AgentConfig", problem: Problem, client: "AgentClient") -> object:
    """Runs the program; returns a Step, an answer, or None. Raises EnvironmentFailed if it fails."""
    with tempfile.TemporaryDirectory(prefix="dojang-agent-", ignore_cleanup_errors=True) as folder:
        place = Path(folder)
        (place / "problem.json").write_text(json.dumps(_visible(problem, config.columns), default=str))
        code = await _run(config, place, _environment(client, place / "problem.json"))
        if code is None:
            raise EnvironmentFailed(f"the program took longer than workflow.timeout_s={config.timeout_s:g}")
        if code:
            said = _tail(place / "stderr").strip()[-_ERROR_CHARS:]
            raise EnvironmentFailed(f"the program exited with code {code}: {said}")
        lines = [line for line in _tail(place / "stdout").splitlines() if line.strip()]
        return _result(lines[-1].strip()) if lines else None


async def _run(config: "AgentConfig", place: Path, environment: Mapping[str, str]) -> int | None:
    """Returns the exit code; None after the time limit. Nothing of its process group is left. Its output goes to files:
    a pipe would stay open as long as a process that the program has left behind."""
    with (place / "stdout").open("wb") as output, (place / "stderr").open("wb") as errors:
        try:
            child = subprocess.Popen(
                config.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                env=dict(environment),
                process_group=0,
            )
        except OSError as error:
            raise EnvironmentFailed(f"the program {config.command[0]!r} could not be started: {error}") from error
    CHILD_GROUPS.add(child.pid)
    guard = _guard(child.pid)
    try:
        # WNOWAIT leaves a zombie, so that its process group cannot become that of another program.
        ended = in_thread(os.waitid, os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        await asyncio.wait_for(ended, config.timeout_s)
    except TimeoutError:
        return None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        guard.kill()
        guard.communicate()
        child.wait()
        CHILD_GROUPS.discard(child.pid)
    return child.returncode


def _guard(group: int) -> "subprocess.Popen[bytes]":
    """Starts a shell that kills the process group when this process is gone, also by SIGKILL: its input ends then."""
    script = 'read _; kill -s KILL -- "-$1"'
    return subprocess.Popen(
        ["/bin/sh", "-c", script, "sh", str(group)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )


def _environment(client: "AgentClient", problem: Path) -> dict[str, str]:
    return {
        **os.environ,
        "OPENAI_BASE_URL": client.base_url,
        "OPENAI_API_KEY": client.api_key,
        "OPENAI_MODEL": client.model,
        "ANTHROPIC_BASE_URL": client.server_url,
        "ANTHROPIC_API_KEY": client.api_key,
        "DOJANG_REWARD_URL": client.reward_url,
        "DOJANG_PROBLEM": str(problem),
    }


def _visible(problem: Problem, columns: tuple[str, ...]) -> dict[str, Any]:
    """Returns what a program may know of a problem: not its reference, and only the columns that were named."""
    return {
        "id": problem.id,
        "messages": [{"role": each.role, "content": each.content} for each in problem.messages],
        "columns": {key: value for key, value in problem.columns.items() if key in columns},
    }


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - _TAIL_BYTES))
        return file.read().decode(errors="replace")


def _result(line: str) -> object:
    """Reads the last line of the output."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if not isinstance(found, dict) or not found.keys() & {"reward", "answer"}:
        return line
    if isinstance(answer := found.get("answer"), str) and "reward" not in found:
        return answer
    try:
        return read_reward(found)
    except RequestRefused as error:
        raise EnvironmentFailed(f"the last line of the program's output: {error.message}") from error
