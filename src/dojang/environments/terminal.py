"""A terminal as a tool: shell commands in a sandbox with a task's files; the task's verifier gives the reward.

The verifier runs apart (judge/verifier.py): after all processes of the agent are dead, in another sandbox. Errors of
commands are told to the model. A failure of a sandbox fails the episode, which is not trained on.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from dojang.core.errors import ConfigError
from dojang.data.agent_task import AgentTask, RefusedTask, TaskFile, read_agent_task
from dojang.environments.base import Environment, Messages, Reply, Step, StepResult
from dojang.environments.calls import in_thread
from dojang.environments.sandboxed_section import SandboxedSection
from dojang.environments.tools import ToolEnvironment
from dojang.judge.host_capabilities import HostCapabilities
from dojang.judge.python_session import session_host
from dojang.judge.sandbox.file_tree import FileTree
from dojang.judge.sandbox.untrusted_client import HIDDEN
from dojang.judge.shell_sandbox import FilesTooLarge, ShellLimits, ShellOutput, ShellSandbox, visible_paths
from dojang.judge.supervised_worker import WorkerFailed
from dojang.judge.verifier import Verifier, VerifierRun
from dojang.protocols import Task
from dojang.types import Outcome, Problem, Verdict

__all__ = ["Terminal", "TerminalConfig"]

_MOST_COMMAND = 100_000
"""Longest command in bytes: it is one argument of a program."""


class TerminalConfig(SandboxedSection):
    """A terminal as a tool: shell commands in a sandbox, and a verifier that runs apart."""

    name: Literal["terminal"] = "terminal"
    max_turns: int = Field(default=16, ge=1, le=10_000)
    cpu_s: float = Field(default=60.0, ge=0.01, le=3600)
    """Limit of CPU seconds per command, of all its processes together."""
    wall_s: float = Field(default=120.0, ge=0.1, le=3600)
    """Limit of seconds for the commands of one reply, on the clock."""
    memory_mb: int = Field(default=1024, ge=64, le=2**20)
    """Limit of memory in MiB per command, of all its processes together."""
    disk_mb: int = Field(default=256, ge=16, le=2**20)
    """Limit of all files in the sandbox in MiB. They are in memory."""
    files_mb: int = Field(default=64, ge=1, le=512)
    """Limit of the working directory in MiB when the episode ends; a larger one is a reward of 0."""
    output_chars: int = Field(default=4000, ge=200, le=1_000_000)
    """Longest result of a command in characters; longer ones are cut in the middle."""
    verifier_s: float = Field(default=600.0, ge=1, le=3600)
    """Limit of seconds for a verifier, on the clock and of CPU time; the task's own limit if that is shorter."""
    python: str = ""
    """Path to the interpreter of agent and verifier, with all its packages. Empty uses the interpreter that dojang's
    environment was made with."""

    @model_validator(mode="after")
    def _has_time(self) -> "TerminalConfig":
        if self.timeout_s <= self.wall_s + self.verifier_s:
            raise ValueError(
                f"timeout_s={self.timeout_s:g} must be longer than wall_s and verifier_s together "
                f"({self.wall_s + self.verifier_s:g}), or a slow verifier would fail the episode"
            )
        return self

    def environment(self) -> Environment:
        return Terminal(self)

    def host(self) -> HostCapabilities:
        """Returns the capabilities of this machine."""
        return session_host("auto", self.python, ())

    def shell_limits(self) -> ShellLimits:
        """Returns the limits of the agent's sandbox."""
        return ShellLimits(self.cpu_s, self.wall_s, self.memory_mb, disk_mb=self.disk_mb, files_mb=self.files_mb)

    def check_problems(self, task: Task, problems: Sequence[Problem]) -> None:
        """Raises ConfigError if commands or verifiers cannot be run on this machine."""
        tasks = [_load(each) for each in problems]
        seen = visible_paths(self.host())
        for problem in problems:
            folder = _reference(problem)["path"]
            if shown := [path for path in seen if folder == path or folder.startswith(path + "/")]:
                raise ConfigError(f"agents could read the tests in {folder}, as they see {shown[0]}; move the tasks")
        needs = [each.name for each in tasks if _uses_pytest(each)]
        largest = self.files_mb * 2**20
        if large := [each.name for each in tasks if sum(len(file.content) for file in each.files.values()) > largest]:
            raise ConfigError(
                f"{', '.join(large)}: the files are larger than workflow.files_mb={self.files_mb}, so no verifier "
                "could run; raise it"
            )
        for workdir in {each.workdir for each in tasks}:
            self._try_sandbox(workdir, needs[0] if needs else "")

    def _try_sandbox(self, workdir: str, uses_pytest: str) -> None:
        found = "echo $((6 * 7))" + (" && python3 -c 'import pytest'" if uses_pytest else "")
        try:
            sandbox = ShellSandbox(self.host(), "verifier", workdir, self.shell_limits())
            with closing(sandbox):
                ended = sandbox.run(["/bin/bash", "-c", found], 1000, 60.0)
        except WorkerFailed as error:
            raise ConfigError(f"workflow.name=terminal: commands cannot be run here: {error}") from error
        if not ended.text.startswith("42\n"):
            raise ConfigError(f"workflow.name=terminal: commands cannot be run here: {ended.killed or ended.text}")
        if ended.status != 0:
            raise ConfigError(
                f"the tests of {uses_pytest} need pytest, which {self.host().python.command[0]} does not have; set "
                "workflow.python to an interpreter that has it"
            )


