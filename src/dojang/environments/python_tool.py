"""Python as a tool: a sandboxed interpreter that keeps its variables during an episode; the task grades the answer.

The model calls it in the format of its chat template, or writes blocks of ```python, as models without tool calls can.
Mistakes of the code (exceptions, limits) are told to the model. A failure of the sandbox fails the episode, which is
not trained on.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from dojang.core.errors import ConfigError
from dojang.core.section import Section
from dojang.data.section import number_of
from dojang.environments.base import Environment, Messages, Reply, StepResult
from dojang.environments.calls import in_thread
from dojang.environments.sandboxed_section import SandboxedSection
from dojang.environments.tools import ToolEnvironment, shortened
from dojang.judge.host_capabilities import HostCapabilities
from dojang.judge.python_session import PythonSession, session_host
from dojang.judge.worker_handle import WorkerFailed
from dojang.programs import Limits
from dojang.protocols import Task
from dojang.tasks.extract import final_fence
from dojang.tasks.stop_lines import or_after_fence
from dojang.types import Message, Problem, StopLine

__all__ = ["PythonBlocks", "PythonTool", "PythonToolConfig", "ToolExample"]

_LANGUAGE = "python3"
_BLOCKS_PROMPT = """\
You can run Python code. Write it in one block that begins with ```python and ends with ```; print what you want to \
see, and end your message there. The next message shows what it printed. Variables are kept."""


class ToolExample(Section):
    """A problem solved with one block of code."""

    question: str
    """Question of the user."""
    code: str
    """Code of the first reply, without its fence."""
    output: str
    """Text that the code prints."""
    answer: str
    """Last reply, in the form that the task grades."""

    @field_validator("*")
    @classmethod
    def _says_something(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("must have text")
        return text

    def messages(self, reminder: str) -> list[Message]:
        """Returns its turns; `reminder` follows the output."""
        return [
            _asking(Message("user", self.question)),
            Message("assistant", f"```python\n{self.code.strip()}\n```"),
            Message("user", _printed(self.output, reminder)),
            Message("assistant", self.answer),
        ]


class PythonToolConfig(SandboxedSection):
    """Python as a tool: a sandboxed interpreter that keeps its variables during an episode."""

    name: Literal["python_tool"] = "python_tool"
    call_format: Literal["tool_call", "code_block"] = "tool_call"
    """How the model runs code. tool_call: tool calls of its chat template. code_block: a block of ```python ends the
    reply, and the next message of the user has what it printed; for models without tool calls."""
    examples: list[ToolExample] = Field(default_factory=list)
    """Solved problems before the question, as turns of the conversation (few-shot); for call_format=code_block."""
    examples_share: float = Field(default=1.0, ge=0, le=1)
    """Share of the problems that have the examples; the others are asked without. Decided by the problem."""
    reminder: str = ""
    """Text after the output of each block of code, such as the form of the answer; for call_format=code_block."""
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

    @model_validator(mode="after")
    def _only_with_blocks(self) -> Self:
        for name in ("examples", "reminder"):
            if getattr(self, name) and self.call_format == "tool_call":
                raise ValueError(f"{name} is for blocks of code; set call_format=code_block, or remove it")
        if self.examples_share < 1 and not self.examples:
            raise ValueError("examples_share is the share of problems with examples; add examples, or remove it")
        return self

    def environment(self) -> Environment:
        host, limits = self._host(), Limits(cpu_s=self.cpu_s, memory_mb=self.memory_mb)
        if self.call_format == "tool_call":
            return PythonTool(host, limits)
        return PythonBlocks(host, limits, self)

    def stop_line(self, of_task: StopLine | None) -> StopLine | None:
        return of_task if self.call_format == "tool_call" else or_after_fence(of_task, _LANGUAGE)

    def check_problems(self, task: Task, problems: Sequence[Problem]) -> None:
        """Raises ConfigError if code cannot be run on this machine, or if it cannot be told from answers."""
        if self.call_format == "code_block" and getattr(task, "languages", None):
            raise ConfigError(
                "workflow.call_format=code_block runs blocks of code, so answers that are programs would never be "
                "graded; use workflow.name=repair, where the judge runs them and the model may try again, or "
                "workflow.call_format=tool_call"
            )
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
        return session_host(self.isolation, self.python, tuple(self.packages), "workflow")


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
        return self._run(code)

    def _run(self, code: str) -> str:
        try:
            found = self._session.run(code)
        except ValueError as error:
            return f"error: {error}"
        if found.ended:
            return f"error: {found.ended}; the interpreter was restarted, and all variables are lost"
        return found.text or "(no output)"

    def close(self) -> None:
        self._session.close()


class PythonBlocks(PythonTool):
    """Runs the fenced block of Python code that ends a reply. A reply without one is the answer."""

    def __init__(self, host: HostCapabilities, limits: Limits, config: PythonToolConfig) -> None:
        super().__init__(host, limits)
        self._config = config

    def tools(self) -> Sequence[Callable[..., Any]]:
        return []

    def reset(self, problem: Problem) -> Messages:
        *before, question = problem.messages
        system = [each for each in before if each.role == "system"]
        examples = [
            message for example in self._examples_of(problem) for message in example.messages(self._config.reminder)
        ]
        turns = [each for each in before if each.role != "system"]
        return [*system, *examples, *turns, _asking(question)]

    async def step(self, reply: Reply) -> StepResult:
        program = final_fence(reply.text, _LANGUAGE)
        if program is None:
            return await self._answered(reply)
        printed = shortened(await in_thread(self._run, program), self.most_chars)
        return _printed(printed, self._config.reminder)

    def _examples_of(self, problem: Problem) -> Sequence[ToolExample]:
        chosen = number_of(f"examples of {problem.id}") < self._config.examples_share * 2**64
        return self._config.examples if chosen else ()


def _asking(question: Message) -> Message:
    """Says how to run code, at the end of the question: small models follow what they read last."""
    return Message(question.role, f"{question.content}\n\n{_BLOCKS_PROMPT}")


def _printed(text: str, reminder: str) -> str:
    return f"```output\n{text.rstrip()}\n```" + (f"\n\n{reminder}" if reminder else "")
