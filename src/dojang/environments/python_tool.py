"""Python as a tool: a sandboxed interpreter that keeps its variables during an episode; the task grades the answer.

Mistakes of the code (exceptions, limits) are told to the model. A failure of the sandbox fails the episode, which is
not trained on.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic import Field

from dojang.core.errors import ConfigError
from dojang.environments.base import Environment
from dojang.environments.section import EnvironmentSection
from dojang.environments.tools import ToolEnvironment
from dojang.judge.host_capabilities import HostCapabilities
from dojang.judge.python_session import PythonSession, session_host
from dojang.judge.worker_handle import WorkerFailed
from dojang.programs import Limits
from dojang.protocols import Task
from dojang.types import Problem

__all__ = ["PythonTool", "PythonToolConfig"]


class PythonToolConfig(EnvironmentSection):
    """Python as a tool: a sandboxed interpreter that keeps its variables during an episode."""

    name: Literal["python_tool"] = "python_tool"
    cpu_s: float = Field(default=5.0, ge=0.01, le=3600)
    """Limit of CPU seconds per call; twice as much for sleeping."""
    memory_mb: int = Field(default=512, ge=8, le=2**20)
    """Limit of memory in MiB."""
    isolation: Literal["auto", "namespaces", "landlock", "seccomp", "none"] = "auto"
    """Isolation of the interpreter, as judge.isolation: auto takes the strongest level this machine supports."""
    python: str = ""
    """Path to the interpreter, with all its packages. Empty uses dojang's interpreter without its packages."""
    packages: list[str] = Field(default_factory=list)
    """Packages that code may import, by import name, as judge.packages."""

    def environment(self) -> Environment:
        return PythonTool(self._host(), Limits(cpu_s=self.cpu_s, memory_mb=self.memory_mb))

    def check_problems(self, task: Task, problems: Sequence[Problem]) -> None:
        """Raises ConfigError if code cannot be run on this machine."""
        super().check_problems(task, problems)
        session = PythonSession(self._host(), Limits(cpu_s=max(5.0, self.cpu_s)))
        try:
            found = session.run("".join(f"import {name}\n" for name in self.packages) + "6 * 7")
        except WorkerFailed as error:
            raise ConfigError(f"workflow.name=python_tool: code cannot be run here: {error}") from error
        finally:
            session.close()
        if found.text != "42\n":
            raise ConfigError(f"workflow.name=python_tool: code cannot be run here: {found.ended or found.text}")

    def _host(self) -> HostCapabilities:
        return session_host(self.isolation, self.python, tuple(self.packages))


class PythonTool(ToolEnvironment):
    """Offers `python`."""

    def __init__(self, host: HostCapabilities, limits: Limits) -> None:
        self._session = PythonSession(host, limits)

    def tools(self) -> Sequence[Callable[..., Any]]:
        return [self.python]

    def python(self, code: str) -> str:
        """
        Runs Python code and returns what it prints. Variables are kept between calls.

        Args:
            code: The code. The value of a last expression is printed.
        """
        if not isinstance(code, str):
            return "error: the code must be text"
        try:
            found = self._session.run(code)
        except ValueError as error:
            return f"error: {error}"
        if found.ended:
            return f"error: {found.ended}; the interpreter was restarted, and all variables are lost"
        return found.text or "(no output)"

    def close(self) -> None:
        self._session.close()