class Terminal(ToolEnvironment):
    """Offers `bash`."""

    def __init__(self, config: TerminalConfig) -> None:
        self._config = config
        self.most_chars = config.output_chars
        self._sandbox: ShellSandbox | None = None
        self._verifier: Verifier | None = None
        self._closed = False
        self._deadline = 0.0
        self._task: AgentTask

    def tools(self) -> Sequence[Callable[..., Any]]:
        return [self.bash]

    def reset(self, problem: Problem) -> Messages:
        self._task = _load(problem)
        self._sandbox = ShellSandbox(self._config.host(), "agent", self._task.workdir, self._config.shell_limits())
        self._sandbox.put(self._task.workdir, _tree(self._task.files))
        return problem.messages

    async def step(self, reply: Reply) -> StepResult:
        self._deadline = time.monotonic() + self._config.wall_s
        found = await super().step(reply)
        return found if isinstance(found, Verdict) else Step(messages=found, if_last=self._verdict)  # type: ignore[arg-type]

    async def answer(self, reply: Reply) -> StepResult:
        return await self._verdict()

    def bash(self, command: str) -> str:
        """
        Runs a shell command in the working directory and returns its output. Files are kept between calls.

        Args:
            command: The command, for bash. Processes that it leaves in the background end with it.
        """
        try:
            size = len(command.encode())
        except UnicodeEncodeError:
            return "error: the command has half of a surrogate pair, which is no text"
        if "\0" in command or size > _MOST_COMMAND:
            return f"error: a command has at most {_MOST_COMMAND} bytes, and no NUL characters"
        left = self._deadline - time.monotonic()
        if left <= 0:
            return f"error: the commands of this reply took longer than {self._config.wall_s:g} s"
        if self._sandbox is None:
            raise WorkerFailed("the sandbox is closed")
        most = self._config.output_chars - 200
        return _told(self._sandbox.run(["/bin/bash", "-c", command], most, left, self._task.variables))

    async def _verdict(self) -> Verdict:
        """Runs the verifier on the files that the agent leaves."""
        verdict: Verdict = await in_thread(self._verify)
        return verdict

    def _verify(self) -> Verdict:
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is None:
            raise WorkerFailed("the sandbox is closed")
        try:
            files = sandbox.get(self._task.workdir)
        except FilesTooLarge as error:
            return Verdict(Outcome.WRONG, 0.0, detail=f"the working directory cannot be verified: {error}")
        finally:
            sandbox.close()  # all processes of the agent are dead before the verifier starts
        task, config = self._task, self._config
        seconds = min(config.verifier_s, task.verifier_timeout_s)
        limits = replace(config.shell_limits(), cpu_s=seconds, wall_s=seconds)
        hidden = {HIDDEN: ",".join(task.verifier_variables)} if task.verifier_variables else {}
        variables = {**task.variables, **task.verifier_variables, **hidden}
        self._verifier = Verifier(config.host(), VerifierRun(_tree(task.tests), files, task.workdir, limits, variables))
        if self._closed:
            raise WorkerFailed("the environment is closed")
        found = self._verifier.verify()
        left_out = f"\nleft out: {'; '.join(files.left_out)}" if files.left_out else ""
        outcome = Outcome.ACCEPTED if found.reward >= 1 else Outcome.WRONG
        return Verdict(outcome, found.reward, parts=found.parts, detail=found.detail + left_out)

    def close(self) -> None:
        self._closed = True
        if self._verifier is not None:
            self._verifier.close()
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None


def _reference(problem: Problem) -> Mapping[str, str]:
    found = problem.reference
    if not isinstance(found, Mapping) or not {"path", "digest"} <= set(found):
        raise ConfigError("workflow.name=terminal needs task folders: set data.name=agent_tasks and data.path")
    return found


def _uses_pytest(task: AgentTask) -> bool:
    script = task.tests.get("test.sh")
    return script is None or b"pytest" in script.content


def _load(problem: Problem) -> AgentTask:
    """Reads the task of a problem again, where the episode is played."""
    reference = _reference(problem)
    try:
        task = read_agent_task(Path(reference["path"]))
    except (RefusedTask, OSError) as error:
        raise ConfigError(f"{reference['path']}: the task cannot be read: {error}") from None
    if task.digest != reference["digest"]:
        raise ConfigError(f"{reference['path']}: the task has changed since the run began; put it back, or start anew")
    return task


def _tree(files: Mapping[str, TaskFile]) -> FileTree:
    entries = [{"path": name, "kind": "file", "executable": file.executable} for name, file in files.items()]
    return FileTree(entries, [file.content for file in files.values()])


def _told(ended: ShellOutput) -> str:
    """Describes the result of a command to the model."""
    if ended.killed:
        return f"{ended.text}\nerror: {ended.killed}; the command was ended".lstrip("\n")
    if ended.status == 0:
        return ended.text or "(no output)"
    how = f"exit code {ended.status}" if ended.status > 0 else f"signal {-ended.status}"
    return f"{ended.text}\n({how})".lstrip("\n")
